"""Plain PySpark: two chained `transformWithStateInPandas` operators, a `ValueState` each.

This is what Spark offers today for chained stateful Python. Chaining asks for output mode `append`;
time mode is `none`. Rows reach the processor as pandas frames, one call per key and epoch. Needs
the `protobuf` package, which PySpark's stateful API imports and its wheel does not require.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.demo import EpochFiles
from headgate_lab.baselines import spark_query
from headgate_lab.baselines.result import (
    BaselineResult,
    RivalUnavailable,
    counts_table,
    timed_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor


def run(epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int = 1) -> BaselineResult:
    """Run both operators in one query. `work_dir` must be new: it takes the checkpoint.

    Raises:
        RivalUnavailable: when protobuf is not installed.
    """
    rows = timed_rows(epochs, warmup)
    try:
        importlib.import_module("google.protobuf")
    except ImportError as missing:
        needs = "transformWithStateInPandas needs `pip install 'protobuf>=6.33.5'`"
        raise RivalUnavailable(needs) from missing
    spark = spark_query.session(slots)
    checkpoint = work_dir / "tws"
    seconds = spark_query.drain(
        chained(spark_query.source(spark, epochs)),
        mode="append",
        checkpoint=checkpoint,
        epochs=epochs,
    )
    counts = _counts(spark, checkpoint)
    return BaselineResult("tws", rows, seconds[warmup:], counts["k1"], counts["k2"])


def chained(stream: DataFrame) -> DataFrame:
    """Count by k1, pass the rows on, count by k2, pass the rows on."""
    for key in ("k1", "k2"):
        stream = stream.groupBy(key).transformWithStateInPandas(
            statefulProcessor=_processor(),
            outputStructType="k1 long, k2 long",
            outputMode="append",
            timeMode="none",
        )
    return stream


def _processor() -> StatefulProcessor:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class CountAndPass(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            held = self.count.get()
            total = 0 if held is None else held[0]
            for frame in rows:
                total += len(frame)
                yield frame
            self.count.update((total,))

        def close(self) -> None:
            pass

    return CountAndPass()


def _counts(spark: SparkSession, checkpoint: Path) -> dict[str, pa.Table]:
    """Final counts by key column; the state's key schema says which operator is which."""
    counts = {}
    for operator in (0, 1):
        state = (
            spark.read.format("statestore")
            .option("operatorId", operator)
            .option("stateVarName", "count")
            .load(str(checkpoint))
        )
        key: str = state.select("key.*").columns[0]
        held = state.selectExpr(f"key.{key} AS key", "value.count AS count").toArrow()
        counts[key] = counts_table(held["key"].to_numpy(), held["count"].to_numpy())
    return counts
