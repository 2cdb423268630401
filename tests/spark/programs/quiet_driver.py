"""Stop flows, and let some fail, in a session as Spark makes it, with all that it logs.

Writes "=== NAME" to standard error before each; checkpoints lie in the folder given. Errors of
flows that fail go to standard output, one line of JSON each.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.errors import HeadgateError

FOLDER = Path(*sys.argv[1:2])  # none where a test imports names from here
PATIENCE_S = 600.0  # as in tests/waiting.py


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    for name, stop in STOPS.items():
        print(f"=== {name}", file=sys.stderr, flush=True)
        stop(spark, name)
    for name, fail in FAILURES.items():
        print(f"=== {name}", file=sys.stderr, flush=True)
        try:
            fail(spark, name).awaitTermination()
        except HeadgateError as error:
            shown = "".join(traceback.format_exception(error))
            print(json.dumps({"name": name, "where": error.where, "shown": shown}), flush=True)
    spark.stop()


def start(
    spark: SparkSession, name: str, sink: Any = None, change: Any = None, operator: Any = None
) -> Any:
    flow = hg.Flow("quiet")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    source = flow.source(rows.selectExpr("value % 7 k"))
    if change is not None:
        source = source.map(change, "k bigint")
    counts = source.key_by("k").process(operator or hg.Count(), name="counts")
    counts.to(sink or (lambda frame, epoch: None), name="out")
    return flow.start(spark, slots=2, checkpoint=str(FOLDER / name))


def at_once(spark: SparkSession, name: str) -> None:
    start(spark, name).stop()


def in_a_sink(spark: SparkSession, name: str) -> None:
    called = threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        called.set()
        while True:
            frame.count()

    query = start(spark, name, sink)
    assert called.wait(PATIENCE_S)
    query.stop()


def in_a_task(spark: SparkSession, name: str) -> None:
    running = FOLDER / "running"

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        running.touch()
        time.sleep(PATIENCE_S)
        return batch

    query = start(spark, name, change=slow)
    wait_for(running.exists)
    query.stop()


def between_epochs(spark: SparkSession, name: str) -> None:
    query = start(spark, name)
    wait_for(lambda: bool(query.recentProgress))
    query.stop()


def broken_update(key: int, rows: Any, state: Any) -> Any:
    return 1, [{"k": key // 0}]


def broken_sink(frame: DataFrame, epoch: int) -> None:
    frame.write.jdbc("jdbc:nothing:here", "t")


def failing_update(spark: SparkSession, name: str) -> Any:
    update = hg.Update(broken_update, output=pa.schema({"k": pa.int64()}))
    return start(spark, name, operator=update)


def failing_sink(spark: SparkSession, name: str) -> Any:
    return start(spark, name, broken_sink)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it did not come to this"
        time.sleep(0.01)


STOPS = {
    "at once": at_once,
    "in a task": in_a_task,
    "in a sink": in_a_sink,
    "between epochs": between_epochs,
}

FAILURES = {"failing update": failing_update, "failing sink": failing_sink}

if __name__ == "__main__":
    main()
