"""On Spark: a source, an operator and a sink of one name; it dies, rescales, is renamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.feeding import ONCE, write_epoch
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.commit import faults

SCHEMA = "k bigint, v bigint"


def declared(folder: Path, source: str = "orders", operator: str = "orders") -> hg.Flow:
    flow = hg.Flow("shop")
    rows = flow.source(hg.Files(folder / "in", schema=SCHEMA, max_files=1), name=source)
    rows.key_by("k").process(hg.Sum("v"), name=operator).to_table("orders")
    return flow


def arrive(folder: Path, epoch: int) -> None:
    write_epoch(folder / "in", SCHEMA, epoch, [{"k": k, "v": 10**epoch} for k in range(3)])


def totals(query: Any, operator: str = "orders") -> set[int]:
    return set(query.state(operator).column("sum").to_pylist())


def test_three_of_one_name_go_through_a_life(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "checkpoint")

    def start(flow: hg.Flow, slots: int, **says: Any) -> Any:
        query = flow.start(
            spark,
            checkpoint=place,
            slots=slots,
            trigger=ONCE,
            manager=None,
            options=hg.Options(**says),
        )
        query.awaitTermination()
        return query

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == ("manifest-written", 1):
            raise RuntimeError("the driver is dead")

    for epoch in range(2):
        arrive(tmp_path, epoch)
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Exception, match="the driver is dead"):
            start(declared(tmp_path), 2)

    arrive(tmp_path, 2)
    query = declared(tmp_path).start(spark, checkpoint=place, slots=2, manager=None)
    try:
        query.processAllAvailable()
        query.rescale(parallelism={"orders": 1})
        arrive(tmp_path, 3)
        query.processAllAvailable()
        assert totals(query) == {1111} and len(query.instances["orders"]) == 1
        query.rescale(parallelism={"orders": 2})
        arrive(tmp_path, 4)
        query.processAllAvailable()
        assert totals(query) == {11_111} and len(query.instances["orders"]) == 2
        assert "orders (source)" in repr(query.explain())
        assert [r["source_rows"] for r in query.journal() if "source_rows" in r] == [
            {"orders": 3}
        ] * 5
        assert query.lastProgress["sources"][0]["description"] == "orders"
    finally:
        query.stop()

    for words in (["inspect", place], ["report", place, "--out", str(tmp_path / "r.html")]):
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output

    arrive(tmp_path, 5)
    names = {"operator:orders": "totals", "source:orders": "files"}
    for point in ("tasks-done", "sink-called"):  # before the new names hold, and after

        def fail(at: str, epoch: int, point: str = point) -> None:
            if (at, epoch) == (point, 5):
                raise RuntimeError("the driver is dead")

        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", fail)
            with pytest.raises(Exception, match="the driver is dead"):
                start(declared(tmp_path, "files", "totals"), 1, renamed=names)
    query = start(declared(tmp_path, "files", "totals"), 3, renamed=names)
    assert totals(query, "totals") == {111_111}

    arrive(tmp_path, 6)
    query = start(
        declared(tmp_path, "files", "files"), 2, renamed=names, drop_state=["operator:totals"]
    )
    assert totals(query, "files") == {1_000_000}  # no file is read again
    assert query.table("orders").count() == 3 * 7
