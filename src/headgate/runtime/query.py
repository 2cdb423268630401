"""The handle of a running flow, shaped like Spark's StreamingQuery."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.commit.coordinator import Coordinator
from headgate.commit.inspection import check_known, read_state
from headgate.commit.planning import Decision
from headgate.control.tuning_file import SavedTuning, save_tuning
from headgate.errors import EngineError, HeadgateError, Overtaken
from headgate.runtime.auto import AutoStart
from headgate.runtime.delivery import Delivery
from headgate.runtime.elastic import Elastic
from headgate.runtime.engine import SparkEngine
from headgate.runtime.epochs import JOB_GROUP, Epochs, Ticking
from headgate.runtime.stream import EpochStream
from headgate.slot.program import ttl_ms


class FlowQuery:
    """A flow that runs. Methods and properties of StreamingQuery mean what they mean there."""

    def __init__(self, coordinator: Coordinator, engine: SparkEngine, delivery: Delivery) -> None:
        self.coordinator = coordinator
        self._engine, self._delivery = engine, delivery
        self._elastic = Elastic(coordinator, engine)
        coordinator.carry_out, coordinator.is_changing = self._carry_out, self._is_changing
        self._stream: EpochStream | None = None
        self._thread: threading.Thread | None = None
        self._auto: AutoStart | None = None
        self._rows_per_epoch: int | None = None
        self._epochs = Epochs(coordinator, engine, self._is_ending)
        self._ticking: Ticking | None = None
        self._stopping = False
        self._closed = False
        self._run_id = str(uuid.uuid4())  # Spark has one for every start of a stream

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
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._epochs.recent)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the flow ends (True) or the timeout passes (False); raises its error."""
        if self._stream is not None:
            self._stream.await_end(timeout)
        else:
            assert self._thread is not None
            self._thread.join(timeout)
        ended = not self.isActive
        if ended:
            self._close()
            self._raise_failure()
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all rows that are there have been processed, windows too; for tests."""
        if self._stream is None:
            self.awaitTermination()
            return
        try:
            self._stream.process_all_available()
            if self.isActive and not self._is_ending():
                self._at_rest()
        except (HeadgateError, PySparkException) as problem:
            self._stream.fail(problem)
        self._raise_failure()

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
        if self._epochs.failure is not None or self._stream is None:
            return self._epochs.failure
        failure = self._stream.failure
        if failure is not None and not isinstance(failure, HeadgateError):
            try:  # Spark notices a second driver too, in its own words
                self.coordinator.generation.hold("going on")
            except Overtaken as overtaken:
                overtaken.__cause__ = failure
                return overtaken
        return failure

    # --- headgate's own --------------------------------------------------------------------
    @property
    def sparkQuery(self) -> StreamingQuery | None:
        """Spark's own query underneath; None for a batch source.

        Another one takes its place when rows per epoch change.
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

    def table(self, sink: str, *, verify: bool = True) -> DataFrame:
        """All committed rows of a table or Parquet sink, as a DataFrame.

        A file that is damaged, or missing from a table, is a `StateFileError`; for that all files
        are read once on a local disk. With `verify=False` whatever is there is taken.
        """
        sinks = self.coordinator.program.sinks
        kept = [node.name for node in sinks if node.spec.kind in ("table", "parquet")]
        check_known(self.name, "table or Parquet sink", sink, kept)
        node = self.coordinator.program.graph.node(sink)
        return self._delivery.table(node, self.coordinator.last, verify)

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

    def attach(self, stream: EpochStream, ticking: Ticking) -> None:
        """Go along with Spark's query, from its start to its end."""
        self._stream, self._ticking = stream, ticking
        stream.begin(self._epochs.settle, self._when_idle, self._at_rest)

    def run_in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except HeadgateError:
                pass  # it is known
            except Exception as problem:
                self._epochs.failure = EngineError(f"{type(problem).__name__}: {problem}")
                self._epochs.failure.__cause__ = problem

        self._thread = threading.Thread(target=guarded, name=f"headgate-{self.name}", daemon=True)
        self._thread.start()

    def run_epoch(
        self, frame: DataFrame, batch: int, query_id: str, *, tagged: bool, streaming: bool = True
    ) -> None:
        """One micro-batch, or the one batch of sources that do not stream."""
        run, ids = self._engine.run_batch, (self.id, self._run_id)
        if streaming:
            run_id = self._engine.spark.sparkContext.getLocalProperty(JOB_GROUP)
            run, ids = self._engine.run, (query_id, run_id or self.runId)
        facts = self._epochs.run_batch(
            batch, query_id, partial(run, frame, tagged=tagged), ids, self._last_progress
        )
        if facts is not None:
            self._elastic.epoch_committed()
            self._hand_over()

    def _last_progress(self) -> StreamingQueryProgress | None:
        return None if self._stream is None else self._stream.query.lastProgress

    def _when_idle(self) -> None:
        assert self._stream is not None and self._ticking is not None
        self._epochs.tick_if_idle(self._ticking, self._stream.query)

    def _at_rest(self) -> None:
        assert self._stream is not None and self._ticking is not None
        self._epochs.tick_at_rest(self._ticking, self._stream.query)

    def _is_changing(self) -> bool:
        return self._elastic.is_changing

    def _carry_out(self, decision: Decision) -> None:
        """What a decision means beyond routes.

        While another number of slots is on its way, the user's above all, no other is asked for.
        """
        if decision.slots is not None and not self._elastic.is_changing:
            self._elastic.request(decision.slots, decision.scaling)
        if decision.settings is not None and self._auto is not None:
            saved = SavedTuning(self._auto.saved.calibration, decision.settings)
            save_tuning(self._auto.storage, saved)
        if decision.rows_per_epoch is not None:
            self._rows_per_epoch = decision.rows_per_epoch

    def _hand_over(self) -> None:
        """Between two epochs, let another query go on with other rows per epoch, if so decided."""
        rows, self._rows_per_epoch = self._rows_per_epoch, None
        if rows is not None and self._stream is not None:
            self._engine.expect_new_session()
            self._stream.hand_over(rows)

    def _is_ending(self) -> bool:
        return self._stopping or (self._stream is not None and self._stream.is_ending)

    def _raise_failure(self) -> None:
        """Raise why the flow ended, with the caller's stack alone; its `cause` has the rest."""
        failure = self.exception()
        if failure is not None:
            if failure.__cause__ is not None:
                vars(failure)["cause"] = failure.__cause__
            raise failure.with_traceback(None) from None

    def _close(self) -> None:
        if not self._closed and not self.isActive:
            self._closed = True
            self._elastic.close()
            self.coordinator.close()
            self._engine.close()
            self._delivery.close()
