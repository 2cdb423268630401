"""A flow whose operators note where they ran; prints what a test needs to compare, as JSON.

Every key is pinned to the slot of its number, so a marker file (slot, level, epoch, address) says
on which host each slot's task ran. Markers, not rows: rows of a task that runs twice are equal.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import headgate as hg

SLOTS, EPOCHS, ROWS = 6, 4, 600


def address() -> str:
    """This host's address on the cluster's network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.254", 9))
        return str(probe.getsockname()[0])


class Note:
    """A map that leaves a marker for every key it sees."""

    def __init__(self, folder: str, column: str, tag: str = "") -> None:
        self.folder, self.column, self.tag = folder, column, tag or column

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for key in set(batch.column(self.column).to_pylist()):
            epoch = batch.column("epoch")[0].as_py()
            name = f"{self.tag}-{epoch}-{key}-{address()}-{os.getpid()}"
            Path(self.folder, name).touch()
        return batch


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    (folder / "in").mkdir()
    (folder / "notes").mkdir()
    rng = np.random.default_rng(1)
    for epoch in range(EPOCHS):
        k1, k2 = rng.integers(0, SLOTS, ROWS), rng.integers(0, SLOTS, ROWS)
        table = pa.table({"k1": k1, "k2": k2, "epoch": np.full(ROWS, epoch)})
        pq.write_table(table, folder / "in" / f"{epoch}.parquet")
        os.utime(folder / "in" / f"{epoch}.parquet", (1e9 + epoch, 1e9 + epoch))
    schema = "k1 bigint, k2 bigint, epoch bigint"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    pins = hg.hash_table(SLOTS).pin([pa.array(np.arange(SLOTS))], np.arange(SLOTS, dtype=np.int32))
    flow = hg.Flow("sticky")
    rows = flow.source(frame.parquet(f"file://{folder / 'in'}"))
    for column in ("k1", "k2"):
        rows = rows.key_by(column, grouping="hash").process(
            hg.Count(emit="rows"), name=f"by_{column}"
        )
        rows = rows.map(Note(str(folder / "notes"), column), schema, name=f"note_{column}")
    few = rows.key_by("k1", "k2", grouping="hash").process(
        hg.Count(emit="rows"), name="few", parallelism=2
    )
    rows = few.map(Note(str(folder / "notes"), "k1", "few"), schema, name="note_few")
    rows.to_table("rows")
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(folder / "checkpoint"),
        trigger={"availableNow": True},
        options=hg.Options(tables={"by_k1": pins, "by_k2": pins}),
        manager=None,
    )
    query.awaitTermination()
    counts = query.state("by_k2")
    told = {
        "hosts": [p["headgate"]["hosts"] for p in query.recentProgress if p["numInputRows"]],
        "rows": query.table("rows").count(),
        "by_k2": dict(zip(counts["k2"].to_pylist(), counts["count"].to_pylist(), strict=True)),
        "notes": sorted(p.name for p in (folder / "notes").iterdir()),
        "few": query.instances["few"],
        "tasks": [p["headgate"]["tasks"] for p in query.recentProgress if p["numInputRows"]],
        "applied": sum(counts["count"].to_pylist()),
    }
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
