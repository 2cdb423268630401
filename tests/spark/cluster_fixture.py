"""A driver program that a test talks to over its pipes: one command line in, one JSON line out.

    place           build an anchor on the live hosts, in an order that chance would not give
    place again     build the next anchor, keeping every slot at home whose host still lives
    where           the live hosts, and where Spark prefers each slot now
    job NAME        send numbers through three levels; the result and where each slot ran
    job NAME gate   the same, but the second level's tasks wait for a file named `go`

Tasks report where they ran through marker files, never through the rows: rows of a task that
runs twice must be equal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)
from tests.waiting import PATIENCE_S

from headgate.runtime.exchange import (
    ANCHOR_CONF,
    Anchor,
    anchored,
    build_anchor,
    live_executors,
    preferred_hosts,
    slot_labels,
    spread,
    with_conf,
)

LEVELS = 3
NUMBERS = 6000
SCHEMA = StructType(
    [
        StructField("label", IntegerType(), nullable=False),
        StructField("slot", IntegerType(), nullable=False),
        StructField("kind", ByteType(), nullable=False),
        StructField("value", LongType()),
        StructField("payload", BinaryType()),
    ]
)
DATA, ANCHOR = 1, 0
Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def make_stage(
    level: int, labels: list[int], markers: str, source: bool = False, gate: bool = False
) -> Stage:
    """Add one to every number and send it on to a slot that depends on it."""
    columns = pa.schema(
        [
            ("label", pa.int32()),
            ("slot", pa.int32()),
            ("kind", pa.int8()),
            ("value", pa.int64()),
            ("payload", pa.binary()),
        ]
    )

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values: list[int] = []
        slots: set[int] = set()
        anchors = 0
        for batch in batches:
            if source:
                values += batch.column(0).to_pylist()
                continue
            for slot, kind, value in zip(*(batch.column(i).to_pylist() for i in (1, 2, 3))):
                slots.add(slot)
                anchors += kind == ANCHOR
                values += [value] if kind == DATA else []
        if not source:
            (slot,) = slots
            context = TaskContext.get()
            assert context is not None
            place = f"{level} {slot} {context.partitionId()} {os.environ['SPARK_LOCAL_IP']}"
            (Path(markers) / f"{place} {anchors}").touch()
            deadline = time.monotonic() + PATIENCE_S
            while gate and not (Path(markers) / "go").exists():
                assert time.monotonic() < deadline, "nobody opened the gate"
                time.sleep(0.05)
        values.sort()  # the same rows in the same order, whatever order they came in
        targets = [(value * 7 + level) % len(labels) for value in values]
        yield pa.record_batch(
            [
                pa.array([labels[t] for t in targets], pa.int32()),
                pa.array(targets, pa.int32()),
                pa.array([DATA] * len(values), pa.int8()),
                pa.array([value if source else value + 1 for value in values], pa.int64()),
                pa.array([b"payload"] * len(values), pa.binary()),
            ],
            schema=columns,
        )

    return stage


def place(spark: SparkSession, slots: int, previous: Anchor | None) -> Anchor:
    hosts = sorted(set(live_executors(spark).values()))
    if previous is None:
        wanted = tuple(sorted(spread(slots, hosts), reverse=True))  # blocks, the last host first
    else:
        wanted = spread(slots, hosts, preferred_hosts(previous.frame, slots))
    anchor = build_anchor(
        spark, wanted, row=lambda s, label: (label, s, ANCHOR, None, b""), schema=SCHEMA
    )
    print(json.dumps({"hosts": hosts, "wanted": wanted, "found": anchor.hosts}), flush=True)
    return anchor


def job(spark: SparkSession, anchor: Anchor, markers: Path, gate: bool) -> None:
    markers.mkdir()
    labels = slot_labels(len(anchor.hosts))
    data: DataFrame = spark.range(0, NUMBERS, numPartitions=2).mapInArrow(
        make_stage(0, labels, str(markers), source=True), SCHEMA
    )
    for level in range(1, LEVELS + 1):
        stage = make_stage(level, labels, str(markers), gate=gate and level == 2)
        data = anchored(data, anchor).mapInArrow(stage, SCHEMA)
    with with_conf(spark, ANCHOR_CONF):
        partitions = data.rdd.getNumPartitions()
        began = time.monotonic()
        row = data.groupBy().agg({"value": "sum", "*": "count"}).collect()[0].asDict()
    ran: list[Any] = [name.name.split() for name in markers.iterdir() if " " in name.name]
    result = {
        "partitions": partitions,
        "sum": row["sum(value)"],
        "rows": row["count(1)"],
        "seconds": time.monotonic() - began,
        "ran": [[int(lv), int(s), int(p), host, int(a)] for lv, s, p, host, a in ran],
    }
    print(json.dumps(result), flush=True)


def main(slots: int, markers: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    anchor: Anchor | None = None
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "place":
            anchor = place(spark, slots, anchor if rest else None)
            continue
        assert anchor is not None, "place first"
        if command == "job":
            job(spark, anchor, markers / rest[0], gate=rest[1:] == ["gate"])
        elif command == "where":
            here = {
                "hosts": sorted(set(live_executors(spark).values())),
                "slots": preferred_hosts(anchor.frame, len(anchor.hosts)),
            }
            print(json.dumps(here), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
