"""Spark's streaming query under a flow, and the same one again with other rows per epoch.

Spark reads a source's limit when a query starts, so another limit needs another start. `hand_over`
makes it between two epochs: the epoch is committed in our manifest, its function has not returned,
and the query is stopped there. It is what a driver that dies at `files-collected` leaves behind:
the next start hears of that epoch once more, finds its manifest, runs nothing, and plans the
following one with the new limit. So exactly once needs no rule of its own. Executors, Python
workers, anchors and warm copies stay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from headgate.errors import EngineError, HeadgateError

STOPPED_WITHIN_MS = 60_000
StartAgain = Callable[[int], StreamingQuery]


class _Interrupted(Exception):
    """What Py4J says of an interrupted sleep, without the Java stack.

    Spark looks for the words by a regular expression that recurses with every letter behind them:
    with the stack its own overflows, and it prints a thousand lines.
    """

    def __str__(self) -> str:
        return f"py4j.protocol.Py4JJavaError: {self.args[0]}"


class EpochStream:
    """The query that runs now. Waiting for it goes on over a hand-over.

    Args:
        query: As it was started first.
        start_again: Starts it from the checkpoint, with so many rows per epoch.
    """

    def __init__(self, query: StreamingQuery, start_again: StartAgain) -> None:
        self.query, self._start = query, start_again
        self._changed = threading.Condition()
        self._handing_over = False
        self._stopping = False
        self.failure: HeadgateError | None = None

    @property
    def is_active(self) -> bool:
        with self._changed:
            return self._handing_over or self.query.isActive

    @property
    def is_ending(self) -> bool:
        """Is the query that runs now being stopped, by the user or by a hand-over?"""
        return self._stopping or self._handing_over

    def hand_over(self, rows_per_epoch: int, context: SparkContext) -> None:
        """Called in an epoch's function after its commit; does not return if all goes well.

        The function waits in Spark's own thread, where a stop interrupts it: Spark then takes the
        error that comes out of here for what it is, a stop.
        """
        with self._changed:
            if self._stopping or self._handing_over:
                return
            self._handing_over = True
        threading.Thread(
            target=self._start_again, args=(rows_per_epoch,), name="headgate-stream", daemon=True
        ).start()
        jvm: Any = context._jvm
        try:
            jvm.java.lang.Thread.sleep(STOPPED_WITHIN_MS)
        except Py4JJavaError as problem:
            raise _Interrupted(str(problem).partition("\n\tat ")[0]) from None

    def await_end(self, timeout: float | None = None) -> bool | None:
        """As `StreamingQuery.awaitTermination`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            query = self.query
            if until is None:
                query.awaitTermination()
            elif not query.awaitTermination(max(0.001, until - time.monotonic())):  # type: ignore[arg-type]
                return False
            if not self._follows(query, until):
                return None if until is None else not self.is_active

    def process_all_available(self) -> None:
        """As `StreamingQuery.processAllAvailable`."""
        while True:
            query = self.query
            query.processAllAvailable()
            if not self._follows(query, None):
                return

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._handing_over)
        self.query.stop()

    # --- inside ----------------------------------------------------------------------------
    def _follows(self, query: StreamingQuery, until: float | None) -> bool:
        """Wait for a hand-over that is under way; has another query taken this one's place?"""
        with self._changed:
            left = None if until is None else max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: not self._handing_over, left)
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
