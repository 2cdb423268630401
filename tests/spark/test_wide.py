"""Thousands of columns: right, and without a call to the JVM for each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.scenario.oracle import bag
from tests.spark.feeding import ONCE

import headgate as hg

FORGET = "m"  # py4j tells the JVM of every object that Python has dropped, sooner or later


@pytest.fixture
def calls(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Commands sent to the JVM from now on, by their first letter."""
    seen: Counter[str] = Counter()
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    send = client.send_command

    def counting(command: str, *rest: Any, **options: Any) -> Any:
        seen[command[0]] += command[0] != FORGET
        return send(command, *rest, **options)

    monkeypatch.setattr(client, "send_command", counting)
    return seen


def wide_rows(columns: int, rows: int = 12) -> list[dict[str, Any]]:
    numbers = [{f"c{i}": row * columns + i for i in range(columns)} for row in range(rows)]
    return [{"k": f"key {row % 5}", **rest} for row, rest in enumerate(numbers)]


def read_wide(spark: SparkSession, folder: Path, rows: list[dict[str, Any]]) -> DataFrame:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "0.parquet")
    numbers = [StructField(name, LongType()) for name in rows[0] if name != "k"]
    schema = StructType([StructField("k", StringType()), *numbers])
    return spark.readStream.schema(schema).parquet(str(folder))


def test_2001_columns_pass_with_fewer_calls_to_the_jvm_than_columns(
    spark: SparkSession, tmp_path: Path, calls: Counter[str]
) -> None:
    rows = wide_rows(2_000)
    flow = hg.Flow("wide")
    stream = flow.source(read_wide(spark, tmp_path / "in", rows)).key_by("k")
    stream.process(hg.Count(emit="running"), name="count").to_parquet(str(tmp_path / "out"))

    flow.start(spark, slots=2, checkpoint=tmp_path / "checkpoint", trigger=ONCE).awaitTermination()

    assert calls.total() < 2_001
    seen: Counter[str] = Counter()
    expected = []
    for row in rows:
        seen[row["k"]] += 1
        expected.append({**row, "count": seen[row["k"]]})
    assert bag(pq.read_table(tmp_path / "out").to_pylist()) == bag(expected)


def test_wide_sources_are_cut_joined_and_ticked_with_fewer_calls_than_columns(
    spark: SparkSession, tmp_path: Path, calls: Counter[str]
) -> None:
    """The first declares its columns in another order, and not all of them."""
    left, right = wide_rows(1_200), wide_rows(1_000, rows=7)
    declared = {**{f"c{i}": "bigint" for i in range(999, -1, -1)}, "k": "string"}
    flow = hg.Flow("wide")
    joined = flow.source(
        read_wide(spark, tmp_path / "left", left), schema=declared, name="left"
    ).union(flow.source(read_wide(spark, tmp_path / "right", right), schema=declared, name="right"))
    seen: list[dict[str, Any]] = []
    joined.to(lambda frame, epoch: seen.extend(frame.toArrow().to_pylist()), name="seen")
    joined.key_by("k").process(hg.Count(), name="count").to_memory("counts")
    for _ in range(2):  # the second time nothing is left to read
        query = flow.start(
            spark,
            slots=2,
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
            options=hg.Options(tick=True),
        )
        query.awaitTermination()

    assert calls.total() < 2_200
    assert query.coordinator.last is not None and query.coordinator.last.epoch == 1
    assert bag(seen) == bag([{name: row[name] for name in declared} for row in left + right])
    counted = {row["k"]: row["count"] for row in query.state("count").to_pylist()}
    assert counted == Counter(row["k"] for row in left + right)


def test_wide_columns_wait_in_files_until_the_sink_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On real tasks, with rows through the JVM and rows of files, in more epochs than one."""
    rows = [
        {"a": n % 7, "b": n % 3, "w": None if n % 5 == 0 else f"row {n} is wide. " * 40}
        for n in range(600)
    ]
    (tmp_path / "in").mkdir()
    for number in range(3):
        part = pa.Table.from_pylist(rows[number::3])
        pq.write_table(part, tmp_path / "in" / f"{number}.parquet")
    read = spark.readStream.schema("a long, b long, w string").option("maxFilesPerTrigger", 2)
    sources: dict[str, Any] = {
        "frame": read.parquet(str(tmp_path / "in")),
        "files": hg.Files(str(tmp_path / "in"), max_files=2),
    }
    for name, source in sources.items():
        flow = hg.Flow(name)
        counted = flow.source(source).key_by("a", grouping="hash")
        first = counted.process(hg.Count(emit="rows"), name="first")
        second = first.key_by("b", grouping="hash").process(hg.Count(emit="rows"), name="second")
        second.to_parquet(str(tmp_path / name))
        place = tmp_path / f"checkpoint-{name}"

        query = flow.start(
            spark, slots=2, checkpoint=place, trigger=ONCE, options=hg.Options(park_bytes=9)
        )
        query.awaitTermination()

        assert bag(pq.read_table(tmp_path / name).to_pylist()) == bag(rows)
        assert [*(place / "parked").iterdir()] == [], "they were there, and are gone"
