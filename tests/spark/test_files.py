"""Files that tasks read themselves give what Spark's own reader gives."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.feeding import ONCE

import headgate as hg
from headgate.errors import SourceFileError
from headgate.runtime import engine

ROWS = [
    {
        "name": None if i % 5 == 0 else f"n {i}",
        "at": datetime(2026, 1, 1, i % 24, tzinfo=UTC),
        "day": date(2026, 1, 1 + i % 20),
        "price": Decimal(i).scaleb(-2),
        "tags": [f"t{i % 3}"],
        "ok": i % 2 == 0,
    }
    for i in range(40)
]
DDL = "name string, at timestamp, day date, price decimal(9,2), tags array<string>, ok boolean"


def copied(spark: SparkSession, source: Any, checkpoint: Path, **options: Any) -> pa.Table:
    """All rows that a source gives, as a table sink has them."""
    flow = hg.Flow("copy")
    flow.source(source).to_table("rows")
    query = flow.start(spark, checkpoint=str(checkpoint), slots=1, trigger=ONCE, **options)
    query.awaitTermination()
    return query.table("rows").toArrow().sort_by("price")


def test_rows_of_files_and_of_a_data_frame_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Types, nulls, times, columns of folders; files beside another source are read too."""
    for part in (0, 1):
        folder = tmp_path / "in" / f"part={part}"
        folder.mkdir(parents=True)
        spark.createDataFrame(ROWS[20 * part : 20 * part + 20], DDL).coalesce(1).write.mode(
            "append"
        ).parquet(str(folder))
    schema = f"{DDL}, part int"

    frame = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    ours = copied(spark, hg.Files(tmp_path / "in", schema=schema), tmp_path / "ours")
    theirs = copied(spark, frame, tmp_path / "theirs")
    flow = hg.Flow("both")
    both = flow.source(hg.Files(tmp_path / "in", schema=schema)).union(flow.source(frame))
    both.select("price").to_table("rows")
    query = flow.start(spark, checkpoint=str(tmp_path / "both"), slots=1, trigger=ONCE)
    query.awaitTermination()

    assert ours.num_rows == 40 and ours.equals(theirs)
    assert query.table("rows").count() == 80


def test_every_format_that_spark_writes_is_read_as_spark_reads_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two files of each; a limit of bytes takes one at a time. Arrow, which Spark does not read."""
    ddl = DDL.replace("tags array<string>", "n int, f double")
    plain = [{**row, "n": i if i % 3 else None, "f": i / 7} for i, row in enumerate(ROWS)]
    rows = spark.createDataFrame([{**row, "tags": None} for row in plain], f"{ddl}, tags int")
    rows = rows.drop("tags")
    kinds = ("csv", "json", "orc")
    for kind in kinds:
        rows.repartition(2).write.format(kind).save(str(tmp_path / kind))
    with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as file:
        table = rows.toArrow()
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    def read(name: str, sources: dict[str, Any]) -> tuple[dict[str, pa.Table], list[Any]]:
        flow = hg.Flow(name)
        for kind, source in sources.items():
            flow.source(source, name=kind).to_table(kind)
        place = str(tmp_path / name)
        query = flow.start(spark, checkpoint=place, slots=1, trigger=ONCE, manager=None)
        query.awaitTermination()
        epochs = [record for record in query.journal() if record["kind"] == "epoch"]
        return {k: query.table(k).toArrow().sort_by("price") for k in sources}, epochs

    theirs, _ = read(
        "theirs",
        {k: spark.readStream.schema(ddl).format(k).load(str(tmp_path / k)) for k in kinds},
    )
    files = {k: hg.Files(tmp_path / k, k, ddl, max_bytes=1) for k in kinds}
    ours, epochs = read("ours", {**files, "arrow": hg.Files(tmp_path / "0.arrow", "arrow")})

    assert ours["csv"].to_pylist() == sorted(
        [{k: v for k, v in row.items() if k != "tags"} for row in plain], key=lambda r: r["price"]
    )
    for kind in kinds:
        assert ours[kind].equals(theirs[kind]), kind
    assert ours["arrow"].equals(theirs["orc"])
    assert [record["source_rows"]["csv"] for record in epochs] == [20, 20]


def test_files_that_wait_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """In every epoch but the first of a query, whose start has not returned yet."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.csv").write_text("1\n2\n")
    flow = hg.Flow("backlog")
    flow.source(hg.Files(tmp_path / "in", "csv", "k bigint", max_files=1)).to_memory("out")
    query = flow.start(spark, checkpoint=str(tmp_path / "checkpoint"), slots=1, manager=None)
    try:
        query.processAllAvailable()
        told = [progress["headgate"].get("files_waiting") for progress in query.recentProgress]
    finally:
        query.stop()

    assert told[1:] == [2, 1, 0]


def test_a_start_goes_on_after_the_files_it_has_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit in rows; a file that changes under a flow ends it, and its epoch is not kept."""
    place = tmp_path / "in"
    place.mkdir()

    def arrive(number: int) -> Path:
        path = place / f"{number}.json"
        lines = [json.dumps({"k": i % 7, "n": number}) for i in range(2_000)]
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))
        return path

    def go(rows_per_epoch: int | None = None) -> Any:
        flow = hg.Flow("sums")
        files = hg.Files(place, "json", "k bigint, n bigint", rows_per_file=2_000)
        sums = flow.source(files).key_by("k").process(hg.Sum("n"), name="sums")
        sums.to_memory("out")
        options = {"trigger": ONCE, "rows_per_epoch": rows_per_epoch}
        query = flow.start(spark, checkpoint=str(tmp_path / "checkpoint"), slots=2, **options)
        query.awaitTermination()
        return query

    for number in (1, 2, 3):
        arrive(number)
    first = go(rows_per_epoch=2_000)
    arrive(4)
    second = go()

    epochs = [record for record in second.journal() if record["kind"] == "epoch"]
    assert [sum(record["source_rows"].values()) for record in epochs] == [2_000] * 4
    assert len(first.recentProgress) == 3
    total = sum(second.state("sums").column("sum").to_pylist())
    assert total == 2_000 * (1 + 2 + 3 + 4)

    changed = arrive(5)
    planned = engine.pieces_of

    def change_then(*given: Any) -> Any:
        made = planned(*given)
        changed.write_text("{}")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(engine, "pieces_of", change_then)
        with pytest.raises(SourceFileError, match="since Spark listed it"):
            go()
    arrive(5)
    assert sum(go().state("sums").column("sum").to_pylist()) == 2_000 * 15
