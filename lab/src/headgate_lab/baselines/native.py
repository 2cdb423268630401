"""Spark's own streaming aggregation: `groupBy(key).count()` over both keys, no Python at all.

What a built-in aggregate can do and user code cannot: it counts on the map side before the shuffle,
and runs compiled. It cannot chain, nor needs to here (the first count passes every row on), so both
keys are counted in one query in update mode: the source is read once per key, each scan taking its
column only, and the union is grouped by (which key, key). Two queries, and exploding each row into
two, were slower. Its state is in RocksDB, or in Spark's other store, in memory, which writes a file
of changes every epoch too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headgate.demo import EpochFiles
from headgate_lab.baselines import spark_query
from headgate_lab.baselines.result import BaselineResult, counts_table, timed_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def run(
    epochs: EpochFiles,
    *,
    slots: int,
    work_dir: Path,
    warmup: int = 1,
    store: str = spark_query.ROCKSDB,
    tuned_files: bool = True,
) -> BaselineResult:
    """Count both keys in one query. `work_dir` must be new: it takes the checkpoint."""
    rows = timed_rows(epochs, warmup)
    spark = spark_query.session(slots, store, tuned_files=tuned_files)
    checkpoint = work_dir / "native"
    first, second = (
        spark_query.source(spark, epochs).selectExpr(f"{place} AS place", f"k{place} AS key")
        for place in (1, 2)
    )
    counted = first.union(second).groupBy("place", "key").count()
    seconds = spark_query.drain(counted, mode="update", checkpoint=checkpoint, epochs=epochs)
    k1, k2 = (_counts(spark, checkpoint, place) for place in (1, 2))
    return BaselineResult("native", rows, seconds[warmup:], k1, k2)


def _counts(spark: SparkSession, checkpoint: Path, place: int) -> pa.Table:
    state = (
        spark.read.format("statestore")
        .load(str(checkpoint))
        .where(f"key.place = {place}")
        .selectExpr("key.key AS key", "value.count AS count")
        .toArrow()
    )
    return counts_table(state["key"].to_numpy(), state["count"].to_numpy())
