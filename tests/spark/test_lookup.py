"""A lookup on Spark: tables as Spark reads them, refreshed between epochs, as Spark joins them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.spark.feeding import ONCE, write_epoch

import headgate as hg


def test_side_tables_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A static DataFrame, and a folder of Parquet that changes between two starts."""
    for epoch in range(2):
        rows = [{"id": n % 7, "v": n} for n in range(20)]
        write_epoch(tmp_path / "in", "id bigint, v bigint", epoch, rows)
    names = spark.createDataFrame([(n, f"n{n}") for n in range(5)], "id bigint, name string")
    rates = tmp_path / "rates"
    rates.mkdir()

    def start(rate: int) -> hg.FlowQuery:
        table = {"key": pa.array(range(7), pa.int64()), "rate": [rate] * 7}
        pq.write_table(pa.table(table), rates / "part.parquet")
        flow = hg.Flow("lookups")
        rows = flow.source(hg.Files(tmp_path / "in", max_files=1), name="in")
        named = rows.lookup(names, on="id", how="inner", name="names")
        rated = named.lookup(rates, on={"id": "key"}, refresh="1 hour", name="rates")
        rated.key_by("name").process(hg.Sum("rate"), name="sums").discard()
        rated.to_table("out")
        query = flow.start(spark, slots=2, checkpoint=tmp_path / "checkpoint", trigger=ONCE)
        query.awaitTermination()
        return query

    start(1)
    write_epoch(tmp_path / "in", "id bigint, v bigint", 2, [{"id": 3, "v": 7}, {"id": 6, "v": 8}])
    query = start(5)

    native = spark.read.parquet(str(tmp_path / "in")).join(names, "id").select("id", "v", "name")
    found = query.table("out").select("id", "v", "name")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, native.collect()))
    sums = {row["name"]: row["sum"] for row in query.state("sums").to_pylist()}
    assert sums == {"n0": 6, "n1": 6, "n2": 6, "n3": 6 + 5, "n4": 6}
    read = [record for record in query.journal() if record["kind"] == "side_table"]
    assert [record["operator"] for record in read] == ["names", "rates"] * 2
