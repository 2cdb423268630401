"""Should rows be folded where they are by default? Each grouping on four streams, with a manager.

Two chained operators, a sum that passes rows on and a count behind it, one file an epoch:
`text` has a million users of a Zipf law and their pages, `few` 50 regions and 1,000 tags, `unique`
a new key in every row, `wide` the rows of `few` with 2 kB each (a twentieth as many). A figure is
the median of an epoch's milliseconds by Spark's clock, once the first third of the epochs is over;
groupings take turns, in another order each round.

    python benchmarks/bench_grouping.py [--rows 200000] [--epochs 18] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
GROUPINGS = ("hash", "auto", "partial")
USERS, PAGES = 1_000_000, 50_000


def text(rows: int, rng: np.random.Generator) -> pa.Table:
    users = np.minimum(rng.zipf(1.05, rows) - 1, 10**9) % USERS
    return _table("user-", users, "/p/", (users * 50 + rng.integers(0, 50, rows)) % PAGES, rng)


def few(rows: int, rng: np.random.Generator) -> pa.Table:
    regions = rng.integers(0, 50, rows)
    return _table("region-", regions, "#", (regions * 20 + rng.integers(0, 25, rows)) % 1_000, rng)


def unique(rows: int, rng: np.random.Generator) -> pa.Table:
    return _table("", rng.integers(0, 1 << 60, rows), "", rng.integers(0, 1 << 60, rows), rng)


def wide(rows: int, rng: np.random.Generator) -> pa.Table:
    table = few(rows // 20, rng)
    body = [rng.bytes(1_000).hex() for _ in range(table.num_rows)]
    return table.append_column("body", pa.array(body))


def _table(a: str, first: Any, b: str, second: Any, rng: np.random.Generator) -> pa.Table:
    return pa.table(
        {
            "a": np.char.add(a, first.astype(str)),
            "b": np.char.add(b, second.astype(str)),
            "x": rng.integers(0, 100, len(first)),
        }
    )


STREAMS: dict[str, Callable[[int, np.random.Generator], pa.Table]] = {
    "text": text,
    "few": few,
    "unique": unique,
    "wide": wide,
}


def epoch_ms(spark: Any, folder: Path, checkpoint: Path, grouping: Any) -> float:
    source = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    flow = hg.Flow("grouping")
    rows = flow.source(source.option("maxFilesPerTrigger", 1).parquet(str(folder)))
    sums = rows.key_by("a", grouping=grouping).process(hg.Sum("x", emit="rows"), name="by_a")
    sums.key_by("b", grouping=grouping).process(hg.Count(), name="by_b").discard()
    query = flow.start(spark, checkpoint=checkpoint, slots=2, trigger={"availableNow": True})
    query.awaitTermination()
    assert query.sparkQuery is not None
    took = [p.durationMs["triggerExecution"] for p in query.sparkQuery.recentProgress]
    return median(took[len(took) // 3 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = hg.local_session("grouping")
    raw: dict[str, dict[str, list[float]]] = {
        name: {grouping: [] for grouping in GROUPINGS} for name in STREAMS
    }
    with tempfile.TemporaryDirectory() as folder:
        work, rng = Path(folder), np.random.default_rng(7)
        for name, make in STREAMS.items():
            (work / name).mkdir()
            for epoch in range(options.epochs):
                path = work / name / f"{epoch:05}.parquet"
                pq.write_table(make(options.rows, rng), path)
                os.utime(path, (epoch, epoch))  # Spark takes the oldest first
        for turn in range(options.rounds):
            for name in STREAMS:
                for grouping in (*GROUPINGS[turn % 3 :], *GROUPINGS[: turn % 3]):
                    place = work / f"{name}-{grouping}-{turn}"
                    raw[name][grouping].append(epoch_ms(spark, work / name, place, grouping))
    print(json.dumps({"epoch_ms_raw": raw, "options": vars(options)}))
    for name, by in raw.items():
        print(name, {grouping: round(median(by[grouping])) for grouping in GROUPINGS})


if __name__ == "__main__":
    main()
