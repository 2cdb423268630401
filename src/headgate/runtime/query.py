"""The handle of a running flow, shaped like Spark's StreamingQuery."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headgate.commit.facts import EpochFacts
from headgate.commit.inspection import check_known, read_state
from headgate.errors import EngineError, HeadgateError, Overtaken
from headgate.runtime.connectors import Delivery
from headgate.runtime.stream import EpochRun, Epochs
from headgate.slot.explained import Explained, explained_run
from headgate.slot.program import ttl_ms

DECISIONS_READ, DECISIONS_SHOWN = 200, 5  # newest records of the journal, and lines of explain()
_EPOCH_0 = datetime(1970, 1, 1, tzinfo=UTC)


class FlowQuery:
    """A flow that runs. Methods and properties of StreamingQuery mean what they mean there."""

    def __init__(self, epochs: Epochs, delivery: Delivery) -> None:
        self.coordinator = epochs.coordinator
        self._epochs, self._stream, self._engine = epochs, epochs.stream, epochs.engine
        self._delivery = delivery
        self._closed = False

    # --- like StreamingQuery ---------------------------------------------------------------
    @property
    def name(self) -> str:
        return self.coordinator.program.graph.name

    @property
    def id(self) -> str:
        """Stays the same over restarts; for a batch, one for its checkpoint."""
        query = self._stream.query
        return self._epochs.batch_ids[0] if query is None else str(query.id)

    @property
    def runId(self) -> str:
        query = self._stream.query
        return self._epochs.batch_ids[1] if query is None else str(query.runId)

    @property
    def isActive(self) -> bool:
        return self._stream.is_active

    @property
    def status(self) -> dict[str, Any]:
        if self._stream.query is not None:
            return dict(self._stream.query.status)
        return {
            "message": "Processing the batch" if self.isActive else "Terminated",
            "isDataAvailable": self.isActive,
            "isTriggerActive": self.isActive,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        recent = list(self._epochs.recent)
        return progress_of(recent[-1]) if recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [progress_of(run) for run in list(self._epochs.recent)]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the flow ends (True) or the timeout passes (False); raises its error."""
        ended = self._stream.await_end(timeout)
        if ended:
            self._close()
            self._raise_failure()
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all rows that are there have been processed, windows too; for tests."""
        if self._stream.query is None:
            self.awaitTermination()
            return
        try:
            self._stream.process_all_available()
            if self.isActive and not self._stream.is_ending:
                self._epochs.tick_at_rest()
        except (HeadgateError, PySparkException) as problem:
            self._stream.fail(problem)
        self._raise_failure()

    def stop(self) -> None:
        """Stop after Spark has let go of the running epoch; what is committed stays."""
        self._stream.stop()
        self._close()

    def exception(self) -> Exception | None:
        """Why the flow ended, if not by `stop` or by finishing."""
        failure = self._epochs.failure or self._stream.failure
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
        return self._stream.query

    @property
    def slots(self) -> int:
        """How many slots the flow runs with now."""
        return self.coordinator.slots

    def rescale(
        self, slots: int | None = None, *, parallelism: Mapping[str, int] | None = None
    ) -> None:
        """Run with so many slots, or so many instances of operators, from a coming epoch on.

        Returns at once, and nothing is restarted. On a standalone cluster executors are asked for
        before, or given back after; the journal's records `scale` and `elastic` say when and how.
        """
        if self._stream.query is None:
            raise EngineError("rescale is for streams; a batch runs as one epoch")
        if slots is not None:
            self._epochs.elastic.request(slots, "asked for")
        if parallelism is not None:
            self.coordinator.set_parallelism(parallelism, slots or self.slots)

    @property
    def instances(self) -> dict[str, tuple[int, ...]]:
        """The slots that have an instance of each operator, as of the last epoch.

        Operators that stay where their rows are, such as a `map` behind a `process`, are left out.
        """
        return self.coordinator.instances

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
        node = next(node for node in sinks if node.name == sink)
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

    def explain(self) -> Explained:
        """What the flow does now: operators, their slots, how keys are placed, and who decided.

        Prints as text, and as a table in a notebook.
        """
        at = self.coordinator
        pins = {name: len(table.pinned_h) for name, table in at.tables.items()}
        decided = [r for r in self.journal(DECISIONS_READ) if r.get("kind") in ("plan", "scale")]
        remarks = [_decision(record) for record in decided[-DECISIONS_SHOWN:]]
        return explained_run(
            at.program, repr(self), self.instances, pins, remarks or ["No plan was made so far."]
        )

    def __repr__(self) -> str:
        last = self.coordinator.last
        epoch = "no epoch yet" if last is None else f"epoch {last.epoch}"
        state = "running" if self.isActive else "ended"
        return f"<FlowQuery {self.name!r}: {state}, {epoch}, {self.slots} slots>"

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "coordinator"]

    # --- inside ----------------------------------------------------------------------------
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
            self._epochs.elastic.close()
            self.coordinator.close()
            self._engine.close()
            self._delivery.close()


def _decision(record: Mapping[str, Any]) -> str:
    why = record.get("why") or record.get("failed") or record.get("overtaken") or "it pays"
    if record["kind"] == "scale":
        return f"Epoch {record['epoch']}: {record['before']} -> {record['slots']} slots: {why}"
    moves = ", ".join(f"{n} of {op}" for op, n in record.get("moves", {}).items()) or "none"
    return f"Epoch {record['epoch']}: planner {record.get('planner', '?')} moved {moves}: {why}"


def progress_of(run: EpochRun) -> dict[str, Any]:
    """What `StreamingQueryProgress.fromJson` takes, plus the whole record under "headgate"."""
    facts, engine = run.facts, run.facts.engine
    gap_s = 0.0 if run.before_s is None else run.started_s - run.before_s
    job_s = (engine.job_ms or 0.0) / 1e3

    def rates(rows: int) -> dict[str, Any]:
        return {
            "numInputRows": rows,
            "inputRowsPerSecond": rows / gap_s if gap_s > 0 else 0.0,
            "processedRowsPerSecond": rows / job_s if job_s else 0.0,
        }

    whole_ms = round(run.duration_s * 1e3)
    times = {"planning": engine.plan_ms, "job": engine.job_ms}
    times |= {f"level{level}": ms for level, ms in engine.levels_ms.items()}
    durations = {name: round(ms) for name, ms in times.items() if ms is not None}
    offsets = dict.fromkeys(["startOffset", "endOffset", "latestOffset"])
    return {
        "id": run.query_id,
        "runId": run.run_id,
        "name": facts.flow,
        "timestamp": _iso(timedelta(seconds=run.started_s)),
        "batchId": facts.epoch,
        "batchDuration": whole_ms,
        **rates(facts.rows),
        "durationMs": {"triggerExecution": whole_ms, **durations},
        "eventTime": _event_time(facts.watermark_us),
        "stateOperators": [_state_operator(facts, name) for name in facts.state],
        "sources": [
            {"description": name, **offsets, **rates(rows)}
            for name, rows in facts.source_rows.items()
        ],
        "sink": {
            "description": ", ".join(facts.sink_rows) or "headgate",
            "numOutputRows": sum(facts.sink_rows.values()),
        },
        "headgate": facts.to_json(),
    }


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
        return {}  # Python has no such year


def _iso(since_1970: timedelta) -> str:
    return (_EPOCH_0 + since_1970).isoformat(timespec="milliseconds").replace("+00:00", "Z")
