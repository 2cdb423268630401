"""A query, its hand-over and its end as callers see them; and what Spark says of a trigger.

Queries are stand-ins; tests/spark/test_tuning.py and test_ticks.py have real ones. Progress is as
Spark writes it, Kafka's offsets as its documentation shows them.
"""

from __future__ import annotations

import json
import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headgate.commit.facts import TriggerFacts
from headgate.errors import EngineError, SinkFailed
from headgate.runtime.session import Interrupted
from headgate.runtime.stream import Epochs, EpochStream, last_trigger, offset_of
from waiting import PATIENCE_S, wait_until


def nothing() -> None:
    pass


class Query:
    """Ends when it is stopped; a wait in its own thread is interrupted then."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.status = {"message": "Waiting for data to arrive"}

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def awaitTermination(self, timeout: float = PATIENCE_S) -> bool:
        return self._ended.wait(timeout)

    def processAllAvailable(self) -> None:
        self._ended.wait(PATIENCE_S)

    def stop(self) -> None:
        self._ended.set()


class InterruptedSleep(Py4JJavaError):
    """As Py4J tells it, with a Java stack that is long."""

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        told = "An error occurred while calling z:java.lang.Thread.sleep.\n"
        return told + ": java.lang.InterruptedException: sleep interrupted" + "\n\tat a.B(C)" * 500


class Running:
    """A stream over stand-ins that start one after the other; `told` are the rows asked for."""

    def __init__(self, *queries: Query | Exception, ends: bool = False) -> None:
        self.first, self.queries, self.told = queries[0], list(queries), list[int | None]()
        lang = SimpleNamespace(Thread=SimpleNamespace(sleep=self._sleep))
        context: Any = SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=lang)))
        self.stream = EpochStream("f", self._start, context, ends=ends)

    def begin(self, first: Any = nothing, beside: Any = nothing, at_end: Any = nothing) -> Any:
        self.stream.begin(first, beside, at_end)
        return self.stream

    def _start(self, rows: int | None) -> Any:
        self.told.append(rows)
        started = self.queries.pop(0)
        if isinstance(started, Exception):
            raise started
        return started

    def _sleep(self, milliseconds: int) -> None:
        assert isinstance(self.first, Query) and self.first.awaitTermination(milliseconds / 1e3)
        raise InterruptedSleep


def hand_over(stream: Any, rows: int = 50) -> None:
    with pytest.raises(Interrupted):
        stream.in_epoch(lambda: stream.hand_over(rows))


def test_who_waits_for_the_end_waits_for_the_second_query() -> None:
    first, second = Query(), Query()
    running = Running(first, second)
    stream = running.begin()
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(stream.await_end()))
    waiting.start()
    hand_over(stream)

    assert stream.await_end(0.01) is False and stream.is_active
    assert running.told == [None, 50] and ended == []
    assert stream._follows(first) and stream.query is second
    second.stop()
    waiting.join(PATIENCE_S)
    assert ended == [True] and not stream.is_active and stream.failure is None


@pytest.mark.parametrize("how", ["in the epoch", "before it"])
def test_what_spark_hears_of_a_stop_is_short_and_says_so(how: str) -> None:
    """With the Java stack Spark's own overflowed, at every stop and hand-over."""
    first = Query()
    stream = Running(first).begin()
    stop = threading.Thread(target=stream.stop)

    def work() -> None:
        assert how == "in the epoch", "a stop has been asked for; no epoch may begin"
        stop.start()
        assert first.awaitTermination()
        raise InterruptedSleep

    if how == "before it":
        first.status["message"] = "Writing offsets to log"  # so the stop waits for the epoch
        stop.start()
        wait_until(lambda: stream.is_ending, "the stop to begin")
    with pytest.raises(Exception, match="InterruptedException") as heard:
        stream.in_epoch(work)
    stop.join(PATIENCE_S)

    proxied = "py4j.protocol.Py4JJavaError: An error occurred while calling"  # Spark's words
    assert str(heard.value).startswith(proxied)
    assert len(str(heard.value)) < 200 and heard.value.__suppress_context__
    assert not stream.is_active and stream.failure is None


def test_a_stop_of_sparks_own_query_is_one_too() -> None:
    first = Query()
    stream = Running(first).begin()

    def work() -> None:
        first.stop()
        raise InterruptedSleep

    with pytest.raises(Interrupted):
        stream.in_epoch(work)
    assert stream.await_end(PATIENCE_S) and stream.failure is None


def test_an_error_of_ours_reaches_spark_without_its_stack() -> None:
    stream = Running(Query()).begin()
    problem = SinkFailed("no database", sink="out")
    problem.__cause__ = OSError()

    def work() -> None:
        raise problem

    with pytest.raises(SinkFailed, match="no database") as heard:
        stream.in_epoch(work)

    assert heard.value is not problem and heard.value.sink == "out"
    assert heard.value.__cause__ is None and heard.value.__suppress_context__
    stream.stop()


def test_a_start_that_fails_ends_the_flow_and_says_why() -> None:
    stream = Running(Query(), OSError("no such topic")).begin()
    hand_over(stream)

    assert stream.await_end(PATIENCE_S) is True
    assert isinstance(stream.failure, EngineError)
    assert "no such topic" in str(stream.failure)


def test_after_a_stop_nothing_is_handed_over() -> None:
    first = Query()
    stream = Running(first).begin()
    stream.stop()

    stream.hand_over(50)  # returns: there is nothing to wait for

    assert stream.query is first and not stream.is_active and stream.is_ending


@pytest.mark.parametrize("ends", [True, False])
def test_work_at_the_end_belongs_to_queries_that_end_by_themselves(ends: bool) -> None:
    first = Query()
    done: list[str] = []
    stream = Running(first, ends=ends).begin(
        lambda: done.append("first"), nothing, lambda: done.append(f"end {stream.is_active}")
    )
    first.stop()

    assert stream.await_end(PATIENCE_S)
    assert done == (["first", "end True"] if ends else ["first"])


def test_nothing_is_done_at_the_end_after_a_stop_or_an_error() -> None:
    def never() -> None:
        raise AssertionError("the query did not end by itself")

    stopped = Running(Query(), ends=True).begin(at_end=never)
    stopped.stop()
    assert stopped.failure is None

    class Failing(Query):
        def awaitTermination(self, timeout: float = PATIENCE_S) -> bool:
            raise StreamingQueryException("the disk is full")

    failed = Running(Failing(), ends=True).begin(at_end=never)
    assert failed.await_end(PATIENCE_S) and "disk" in str(failed.failure)


@pytest.mark.parametrize("when", ["first", "beside", "at_end"])
def test_what_work_beside_the_query_raises_ends_it(when: str) -> None:
    first = Query()
    if when == "at_end":
        first.stop()

    def fail() -> None:
        raise SinkFailed("no database")

    stream = Running(first, ends=True).begin(**{when: fail})

    assert stream.await_end(PATIENCE_S) and isinstance(stream.failure, SinkFailed)
    assert not first.isActive


class Coordinator:
    """Runs an epoch as it is told; `ticks` counts those of the driver's own."""

    def __init__(self, run_epoch: Any) -> None:
        self.run_epoch, self.ticks = run_epoch, 0
        self.checkpoint = SimpleNamespace(storage=SimpleNamespace(uri="/c"))
        self.program = SimpleNamespace(graph=SimpleNamespace(name="f"))
        self.last = SimpleNamespace(used_watermark_us=None, watermark_us=None)

    def tick(self, run: Any, *, silent: bool) -> Any:
        self.ticks += 1
        return SimpleNamespace(epoch=self.ticks)


def epochs_of(coordinator: Any, stream: EpochStream) -> Epochs:
    context = SimpleNamespace(setLocalProperty=lambda name, value: None)
    engine: Any = SimpleNamespace(spark=SimpleNamespace(sparkContext=context))
    return Epochs(coordinator, engine, stream, tick=True, tick_every_s=0.0)


def test_an_epoch_that_a_stop_interrupts_is_not_followed_by_a_tick() -> None:
    stopped, query = threading.Event(), Query()
    query.status["isDataAvailable"] = False
    query.id, query.runId, query.lastProgress = "q", "r", None

    def interrupted(*_: Any) -> None:
        running.set()
        assert stopped.wait(PATIENCE_S)
        raise Interrupted

    running, coordinator = threading.Event(), Coordinator(interrupted)
    stream = Running(query).stream
    stream.query = query
    epochs = epochs_of(coordinator, stream)
    frame: Any = None

    def epoch() -> None:
        with pytest.raises(Interrupted):
            epochs._run(frame, 0, "q", ("q", "r"))

    threads = [threading.Thread(target=epoch), threading.Thread(target=epochs.tick_if_idle)]
    threads[0].start()
    assert running.wait(PATIENCE_S)
    threads[1].start()
    threads[1].join(0.2)
    stopped.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert coordinator.ticks == 0

    epochs.tick_if_idle()
    assert coordinator.ticks == 1


def test_a_batch_that_fails_while_its_stop_waits_says_so() -> None:
    def fails(*_: Any) -> None:
        wait_until(lambda: stream.is_ending, "the stop to begin")
        raise OSError("the disk is full")

    context: Any = None
    stream = EpochStream("f", None, context)
    epochs = epochs_of(Coordinator(fails), stream)
    frame: Any = None
    stream.begin(lambda: epochs.run_batch(frame), nothing, nothing)
    stream.stop()

    assert isinstance(epochs.failure, EngineError)
    assert str(epochs.failure) == "OSError: the disk is full"


def progress(
    *offsets: tuple[Any, Any], batch: int = 6, durations: dict[str, int] | None = None
) -> StreamingQueryProgress:
    rates = {"numInputRows": 10, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    sources = [
        {"description": "s", "startOffset": None, "endOffset": end, "latestOffset": latest} | rates
        for end, latest in offsets
    ]
    known = durations or {"addBatch": 900, "walCommit": 20, "triggerExecution": 1_172}
    told = {
        "id": str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": batch,
        "batchDuration": 1_172,
        "durationMs": known,
        "stateOperators": [],
        "sources": sources,
        "sink": {"description": "x", "numOutputRows": -1},
    }
    return StreamingQueryProgress.fromJson(told | rates)


def test_a_source_that_reports_no_latest_offset_says_only_how_long_it_took():
    assert last_trigger(progress(('{"logOffset": 3}', None)), 7) == TriggerFacts(1_172)


@pytest.mark.parametrize(
    ("end", "waits"),
    [({"posts": {"0": 5, "1": 9}}, True), ({"posts": {"1": 9, "0": 7}}, False)],
    ids=["behind", "abreast"],
)
def test_a_source_whose_end_is_not_its_latest_offset_has_rows_that_wait(end, waits):
    latest = {"posts": {"0": 7, "1": 9}}

    assert last_trigger(progress((end, latest)), 7).last_rows_wait is waits
    both = progress(('{"logOffset": 3}', None), (end, latest))
    assert last_trigger(both, 7).last_rows_wait is waits


@pytest.mark.parametrize("offset", [None, 7, {"posts": {"0": 5, "it's": None}}, [True, "a"]])
def test_an_offset_is_read_as_json_and_as_python_prints_it(offset):
    assert offset_of(json.dumps(offset)) == offset_of(str(offset)) == offset


def test_nothing_is_said_of_any_other_trigger():
    assert last_trigger(None, 7) == TriggerFacts()
    assert last_trigger(progress(batch=5), 7) == TriggerFacts()
    idle = {"latestOffset": 3, "triggerExecution": 5}
    assert last_trigger(progress(durations=idle), 7) == TriggerFacts()
