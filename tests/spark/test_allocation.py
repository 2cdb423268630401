"""Managers of units on Spark: pairs come together, a hot key is cut, and every count is the fold.

Loads are bytes, which are the same in every run; times of such small epochs would say nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.feeding import ONCE, read_files, write_epoch

import headgate as hg
from headgate.control.loop import DecisionLoop
from headgate.control.units import UnitPlacement
from headgate.routing.hashing import hash_columns

PAIRS, HOT = "a bigint, b bigint", "k bigint"
EPOCHS, SLOTS, KEYS = 9, 4, 8


def partners() -> list[int]:
    """For each key a, a key b that hash grouping has in another slot."""
    numbers = np.arange(200)
    slot = hg.hash_table(SLOTS).route(hash_columns([pa.array(numbers)], len(numbers)))
    found: list[int] = []
    for a in range(KEYS):
        apart = [b for b in range(100, 200) if slot[b] != slot[a] and b not in found]
        found.append(apart[0])
    return found


def pairs_of(epoch: int) -> list[dict[str, int]]:
    a = np.random.default_rng([7, epoch]).integers(0, KEYS, 300)
    b = np.array(partners())[a]
    return [{"a": int(x), "b": int(y)} for x, y in zip(a, b, strict=True)]


def hot_of(epoch: int) -> list[dict[str, int]]:
    """Two thirds of all rows have key 0."""
    draw = np.random.default_rng([8, epoch])
    keys = np.where(draw.random(3000) < 0.67, 0, draw.integers(1, 400, 3000))
    return [{"k": int(k)} for k in keys]


def declared(pairs: Any, hot: Any) -> hg.Flow:
    flow = hg.Flow("units")
    first = (
        flow.source(pairs, name="pairs")
        .key_by("a", grouping="hash")
        .process(hg.Count(emit="rows"), name="a")
    )
    first.key_by("b", grouping="hash").process(hg.Count(), name="b").to_memory("out_b")
    keyed = flow.source(hot, name="keys").key_by("k", grouping="cut")
    keyed.process(hg.Count(), name="k").to_memory("out_k")
    return flow


def manager(planner: str) -> DecisionLoop:
    """Places units from the first epoch on, as ours does where slots stay uneven."""
    tuning = hg.PlannerSettings(slot_bytes_per_second=1.0)
    settings = hg.Manager(planner, every=1, alpha=1.3, tuning=tuning)
    return DecisionLoop(placing=UnitPlacement(("a", "b"), settings))


@pytest.mark.usefixtures("planned_between")
@pytest.mark.parametrize("planner", ["headgate", "albic"])
def test_pairs_come_together_and_a_hot_key_is_cut(
    spark: SparkSession, tmp_path: Path, planner: str
) -> None:
    for epoch in range(EPOCHS):
        write_epoch(tmp_path / "pairs", PAIRS, epoch, pairs_of(epoch))
        write_epoch(tmp_path / "hot", HOT, epoch, hot_of(epoch))
    flow = declared(
        read_files(spark, tmp_path / "pairs", PAIRS), read_files(spark, tmp_path / "hot", HOT)
    )
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(tmp_path / "c"),
        trigger=ONCE,
        manager=manager(planner),
    )
    query.awaitTermination()

    rows = [row for epoch in range(EPOCHS) for row in (*pairs_of(epoch), *hot_of(epoch))]
    for key in ("a", "b", "k"):
        fold = Counter(row[key] for row in rows if key in row)
        assert {r[key]: r["count"] for r in query.state(key).to_pylist()} == fold
    journal = query.journal()
    epochs = [r for r in journal if r["kind"] == "epoch"]
    plans = [r for r in journal if r["kind"] == "plan"]
    assert not [r for r in plans if "failed" in r]
    locality = [r["edges"]["a->b"]["locality"] for r in epochs]
    assert locality[0] == 0
    assert locality[-1] >= (0.8 if planner == "headgate" else 0.3), locality
    assert epochs[-1]["spread_keys"] == {"k": 1}
    assert max(epochs[-1]["loads"]["k"]) < 0.5 * 3000, "the hot key has two thirds"
