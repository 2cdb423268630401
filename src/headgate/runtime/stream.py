"""Spark's streaming query under a flow, and the same one again with other rows per epoch.

A thread goes along with the query from its start to its end, so that a flow can act where Spark
does not: while its stream is idle, and once more after an `availableNow` query has read all there
was. The flow is active until that thread is done.

Spark reads a source's limit when a query starts, so another limit needs another start. `hand_over`
makes it between two epochs: the epoch is committed in our manifest, its function has not returned,
and the query is stopped there. It is what a driver that dies at `files-collected` leaves behind:
the next start hears of that epoch once more, finds its manifest, runs nothing, and plans the
following one with the new limit. So exactly once needs no rule of its own. Executors, Python
workers, anchors and warm copies stay.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headgate.errors import EngineError, HeadgateError
from headgate.runtime.session import log_once, silence_py4j

IDLE_S = 1.0
GOOD_MOMENT_S = 3.0
STOPPED_WITHIN_MS = 60_000
Start = Callable[[int | None], StreamingQuery]
Work = Callable[[], None]


class Interrupted(Exception):
    """What Spark hears of an epoch that a stop has interrupted, in the words it looks for.

    It finds them by a regular expression that recurses with every letter behind them: given Java's
    whole stack, its own overflows, and it prints a thousand lines.
    """

    def __str__(self) -> str:
        return (
            "py4j.protocol.Py4JJavaError: An error occurred while calling an epoch's function: "
            "java.lang.InterruptedException"
        )


class EpochStream:
    """The query that runs now. Waiting for it goes on over a hand-over.

    Args:
        flow: Its name, for the log.
        start: Starts it from the checkpoint, with so many rows per epoch (None: as at first).
        ends: Does it end by itself, when it has read all there is?
    """

    query: StreamingQuery

    def __init__(
        self, flow: str, start: Start, context: SparkContext, *, ends: bool = False
    ) -> None:
        self._flow, self._start, self._context, self._ends = flow, start, context, ends
        silence_py4j(Interrupted)
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
        self.query = self._start(None)

        def go_along() -> None:
            try:
                first()
                while not self._has_ended():
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
    def is_ending(self) -> bool:
        """Is the query that runs now being stopped, by the user or by a hand-over?"""
        return self._stopping or self._handing_over

    def in_epoch(self, work: Work) -> None:
        """Do the work of an epoch's function. What Spark hears of its end is short."""
        self._in_epoch = True
        try:
            if self._stopping:
                self._wait_for_the_stop()
            work()
        except Exception as problem:
            if self.is_ending or self._was_stopped():
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
        threading.Thread(
            target=self._start_again, args=(rows_per_epoch,), name="headgate-again", daemon=True
        ).start()
        self._wait_for_the_stop()

    def await_end(self, timeout: float | None = None) -> bool:
        """Has all come to its end, within so many seconds?"""
        return self._ended.wait(timeout)

    def process_all_available(self) -> None:
        """As `StreamingQuery.processAllAvailable`."""
        while True:
            query = self.query
            query.processAllAvailable()
            if not self._follows(query):
                return

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._handing_over)
        self._wait_for_a_good_moment()
        self.query.stop()
        if threading.current_thread() is not self._companion:
            self._ended.wait()

    def fail(self, problem: Exception) -> None:
        """End the query because of this, unless it is ending anyway."""
        if not self._stopping:
            self.failure = self.failure or problem
        with suppress(Exception):  # the JVM may be gone
            self.stop()

    # --- inside ----------------------------------------------------------------------------
    def _was_stopped(self) -> bool:
        """Has somebody stopped Spark's query, and not us?"""
        query = vars(self).get("query")  # an epoch may be quicker than the start that returns it
        return query is not None and not query.isActive

    def _wait_for_the_stop(self) -> None:
        """Wait in Spark's own thread, where a stop interrupts it: Spark takes it for what it is."""
        jvm: Any = self._context._jvm
        try:
            jvm.java.lang.Thread.sleep(STOPPED_WITHIN_MS)
        except Py4JJavaError:
            raise Interrupted from None

    def _wait_for_a_good_moment(self) -> None:
        """Let Spark finish the file it writes: interrupted there, Hadoop logs a Java stack.

        Good moments are an epoch's function, and when Spark waits, twice in a row: between two
        epochs it says so for an instant, too.
        """
        until, waits = time.monotonic() + GOOD_MOMENT_S, 0
        while self.query.isActive and not self._in_epoch and time.monotonic() < until:
            waits = waits + 1 if self.query.status["message"].startswith("Waiting") else 0
            if waits == 2:
                return
            time.sleep(0.004)

    def _has_ended(self) -> bool:
        query = self.query
        try:
            if not query.awaitTermination(IDLE_S):  # type: ignore[arg-type]
                return False
        except PySparkException as problem:
            if not self._follows(query):
                self.failure = self.failure or problem
        return not self._follows(query)

    def _follows(self, query: StreamingQuery) -> bool:
        """Wait for a hand-over that is under way; has another query taken this one's place?"""
        with self._changed:
            self._changed.wait_for(lambda: not self._handing_over)
            return self.query is not query

    def _start_again(self, rows_per_epoch: int) -> None:
        try:
            self.query.stop()
            if not self._stopping:
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
