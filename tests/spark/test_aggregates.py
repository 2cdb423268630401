"""Several aggregates at once on Spark: what they come to is what Spark makes of the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import headgate as hg


def test_an_aggregate_is_what_spark_makes_of_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [(n % 7, n % 13, None if n % 5 == 0 else f"user {n % 31}") for n in range(1_000)]
    ddl = "k bigint, v bigint, user string"
    spark.createDataFrame(rows, ddl).repartition(3).write.parquet(str(tmp_path / "in"))
    flow = hg.Flow("joint")
    joint = hg.Aggregate(
        n=hg.Count(where="v > 4"), total=hg.Sum("v", where=pc.field("user").is_valid()),
        users=hg.CountDistinct("user"), near=hg.ApproxCountDistinct("user"),
        spread=hg.StdDev("v", exact=False), some=hg.Collect("user", by="v", limit=3),
    )  # fmt: skip
    keyed = flow.source(hg.Files(tmp_path / "in", schema=ddl)).key_by("k", grouping="partial")
    keyed.process(joint, name="joint").to_table("out")

    once = {"availableNow": True}
    query = flow.start(spark, checkpoint=str(tmp_path / "checkpoint"), slots=2, trigger=once)
    query.awaitTermination()

    got = {row["k"]: row.asDict() for row in query.table("out").collect()}
    frame = spark.read.parquet(str(tmp_path / "in"))
    frame.createOrReplaceTempView("rows_of_aggregates")
    wanted = spark.sql(
        "select k, count_if(v > 4) n, sum(v) filter (where user is not null) total, "
        "count(distinct user) users, stddev_samp(v) spread from rows_of_aggregates group by k"
    ).collect()
    assert len(got) == len(wanted) == 7
    for row in wanted:
        made = got[row["k"]]
        assert (made["n"], made["total"], made["users"]) == (row["n"], row["total"], row["users"])
        assert made["near"] == row["users"]
        assert made["spread"] == pytest.approx(row["spread"])
        some = sorted((v, user) for k, v, user in rows if k == row["k"] and user is not None)
        assert made["some"] == [user for _, user in some[:3]]
