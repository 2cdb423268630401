"""Windows, sessions and duplicates beside Spark's own operators: same files, same watermark.

Rows come out of order, some of them late, a file an epoch; both end with the epoch without rows
that emits what the last file completed.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feeding import ONCE, read_files, write_epoch

import headgate as hg

SCHEMA = "k string, ts timestamp, v bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = "30 seconds"
BOUNDS = ("k", "w.start window_start", "w.end window_end", "sum")
CASES: dict[str, tuple[Any, Any]] = {
    "sliding": (
        hg.Sum("v", window=hg.Sliding("60 seconds", "20 seconds", "ts", offset="5 seconds")),
        lambda rows: rows.groupBy(
            F.window("ts", "60 seconds", "20 seconds", "5 seconds").alias("w"), "k"
        ),
    ),
    "session": (
        hg.Sum("v", window=hg.Session("10 seconds", "ts")),
        lambda rows: rows.groupBy(F.session_window("ts", "10 seconds").alias("w"), "k"),
    ),
}


def write(folder: Path) -> None:
    rng = random.Random(7)
    for number in range(5):
        given = [
            {
                "k": rng.choice("abcde"),
                "ts": START + timedelta(seconds=50 * number + rng.randrange(-90, 50)),
                "v": rng.randrange(1000),
            }
            for _ in range(60)
        ]
        write_epoch(folder, SCHEMA, number, given)


def natively(spark: SparkSession, folder: Path, frame: DataFrame) -> Counter[Any]:
    out = str(folder / "native-out")
    options = {"path": out, "checkpointLocation": str(folder / "native")}
    query = frame.writeStream.format("parquet").options(**options).trigger(**ONCE).start()
    query.awaitTermination()
    return bag(spark.read.parquet(out))


def bag(frame: DataFrame) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in frame.toArrow().to_pylist())


def ours(spark: SparkSession, folder: Path, operator: Any, *key: str) -> Counter[Any]:
    flow = hg.Flow("as_spark")
    rows = flow.source(
        read_files(spark, folder / "in", SCHEMA), event_time="ts", watermark=DELAY, name="rows"
    )
    rows.key_by(*key).process(operator, name="op").to_parquet(str(folder / "out"))
    query = flow.start(spark, slots=2, checkpoint=str(folder / "checkpoint"), trigger=ONCE)
    query.awaitTermination()
    return bag(spark.read.parquet(str(folder / "out")))


@pytest.mark.parametrize("name", CASES)
def test_windows_are_those_of_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    write(tmp_path / "in")
    operator, grouped = CASES[name]
    rows = read_files(spark, tmp_path / "in", SCHEMA).withWatermark("ts", DELAY)

    expected = natively(
        spark, tmp_path, grouped(rows).agg(F.sum("v").alias("sum")).selectExpr(*BOUNDS)
    )

    assert sum(expected.values()) > 20
    assert ours(spark, tmp_path, operator, "k") == expected


def test_duplicates_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Which of equal keys is the first is open, so the keys are counted."""
    write(tmp_path / "in")
    rows = read_files(spark, tmp_path / "in", SCHEMA).withWatermark("ts", DELAY)
    passed = natively(spark, tmp_path, rows.dropDuplicatesWithinWatermark(["k"]))

    got = ours(spark, tmp_path, hg.Deduplicate(DELAY, time="ts"), "k")

    assert len(passed) > 5
    assert got == passed
