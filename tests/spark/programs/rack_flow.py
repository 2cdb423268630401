"""Two flows over the same rows, of which one is told the racks; talks to its test line by line.

Keys come in as many groups as there are racks, each worth half of the slots: balance forbids that a
group lives in one slot, and nothing but distance says that it should live in one rack. First the
manager places keys, on thin rows. Then epochs with wide rows follow, with the tables as they are:
before and after these the test reads what the trunks have carried, and for the plan that is blind
it does so with the hosts in all racks they could be in.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headgate as hg

SLOTS, ROWS, KEYS, WIDE = 8, 3_000, 40, 2_000
PLANNED, MEASURED = 10, 2  # epochs


class Widened:
    """Gives each row bytes that do not compress and depend on the row alone."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        seeds = np.asarray(batch.column("n")).tolist()
        wide = [np.random.default_rng(seed).bytes(self.size) for seed in seeds]
        return batch.append_column("wide", pa.array(wide, pa.binary()))


def weighed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Reads what is wide behind the last hop, so that it must have travelled there."""
    size = [len(value) for value in batch.column("wide").to_pylist()]
    return pa.RecordBatch.from_pydict({"size": pa.array(size, pa.int64())})


def write(folder: Path, epochs: range) -> None:
    folder.mkdir(exist_ok=True)
    for epoch in epochs:
        rng = np.random.default_rng(epoch)
        group = rng.integers(0, 2, ROWS) * KEYS
        keys = {name: group + rng.integers(0, KEYS, ROWS) for name in ("k1", "k2")}
        at = folder / f"{epoch:03}.parquet"
        pq.write_table(pa.table({**keys, "n": epoch * ROWS + np.arange(ROWS)}), at)
        os.utime(at, (1e9 + epoch, 1e9 + epoch))


def run(spark: SparkSession, work: Path, name: str, racks: dict[str, str], *, wide: bool) -> Any:
    columns = "k1 bigint, k2 bigint, n bigint"
    frame = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    flow = hg.Flow("racks")
    rows = flow.source(frame.parquet(f"file://{work / name}"))
    rows = rows.key_by("k1", grouping="hash").process(hg.Count(emit="rows"), name="first")
    rows = rows.map(Widened(WIDE if wide else 0), f"{columns}, wide binary", name="widened")
    rows = rows.key_by("k2", grouping="hash").process(hg.Count(emit="rows"), name="second")
    rows.map(weighed, "size bigint", name="weighed").to_table("rows")
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(work / f"checkpoint-{name}"),
        trigger={"availableNow": True},
        options=hg.Options(racks=racks, park_bytes=None),  # what is wide is to travel
        manager=None if wide else hg.Manager(born_local=False, alpha=1.1),
    )
    query.awaitTermination()
    return query


def main(work: Path, layouts: list[dict[str, str]]) -> None:
    spark = SparkSession.builder.getOrCreate()
    for name, known, measured in (("told", layouts[0], layouts[:1]), ("blind", {}, layouts)):
        write(work / name, range(PLANNED))
        run(spark, work, name, known, wide=False)
        for again, racks in enumerate(measured):
            first = PLANNED + again * MEASURED
            write(work / name, range(first, first + MEASURED))
            say("ready")
            query = run(spark, work, name, racks, wide=True)
            records = [p["headgate"] for p in query.recentProgress if p["numInputRows"]]
            say(
                name,
                elsewhere=sum(record["bytes_by_distance"]["elsewhere"] for record in records),
                counted=sum(query.state("second")["count"].to_pylist()),
                expected=(first + MEASURED) * ROWS,
            )


def say(what: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"said": what, **facts}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
