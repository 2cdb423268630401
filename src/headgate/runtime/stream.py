"""The epochs of a flow, one at a time, and Spark's streaming query that calls for them.

Spark runs nothing while a stream is idle: windows that the last rows completed would wait for the
next row, keys would not expire. A *tick* is an epoch without rows that the driver runs itself,
unknown to Spark's checkpoint, so it can be turned on and off (docs/decisions/0024-ticks.md).

Spark reads a source's limit when a query starts, so another limit needs another start. `hand_over`
makes it between two epochs: the epoch is committed in our manifest, its function has not returned,
and the query is stopped there. That is what a driver that dies at `files-collected` leaves behind:
the next start gets that batch once more, finds its manifest, runs nothing, and plans the following
one with the new limit. Executors, Python workers, anchors and warm copies stay.
"""

from __future__ import annotations

import ast
import copy
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.commit.coordinator import Coordinator, EngineAborted, RunTasks
from headgate.commit.epoch_record import EpochResult
from headgate.commit.facts import EpochFacts, TriggerFacts
from headgate.commit.planning import Decision
from headgate.control.tuner import SavedTuning, save_tuning
from headgate.errors import EngineError, HeadgateError, SinkFailed
from headgate.runtime.auto import AutoStart
from headgate.runtime.elastic import Elastic
from headgate.runtime.engine import SparkEngine
from headgate.runtime.files_waiting import FilesWaiting
from headgate.runtime.session import Interrupted, log_once, silence_py4j, wait_for_interrupt
from headgate.slot.compile import is_closing_due
from headgate.slot.plan import EpochPlan

Start = Callable[[int | None], StreamingQuery]
Work = Callable[[], None]
IDLE_S = 1.0  # between two looks at a query that runs
GOOD_MOMENT_S = 3.0  # to wait for one to stop at
RECENT_MAX = 100  # as many as Spark's own `recentProgress` keeps
BATCH_QUERY = "batch"  # the manifest's query id of a flow that does not stream
JOB_GROUP = "spark.jobGroup.id"  # of a stream's jobs: its run id


@dataclass(frozen=True)
class EpochRun:
    """An epoch as this driver ran it; its duration includes its sinks."""

    facts: EpochFacts
    query_id: str
    run_id: str
    started_s: float
    duration_s: float
    before_s: float | None = None  # when the epoch before began


class Epochs:
    """Runs the epochs of one flow; `recent` are the last ones, `failure` is what ended them.

    Args:
        auto: Where to save what tuning decides, if the flow is tuned.
        tick: Tick even if no window can close.
        tick_every_s: Tick when the stream was idle for so long (None: never while it runs).
    """

    def __init__(
        self,
        coordinator: Coordinator,
        engine: SparkEngine,
        stream: EpochStream,
        *,
        auto: AutoStart | None = None,
        tick: bool = False,
        tick_every_s: float | None = None,
    ) -> None:
        self.coordinator, self.engine, self.stream = coordinator, engine, stream
        self.elastic = Elastic(coordinator, engine)
        coordinator.carry_out = self._carry_out
        coordinator.is_changing = lambda: self.elastic.is_changing
        self._auto, self._tick, self._tick_every_s = auto, tick, tick_every_s
        # What Spark gives a stream: an id for its checkpoint, and one for every start.
        checkpoint = coordinator.checkpoint.storage.uri
        self.batch_ids = str(uuid.uuid5(uuid.NAMESPACE_URL, checkpoint)), str(uuid.uuid4())
        self.recent: deque[EpochRun] = deque(maxlen=RECENT_MAX)
        self.failure: HeadgateError | None = None
        self._lock = threading.Lock()
        self._idle_since_s = time.monotonic()
        self._replayed: int | None = None
        self._rows_per_epoch: int | None = None
        self._files_waiting = FilesWaiting()

    def settle(self) -> None:
        """Call the sinks that an earlier driver did not reach with its last tick."""
        with self._one_at_a_time():
            self.coordinator.settle()

    def run_batch(self, frame: DataFrame) -> None:
        """The one epoch of sources that do not stream."""
        try:
            self._run(frame, 0, BATCH_QUERY, self.batch_ids)
        except HeadgateError:
            raise
        except Exception as problem:
            self.failure = EngineError(f"{type(problem).__name__}: {problem}")
            raise self.failure from problem

    def run_micro_batch(self, frame: DataFrame, batch: int) -> None:
        """An epoch that Spark calls for, in the thread of its query."""
        context = self.engine.spark.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run_id = context.getLocalProperty(JOB_GROUP)
        if query_id is None or run_id is None:
            raise EngineError("Spark did not tell the query id; is this a classic session?")
        if not self._run(frame, batch, query_id, (query_id, run_id)):
            return
        self.elastic.epoch_committed()
        rows, self._rows_per_epoch = self._rows_per_epoch, None
        if rows is not None:
            self.engine.expect_new_session()
            self.stream.hand_over(rows)

    def tick_if_idle(self) -> None:
        """Let time go on while the query runs, if it has nothing else to do."""
        if self._lock.locked():
            return  # an epoch runs: if it is stopped, or fails, no other may follow it
        with self._one_at_a_time():
            every_s, idle_s = self._tick_every_s, time.monotonic() - self._idle_since_s
            is_idle = every_s is not None and idle_s >= every_s
            if is_idle and not self.stream.running.status["isDataAvailable"]:
                self._tick_if_due(self._tick)

    def tick_at_rest(self) -> None:
        """All rows are in, for now: close the windows that they completed."""
        with self._one_at_a_time():
            self._tick_if_due(self._tick and not self.recent)  # each run has an epoch

    # --- inside ----------------------------------------------------------------------------
    def _run(self, frame: DataFrame, batch: int, query_id: str, ids: tuple[str, str]) -> bool:
        """Run a batch of the input; False if it was committed before a hand-over already."""
        with self._one_at_a_time():
            before = TriggerFacts()
            if self.stream.query is not None and self._replayed != batch - 1:
                before = last_trigger(self.stream.query.lastProgress, batch)
            before = replace(before, files_waiting=self._files_waiting.count(self.stream.query))
            commit = partial(self.coordinator.run_epoch, batch, query_id)
            is_new = self._epoch(commit, frame, ids, before)
            self._replayed = None if is_new else batch
            return is_new

    def _tick_if_due(self, always: bool) -> None:
        last = self.coordinator.last
        if last is None:
            return
        program, query = self.coordinator.program, self.stream.running
        closes = is_closing_due(program, last.used_watermark_us, last.watermark_us)
        if always or closes or self.coordinator.is_held_due():
            run_id = str(query.runId)
            self.engine.spark.sparkContext.setLocalProperty(JOB_GROUP, run_id)  # a stop cancels it
            commit = partial(self.coordinator.tick, silent=always)
            self._epoch(commit, None, (str(query.id), run_id), TriggerFacts())

    def _epoch(
        self,
        commit: Callable[[RunTasks], EpochFacts],
        frame: DataFrame | None,
        ids: tuple[str, str],
        before: TriggerFacts,
    ) -> bool:
        started_s, since = time.time(), time.perf_counter()

        def run(plan: EpochPlan) -> EpochResult:
            try:
                return replace(self.engine.run(frame, plan), trigger=before)
            except EngineAborted as problem:
                if self.stream.is_ending and problem.__cause__ is not None:
                    raise problem.__cause__ from None  # cancelled, so it is not run again
                raise

        facts = commit(run)
        self._idle_since_s = time.monotonic()
        last = self.recent[-1] if self.recent else None
        if last is not None and last.facts.epoch == facts.epoch:
            return False
        duration_s = time.perf_counter() - since
        before_s = None if last is None else last.started_s
        self.recent.append(EpochRun(facts, *ids, started_s, duration_s, before_s))
        return True

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Let no other epoch run; remember the error that ends the flow, with all its fields."""
        with self._lock:
            try:
                yield
            except HeadgateError as problem:
                stopped = isinstance(problem, SinkFailed) and self.stream.is_ending
                if stopped and problem.__cause__ is not None:
                    raise problem.__cause__ from None  # stopped in the middle of a call
                self.failure = problem
                raise

    def _carry_out(self, decision: Decision) -> None:
        """What a decision means beyond routes.

        While another number of slots is on its way, the user's above all, no other is asked for.
        """
        if decision.slots is not None and not self.elastic.is_changing:
            self.elastic.request(
                decision.slots, decision.scaling, decision.instances_then, decision.gone
            )
        tuning = decision.tuning
        if tuning and tuning.settings is not None and self._auto is not None:
            saved = SavedTuning(self._auto.saved.calibration, tuning.settings)
            save_tuning(self._auto.storage, saved)
        if tuning and tuning.rows_per_epoch is not None:
            self._rows_per_epoch = tuning.rows_per_epoch


def last_trigger(progress: StreamingQueryProgress | None, epoch: int) -> TriggerFacts:
    """Facts about the trigger before this epoch's; none if Spark speaks of another one.

    How long it took as a whole tells idle time from work. Where a source reports the latest offset
    that it had when an epoch was planned, an end before it means that rows were left waiting; Kafka
    does. Files that wait are counted apart (`files_waiting.py`).
    """
    if progress is None or progress.batchId != epoch - 1 or "addBatch" not in progress.durationMs:
        return TriggerFacts()
    offsets = [(offset_of(s.endOffset), offset_of(s.latestOffset)) for s in progress.sources]
    waiting = [end != latest for end, latest in offsets if latest is not None]
    return TriggerFacts(progress.durationMs["triggerExecution"], any(waiting) if waiting else None)


def offset_of(text: str | None) -> Any:
    """PySpark tells an offset as JSON, but 4.1 as Python prints it."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return ast.literal_eval(text or "None")


class EpochStream:
    """The query that runs now; waiting for it goes on over a hand-over.

    A thread accompanies it, so that a flow can act where Spark does not: while the stream is idle,
    and after an `availableNow` query has read all there was. The flow is active until it is done.

    Args:
        flow: Its name, for the log.
        start: Starts it from the checkpoint, with so many rows per epoch (None: as at first). A
            batch has no query, only the thread.
        ends: Does it end by itself, when it has read all there is?
    """

    def __init__(
        self, flow: str, start: Start | None, context: SparkContext, *, ends: bool = False
    ) -> None:
        self._flow, self._start, self._context, self._ends = flow, start, context, ends
        self.query: StreamingQuery | None = None
        silence_py4j()
        self._changed = threading.Condition()
        self._handing_over = False
        self._stopping = False
        self._in_epoch = False
        self._ended = threading.Event()
        self._companion: threading.Thread | None = None
        self.failure: Exception | None = None

    def begin(self, first: Work, beside: Work, at_end: Work) -> None:
        """Start the query; do this once, every second while it runs, and when it ends by itself.

        What any of it raises ends the query.
        """
        if self._start is not None:
            self.query = self._start(None)

        def go_along() -> None:
            try:
                first()
                while self.query is not None and not self._has_ended(self.query):
                    beside()
                if self._ends and not self._stopping and self.failure is None:
                    at_end()
            except Exception as problem:
                self.fail(problem)
            finally:
                self._ended.set()

        self._companion = threading.Thread(target=go_along, name="headgate-stream", daemon=True)
        self._companion.start()

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    @property
    def running(self) -> StreamingQuery:
        assert self.query is not None, "only a stream that has begun has a query"
        return self.query

    @property
    def is_ending(self) -> bool:
        """Is the query that runs now being stopped, by the user or by a hand-over?"""
        return self._stopping or self._handing_over

    def in_epoch(self, work: Work) -> None:
        """Do the work of an epoch's function. What Spark hears of its end is short."""
        self._in_epoch = True
        try:
            if self._stopping:
                wait_for_interrupt(self._context)
            work()
        except Exception as problem:
            stopped = self.query is not None and not self.query.isActive  # by somebody else
            if self.is_ending or stopped:
                raise Interrupted from None
            if isinstance(problem, HeadgateError):
                log_once(self._context, self._flow, problem)
                raise copy.copy(problem) from None  # without its stack
            raise
        finally:
            self._in_epoch = False

    def hand_over(self, rows_per_epoch: int) -> None:
        """Called in an epoch's function after its commit; does not return if all goes well."""
        with self._changed:
            if self._stopping or self._handing_over:
                return
            self._handing_over = True
        again = partial(self._start_again, rows_per_epoch)
        threading.Thread(target=again, name="headgate-again", daemon=True).start()
        wait_for_interrupt(self._context)

    def await_end(self, timeout: float | None = None) -> bool:
        """Has all come to its end, within so many seconds?"""
        return self._ended.wait(timeout)

    def process_all_available(self) -> None:
        """As `StreamingQuery.processAllAvailable`."""
        query = None
        while query is None or self._follows(query):
            query = self.running
            query.processAllAvailable()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._handing_over)
        if self.query is not None:
            self._wait_for_a_good_moment(self.query)
            self.query.stop()
        if threading.current_thread() is not self._companion:
            self._ended.wait()

    def fail(self, problem: Exception) -> None:
        """End the query because of this, unless it is ending anyway."""
        if not self._stopping:
            self.failure = self.failure or problem
        with suppress(Exception):  # the JVM may be gone
            self.stop()

    def _wait_for_a_good_moment(self, query: StreamingQuery) -> None:
        """Let Spark finish the file it writes: interrupted there, Hadoop logs a Java stack.

        Good moments are an epoch's function, and when Spark waits, twice in a row: between two
        epochs it says so for an instant, too.
        """
        until, waits = time.monotonic() + GOOD_MOMENT_S, 0
        while query.isActive and not self._in_epoch and waits < 2 and time.monotonic() < until:
            waits = waits + 1 if query.status["message"].startswith("Waiting") else 0
            time.sleep(0.004)

    def _has_ended(self, query: StreamingQuery) -> bool:
        try:
            if not query.awaitTermination(IDLE_S):  # type: ignore[arg-type]
                return False
        except PySparkException as problem:
            if not self._follows(query):
                self.failure = self.failure or problem
        return not self._follows(query)

    def _follows(self, query: StreamingQuery) -> bool:
        """Has another query taken this one's place? Waits for a hand-over that is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._handing_over)
            return self.query is not query

    def _start_again(self, rows_per_epoch: int) -> None:
        try:
            self.running.stop()
            if not self._stopping and self._start is not None:
                self.query = self._start(rows_per_epoch)
        except HeadgateError as problem:
            self.failure = problem
        except Exception as problem:
            self.failure = EngineError(
                f"the flow could not be started again with {rows_per_epoch:,} rows per epoch: "
                f"{type(problem).__name__}: {problem}. Nothing is lost: start it as before"
            )
            self.failure.__cause__ = problem
        finally:
            with self._changed:
                self._handing_over = False
                self._changed.notify_all()
