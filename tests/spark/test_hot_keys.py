"""Groupings for hot keys on Spark: one flow has them all, half of all rows have one key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.scenario.oracle import bag
from tests.spark.feeding import ONCE, read_files, state_rows, write_epoch

import headgate as hg
from headgate.runtime.query import FlowQuery
from headgate.topology.graph import SEVERAL_SLOTS, KeyGrouping

SCHEMA = "k bigint"
EPOCHS, ROWS = 3, 1200
GROUPINGS = get_args(KeyGrouping)


def keys_of(epoch: int) -> list[int]:
    """Key 0 has half of the rows; the last epochs have another hot key."""
    draw = np.random.default_rng([6, epoch])
    hot = 0 if epoch < EPOCHS else 1
    keys = np.where(draw.random(ROWS) < 0.5, hot, draw.integers(2, 80, ROWS))
    return [int(k) for k in keys]


def feed(folder: Path, epochs: range) -> None:
    for epoch in epochs:
        write_epoch(folder / "in", SCHEMA, epoch, [{"k": k} for k in keys_of(epoch)])


def start(spark: SparkSession, folder: Path, slots: int) -> FlowQuery:
    flow = hg.Flow("hot")
    rows = flow.source(read_files(spark, folder / "in", SCHEMA), name="rows")
    for grouping in GROUPINGS:
        counted = rows.key_by("k", grouping=grouping).process(hg.Count(), name=grouping)
        counted.to_memory(f"out_{grouping}")
    query = flow.start(
        spark,
        slots=slots,
        checkpoint=str(folder / "c"),
        trigger=ONCE,
        manager=hg.Manager("hash"),
    )
    query.awaitTermination()
    return query


def check_fold(query: FlowQuery, epochs: int) -> None:
    """Every operator has every key once, in one slot, with the count of a plain fold."""
    counts = Counter(k for epoch in range(epochs) for k in keys_of(epoch))
    for operator in GROUPINGS:
        expected = bag({"k": k, "count": n} for k, n in counts.items())
        assert bag(state_rows(query.coordinator, operator)) == expected, operator


def epochs_of(query: FlowQuery) -> list[dict[str, Any]]:
    return [record for record in query.journal() if record["kind"] == "epoch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hot")


@pytest.mark.usefixtures("planned_between")
def test_every_grouping_counts_alike_and_cuts_what_is_hot(
    spark: SparkSession, folder: Path
) -> None:
    feed(folder, range(EPOCHS))

    query = start(spark, folder, slots=4)

    check_fold(query, EPOCHS)
    last = epochs_of(query)[-1]
    uneven = last["imbalance"]
    assert uneven["hash"] > 2 and uneven["dkg"] > 1.9  # one slot has the hot key
    assert uneven["pkg"] < 1.4
    assert max(uneven["d_choices"], uneven["w_choices"]) < 1.25
    for grouping in SEVERAL_SLOTS:
        assert last["merge_rows"][grouping] > 0
        assert last["edges"][f"rows->{grouping}"]["grouping"] == grouping
    assert {"hash", "dkg"}.isdisjoint(last["merge_rows"])
    assert last["spread_keys"] == {"cut": 1}
    assert uneven["cut"] < 1.25


def test_a_start_with_other_slots_goes_on_from_the_owners(
    spark: SparkSession, folder: Path
) -> None:
    """Who owns which key is stored; what is spread and split is learnt again."""
    feed(folder, range(EPOCHS, 2 * EPOCHS))

    query = start(spark, folder, slots=3)

    check_fold(query, 2 * EPOCHS)
    records = epochs_of(query)[EPOCHS:]
    assert [record["slots"] for record in records] == [3] * EPOCHS
    assert records[0]["spread_keys"] == {} and records[0]["split"] == []
    assert records[-1]["imbalance"]["w_choices"] < 1.25
