"""A manager on Spark: keys move while the flow runs, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.scenario.born_local import born_local
from tests.scenario.like_replay import chain, expected, told
from tests.spark.feeding import ONCE, read_files, write_epoch

import headgate as hg
from headgate.routing.hashing import hash_columns
from headgate.testing import ListSource, run

SCHEMA = "a long, b long"
EPOCHS, ROWS, SLOTS = 7, 400, 3


def rows_of(epoch: int) -> list[dict[str, int]]:
    """Key b goes with a = b mod 12, all but a few times."""
    draw = np.random.default_rng([5, epoch])
    b = draw.integers(0, 60, ROWS)
    a = np.where(draw.random(ROWS) < 0.05, draw.integers(0, 12, ROWS), b % 12)
    return [{"a": int(x), "b": int(y)} for x, y in zip(a, b, strict=True)]


def declared(source: Any) -> hg.Flow:
    flow = hg.Flow("managed")
    first = (
        flow.source(source)
        .key_by("a", grouping="hash")
        .process(hg.Count(emit="rows"), name="first")
    )
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").to_memory("out")
    return flow


@pytest.mark.usefixtures("planned_between")
@pytest.mark.parametrize("planner", ["headgate", "online"])
def test_keys_move_to_where_their_rows_are(
    spark: SparkSession, tmp_path: Path, planner: str
) -> None:
    for epoch in range(EPOCHS):
        write_epoch(tmp_path / "in", SCHEMA, epoch, rows_of(epoch))
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    manager = hg.Manager(planner, every=2)

    query = flow.start(
        spark, slots=SLOTS, checkpoint=str(tmp_path / "c"), trigger=ONCE, manager=manager
    )
    query.awaitTermination()

    rows = [row for epoch in range(EPOCHS) for row in rows_of(epoch)]
    for operator, key in (("first", "a"), ("second", "b")):
        state = query.state(operator).to_pylist()
        assert {r[key]: r["count"] for r in state} == Counter(r[key] for r in rows)
    journal = query.journal()
    epochs = [r for r in journal if r["kind"] == "epoch"]
    moved = [sum(r["moved_rows"].values()) for r in epochs]
    assert sum(moved) > 0
    assert epochs[-1]["locality"] > 0.7
    plans = [r for r in journal if r["kind"] == "plan"]
    assert all(r["planner"] == planner for r in plans)


def test_locality_on_spark_is_that_of_the_table_on_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One routing code: a table says beforehand, to the row, what Spark will find."""
    draw = np.random.default_rng(3)
    tables = {}
    for operator, keys in (("first", 12), ("second", 60)):
        h = _hashes(keys)
        tables[operator] = hg.hash_table(SLOTS).pin_hashes(
            h[::2], draw.integers(0, SLOTS, len(h[::2])).astype(np.int32)
        )
    write_epoch(tmp_path / "in", SCHEMA, 0, rows_of(0))
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(tmp_path / "c"),
        trigger=ONCE,
        options=hg.Options(tables=tables),
        manager=None,
    )
    query.awaitTermination()

    a, b = (np.array([r[key] for r in rows_of(0)]) for key in ("a", "b"))
    here = tables["first"].route(_hashes(12))[a] == tables["second"].route(_hashes(60))[b]
    record = next(r for r in query.journal() if r["kind"] == "epoch")
    edge = record["edges"]["first->second"]
    assert (edge["local_rows"], edge["remote_rows"]) == (int(here.sum()), int((~here).sum()))
    without_a_jvm = run(
        declared(ListSource(SCHEMA, [rows_of(0)])), slots=SLOTS, tables=tables
    ).records[0]
    assert without_a_jvm["edges"]["first->second"]["local_rows"] == edge["local_rows"]


def test_new_keys_are_born_on_spark_where_replay_says(spark: SparkSession, tmp_path: Path) -> None:
    """A third of all keys have no owner, first keys too: their rows go where their next key is."""
    draw = np.random.default_rng(9)
    keys = ("a", "b")
    rows = [{"a": row["a"] + 12 * (n % 9), "b": row["b"]} for n, row in enumerate(rows_of(0))]
    tables = {}
    for key, count in (("a", 108), ("b", 60)):
        known = _hashes(count)[draw.random(count) < 0.67]
        slots = draw.integers(0, SLOTS, len(known)).astype(np.int32)
        tables[key] = hg.hash_table(SLOTS).pin_hashes(known, slots)
    write_epoch(tmp_path / "in", SCHEMA, 0, rows)
    flow = chain(read_files(spark, tmp_path / "in", SCHEMA), keys)
    with born_local():
        query = flow.start(
            spark,
            slots=SLOTS,
            checkpoint=str(tmp_path / "c"),
            trigger=ONCE,
            options=hg.Options(tables=tables),
        )
        query.awaitTermination()

    record = next(r for r in query.journal() if r["kind"] == "epoch")
    assert told(record, keys) == expected(rows, tables, born_local=True)
    assert record["away_rows"].keys() == {"a", "b"}
    for key in keys:
        state = {r[key]: r["count"] for r in query.state(key).to_pylist()}
        assert state == Counter(row[key] for row in rows)


def _hashes(keys: int) -> Any:
    return hash_columns([pa.array(range(keys), pa.int64())], keys)
