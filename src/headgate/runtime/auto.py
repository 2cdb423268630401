"""What a start leaves open: what the optimizer chooses, by measured costs.

That is slots, instances of every operator, rows per epoch and rows per batch.

What the engine charges is a prior at first (`TYPICAL`), or measured, for some seconds, and saved
with the checkpoint; `Options.calibration` says which. The first start runs a slot per core; later
ones begin with what was measured, within what there is now. Slots, instances and batches change
while the flow runs.
Rows per epoch are a property of the source, which Spark fixes when a query starts: a source that
takes a limit (`Reader`, or a function of (spark, rows_per_epoch)) gets it at the start, and by a
hand-over to a new query while the flow runs. Others keep their own limit, and the journal says what
it should be.

**Calibration** probes the engine by jobs through the real exchange, with known messages and bytes.
A probe has the shape of an epoch: source tasks that make batch tuples, then a shuffle and a slot
stage per level, and one collect. Sizes are varied one at a time around a small job, and each is
measured in turn with the others, so that a machine that is busy for a while slows all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.facts import TunedStart
from headgate.control.settings import Scaling
from headgate.control.tuner import SavedTuning, Tuner, load_tuning, read_calibration, save_tuning
from headgate.errors import DeclarationError, EngineError
from headgate.planner.tuning.cost_model import Calibration, EngineCosts, Probe, fit, same_engine
from headgate.runtime.engine import EPOCH_CONF
from headgate.runtime.exchange import (
    Anchor,
    Stage,
    anchored,
    apply_stage,
    arrow_stage,
    build_anchor,
    executors,
    live_executors,
    slot_labels,
    spread,
    tasks_at_once,
    with_conf,
)
from headgate.runtime.executors import are_ours_to_change
from headgate.runtime.worker import task_partition
from headgate.slot.plan import BatchRows, edge_name
from headgate.slot.program import Program
from headgate.slot.report import this_machine
from headgate.slot.wire import PAYLOAD_BYTES_MAX, BatchTuple, Kind, decode, digest_of, encode
from headgate.state.storage import Storage
from headgate.topology.arguments import absolute, duration_us
from headgate.topology.graph import FlowGraph
from headgate.typical import BYTE_S, LEVEL_S, MESSAGE_S, TASK_S

Say = Callable[[str], object]
ROW = pa.schema([pa.field("value", pa.int64())])


@dataclass(frozen=True)
class AutoStart:
    """What a start was resolved to; `tuner` goes on while the flow runs."""

    slots: int
    rows_per_epoch: int | None
    batch_rows: Mapping[str, int]
    instances: Mapping[str, int]
    tuner: Tuner
    storage: Storage
    saved: SavedTuning
    calibrated: str

    @property
    def costs(self) -> EngineCosts:
        """What the engine charges; the choice between distinct and shared batches needs it too."""
        return self.saved.calibration.costs

    def facts(self) -> TunedStart:
        """For the journal's record of the start."""
        engine = self.saved.calibration.engine
        return TunedStart(self.rows_per_epoch, self.costs, engine, self.calibrated)


def resolve(
    program: Program,
    spark: SparkSession,
    *,
    checkpoint: str,
    slots: int | Scaling,
    batch_rows: BatchRows = None,
    latency_s: float | None = None,
    rows_per_epoch: int | None = None,
    chooses_rows: bool = False,
    trigger: Mapping[str, Any] | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
) -> AutoStart:
    """Choose what is left to choose: slots within limits, and instances of operators with them;
    rows of batches unless they are given, and rows per epoch if sources can be told.
    """
    storage = Checkpoint(absolute(checkpoint)).storage
    cores, elastic = cores_of(spark), are_ours_to_change(spark)
    limits = slots if isinstance(slots, Scaling) else None
    saved, calibrated = known_costs(
        load_tuning(storage),
        calibration,
        engine_of(spark, cores),
        elastic=elastic,
        probe=lambda: _probe(spark),
    )
    if saved.calibration != TYPICAL and calibrated != SAVED:
        save_tuning(storage, saved)
    tuned, chosen = saved.tuned, slots
    if isinstance(chosen, Scaling):
        chosen = chosen.within(cores if tuned is None else min(tuned.settings.slots, cores))
    rows, instances, batches = rows_per_epoch, dict[str, int](), dict[str, int]()
    free = open_batches(program.graph, batch_rows)
    if tuned is not None:
        rows = tuned.settings.rows_per_epoch if rows is None else rows
        batches = {e: count for e, count in tuned.settings.batch_rows.items() if e in free}
        instances = dict(tuned.settings.instances) if limits is not None else {}
    tuner = Tuner(
        program,
        saved.calibration.costs,
        cores=cores,
        slots=chosen,
        scaling=limits,
        latency_s=latency_s,
        elastic=elastic,
        limits=chooses_rows,
        rows_per_epoch=rows,
        interval_s=interval_s(trigger),
        all_there=any((trigger or {}).get(name) for name in ("availableNow", "once")),
        instances=limits is not None,
        batches=free,
        batch_rows=batches,
    )
    return AutoStart(chosen, rows, batches, instances, tuner, storage, saved, calibrated)


def open_batches(graph: FlowGraph, given: BatchRows) -> frozenset[str]:
    """The edges of whose batches nobody has said how many rows they should have."""
    if isinstance(given, int):
        return frozenset()
    free = (e for e in graph.edges if e.exchanges and e.grouping.batch_rows is None)
    return frozenset(edge_name(graph, e) for e in free) - frozenset(given or ())


SAVED = "the checkpoint's"
PROBE = "probe"
TYPICAL = Calibration(
    EngineCosts(
        MESSAGE_S,
        BYTE_S,
        task_s=TASK_S,
        epoch_s=0.0,
        message_bytes_max=PAYLOAD_BYTES_MAX,
        level_s=LEVEL_S,
    ),
    (),
    0.0,
    "typical costs",
)
"""What an engine charges that nobody has measured yet."""


def costs_of(spark: SparkSession, checkpoint: Storage) -> EngineCosts:
    """What the engine charges, for a start that chooses nothing: the checkpoint's, or typical."""
    saved = load_tuning(checkpoint)
    if saved is None:
        return TYPICAL.costs
    engine, elastic = engine_of(spark, cores_of(spark)), are_ours_to_change(spark)
    same = same_engine(saved.calibration.engine, engine, elastic)
    return saved.calibration.costs if same else TYPICAL.costs


def known_costs(
    saved: SavedTuning | None,
    given: Calibration | str | PathLike[str] | None,
    engine: str,
    *,
    elastic: bool,
    probe: Callable[[], Calibration],
    say: Say = lambda text: sys.stderr.write(f"headgate: {text}\n"),
) -> tuple[SavedTuning, str]:
    """What the engine charges, and where that comes from: given, probed now, saved, or typical.

    Costs of another engine are not taken from a checkpoint; given ones are, that is the caller's
    word. `say` is heard before a probe, which takes a while; log lines would not be seen.
    """
    tuned = None if saved is None else saved.tuned
    if given == PROBE:
        say("measuring what messages and epochs cost here, by a dozen small jobs")
        return SavedTuning(probe(), tuned), "probed, as asked for"
    if given is not None:
        brought = given if isinstance(given, Calibration) else read_calibration(Path(given))
        other = "" if same_engine(brought.engine, engine, elastic) else f"; this is {engine}"
        return SavedTuning(brought, tuned), f"given, made on {brought.engine or 'an engine'}{other}"
    if saved is not None and same_engine(saved.calibration.engine, engine, elastic):
        return saved, SAVED
    why = "none were measured with this checkpoint"
    if saved is not None and saved.calibration != TYPICAL:
        why = f"the checkpoint's costs are those of {saved.calibration.engine}, this is {engine}"
    return SavedTuning(TYPICAL, tuned), f"typical costs: {why}"


def interval_s(trigger: Mapping[str, Any] | None) -> float:
    """How long Spark waits from one epoch to the next though there are rows; 0: it does not.

    Examples:
        >>> [interval_s(t) for t in ({"processingTime": "5 seconds"}, {"availableNow": True})]
        [5.0, 0.0]
        >>> interval_s({"processingTime": "0 seconds"})
        0.0
    """
    told = str((trigger or {}).get("processingTime") or "")
    if not any(digit in told for digit in "123456789"):
        return 0.0
    try:
        return duration_us(told) / 1e6
    except DeclarationError:  # Spark knows more ways to say it
        return 1.0


def _probe(spark: SparkSession) -> Calibration:
    """A short calibration, under a name in Spark's own pages."""
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription("headgate: what messages and epochs cost here")
    try:
        return calibrate(spark, AT_START)
    finally:
        context.setJobDescription(before)


# --- calibration ----------------------------------------------------------------------------
@dataclass(frozen=True)
class ProbeSizes:
    """How much is sent; `rounds` times each. The defaults take half a minute on two cores.

    `warm_ups` of the shapes run once before, for compilers and workers to wake up.
    """

    messages: int = 4_000
    mega_bytes: int = 24
    levels: int = 3
    rounds: int = 3
    message_bytes: int = 1 << 20
    warm_ups: int = 9


QUICK = ProbeSizes(messages=2_000, mega_bytes=8, levels=2, rounds=1)
AT_START = ProbeSizes(messages=4_000, mega_bytes=12, levels=2, rounds=1, warm_ups=3)


def calibrate(
    spark: SparkSession,
    sizes: ProbeSizes | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure n, s, and the fixed costs of a task and of an epoch's job on this session.

    They are times of a processor, so what counts is how many share the work of a probe: there may
    be more tasks at once. `say` hears of every probe before it runs.
    """
    sizes = sizes or ProbeSizes()
    tasks = cores_of(spark)
    cores = min(tasks, cpus_of(spark, tasks))
    large = sizes.message_bytes // 8
    several = max(1, (sizes.mega_bytes << 20) // sizes.message_bytes)
    half = max(1, (sizes.mega_bytes << 19) // sizes.message_bytes)
    # Levels, slots, messages of a source task, and rows of 8 bytes in each message.
    counts = [
        (1, 1, 1, 1),
        (sizes.levels, 1, 1, 1),
        (1, cores, 1, 1),
        (sizes.levels, cores, 1, 1),
        (1, 2 * cores, 1, 1),
        (1, cores, sizes.messages, 1),
        (1, cores, 2 * sizes.messages, 1),
        (1, cores, several, large),
        (1, cores, half, large),
    ]
    shapes = [Probe(lv, n, cores, n * m, n * m * rows * 8, 0.0) for lv, n, m, rows in counts]
    taken: dict[Probe, list[float]] = {shape: [] for shape in shapes}  # one core: some are equal
    with with_conf(spark, EPOCH_CONF):
        hosts = sorted(set(live_executors(spark).values()))
        slots = {shape.slots for shape in shapes}
        anchors = {n: build_anchor(spark, spread(n, hosts)) for n in slots}
        try:
            warming = shapes[:: max(1, len(shapes) // max(1, sizes.warm_ups))]
            turns = [(shape, ", to warm up") for shape in warming]
            turns += [(shape, "") for shape in shapes] * sizes.rounds
            for number, (shape, warm) in enumerate(turns, start=1):
                say(f"probe {number} of {len(turns)}{warm}: {_in_words(shape)}")
                started = clock()
                _run(spark, shape, anchors[shape.slots])
                if not warm:
                    taken[shape].append(clock() - started)
        finally:
            for anchor in anchors.values():
                anchor.release()
    probes = [replace(shape, seconds=median(seconds)) for shape, seconds in taken.items()]
    return fit(probes, PAYLOAD_BYTES_MAX, engine_of(spark, tasks))


def _in_words(shape: Probe) -> str:
    counts = {"level": shape.levels, "slot": shape.slots, "message": shape.messages}
    parts = [f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items()]
    return ", ".join([*parts, f"{shape.bytes / 1e6:,.1f} MB"])


def engine_of(spark: SparkSession, cores: int) -> str:
    """What costs were measured on: Spark's version, the kind of its master, and cores."""
    kind = str(spark.sparkContext.master).partition("[")[0].partition(":")[0]
    return f"Spark {spark.version}, {kind}, {cores} cores"


def cores_of(spark: SparkSession) -> int:
    """Tasks that can run at once on what there is now, whatever `spark.default.parallelism` says.

    A cluster that has not given any executor yet is asked for one, by a small job.
    """
    if not executors(spark):
        spark.range(1).collect()
    return tasks_at_once(spark)


def cpus_of(spark: SparkSession, tasks: int) -> int:
    """Processors of the machines that tasks run on; so many tasks can run at once."""

    def where(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pylist([this_machine()._asdict()])

    many = 4 * tasks  # so that no host is missed, as good as
    found = spark.range(0, many, 1, many).mapInArrow(where, "name string, cpus bigint").collect()
    return sum({row.name: int(row.cpus) for row in found}.values())


def _run(spark: SparkSession, shape: Probe, anchor: Anchor) -> None:
    frame = spark.range(0, shape.slots, 1, shape.slots)
    tuples = apply_stage(frame, arrow_stage(_sending(shape)))
    for level in range(1, shape.levels + 1):
        stage = _taking(shape.slots, level)
        tuples = apply_stage(anchored(tuples, anchor), arrow_stage(stage))
    if len(tuples.collect()) != shape.slots:
        raise EngineError("a probe did not get one answer from each slot")


def _sending(shape: Probe) -> Stage:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        producer = task_partition()
        rows = pa.record_batch([pa.array(np.arange(shape.bytes // shape.messages // 8))], ROW)
        messages = range(shape.messages // shape.slots)
        made = (_tuple(seq % shape.slots, 0, producer, seq, rows) for seq in messages)
        yield from encode(made, slot_labels(shape.slots))

    stage.__name__ = "headgate_probe_send"
    return stage


def _taking(slots: int, level: int) -> Stage:
    """Open and check every message, as a slot does; then one small message to the next level."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        home, count = task_partition(), 0
        for batch in batches:
            for item in decode(batch):
                if item.kind == Kind.ANCHOR:
                    continue
                if digest_of(item.payload) != item.digest or item.seal == 0:
                    raise EngineError("a probe's message arrived changed")
                count += pa.ipc.read_record_batch(item.payload, ROW).num_rows
        answer = pa.record_batch([pa.array([count], pa.int64())], ROW)
        yield from encode([_tuple(home, level, home, 0, answer)], slot_labels(slots))

    stage.__name__ = f"headgate_probe_level_{level}"
    return stage


def _tuple(slot: int, level: int, producer: int, seq: int, rows: pa.RecordBatch) -> BatchTuple:
    payload = rows.serialize()
    digest = digest_of(payload)
    made = BatchTuple(slot, Kind.DATA, 0, level, producer, seq, rows.num_rows, digest, payload)
    assert made.seal is not None  # an epoch's control record holds it, so a message pays for it
    return made
