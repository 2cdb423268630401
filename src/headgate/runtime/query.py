"""The handle of a running flow, shaped like Spark's StreamingQuery."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headgate.control.coordinator import Coordinator, EngineAborted, EpochResult
from headgate.control.state_view import check_known, read_state
from headgate.control.tuning_file import SavedTuning, save_tuning
from headgate.errors import EngineError, HeadgateError, SinkFailed
from headgate.runtime.auto import AutoStart
from headgate.runtime.delivery import Delivery
from headgate.runtime.elastic import Elastic
from headgate.runtime.engine import SparkEngine
from headgate.runtime.last_trigger import last_trigger
from headgate.runtime.progress import Trigger, progress_of
from headgate.runtime.stream import EpochStream
from headgate.slot.program import ttl_ms

RECENT_MAX = 100
JOB_GROUP = "spark.jobGroup.id"  # of a stream's jobs: its run id


class FlowQuery:
    """A flow that runs. Methods and properties of StreamingQuery mean what they mean there."""

    def __init__(self, coordinator: Coordinator, engine: SparkEngine, delivery: Delivery) -> None:
        self.coordinator = coordinator
        self._engine, self._delivery = engine, delivery
        self._elastic = Elastic(coordinator, engine)
        coordinator.elastic = self._elastic.request
        self._stream: EpochStream | None = None
        self._thread: threading.Thread | None = None
        self._failure: HeadgateError | None = None
        self._auto: AutoStart | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._stopping = False
        self._closed = False
        self._run_id = str(uuid.uuid4())  # Spark has one for every start of a stream
        self._last_began_s: float | None = None
        self._told_again: int | None = None

    # --- like StreamingQuery ---------------------------------------------------------------
    @property
    def name(self) -> str:
        return self.coordinator.program.graph.name

    @property
    def id(self) -> str:
        """Stays the same over restarts; for a batch, one for its checkpoint."""
        if self._stream is not None:
            return str(self._stream.query.id)
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.coordinator.checkpoint.storage.uri))

    @property
    def runId(self) -> str:
        return str(self._stream.query.runId) if self._stream is not None else self._run_id

    @property
    def isActive(self) -> bool:
        if self._stream is not None:
            return self._stream.is_active
        return self._thread is not None and self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        if self._stream is not None:
            return dict(self._stream.query.status)
        message = "Processing the batch" if self.isActive else "Terminated"
        return {
            "message": message,
            "isDataAvailable": self.isActive,
            "isTriggerActive": self.isActive,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._recent)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the flow ends (True) or the timeout passes (False); raises its error."""
        try:
            if self._stream is not None:
                ended = self._stream.await_end(timeout)
            else:
                assert self._thread is not None
                self._thread.join(timeout)
                ended = None if timeout is None else not self._thread.is_alive()
        except PySparkException as problem:
            self._close()
            raise (self._failure or problem) from problem
        if not self.isActive:
            self._close()
            failure = self._why_ended()
            if failure is not None:
                raise failure
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all rows there are now have been processed; for tests."""
        if self._stream is None:
            self.awaitTermination()
            return
        try:
            self._stream.process_all_available()
        except PySparkException as problem:
            raise (self._failure or problem) from problem

    def stop(self) -> None:
        """Stop after Spark has let go of the running epoch; what is committed stays."""
        self._stopping = True
        if self._stream is not None:
            self._stream.stop()
        if self._thread is not None:
            self._thread.join()
        self._close()

    def exception(self) -> Exception | None:
        """Why the flow ended, if not by `stop` or by finishing."""
        failure = self._why_ended()
        if failure is not None or self._stream is None:
            return failure
        return self._stream.query.exception()

    # --- headgate's own --------------------------------------------------------------------
    @property
    def sparkQuery(self) -> StreamingQuery | None:
        """Spark's own query underneath; None for a batch source.

        With `batch="auto"` another one takes its place when rows per epoch change.
        """
        return None if self._stream is None else self._stream.query

    @property
    def slots(self) -> int:
        """How many slots the flow runs with now."""
        return self.coordinator.slots

    def rescale(self, slots: int) -> None:
        """Run with so many slots from a coming epoch on, without a restart.

        Returns at once. On a standalone cluster executors are asked for before, or given back
        after; the journal's records `scale` and `elastic` tell when and how.
        """
        if self._stream is None:
            raise EngineError("rescale is for streams; a batch runs as one epoch")
        self._elastic.request(slots, "asked for")

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Rows a memory sink got since this start, in order of epochs."""
        check_known(self.name, "memory sink", sink, self._delivery.memory)
        epochs = self._delivery.memory[sink]
        return [row for epoch in sorted(epochs) for row in epochs[epoch].to_pylist()]

    def table(self, sink: str) -> DataFrame:
        """All committed rows of a table or Parquet sink, as a DataFrame."""
        sinks = self.coordinator.program.sinks
        kept = [node.name for node in sinks if node.spec.kind in ("table", "parquet")]
        check_known(self.name, "table or Parquet sink", sink, kept)
        return self._delivery.table(self.coordinator.program.graph.node(sink))

    def state(self, operator: str) -> pa.Table:
        """The operator's committed state over all slots, read from the checkpoint.

        Keys whose TTL was over by the clock of the last epoch are left out.
        """
        at = self.coordinator
        names = [node.name for node in at.program.stateful]
        check_known(self.name, "stateful operator", operator, names)
        node = at.program.graph.node(operator)
        schema, ttl = at.program.state_schemas[node.id], ttl_ms(node.spec)
        return read_state(at.checkpoint, at.last, operator, schema, buckets=at.buckets, ttl_ms=ttl)

    def journal(self, last: int | None = None) -> list[dict[str, Any]]:
        """The records of the flow's journal, oldest first; `last`: only so many of the newest."""
        journal = self.coordinator.journal
        return journal.read() if last is None else journal.tail(last)

    # --- for start_flow --------------------------------------------------------------------
    def tune_with(self, auto: AutoStart) -> None:
        self._auto = auto

    def attach(self, stream: EpochStream) -> None:
        self._stream = stream

    def run_in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except HeadgateError as problem:
                self._failure = problem
            except Exception as problem:
                self._failure = HeadgateError(f"{type(problem).__name__}: {problem}")
                self._failure.__cause__ = problem

        self._thread = threading.Thread(target=guarded, name=f"headgate-{self.name}", daemon=True)
        self._thread.start()

    def run_epoch(
        self, frame: DataFrame, epoch: int, query_id: str, *, tagged: bool, streaming: bool = True
    ) -> None:
        """One micro-batch; remembers the error that ends the flow with all its fields."""
        run = self._engine.run if streaming else self._engine.run_batch
        began_s, since = time.time(), time.perf_counter()
        told = self._last_trigger(epoch)
        try:
            record = self.coordinator.run_epoch(
                epoch,
                query_id,
                lambda plan: self._run(partial(run, frame, plan, tagged=tagged), told),
            )
        except SinkFailed as problem:
            if streaming and self._is_ending() and problem.__cause__ is not None:
                raise problem.__cause__ from None  # stopped in the middle of a call
            self._failure = problem
            raise
        except HeadgateError as problem:
            self._failure = problem
            raise
        if self._recent and self._recent[-1]["batchId"] == epoch:
            self._told_again = epoch
            return  # told once more by the query that a hand-over has started
        trigger = Trigger(began_s, time.perf_counter() - since, self._last_began_s)
        context = self._engine.spark.sparkContext
        group = context.getLocalProperty(JOB_GROUP) if streaming else None
        ids = (query_id, group or self.runId) if streaming else (self.id, self._run_id)
        self._recent.append(progress_of(record, *ids, trigger))
        self._last_began_s = began_s
        self._elastic.epoch_committed()
        self._tune(record)

    def _last_trigger(self, epoch: int) -> dict[str, Any]:
        """What Spark says of the epoch before, unless it has only been told of it again."""
        if self._stream is None or self._told_again == epoch - 1:
            return {}
        return last_trigger(self._stream.query.lastProgress, epoch)

    def _tune(self, record: dict[str, Any]) -> None:
        """Let the tuner see an epoch; other slots come as by `rescale`, settings are saved."""
        if self._auto is None:
            return
        advice = self._auto.tuner.observe(record, changing=self._elastic.is_changing)
        if advice is None:
            return
        self.coordinator.journal.append("tuning", epoch=record["epoch"], **advice.facts())
        if advice.tuned is not None:
            saved = SavedTuning(self._auto.saved.calibration, advice.tuned)
            save_tuning(self._auto.storage, saved)
        if advice.rescale is not None:
            self._elastic.request(advice.rescale.instances, advice.rescale.why)
        if advice.epoch_rows is not None and self._stream is not None:
            self._engine.expect_new_session()
            self._stream.hand_over(advice.epoch_rows.rows, self._engine.spark.sparkContext)

    def _run(self, job: Callable[[], EpochResult], told: Mapping[str, Any]) -> EpochResult:
        """Run an epoch's job; a job that `stop` or a hand-over has cancelled is not run again."""
        try:
            result = job()
            return replace(result, facts={**result.facts, **told})
        except EngineAborted as problem:
            if self._is_ending() and problem.__cause__ is not None:
                raise problem.__cause__ from None
            raise

    def _is_ending(self) -> bool:
        return self._stopping or (self._stream is not None and self._stream.is_ending)

    def _why_ended(self) -> HeadgateError | None:
        if self._failure is None and self._stream is not None:
            return self._stream.failure
        return self._failure

    def _close(self) -> None:
        if not self._closed and not self.isActive:
            self._closed = True
            self._elastic.close()
            self.coordinator.close()
            self._engine.close()
