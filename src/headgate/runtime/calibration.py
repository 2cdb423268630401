"""Probe the engine in use: jobs through the real exchange, with known messages and bytes.

A probe has the shape of an epoch: source tasks that make batch tuples, then a shuffle and a slot
stage per level, and one collect. Sizes are varied one at a time around a small job, and each is
measured in turn with the others, so that a machine that is busy for a while slows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from headgate.errors import EngineError
from headgate.planner.tuning.cost_model import Calibration, Probe, fit
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
from headgate.runtime.worker import task_partition
from headgate.slot.wire import (
    PAYLOAD_BYTES_MAX,
    BatchTuple,
    Kind,
    decode,
    digest_of,
    encode,
)

ROW = pa.schema([pa.field("value", pa.int64())])


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


@dataclass(frozen=True)
class _Shape:
    levels: int
    slots: int
    messages: int  # of each source task
    rows: int  # of 8 bytes, in each message

    @property
    def all_messages(self) -> int:
        return self.messages * self.slots

    @property
    def bytes(self) -> int:
        return self.all_messages * self.rows * 8

    def __str__(self) -> str:
        counts = {"level": self.levels, "slot": self.slots, "message": self.all_messages}
        parts = [f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items()]
        return ", ".join([*parts, f"{self.bytes / 1e6:,.1f} MB"])


def calibrate(
    spark: SparkSession,
    sizes: ProbeSizes | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure n, s, and the fixed costs of a task and of an epoch's job on this session.

    `say` is told of every probe before it runs.
    """
    sizes = sizes or ProbeSizes()
    cores = cores_of(spark)
    large = sizes.message_bytes // 8
    shapes = [
        _Shape(1, 1, 1, 1),
        _Shape(sizes.levels, 1, 1, 1),
        _Shape(1, cores, 1, 1),
        _Shape(sizes.levels, cores, 1, 1),
        _Shape(1, 2 * cores, 1, 1),
        _Shape(1, cores, sizes.messages, 1),
        _Shape(1, cores, 2 * sizes.messages, 1),
        _Shape(1, cores, max(1, (sizes.mega_bytes << 20) // sizes.message_bytes), large),
        _Shape(1, cores, max(1, (sizes.mega_bytes << 19) // sizes.message_bytes), large),
    ]
    taken: dict[_Shape, list[float]] = {shape: [] for shape in shapes}  # one core: some are equal
    with with_conf(spark, EPOCH_CONF):
        hosts = sorted(set(live_executors(spark).values()))
        counts = {shape.slots for shape in shapes}
        anchors = {n: build_anchor(spark, spread(n, hosts)) for n in counts}
        try:
            warming = shapes[:: max(1, len(shapes) // max(1, sizes.warm_ups))]
            turns = [(shape, ", to warm up") for shape in warming]
            turns += [(shape, "") for shape in shapes] * sizes.rounds
            for number, (shape, warm) in enumerate(turns, start=1):
                say(f"probe {number} of {len(turns)}{warm}: {shape}")
                started = clock()
                _run(spark, shape, anchors[shape.slots])
                if not warm:
                    taken[shape].append(clock() - started)
        finally:
            for anchor in anchors.values():
                anchor.release()
    probes = [
        Probe(
            levels=shape.levels,
            slots=shape.slots,
            cores=cores,
            messages=shape.all_messages,
            bytes=shape.bytes,
            seconds=median(seconds),
        )
        for shape, seconds in taken.items()
    ]
    return fit(probes, PAYLOAD_BYTES_MAX, engine_of(spark, cores))


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


def _run(spark: SparkSession, shape: _Shape, anchor: Anchor) -> None:
    frame = spark.range(0, shape.slots, 1, shape.slots)
    tuples = apply_stage(frame, arrow_stage(_sending(shape)))
    for level in range(1, shape.levels + 1):
        stage = _taking(shape.slots, level)
        tuples = apply_stage(anchored(tuples, anchor), arrow_stage(stage))
    if len(tuples.collect()) != shape.slots:
        raise EngineError("a probe did not get one answer from each slot")


def _sending(shape: _Shape) -> Stage:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        producer = task_partition()
        rows = pa.record_batch([pa.array(np.arange(shape.rows))], ROW)
        made = (_tuple(seq % shape.slots, 0, producer, seq, rows) for seq in range(shape.messages))
        yield from encode(made, slot_labels(shape.slots))

    stage.__name__ = "headgate_probe_send"
    return stage


def _taking(slots: int, level: int) -> Stage:
    """Open and check every message, as a slot does; then one small message to the next level."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        home, count = 0, 0
        for batch in batches:
            for item in decode(batch):
                if item.kind == Kind.ANCHOR:
                    home = item.slot
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
