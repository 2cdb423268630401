"""Epochs without rows on real Spark: windows close, triggers read what they read without them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.feeding import ONCE, read_files, write_epoch

import headgate as hg
from headgate.errors import SinkFailed
from headgate.runtime.query import FlowQuery

SCHEMA = "k string, ts timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = hg.Tumbling("1 minute", time="ts")


def write(folder: Path, files: Iterable[int], seed: int = 0, rows: int = 100) -> None:
    """Files of rows whose times rise from file to file, so that none is late."""
    for number in files:
        rng = random.Random(f"{seed} {number}")
        given = [
            {"k": rng.choice("abc"), "ts": START + timedelta(seconds=100 * number + i)}
            for i in range(rows)
        ]
        write_epoch(folder, SCHEMA, number, given)


def start(
    spark: SparkSession,
    folder: Path,
    operator: Any,
    *,
    sink: Any = None,
    tick: bool | None = None,
    **options: Any,
) -> FlowQuery:
    flow = hg.Flow("ticks")
    rows = flow.source(read_files(spark, folder / "in", SCHEMA), event_time="ts", name="rows")
    counts = rows.key_by("k").process(operator, name="counts")
    counts.to_table("table")
    if sink is not None:
        counts.to(sink, name="sink")
    options["options"] = hg.Options(tick=tick)
    return flow.start(spark, slots=2, checkpoint=str(folder / "checkpoint"), **options)


def run_once(spark: SparkSession, folder: Path, operator: Any, **options: Any) -> FlowQuery:
    query = start(spark, folder, operator, trigger=ONCE, **options)
    query.awaitTermination()
    assert not query.isActive and query.exception() is None
    return query


def rows_read(query: FlowQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress]


def windows_of(frame: DataFrame) -> Counter[Any]:
    return Counter((r["k"], r["window_start"], r["count"]) for r in frame.toArrow().to_pylist())


def natively(spark: SparkSession, folder: Path) -> Counter[Any]:
    """What Spark's own windows have emitted by the end of an availableNow query."""
    rows = read_files(spark, folder / "in", SCHEMA).withWatermark("ts", "0 seconds")
    counts = rows.groupBy(F.window("ts", "1 minute"), "k").count()
    query = (
        counts.selectExpr("k", "window.start window_start", "count")
        .writeStream.option("checkpointLocation", str(folder / "native"))
        .trigger(**ONCE)
        .toTable("native_windows", format="parquet", path=str(folder / "native-out"))
    )
    query.awaitTermination()
    try:
        return windows_of(spark.table("native_windows"))
    finally:
        spark.sql("drop table native_windows")


def test_a_ttl_does_not_change_what_a_trigger_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Six files are six epochs, also from where a run has failed; an idle run has one."""
    write(tmp_path / "in", range(6))
    fails_at = 1

    def sink(_frame: DataFrame, epoch: int) -> None:
        if epoch == fails_at:
            raise OSError("no database")

    operator = hg.Count(ttl="1 hour")
    query = start(spark, tmp_path, operator, sink=sink, trigger=ONCE)
    with pytest.raises(SinkFailed, match="no database"):
        query.awaitTermination()
    fails_at = -1
    again = run_once(spark, tmp_path, operator, sink=sink)
    idle = run_once(spark, tmp_path, operator, sink=sink)

    assert rows_read(query) + rows_read(again) == [100] * 6
    assert [p["batchId"] for p in again.recentProgress] == [1, 2, 3, 4, 5]
    assert rows_read(idle) == [0] and idle.recentProgress[0]["headgate"]["tick"]


def test_windows_are_those_of_spark_when_all_that_is_available_has_been_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", range(3))
    first = run_once(spark, tmp_path, hg.Count(window=MINUTE))
    nothing_new = run_once(spark, tmp_path, hg.Count(window=MINUTE))
    write(tmp_path / "in", [3, 4])
    second = run_once(spark, tmp_path, hg.Count(window=MINUTE))

    assert windows_of(second.table("table")) == natively(spark, tmp_path)
    assert rows_read(first) == [100, 100, 100, 0] and rows_read(nothing_new) == []
    assert rows_read(second) == [100, 100, 0]


def test_what_a_run_left_open_is_emitted_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """The driver fails before the closing epoch, then in its sink; both times no row is left."""
    write(tmp_path / "in", range(2))
    failing: set[int] = set()
    delivered: dict[int, Counter[Any]] = {}

    def sink(frame: DataFrame, epoch: int) -> None:
        assert delivered.setdefault(epoch, windows_of(frame)) == windows_of(frame)
        if epoch in failing:
            raise OSError("no database")

    def run() -> FlowQuery:
        return run_once(spark, tmp_path, hg.Count(window=MINUTE), sink=sink)

    for epoch in (1, 2):
        failing.add(epoch)
        with pytest.raises(SinkFailed):
            run()
        failing.clear()
    done = run()

    assert rows_read(done) == [] and sorted(delivered) == [0, 1, 2]
    expected = natively(spark, tmp_path)
    assert sum(delivered.values(), Counter()) == windows_of(done.table("table")) == expected


def test_a_stream_that_falls_idle_emits_its_complete_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", [0])
    query = start(spark, tmp_path, hg.Count(window=MINUTE))
    try:
        query.processAllAvailable()
        complete = windows_of(query.table("table"))
        write(tmp_path / "in", [1])
        while query.isActive and len(query.recentProgress) < 4:
            query.awaitTermination(0.1)
    finally:
        query.stop()

    assert rows_read(query) == [100, 0, 100, 0]
    assert {window for _, window, _ in complete} == {START}
    assert windows_of(query.table("table")) == natively(spark, tmp_path)


def test_ticks_are_turned_on_and_off_with_the_same_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, tick in enumerate([False, True, False]):
        write(tmp_path / "in", [number])
        assert rows_read(run_once(spark, tmp_path, hg.Count(), tick=tick)) == [100]

    assert rows_read(run_once(spark, tmp_path, hg.Count())) == []
