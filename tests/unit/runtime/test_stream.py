"""A hand-over as its callers see it: waiting goes on, a stop wins, and a failed start is told.

The query is a stand-in that ends when it is stopped; tests/spark/test_tuning.py has the real one.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from headgate.errors import EngineError
from headgate.runtime.stream import EpochStream
from waiting import PATIENCE_S, wait_until


class Query:
    def __init__(self) -> None:
        self._ended = threading.Event()

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        return self._ended.wait(PATIENCE_S if timeout is None else timeout)

    def processAllAvailable(self) -> None:
        self._ended.wait(PATIENCE_S)

    def stop(self) -> None:
        self._ended.set()

    @property
    def context(self) -> Any:
        """A wait in the query's own thread, which its stop interrupts."""

        def sleep(milliseconds: int) -> None:
            assert self._ended.wait(milliseconds / 1e3)
            raise InterruptedError

        thread = SimpleNamespace(sleep=sleep)
        lang = SimpleNamespace(Thread=thread)
        return SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=lang)))


def stream_of(first: Query, start_again: Any) -> Any:
    return EpochStream(first, start_again)  # type: ignore[arg-type]


def hand_over(stream: Any, query: Query, rows: int = 50) -> None:
    with pytest.raises(InterruptedError):
        stream.hand_over(rows, query.context)


def test_who_waits_for_the_end_waits_for_the_second_query() -> None:
    first, second = Query(), Query()
    told: list[int] = []

    def start_again(rows: int) -> Query:
        told.append(rows)
        return second

    stream = stream_of(first, start_again)
    ended: list[bool | None] = []
    waiting = threading.Thread(target=lambda: ended.append(stream.await_end()))
    waiting.start()
    hand_over(stream, first)
    wait_until(lambda: stream.query is second, "the second query to take over")

    assert stream.await_end(0.01) is False and stream.is_active
    assert told == [50] and stream.query is second and ended == []
    second.stop()
    waiting.join(PATIENCE_S)
    assert ended == [None] and not stream.is_active


class InterruptedSleep(Py4JJavaError):
    """As Py4J tells it, with a Java stack that is long."""

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        told = "An error occurred while calling z:java.lang.Thread.sleep.\n"
        return told + ": java.lang.InterruptedException: sleep interrupted" + "\n\tat a.B(C)" * 500


def test_what_spark_hears_of_a_stop_is_short_and_says_so() -> None:
    """With the Java stack Spark's own overflowed, at every hand-over."""
    first = Query()

    def sleep(milliseconds: int) -> None:
        assert first.awaitTermination()
        raise InterruptedSleep

    context = first.context
    context._jvm.java.lang.Thread.sleep = sleep
    with pytest.raises(Exception, match="sleep interrupted") as heard:
        stream_of(first, lambda rows: Query()).hand_over(50, context)

    proxied = "py4j.protocol.Py4JJavaError: An error occurred while calling"  # Spark's words
    assert str(heard.value).startswith(proxied)
    assert "java.lang.InterruptedException" in str(heard.value)
    assert len(str(heard.value)) < 200 and heard.value.__suppress_context__


def test_a_start_that_fails_ends_the_flow_and_says_why() -> None:
    first = Query()

    def start_again(rows: int) -> Query:
        raise OSError("no such topic")

    stream = stream_of(first, start_again)
    hand_over(stream, first)

    assert stream.await_end(PATIENCE_S) is True
    assert isinstance(stream.failure, EngineError)
    assert "no such topic" in str(stream.failure)


def test_after_a_stop_nothing_is_handed_over() -> None:
    first = Query()
    stream = stream_of(first, lambda rows: Query())
    stream.stop()

    stream.hand_over(50, first.context)  # returns: there is nothing to wait for

    assert stream.query is first and not stream.is_active and stream.is_ending
