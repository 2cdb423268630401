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
from typing import Any

from py4j.protocol import Py4JError
from pyspark import Accumulator, AccumulatorParam, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headgate.commit.coordinator import EngineAborted
from headgate.commit.epoch_record import EpochResult
from headgate.commit.facts import EngineFacts
from headgate.errors import EngineError
from headgate.runtime.checkpoint_files import take_back
from headgate.runtime.exchange import (
    ANCHOR_CONF,
    Anchor,
    Stage,
    anchored,
    apply_stage,
    arrow_stage,
    build_anchor,
    executors,
    in_one_process,
    live_executors,
    spread,
    tasks_at_once,
    with_conf,
)
from headgate.runtime.file_listing import FileListing
from headgate.runtime.first_hop import (
    FirstHop,
    Tasks,
    cores_by_host,
    dealt_by_home,
    frame_of_tasks,
)
from headgate.runtime.planned_ahead import PlannedAhead
from headgate.runtime.worker import (
    INPUT_PROPERTY,
    PLAN_PROPERTY,
    level_stage,
    pack_pieces,
    pack_plan,
)
from headgate.slot.compile import packed
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.report import Counted, Machine, Report, Timing
from headgate.slot.statistics import TaskStatistics
from headgate.topology.files import InputFile, Piece, pieces_of

EPOCH_CONF: Mapping[str, str] = {
    **ANCHOR_CONF,
    # Spark compares the outputs of two attempts of a map task and reruns what depends on them.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
BATCH_ROWS_MAX = 200_000  # see `batch_limits`
PARTS_MAX = 64  # anchors of some slots: more than a flow has levels, each a few rows in memory
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


class SparkEngine:
    """Runs plans of one flow on a SparkSession; keeps one anchor per slot count.

    `between_epochs` is held while an epoch's job runs: who has it knows that none does. With
    `source_tasks_max` no more source tasks are made than that, so that none waits for a core.
    `last_batch` is the micro-batch of the last epoch, for new executors to practise reading on.

    Args:
        schema: That of the micro-batches.
        streaming: Does each query read in a session of its own? A batch reads in the user's.
    """

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        schema: StructType,
        *,
        streaming: bool,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.spark, self.program = spark, program
        self._schema, self._streaming = schema, streaming
        self._files = FileListing.of(program)
        self._first_hop = None if self._files is None else FirstHop.of(program, self._files.sources)
        self._ranges: dict[Tasks, DataFrame] = {}  # the last one, by its tasks
        # Over which frame and anchors, by their ids (it holds on to them), and what was declared.
        self._declared: tuple[list[int], Any, DataFrame] | None = None
        self._ahead = PlannedAhead()
        self._conf = {**batch_limits(schema), **EPOCH_CONF, **(conf or {})}
        self._id = uuid.uuid4().hex
        # With cloudpickle: functions of the main program travel by value, others by name.
        self._code = spark.sparkContext.broadcast(packed(program, cloudpickle.dumps))
        self._reports = spark.sparkContext.accumulator([], _ListParam())
        self._one_process = in_one_process(spark)
        self._cores: int | None = None
        self._stages = [arrow_stage(stage) for stage in self.functions(self._reports)]
        self.own_session = spark.newSession()  # for jobs beside the epochs; shares what is cached
        self._configure(self.own_session)
        self.between_epochs = threading.Lock()
        self.source_tasks_max: int | None = None
        self.last_batch: DataFrame | None = None
        # By slot count: an anchor, and the executors (id -> host) when it was last looked at.
        self._anchors: dict[int, tuple[Anchor, Mapping[str, str]]] = {}
        # For levels in which some slots have work: by these, with the hosts of all slots.
        self._parts: dict[tuple[int, ...], tuple[Anchor, tuple[str, ...]]] = {}
        self._homes: tuple[str, ...] = ()
        self._machines: dict[str, int] = {}  # processors of every machine that ran a task
        self._one_host = str(spark.sparkContext.master).startswith("local")
        self._configured = False

    def run(self, frame: DataFrame | None, plan: EpochPlan) -> EpochResult:
        """Run one epoch over a micro-batch; None: without rows."""
        if frame is not None and self._streaming and not self._configured:
            take_back(frame.sparkSession)  # a clone that Spark made for the query
            if self._files is None:
                self._configure(frame.sparkSession)
            self._configured = True
        if self._files is not None:
            cores = self._tasks_at_once()
            result = self._run(self._readers(self._files, frame, cores, plan), plan, cores)
            self.last_batch = frame or self.last_batch
            return result
        if frame is None:
            row = F.lit(None).cast(self._schema).alias("row")
            nothing = self.own_session.range(0, numPartitions=1)
            return self._run(nothing.select(row).select("row.*"), plan)
        if not self._streaming:
            with with_conf(frame.sparkSession, self._conf):
                return self._run(self._limited(frame), plan)
        result = self._run(self._limited(frame), plan)
        self.last_batch = frame
        return result

    def _readers(
        self, files: FileListing, frame: DataFrame | None, cores: int, plan: EpochPlan
    ) -> DataFrame:
        """A frame of a row for each source task; the tasks read the files of the micro-batch."""
        tasks = min(cores, self.source_tasks_max or cores)
        listed = [] if frame is None else files.listed(frame)
        pieces, places = self._placed(listed, plan, cores) or (
            pieces_of(listed, files.sources, tasks),
            (),
        )
        self.spark.sparkContext.setLocalProperty(INPUT_PROPERTY, pack_pieces(pieces))
        wanted: Tasks = places if places else max(1, len(pieces))
        if wanted not in self._ranges:
            self._ranges = {wanted: frame_of_tasks(self.own_session, wanted)}
        return self._ranges[wanted]

    def _placed(
        self, listed: list[InputFile], plan: EpochPlan, cores: int
    ) -> tuple[list[list[Piece]], tuple[str, ...]] | None:
        """What each source task reads, and on which host; None: anybody may read anything."""
        if self._first_hop is None or self._one_host or self.source_tasks_max is not None:
            return None
        slots = self._first_hop.slots(listed, plan.routes, cores)
        if not slots:
            return None
        hosts = self.anchor(plan.slots).hosts
        homes = ["" if slot is None else hosts[slot] for slot in slots]
        on = cores_by_host(executors(self.spark))
        return dealt_by_home(listed, homes, self._first_hop.files, on) if on else None

    def _limited(self, frame: DataFrame) -> DataFrame:
        return frame if self.source_tasks_max is None else frame.coalesce(self.source_tasks_max)

    def expect_new_session(self) -> None:
        """The next micro-batch comes from another query, whose session is not configured yet."""
        self._configured = False

    def functions(self, reports: Accumulator[list[Report]] | None = None) -> list[Stage]:
        """The functions of all levels; without `reports` nobody learns what they measure."""
        levels = range(self.program.levels + 1)
        anchored = not self._one_process
        return [
            level_stage(self._code, self._id, level, reports, anchored=anchored) for level in levels
        ]

    def anchor(self, slots: int, homes: tuple[str, ...] = ()) -> Anchor:
        """The anchor for this slot count, made again when an executor that holds it has gone.

        With `homes` it is one on these hosts, and evenness over others does not count.
        """
        held, known = self._anchors.get(slots, (None, {}))
        if homes and (held is None or held.hosts != homes):
            return self._keep(slots, held, homes, live_executors(self.spark))
        if held is not None and self._one_host:
            return held
        live = live_executors(self.spark)
        if held is not None and known == live:
            return held
        before = self._homes if held is None else held.hosts
        chosen = spread(slots, sorted(set(live.values())), before)
        if held is not None:
            holders = [executor for executor, host in known.items() if host in held.hosts]
            if chosen == held.hosts and all(executor in live for executor in holders):
                self._anchors[slots] = held, live  # executors came that it does not need
                return held
        return self._keep(slots, held, chosen, live)

    def _keep(
        self, slots: int, held: Anchor | None, hosts: Sequence[str], live: Mapping[str, str]
    ) -> Anchor:
        """A new anchor, in place of the one held."""
        anchor = build_anchor(self.own_session, hosts)
        if held is not None:
            held.release()
        self._anchors[slots] = anchor, live
        self._homes = anchor.hosts
        return anchor

    def forget_anchors_but(self, slots: int) -> None:
        """Let go of what is cached for other slots; if they come back it is made again."""
        for other in [count for count in self._anchors if count != slots]:
            self._anchors.pop(other)[0].release()
        hosts = self.anchor(slots).hosts
        for part in [part for part, (_, on) in list(self._parts.items()) if on != hosts]:
            self._parts.pop(part)[0].release()

    def _levels(self, plan: EpochPlan) -> int:
        return len(plan.at_work) or self.program.levels

    def _anchor_at(self, plan: EpochPlan, level: int, whole: Anchor) -> Anchor:
        """The anchor of the slots that have work in a level; kept while epochs use it."""
        slots = plan.slots_at(level)
        if len(slots) == plan.slots:
            return whole
        held, hosts = self._parts.get(slots, (None, ()))
        if held is not None and hosts == whole.hosts:
            return held
        if held is not None:
            held.release()
        elif len(self._parts) >= PARTS_MAX:  # of plans that are gone
            self._parts.pop(next(iter(self._parts)))[0].release()
        made = build_anchor(self.own_session, [whole.hosts[s] for s in slots], slots)
        self._parts[slots] = made, whole.hosts
        return made

    def close(self) -> None:
        for anchor, _ in (*self._anchors.values(), *self._parts.values()):
            anchor.release()
        self._anchors.clear()
        self._parts.clear()
        self._declared = None
        self._ahead.close()
        self._reports.value = []
        self._code.unpersist()

    # --- inside ----------------------------------------------------------------------------
    def _configure(self, session: SparkSession) -> None:
        for name, value in self._conf.items():
            session.conf.set(name, value)

    def _tasks_at_once(self) -> int:
        """As many as Spark says, which in one process is always the same."""
        if self._cores is None or not self._one_process:
            self._cores = tasks_at_once(self.spark)
        return self._cores

    def _run(self, frame: DataFrame, plan: EpochPlan, cores: int | None = None) -> EpochResult:
        started = time.perf_counter()
        anchor = self.anchor(plan.slots)
        levels = [
            self._anchor_at(plan, level, anchor) for level in range(1, self._levels(plan) + 1)
        ]
        self._reports.value = []
        context = self.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        context.setJobDescription(self._description(plan))
        tuples = self._levels_of(frame, levels)
        cores = cores or self._tasks_at_once()
        planned = time.perf_counter()
        try:
            with self.between_epochs:
                rows = tuples.collect()
        except (Py4JError, PySparkException) as problem:
            if hint := way_out(str(problem), str(context.pythonExec)):
                raise EngineError(f"epoch {plan.epoch}: {hint}", epoch=plan.epoch) from problem
            raise EngineAborted(_reason(problem)) from problem
        if self._declared is not None:
            self._ahead.begin(self._declared[2])
        controls = [Control.from_bytes(row.payload) for row in rows]
        timings = [r for r in self._reports.value if isinstance(r, Timing)]
        counted = {r[:2]: r.data for r in self._reports.value if isinstance(r, Counted)}
        self._machines |= {r.name: r.cpus for r in self._reports.value if isinstance(r, Machine)}
        task_ms: dict[int, list[float]] = {}  # by level, as measured inside the Python workers
        task_cpu_ms: dict[int, float] = {}
        for timing in sorted(t for t in timings if not t.name):
            task_ms.setdefault(timing.level, []).append(timing.nanoseconds / 1e6)
            before = task_cpu_ms.get(timing.level, 0.0)
            task_cpu_ms[timing.level] = before + timing.cpu_ns / 1e6
        engine = EngineFacts(
            plan_ms=round((planned - started) * 1e3, 1),
            job_ms=round((time.perf_counter() - planned) * 1e3, 1),
            levels_ms={level: round(max(spent), 2) for level, spent in task_ms.items()},
            task_ms={level: round(sum(spent), 2) for level, spent in task_ms.items()},
            task_cpu_ms={level: round(spent, 2) for level, spent in task_cpu_ms.items()},
            cores=cores,
            cpus=min(cores, sum(self._machines.values())) or None,
            hosts=anchor.hosts,
        )
        statistics = [TaskStatistics.from_bytes(data) for _, data in sorted(counted.items())]
        operators = [t for t in timings if t.name]
        return EpochResult(controls, operators, engine, statistics=statistics)

    def _levels_of(self, frame: DataFrame, levels: list[Anchor]) -> DataFrame:
        """All levels over the rows of a frame; over tasks that read files, which are the same in
        every epoch, they are kept, and planned ahead.
        """
        made, parts = self._declared, [id(part) for part in (frame, *levels)]
        if made is None or made[0] != parts:
            tuples = apply_stage(frame, self._stages[0])
            for stage, at in zip(self._stages[1:], levels, strict=False):
                tuples = apply_stage(anchored(tuples, at), stage)
            if self._files is None:
                return tuples
            made = self._declared = parts, (frame, levels), tuples
        return self._ahead.take(made[2])

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
    if found[-1].partition(".")[0] in ("headgate", "pyarrow", "numpy", "xxhash"):
        advice = (
            "They must have headgate installed: set PYSPARK_PYTHON to an interpreter that has, "
            f"on this machine {driver_python}, before the session is made"
        )
    else:
        advice = (
            "Install it for that interpreter (PYSPARK_PYTHON chooses another), or send your own "
            "modules along with spark.sparkContext.addPyFile(...)"
        )
    return f"Spark's Python workers ({worker_python}) cannot import {found[-1]!r}. {advice}"
