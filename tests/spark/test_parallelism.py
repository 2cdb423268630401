"""Operators with instances in some slots only: the results of the fold, and no needless task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.feeding import read_files
from tests.spark.test_elastic import SCHEMA, Load

import headgate as hg
from headgate.errors import DeclarationError
from headgate.runtime.query import FlowQuery


def declared(source: Any, **first: int) -> hg.Flow:
    flow = hg.Flow("instances")
    rows = flow.source(source).shuffle().map(lambda b: b, SCHEMA, name="pass", parallelism=2)
    counted = rows.key_by("a", grouping="hash").process(
        hg.Count(emit="rows"), name="first", **first
    )
    second = counted.key_by("b", grouping="hash").process(hg.Count(emit="rows"), name="second")
    second.globally(grouping="hash").process(hg.Count(), name="all").discard()
    return flow


def check(query: FlowQuery, load: Load) -> None:
    for operator, key, fold in (("first", "a", load.a), ("second", "b", load.b)):
        state = query.state(operator).to_pylist()
        assert {row[key]: row["count"] for row in state} == fold
    assert query.state("all").to_pylist()[0]["count"] == sum(load.a.values())


def epochs_of(query: FlowQuery) -> list[dict[str, Any]]:
    return [record for record in query.journal() if record["kind"] == "epoch"]


def test_instances_as_declared_changed_while_running_and_other_ones_at_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    load, where = Load(tmp_path / "in"), str(tmp_path / "c")
    load.feed()
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA), parallelism=3)
    query = flow.start(spark, slots=4, checkpoint=where, manager=None)
    try:
        load.until(query, lambda: True)
        assert {op: len(slots) for op, slots in query.instances.items()} == {
            "pass": 2, "first": 3, "second": 4, "all": 1,
        }  # fmt: skip
        first, *_, last = epochs_of(query)
        assert {op: len(slots) for op, slots in first["instances"].items()} == {
            "pass": 2, "first": 3, "all": 1,
        }  # fmt: skip
        # The rows of level 2 come to `first`, or pass on where they are.
        assert first["tasks"][0] == 2 and last["tasks"][-1] == 1
        assert set(first["loads"]["pass"]) > {0} and first["loads"]["pass"].count(0) == 2
        assert first["loads"]["first"].count(0) == 1
        check(query, load)

        query.rescale(parallelism={"second": 1, "first": 1})
        load.until(query, lambda: len(query.instances["second"]) == 1)
        check(query, load)
        moved = [r["moved_rows"] for r in epochs_of(query) if sum(r["moved_rows"].values())]
        assert len(moved) == 1 and set(moved[0]) == {"first", "second"}
    finally:
        query.stop()

    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    query = flow.start(spark, slots=3, checkpoint=where, manager=None, parallelism={"first": 2})
    try:
        load.until(query, lambda: True)
        assert {op: len(slots) for op, slots in query.instances.items()} == {
            "pass": 2, "first": 2, "second": 3, "all": 1,
        }  # fmt: skip
        check(query, load)
    finally:
        query.stop()


def test_what_cannot_be_is_refused_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    Load(tmp_path / "in").feed()
    source = read_files(spark, tmp_path / "in", SCHEMA)

    with pytest.raises(DeclarationError, match="'first' is to have 3 instances, and there are 2"):
        declared(source, parallelism=3).start(spark, slots=2, checkpoint=str(tmp_path / "c"))
    with pytest.raises(hg.HeadgateError, match="parallelism names 'frist'"):
        declared(source).start(
            spark, slots=2, checkpoint=str(tmp_path / "c"), parallelism={"frist": 1}
        )
