"""What does it cost to measure the latency of every row?

Two flows over the same files, a maximum of the rows' times by key: one counts the rows by how old
they are (`arrival="ts"`), the other does not. They run in turns, in changing order, on two cores.
Prints the median of the ratios of their epochs, and all epochs.

    python benchmarks/bench_latency.py [--rows 500000] [--epochs 8] [--rounds 6]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import headgate as hg
from headgate.demo import write_epochs
from headgate_lab.baselines import spark_query
from headgate_lab.bench.contestant import epoch_seconds

SCHEMA = "k bigint, ts timestamp"
WARM_UP = 2
KEYS = 10_000


def made(rows: int, epoch: int) -> pa.Table:
    draw = np.random.default_rng((7, epoch))
    ts_us = 1_700_000_000_000_000 + draw.integers(3_600_000_000, size=rows)
    return pa.table(
        {"k": draw.integers(KEYS, size=rows), "ts": pa.array(ts_us, pa.timestamp("us", "UTC"))}
    )


def run(
    spark: SparkSession, files: Path, work: Path, epochs: int, arrival: str | None
) -> list[float]:
    """Seconds of the epochs behind the warm-up."""
    frame = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(f"file://{files}/*")
    )
    flow = hg.Flow("latency")
    rows = flow.source(frame, name="in", arrival=arrival)
    rows.key_by("k", grouping="partial").process(hg.Max("ts"), name="latest").discard()
    query = flow.start(
        spark,
        slots=2,
        checkpoint=str(work),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    taken = epoch_seconds(query, epochs)
    told = [r for r in query.journal() if r["kind"] == "epoch" and r["rows"]]
    assert all((r["latency"]["since"] == "arrival") is (arrival is not None) for r in told)
    query.stop()
    return list(taken[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    told = parser.parse_args()
    taken: dict[str, list[list[float]]] = {"measured": [], "not": []}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        files = Path(folder, "in")
        write_epochs([made(told.rows, n) for n in range(told.epochs)], files, files_per_epoch=2)
        spark = spark_query.session(2)
        for turn in range(told.rounds + 1):
            for name in sorted(taken, reverse=turn % 2 == 1):
                arrival = "ts" if name == "measured" else None
                seconds = run(spark, files, Path(folder, f"{name}-{turn}"), told.epochs, arrival)
                if turn:  # the first round warms up the session
                    taken[name].append(seconds)
    pairs = zip(taken["measured"], taken["not"], strict=True)
    ratios = [a / b for with_it, without in pairs for a, b in zip(with_it, without, strict=True)]
    found = {"median_of_ratios": median(ratios), "rows": told.rows, "epoch_seconds": taken}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
