"""One epoch as one Spark job: source stage, then a shuffle and a slot stage per level.

The only action is a collect of the last level's control records. Functions and schemas are made
once; what changes from epoch to epoch, the plan, travels as a local property of the job.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from headgate.control.coordinator import EngineAborted, EpochResult
from headgate.runtime.anchor import (
    ANCHOR_CONF,
    Anchor,
    anchored,
    build_anchor,
    executor_hosts,
    slot_labels,
    spread,
    with_conf,
)
from headgate.runtime.exchange import TUPLE_TYPE, apply_stage, arrow_stage
from headgate.runtime.worker import PLAN_PROPERTY, pack_plan, slot_stage, source_stage
from headgate.slot.batch_tuple import TUPLE_SCHEMA, anchor_row
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics

EPOCH_CONF: Mapping[str, str] = {
    **ANCHOR_CONF,
    # Spark compares the outputs of two attempts of a map task and reruns what depends on them.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
BATCH_ROWS_MAX = 200_000
BATCH_BYTES_MAX = 16 << 20


FIXED_BYTES = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "long": 8,
    "float": 4,
    "double": 8,
    "date": 4,
    "timestamp": 8,
    "timestamp_ntz": 8,
}


class _ListParam(AccumulatorParam[list[Any]]):
    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


class SparkEngine:
    """Runs plans of one flow on a SparkSession; keeps one anchor per slot count."""

    def __init__(
        self, spark: SparkSession, program: Program, *, conf: Mapping[str, str] | None = None
    ) -> None:
        self.spark, self.program = spark, program
        self._conf = {**EPOCH_CONF, **(conf or {})}
        self._id = uuid.uuid4().hex
        self._code = spark.sparkContext.broadcast(_pickled(program))
        self._reports = spark.sparkContext.accumulator([], _ListParam())
        self._source_stage: Column | None = None
        self._slot_stages = [
            arrow_stage(slot_stage(self._code, self._id, level, self._reports), TUPLE_SCHEMA.names)
            for level in range(1, program.levels + 1)
        ]
        self._anchors: dict[int, Anchor] = {}
        self._hosts: list[str] = []
        self._homes: tuple[str, ...] = ()
        self._one_host = str(spark.sparkContext.master).startswith("local")
        self._configured = False

    def run(self, frame: DataFrame, plan: EpochPlan, *, tagged: bool) -> EpochResult:
        """Run one epoch over a micro-batch, whose session is a clone that is ours to configure."""
        if not self._configured:
            for name, value in {**batch_limits(frame.schema), **self._conf}.items():
                frame.sparkSession.conf.set(name, value)
            self._configured = True
        return self._run(frame, plan, tagged)

    def run_batch(self, frame: DataFrame, plan: EpochPlan, *, tagged: bool) -> EpochResult:
        """Run the one epoch of a batch DataFrame; its session is the user's and is put back."""
        with with_conf(frame.sparkSession, {**batch_limits(frame.schema), **self._conf}):
            return self._run(frame, plan, tagged)

    def rehearse(self, plan: EpochPlan) -> float:
        """Run the slot stages of a plan without rows, so that its slots are not met cold; seconds.

        Runs beside the epochs, from another thread, and tells nobody what it measured.
        """
        started = time.perf_counter()
        anchor = self._anchor(plan.slots)
        context = self.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        context.setJobDescription(f"{self.program.graph.name}: rehearsing {plan.slots} slots")
        unheard = context.accumulator([], _ListParam())
        with with_conf(self.spark, self._conf):
            tuples = self.spark.createDataFrame([], TUPLE_TYPE)
            for level in range(1, self.program.levels + 1):
                stage = slot_stage(self._code, self._id, level, unheard)
                tuples = apply_stage(
                    anchored(tuples, anchor), arrow_stage(stage, TUPLE_SCHEMA.names)
                )
            tuples.collect()
        return time.perf_counter() - started

    def hosts(self, slots: int) -> tuple[str, ...]:
        """The host of each of so many slots."""
        return self._anchor(slots).hosts

    def close(self) -> None:
        for anchor in self._anchors.values():
            anchor.release()
        self._anchors.clear()
        self._code.unpersist()

    # --- inside ----------------------------------------------------------------------------
    def _run(self, frame: DataFrame, plan: EpochPlan, tagged: bool) -> EpochResult:
        started = time.perf_counter()
        anchor = self._anchor(plan.slots)
        self._reports.value = []
        context = self.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        context.setJobDescription(self._description(plan))
        last = self._stages(frame, anchor, tagged)
        planned = time.perf_counter()
        try:
            rows = last.collect()
        except (Py4JError, PySparkException) as problem:
            raise EngineAborted(_reason(problem)) from problem
        controls = [Control.from_bytes(row.payload) for row in rows]
        timings = [tuple(entry) for entry in self._reports.value if len(entry) == 5]
        counted = {tuple(e[:2]): e[2] for e in self._reports.value if len(e) == 3}
        facts = {
            "plan_ms": round((planned - started) * 1e3, 1),
            "job_ms": round((time.perf_counter() - planned) * 1e3, 1),
            "levels_ms": _level_ms(timings),
            "hosts": list(anchor.hosts),
        }
        statistics = [TaskStatistics.from_bytes(data) for _, data in sorted(counted.items())]
        return EpochResult(controls, [t for t in timings if t[2]], facts, statistics)

    def _stages(self, frame: DataFrame, anchor: Anchor, tagged: bool) -> DataFrame:
        if self._source_stage is None:
            route = source_stage(self._code, self._id, tagged, self._reports)
            self._source_stage = arrow_stage(route, frame.columns)
        tuples = apply_stage(frame, self._source_stage)
        for stage in self._slot_stages:
            tuples = apply_stage(anchored(tuples, anchor), stage)
        return tuples

    def _anchor(self, slots: int) -> Anchor:
        """The anchor for this slot count, made again when the set of hosts has changed."""
        if slots in self._anchors and self._one_host:
            return self._anchors[slots]
        hosts = executor_hosts(self.spark)
        known = self._anchors.get(slots)
        if known is not None and hosts == self._hosts:
            return known
        labels = slot_labels(slots)
        chosen = spread(slots, hosts, known.hosts if known is not None else self._homes)
        self._hosts = hosts
        if known is not None and chosen == known.hosts:
            return known  # hosts have come that it does not need
        anchor = build_anchor(
            self.spark,
            slots,
            chosen,
            lambda slot: anchor_row(slot, labels[slot]),
            TUPLE_TYPE,
        )
        if known is not None:
            known.release()
        self._anchors[slots] = anchor
        self._homes = anchor.hosts
        return anchor

    def _description(self, plan: EpochPlan) -> str:
        by_level: dict[int, list[str]] = {}
        for node in self.program.order:
            if node.kind != "source":
                by_level.setdefault(self.program.depth[node.id], []).append(node.name)
        levels = "; ".join(f"level {d}: {', '.join(by_level[d])}" for d in sorted(by_level))
        return f"{self.program.graph.name}, epoch {plan.epoch}, {plan.slots} slots ({levels})"


def batch_limits(schema: StructType) -> dict[str, str]:
    """How Spark hands rows to Python: in large batches, as routing costs per batch too, but not too
    large: 2,000 rows of 4 kB was good, 100,000 of them three times slower.

    Spark adds up the bytes of every row to keep a byte limit (about a tenth of the time of reading
    small rows). Rows of fixed width need none: their number is limit enough.
    """
    widths = [FIXED_BYTES.get(field.dataType.typeName()) for field in schema.fields]
    known = [width for width in widths if width is not None]
    if len(known) < len(widths):
        rows, size = BATCH_ROWS_MAX, f"{BATCH_BYTES_MAX}b"
    else:
        rows, size = min(BATCH_ROWS_MAX, BATCH_BYTES_MAX // max(1, sum(known))), "2147483647b"
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": size,
    }


def _pickled(program: Program) -> bytes:
    """With cloudpickle: functions of the main program travel by value, others by name."""
    dumps: Any = cloudpickle.dumps
    return bytes(dumps(program))


def _level_ms(timings: list[tuple[Any, ...]]) -> dict[str, float]:
    """The longest task of each level, as measured inside the Python workers."""
    longest: dict[str, float] = {}
    for level, _slot, name, _rows, nanoseconds in timings:
        if name == "":
            key = str(level)
            longest[key] = max(longest.get(key, 0.0), round(nanoseconds / 1e6, 2))
    return dict(sorted(longest.items()))


def _reason(problem: Exception) -> str:
    """The lines of a Spark error that say something."""
    text = str(problem)
    return text if len(text) < 4000 else text[:2000] + "\n…\n" + text[-2000:]
