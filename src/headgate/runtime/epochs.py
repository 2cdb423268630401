"""The epochs of a flow, one at a time: batches that Spark calls for, and ticks of our own.

Spark runs nothing while a stream is idle, so time would stand still there: windows that the last
rows completed would wait for the next row, keys would not expire. A tick is an epoch without rows
that the driver runs itself, beside Spark's query. Spark's checkpoint knows nothing of it, so it
costs no source, changes no trigger, and can be turned on and off (docs/decisions/0024-ticks.md).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headgate.commit.coordinator import Coordinator, EngineAborted, EpochResult
from headgate.commit.facts import EngineFacts, EpochFacts, LastTrigger
from headgate.errors import HeadgateError, SinkFailed
from headgate.runtime.engine import SparkEngine
from headgate.slot.compile import is_closing_due
from headgate.slot.plan import EpochPlan

T = TypeVar("T")
Job = Callable[[EpochPlan], EpochResult]
RECENT_MAX = 100  # as many as Spark's own `recentProgress` keeps
JOB_GROUP = "spark.jobGroup.id"  # of a stream's jobs: its run id
_EPOCH_0 = datetime(1970, 1, 1, tzinfo=UTC)


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


def last_trigger(progress: StreamingQueryProgress | None, epoch: int) -> LastTrigger:
    """Facts about the trigger before this epoch's; none if Spark speaks of another one.

    How long it took as a whole tells idle time from work. Where a source reports the latest offset
    that it had when an epoch was planned, an end before it means that rows were left waiting; Kafka
    does, files do not.
    """
    if progress is None or progress.batchId != epoch - 1 or "addBatch" not in progress.durationMs:
        return LastTrigger()
    offsets = [(_offset(s.endOffset), _offset(s.latestOffset)) for s in progress.sources]
    known = [(end, latest) for end, latest in offsets if latest is not None]
    return LastTrigger(
        progress.durationMs["triggerExecution"],
        any(end != latest for end, latest in known) if known else None,
    )


def _offset(text: str | None) -> Any:
    return None if text is None else json.loads(text)


@dataclass(frozen=True)
class Trigger:
    """When an epoch began, how long it took with its sinks, and when the one before began."""

    started_s: float
    duration_s: float
    before_s: float | None = None

    def rate(self, rows: int) -> float:
        """Rows that came per second since the epoch before; 0 if there was none."""
        gap = 0.0 if self.before_s is None else self.started_s - self.before_s
        return rows / gap if gap > 0 else 0.0


def progress_of(facts: EpochFacts, query_id: str, run_id: str, trigger: Trigger) -> dict[str, Any]:
    """What `StreamingQueryProgress.fromJson` takes, plus the whole record under "headgate"."""
    job_s = (facts.engine.job_ms or 0.0) / 1e3
    rows, sinks = facts.rows, facts.sink_rows
    whole_ms = round(trigger.duration_s * 1e3)
    return {
        "id": query_id,
        "runId": run_id,
        "name": facts.flow,
        "timestamp": _iso(timedelta(seconds=trigger.started_s)),
        "batchId": facts.epoch,
        "batchDuration": whole_ms,
        "numInputRows": rows,
        "inputRowsPerSecond": trigger.rate(rows),
        "processedRowsPerSecond": rows / job_s if job_s else 0.0,
        "durationMs": _durations(facts.engine, whole_ms),
        "eventTime": _event_time(facts.watermark_us),
        "stateOperators": [_state_operator(facts, name) for name in facts.state],
        "sources": [
            {
                "description": name,
                "startOffset": None,
                "endOffset": None,
                "latestOffset": None,
                "numInputRows": count,
                "inputRowsPerSecond": trigger.rate(count),
                "processedRowsPerSecond": count / job_s if job_s else 0.0,
            }
            for name, count in facts.source_rows.items()
        ],
        "sink": {
            "description": ", ".join(sinks) or "headgate",
            "numOutputRows": sum(sinks.values()),
        },
        "headgate": facts.to_json(),
    }


def _durations(engine: EngineFacts, whole_ms: int) -> dict[str, int]:
    times = {"planning": engine.plan_ms, "job": engine.job_ms}
    times |= {f"level{level}": ms for level, ms in engine.levels_ms.items()}
    known = {name: round(ms) for name, ms in times.items() if ms is not None}
    return {"triggerExecution": whole_ms, **known}


def _state_operator(facts: EpochFacts, name: str) -> dict[str, Any]:
    """Rows updated are rows taken in; rows removed and the time of commits are not counted."""
    slots = facts.state[name].values()
    return {
        "operatorName": name,
        "numRowsTotal": sum(size.rows for size in slots),
        "numRowsUpdated": sum(facts.loads.get(name, ())),
        "numRowsRemoved": 0,
        "allUpdatesTimeMs": round(sum(facts.operator_ms.get(name, ()))),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 0,
        "memoryUsedBytes": sum(size.bytes for size in slots),
        "numRowsDroppedByWatermark": facts.late_rows.get(name, 0),
        "numShufflePartitions": facts.slots,
        "numStateStoreInstances": facts.slots,
    }


def _event_time(watermark_us: int | None) -> dict[str, str]:
    if watermark_us is None:
        return {}
    try:
        return {"watermark": _iso(timedelta(microseconds=watermark_us))}
    except OverflowError:
        return {}  # a year that Python has no word for


def _iso(since_1970: timedelta) -> str:
    return (_EPOCH_0 + since_1970).isoformat(timespec="milliseconds").replace("+00:00", "Z")
