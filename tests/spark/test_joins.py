"""An interval join on Spark, against Spark's own stream-stream join of the same files."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feeding import ONCE

import headgate as hg

START = datetime(2026, 1, 1, tzinfo=UTC)
BIDS = "auction bigint, price bigint, at timestamp"
AUCTIONS = "id bigint, seller bigint, opened timestamp"


def _write(folder: Path, names: tuple[str, str, str], seed: int) -> None:
    rng = random.Random(seed)
    folder.mkdir()
    for number in range(3):
        seconds = sorted(rng.randrange(60) for _ in range(80))
        table = {
            names[0]: pa.array([rng.randrange(15) for _ in seconds], pa.int64()),
            names[1]: pa.array([rng.randrange(1000) for _ in seconds], pa.int64()),
            names[2]: pa.array(
                [START + timedelta(seconds=60 * number + s) for s in seconds],
                pa.timestamp("us", "UTC"),
            ),
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet")


def test_an_interval_join_is_that_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path / "bids", ("auction", "price", "at"), 1)
    _write(tmp_path / "auctions", ("id", "seller", "opened"), 2)

    def read(name: str, schema: str) -> DataFrame:
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
        return reader.parquet(str(tmp_path / name))

    bids, auctions = read("bids", BIDS), read("auctions", AUCTIONS)
    flow = hg.Flow("bids")
    left = flow.source(bids, name="bids", event_time="at", watermark="10 seconds")
    right = flow.source(auctions, name="auctions", event_time="opened", watermark="10 seconds")
    joined = left.key_by("auction").join(
        right.key_by("id"), within=("-20 seconds", "0 seconds"), how="left", name="join"
    )
    joined.to_table("out")
    query = flow.start(spark, slots=2, checkpoint=tmp_path / "ours", trigger=ONCE)
    query.awaitTermination()
    names = ("auction", "price", "at", "seller", "opened")
    ours = Counter(tuple(row[name] for name in names) for row in query.table("out").collect())

    found: list[Any] = []
    theirs = (
        bids.withWatermark("at", "10 seconds")
        .join(
            auctions.withWatermark("opened", "10 seconds"),
            F.expr("auction = id AND opened <= at AND opened >= at - INTERVAL 20 SECONDS"),
            "leftOuter",
        )
        .select(*names)
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "theirs"))
        .trigger(**ONCE)
        .start()
    )
    theirs.awaitTermination()
    spark_rows = Counter(tuple(row) for row in found)

    def pairs(rows: Counter[Any]) -> Counter[Any]:
        return Counter({row: n for row, n in rows.items() if row[3] is not None})

    assert pairs(ours) == pairs(spark_rows)
    assert sum(pairs(ours).values()) > 50
    alone = [rows - pairs(rows) for rows in (ours, spark_rows)]
    assert alone[0] and not alone[0] - alone[1]  # Spark ends with a batch without rows


def test_totals_joined_as_they_change_are_those_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One file an epoch, two starts with other slots: in the end, what Spark says of all rows."""
    _write(tmp_path / "bids", ("auction", "price", "at"), 3)
    _write(tmp_path / "auctions", ("id", "seller", "opened"), 4)
    for name in ("bids", "auctions"):
        (tmp_path / name / "2.parquet").rename(tmp_path / f"{name}.later")

    def start(slots: int) -> Counter[Any]:
        flow = hg.Flow("totals")
        bids = flow.source(hg.Files(tmp_path / "bids", schema=BIDS, max_files=1), name="bids")
        auctions = hg.Files(tmp_path / "auctions", schema=AUCTIONS, max_files=1)
        right = flow.source(auctions, name="auctions").select("id", "seller").key_by("id")
        totals = bids.key_by("auction").process(hg.Sum("price", emit="changes"), name="totals")
        totals.key_by("auction").join(right, how="full", name="join").to_table("out")
        query = flow.start(spark, slots=slots, checkpoint=tmp_path / "ours", trigger=ONCE)
        query.awaitTermination()
        held: Counter[Any] = Counter()
        for row in query.table("out").collect():
            held[row["auction"], row["sum"], row["seller"]] += (
                -1 if row["change"] == "delete" else 1
            )
        assert min(held.values()) >= 0
        return +held

    def wanted() -> Counter[Any]:
        bids = spark.read.parquet(str(tmp_path / "bids"))
        totals = bids.groupBy("auction").agg(F.sum("price").alias("sum"))
        right = spark.read.parquet(str(tmp_path / "auctions"))
        pairs = totals.join(right, totals.auction == right.id, "full")
        key = F.coalesce("auction", "id")
        return Counter(tuple(row) for row in pairs.select(key, "sum", "seller").collect())

    assert start(slots=2) == wanted()
    for name in ("bids", "auctions"):
        (tmp_path / f"{name}.later").rename(tmp_path / name / "2.parquet")
    assert start(slots=3) == wanted()
