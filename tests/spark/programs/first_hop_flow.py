"""The same rows in one folder, in folders that name the first key, and in folders of its shard.

It talks to its test: before and after each run that reads what the hosts have sent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headgate as hg

SLOTS, KEYS, ROWS, WIDE = 3, 24, 200, 4_000  # rows of a key, bytes of a row
SHARDS = 12
WAYS = ("plain", "named", "shards")


def wide(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Reads what is wide behind the first hop, so that it must have travelled there."""
    size = [len(value) for value in batch.column("wide").to_pylist()]
    return pa.RecordBatch.from_pydict({"size": pa.array(size, pa.int64())})


def write(work: Path) -> None:
    plain, named, shards = (work / way for way in WAYS)
    plain.mkdir()
    for key in range(KEYS):
        rng = np.random.default_rng(key)
        rows = pa.table({"wide": pa.array([rng.bytes(WIDE) for _ in range(ROWS)], pa.binary())})
        folder = named / f"k={key}"
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "rows.parquet")
        with_key = rows.append_column("k", pa.array(np.full(ROWS, key)))
        pq.write_table(with_key, plain / f"{key:02}.parquet")
        folder = shards / f"shard={key % SHARDS}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(with_key, folder / f"{key:02}.parquet")


def run(spark: SparkSession, work: Path, name: str) -> Any:
    flow = hg.Flow("first-hop")
    shard = "shard int, " if name == "shards" else ""
    rows = flow.source(hg.Files(work / name, schema=f"{shard}k bigint, wide binary"))
    keyed = rows.key_by("k", grouping="hash")
    if shard:
        keyed = rows.key_by("shard", "k", near="shard", grouping="hash")
    counted = keyed.process(hg.Count(emit="rows"), name="count")
    counted.map(wide, "size bigint", name="wide").to_table("rows")
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(work / f"checkpoint-{name}"),
        trigger={"availableNow": True},
        manager=None,
        options=hg.Options(park_bytes=None),  # what is wide is to travel
    )
    query.awaitTermination()
    return query


def main(work: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    write(work)
    for name in WAYS:
        say("ready")
        query = run(spark, work, name)
        state = query.state("count").to_pylist()
        (epoch,) = [p["headgate"] for p in query.recentProgress if p["numInputRows"]]
        hosts = len(set(epoch["hosts"]))
        say(name, counts={row["k"]: row["count"] for row in state}, hosts=hosts)


def say(what: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"said": what, **facts}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
