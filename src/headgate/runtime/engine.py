"""One epoch as one Spark job: source stage, then a shuffle and a slot stage per level.

The only action is a collect of the last level's control records. Functions and schemas are made
once; what changes from epoch to epoch, the plan, travels as a local property of the job.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import Accumulator, AccumulatorParam, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headgate.commit.coordinator import EngineAborted, EpochResult
from headgate.commit.facts import EngineFacts
from headgate.errors import EngineError
from headgate.runtime.exchange import (
    ANCHOR_CONF,
    Anchor,
    Stage,
    anchored,
    apply_stage,
    arrow_stage,
    build_anchor,
    spread,
    with_conf,
)
from headgate.runtime.executors import live_executors, tasks_at_once
from headgate.runtime.worker import PLAN_PROPERTY, pack_plan, slot_stage, source_stage
from headgate.slot.compile import packed
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.slot.task import Counted, Report, Timing

EPOCH_CONF: Mapping[str, str] = {
    **ANCHOR_CONF,
    # Spark compares the outputs of two attempts of a map task and reruns what depends on them.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
BATCH_ROWS_MAX = 200_000  # see `batch_limits`
BATCH_BYTES_MAX = 16 << 20
FIXED_BYTES = (
    dict.fromkeys(["boolean", "byte"], 1)
    | {"short": 2}
    | dict.fromkeys(["integer", "float", "date"], 4)
    | dict.fromkeys(["long", "double", "timestamp", "timestamp_ntz"], 8)
)


class _ListParam(AccumulatorParam[list[Report]]):
    def zero(self, value: list[Report]) -> list[Report]:
        return []

    def addInPlace(self, value1: list[Report], value2: list[Report]) -> list[Report]:
        value1.extend(value2)
        return value1


class _NothingParam(_ListParam):
    """Forgets what it is told."""

    def addInPlace(self, value1: list[Report], value2: list[Report]) -> list[Report]:
        return value1


@dataclass(frozen=True)
class _Held:
    """An anchor, and the executors (id -> host) there were when it was last looked at."""

    anchor: Anchor
    live: Mapping[str, str]

    def is_whole(self, live: Mapping[str, str]) -> bool:
        """Are all executors that may hold a part of it still there?"""
        return all(
            executor in live for executor, host in self.live.items() if host in self.anchor.hosts
        )


class SparkEngine:
    """Runs plans of one flow on a SparkSession; keeps one anchor per slot count.

    `between_epochs` is held while an epoch's job runs: who has it knows that none does. With
    `source_tasks_max` no more source tasks are made than that, so that none waits for a core.
    `last_batch` is the micro-batch of the last epoch, for newcomers to practise reading on.
    """

    def __init__(
        self, spark: SparkSession, program: Program, *, conf: Mapping[str, str] | None = None
    ) -> None:
        self.spark, self.program = spark, program
        self._conf = {**EPOCH_CONF, **(conf or {})}
        self._id = uuid.uuid4().hex
        # With cloudpickle: functions of the main program travel by value, others by name.
        self._code = spark.sparkContext.broadcast(packed(program, cloudpickle.dumps))
        self._reports = spark.sparkContext.accumulator([], _ListParam())
        # Made once, too: PySpark keeps every accumulator for the life of the driver.
        self._unheard = spark.sparkContext.accumulator([], _NothingParam())
        self._source_stage: Column | None = None
        self._slot_stages = [arrow_stage(stage) for stage in self._functions(self._reports)]
        self.own_session = spark.newSession()  # for jobs beside the epochs; shares what is cached
        for name, value in self._conf.items():
            self.own_session.conf.set(name, value)
        self.between_epochs = threading.Lock()
        self.source_tasks_max: int | None = None
        self.last_batch: DataFrame | None = None
        self._anchors: dict[int, _Held] = {}
        self._homes: tuple[str, ...] = ()
        self._one_host = str(spark.sparkContext.master).startswith("local")
        self._configured = False

    def run_idle(self, schema: StructType, plan: EpochPlan, *, tagged: bool) -> EpochResult:
        """Run an epoch without rows; batches of the stream have this schema."""
        row = F.lit(None).cast(schema).alias("row")
        nothing = self.own_session.range(0, numPartitions=1).select(row).select("row.*")
        return self._run(nothing, plan, tagged)

    def run(self, frame: DataFrame, plan: EpochPlan, *, tagged: bool) -> EpochResult:
        """Run one epoch over a micro-batch, whose session is a clone that is ours to configure."""
        if not self._configured:
            for name, value in {**batch_limits(frame.schema), **self._conf}.items():
                frame.sparkSession.conf.set(name, value)
            self._configured = True
        result = self._run(frame, plan, tagged)
        self.last_batch = frame
        return result

    def run_batch(self, frame: DataFrame, plan: EpochPlan, *, tagged: bool) -> EpochResult:
        """Run the one epoch of a batch DataFrame; its session is the user's and is put back."""
        with with_conf(frame.sparkSession, {**batch_limits(frame.schema), **self._conf}):
            return self._run(frame, plan, tagged)

    def expect_new_session(self) -> None:
        """The next micro-batch comes from another query, whose session is not configured yet."""
        self._configured = False

    def hosts(self, slots: int) -> tuple[str, ...]:
        """The host of each of so many slots."""
        return self.anchor(slots).hosts

    def silent_functions(self) -> list[Stage]:
        """The slot stages' functions once more, for runs whose measurements nobody wants."""
        return self._functions(self._unheard)

    def anchor(self, slots: int) -> Anchor:
        """The anchor for this slot count, made again when an executor that holds it has gone."""
        held = self._anchors.get(slots)
        if held is not None and self._one_host:
            return held.anchor
        live = live_executors(self.spark)
        if held is not None and held.live == live:
            return held.anchor
        before = self._homes if held is None else held.anchor.hosts
        chosen = spread(slots, sorted(set(live.values())), before)
        if held is not None and chosen == held.anchor.hosts and held.is_whole(live):
            self._anchors[slots] = _Held(held.anchor, live)  # executors came that it does not need
            return held.anchor
        anchor = self.anchor_on(chosen)
        if held is not None:
            held.anchor.release()
        self._anchors[slots] = _Held(anchor, live)
        self._homes = anchor.hosts
        return anchor

    def anchor_on(self, hosts: Sequence[str]) -> Anchor:
        """A new anchor, with a slot on each of these hosts; the caller releases it."""
        return build_anchor(self.own_session, hosts)

    def close(self) -> None:
        for held in self._anchors.values():
            held.anchor.release()
        self._anchors.clear()
        self._reports.value = []
        self._code.unpersist()

    # --- inside ----------------------------------------------------------------------------
    def _run(self, frame: DataFrame, plan: EpochPlan, tagged: bool) -> EpochResult:
        started = time.perf_counter()
        anchor = self.anchor(plan.slots)
        self._reports.value = []
        context = self.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        context.setJobDescription(self._description(plan))
        last = self._stages(frame, anchor, tagged)
        cores = tasks_at_once(context)
        planned = time.perf_counter()
        try:
            with self.between_epochs:
                rows = last.collect()
        except (Py4JError, PySparkException) as problem:
            if hint := way_out(str(problem), str(context.pythonExec)):
                raise EngineError(f"epoch {plan.epoch}: {hint}", epoch=plan.epoch) from problem
            raise EngineAborted(_reason(problem)) from problem
        controls = [Control.from_bytes(row.payload) for row in rows]
        timings = [r for r in self._reports.value if isinstance(r, Timing)]
        counted = {r[:2]: r.data for r in self._reports.value if isinstance(r, Counted)}
        task_ms: dict[int, list[float]] = {}  # by level, as measured inside the Python workers
        for timing in sorted(t for t in timings if not t.name):
            task_ms.setdefault(timing.level, []).append(timing.nanoseconds / 1e6)
        engine = EngineFacts(
            plan_ms=round((planned - started) * 1e3, 1),
            job_ms=round((time.perf_counter() - planned) * 1e3, 1),
            levels_ms={level: round(max(spent), 2) for level, spent in task_ms.items()},
            task_ms={level: round(sum(spent), 2) for level, spent in task_ms.items()},
            cores=cores,
            hosts=anchor.hosts,
        )
        statistics = [TaskStatistics.from_bytes(data) for _, data in sorted(counted.items())]
        operators = [t for t in timings if t.name]
        return EpochResult(controls, operators, engine, statistics=statistics)

    def _functions(self, reports: Accumulator[list[Report]]) -> list[Stage]:
        levels = range(1, self.program.levels + 1)
        return [slot_stage(self._code, self._id, level, reports) for level in levels]

    def _stages(self, frame: DataFrame, anchor: Anchor, tagged: bool) -> DataFrame:
        if self._source_stage is None:
            route = source_stage(self._code, self._id, tagged, self._reports)
            self._source_stage = arrow_stage(route)
        if self.source_tasks_max is not None:
            frame = frame.coalesce(self.source_tasks_max)
        tuples = apply_stage(frame, self._source_stage)
        for stage in self._slot_stages:
            tuples = apply_stage(anchored(tuples, anchor), stage)
        return tuples

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


def _reason(problem: Exception) -> str:
    """The lines of a Spark error that say something."""
    lines = str(problem).splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("\tat ", "\t... ")))
    return text if len(text) < 4000 else text[:2000] + "\n…\n" + text[-2000:]


def way_out(reason: str, worker_python: str, driver_python: str = sys.executable) -> str | None:
    """What to do about a job that failed for a missing module; None if the reason is another.

    Spark starts its Python workers with `PYSPARK_PYTHON`, or with whatever `python3` the path has:
    a module that is missing there is missing in every attempt.

    Examples:
        >>> way_out("java.io.IOException: gone", "python3") is None
        True
    """
    found = re.findall(r"ModuleNotFoundError: No module named '([\w.]+)'", reason)
    if not found:
        return None
    module = found[-1]
    hint = f"Spark's Python workers ({worker_python}) cannot import {module!r}. "
    if module.partition(".")[0] in ("headgate", "pyarrow", "numpy", "xxhash"):
        hint += (
            "They must have headgate installed: set PYSPARK_PYTHON to an interpreter that has, "
            f"on this machine {driver_python}, before the session is made"
        )
    else:
        hint += (
            "Install it for that interpreter (PYSPARK_PYTHON chooses another), or send your own "
            "modules along with spark.sparkContext.addPyFile(...)"
        )
    return hint
