"""The epochs of a flow, one at a time: batches that Spark calls for, and ticks of our own.

Spark runs nothing while a stream is idle, so time would stand still there: windows that the last
rows completed would wait for the next row, keys would not expire. A tick is an epoch without rows
that the driver runs itself, beside Spark's query. Spark's checkpoint knows nothing of it, so it
costs no source, changes no trigger, and can be turned on and off (docs/decisions/0024-ticks.md).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headgate.commit.coordinator import Coordinator, EngineAborted, EpochResult
from headgate.commit.facts import EpochFacts, LastTrigger
from headgate.errors import HeadgateError, SinkFailed
from headgate.runtime.engine import SparkEngine
from headgate.runtime.last_trigger import last_trigger
from headgate.runtime.progress import Trigger, progress_of
from headgate.slot.event_time import is_closing_due
from headgate.slot.plan import EpochPlan

T = TypeVar("T")
Job = Callable[[EpochPlan], EpochResult]
RECENT_MAX = 100
JOB_GROUP = "spark.jobGroup.id"  # of a stream's jobs: its run id


@dataclass(frozen=True)
class Ticking:
    """When a flow ticks. `every_s`: on a stream that was idle for so long (None: never there).

    `always`: even if no window can close. `schema` and `tagged` are those of Spark's batches.
    """

    schema: StructType
    tagged: bool
    always: bool
    every_s: float | None


class Epochs:
    """Runs epochs of one flow; `recent` is their progress, `failure` what ended them.

    Args:
        is_ending: Is the query being stopped? Then an error that Spark caused by it is none.
    """

    def __init__(
        self, coordinator: Coordinator, engine: SparkEngine, is_ending: Callable[[], bool]
    ) -> None:
        self._coordinator, self._engine, self._is_ending = coordinator, engine, is_ending
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self.failure: HeadgateError | None = None
        self._one_at_a_time = threading.Lock()
        self._idle_since_s = time.monotonic()
        self._last_began_s: float | None = None
        self._told_again: int | None = None

    def run_batch(
        self,
        batch: int,
        query_id: str,
        job: Job,
        ids: tuple[str, str],
        last_progress: Callable[[], StreamingQueryProgress | None],
    ) -> EpochFacts | None:
        """A batch of the input; its facts, or None if a hand-over has only told it once more.

        `ids` are the query and run that its progress shows, `last_progress` what Spark says of
        the batch before.
        """
        with self._one_at_a_time:
            again = self._told_again == batch - 1
            trigger = LastTrigger() if again else last_trigger(last_progress(), batch)
            facts = self._epoch(
                partial(self._coordinator.run_epoch, batch, query_id), job, ids, trigger
            )
            if facts is None:
                self._told_again = batch
            return facts

    def settle(self) -> None:
        """Call the sinks that an earlier driver did not reach with its last tick."""
        with self._one_at_a_time:
            self._guarded(self._coordinator.settle)

    def tick_if_idle(self, ticking: Ticking, query: StreamingQuery) -> None:
        """Called while the query runs: time goes on, if it has nothing else to do."""
        idle_s = time.monotonic() - self._idle_since_s
        if ticking.every_s is None or idle_s < ticking.every_s or query.status["isDataAvailable"]:
            return
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._tick_if_due(ticking, query, ticking.always)
            finally:
                self._one_at_a_time.release()

    def tick_at_rest(self, ticking: Ticking, query: StreamingQuery) -> None:
        """All rows are in, for now: close the windows that they completed.

        A flow that always ticks has an epoch in each of its runs, also if no row came.
        """
        with self._one_at_a_time:
            self._tick_if_due(ticking, query, ticking.always and not self.recent)

    # --- inside ----------------------------------------------------------------------------
    def _tick_if_due(self, ticking: Ticking, query: StreamingQuery, always: bool) -> None:
        last = self._coordinator.last
        if last is None:
            return
        program = self._coordinator.program
        closing = is_closing_due(program, last.used_watermark_us, last.watermark_us)
        if not (always or closing):
            return
        query_id, run_id = str(query.id), str(query.runId)
        self._engine.spark.sparkContext.setLocalProperty(JOB_GROUP, run_id)  # a stop cancels it
        self._epoch(
            partial(self._coordinator.tick, silent=always),
            partial(self._engine.run_idle, ticking.schema, tagged=ticking.tagged),
            (query_id, run_id),
            LastTrigger(),
        )

    def _epoch(
        self,
        commit: Callable[[Job], EpochFacts],
        job: Job,
        ids: tuple[str, str],
        before: LastTrigger,
    ) -> EpochFacts | None:
        began_s, since = time.time(), time.perf_counter()
        facts = self._guarded(lambda: commit(partial(self._run, job, before)))
        self._idle_since_s = time.monotonic()
        if self.recent and self.recent[-1]["batchId"] == facts.epoch:
            return None
        trigger = Trigger(began_s, time.perf_counter() - since, self._last_began_s)
        self.recent.append(progress_of(facts, *ids, trigger))
        self._last_began_s = began_s
        return facts

    def _guarded(self, work: Callable[[], T]) -> T:
        """Remember the error that ends the flow, with all its fields."""
        try:
            return work()
        except HeadgateError as problem:
            stopped = isinstance(problem, SinkFailed) and self._is_ending()
            if stopped and problem.__cause__ is not None:
                raise problem.__cause__ from None  # stopped in the middle of a call
            self.failure = problem
            raise

    def _run(self, job: Job, before: LastTrigger, plan: EpochPlan) -> EpochResult:
        """Run an epoch's job; a job that `stop` or a hand-over has cancelled is not run again."""
        try:
            return replace(job(plan), trigger=before)
        except EngineAborted as problem:
            if self._is_ending() and problem.__cause__ is not None:
                raise problem.__cause__ from None
            raise
