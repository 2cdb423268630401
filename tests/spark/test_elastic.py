"""Slots come and go while a flow runs: nothing is lost, and little moves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import SparkSession
from tests.spark.feeding import read_files, write_epoch

import headgate as hg
from headgate.runtime.elastic import WarmUp
from headgate.runtime.exchange import Executor
from headgate.runtime.query import FlowQuery

SCHEMA = "a long, b long"
ROWS = 300
EPOCHS_MAX = 120


class Load:
    """Rows that keep coming, epoch by epoch, until something has happened."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epochs = folder, 0
        self.a: Counter[int] = Counter()
        self.b: Counter[int] = Counter()

    def until(self, query: FlowQuery, reached: Callable[[], bool], *, more: int = 2) -> None:
        """Feed and run epochs until it is so, and a few more."""
        while more:
            assert self.epochs < EPOCHS_MAX, query.journal()[-5:]
            more -= reached()
            self.feed()
            query.processAllAvailable()

    def feed(self, rows: int = ROWS) -> None:
        draw = np.random.default_rng([3, self.epochs])
        a, b = draw.integers(0, 40, rows).tolist(), draw.integers(0, 90, rows).tolist()
        made = [{"a": x, "b": y} for x, y in zip(a, b, strict=True)]
        write_epoch(self.folder, SCHEMA, self.epochs, made)
        self.a.update(a)
        self.b.update(b)
        self.epochs += 1


def declared(source: Any) -> hg.Flow:
    flow = hg.Flow("elastic")
    first = (
        flow.source(source)
        .key_by("a", grouping="hash")
        .process(hg.Count(emit="rows"), name="first")
    )
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").discard()
    return flow


def test_two_to_four_to_two_slots_under_load_is_the_fold(
    spark: SparkSession, tmp_path: Path
) -> None:
    load = Load(tmp_path / "in")
    load.feed()
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "c"), manager=None)
    try:
        query.processAllAvailable()  # there is state to move
        for slots in (4, 2):
            query.rescale(slots)
            load.until(query, lambda wanted=slots: query.slots == wanted)
    finally:
        query.stop()

    for operator, key, fold in (("first", "a", load.a), ("second", "b", load.b)):
        state = query.state(operator).to_pylist()
        assert {r[key]: r["count"] for r in state} == fold
    journal = query.journal()
    changes = [r for r in journal if r["kind"] == "scale"]
    assert [(r["before"], r["slots"]) for r in changes] == [(2, 4), (4, 2)]
    epochs = {r["epoch"]: r for r in journal if r["kind"] == "epoch"}
    changed = {r["epoch"] for r in changes}
    for epoch, record in epochs.items():
        moved = sum(record["moved_rows"].values())
        assert 0 < moved < 100 if epoch in changed else moved == 0, (epoch, record)
    assert {r["slots"] for r in epochs.values()} == {2, 4}
    assert not [r for r in journal if r["kind"] == "elastic" and "failed" in r]


def test_newcomers_practise_reading_and_do_without_if_they_must(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing of it is seen by the flow: no state, no epoch."""
    load = Load(tmp_path / "in")
    load.feed()
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    query = flow.start(spark, slots=1, checkpoint=str(tmp_path / "c"), manager=None)
    try:
        query.processAllAvailable()
        plan = query.coordinator.rehearsal(2)
        accumulators = len(_accumulatorRegistry)
        here = Executor("driver", "localhost", cores=1)
        assert WarmUp(query._engine, plan).partition is not None

        reading = WarmUp(query._engine, plan).take([here]).result()
        for file in (tmp_path / "in").glob("*.parquet"):
            file.unlink()
        idle = WarmUp(query._engine, plan).take([here]).result()
        assert len(_accumulatorRegistry) == accumulators, "PySpark keeps every one for good"
    finally:
        query.stop()

    assert (reading[1], idle[1]) == (True, False)
    assert {r["a"]: r["count"] for r in query.state("first").to_pylist()} == load.a
    assert len([r for r in query.journal() if r["kind"] == "epoch"]) == 1


def test_the_manager_adds_and_removes_slots_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """A clock by hand says how long epochs last: hours, then milliseconds, so slots are idle, then
    busy. Marked, drained within the budget, and released; then grown because of planned loads.
    """
    load = Load(tmp_path / "in")
    load.feed()
    now = [0]
    step = [600_000]

    def clock_ms() -> int:
        now[0] += step[0]
        return now[0]

    manager = hg.Manager(
        "milp",
        every=1,
        migration_seconds_max=60,
    )
    flow = declared(read_files(spark, tmp_path / "in", SCHEMA))
    query = flow.start(
        spark,
        slots=hg.Scaling(min_slots=1, max_slots=2, high_pct=60, low_pct=20, hold_periods=2),
        checkpoint=str(tmp_path / "c"),
        manager=manager,
        options=hg.Options(clock_ms=clock_ms),
    )
    try:
        load.until(query, lambda: query.slots == 1)
        step[0] = 5
        load.until(query, lambda: query.slots == 2)
    finally:
        query.stop()

    for operator, key, fold in (("first", "a", load.a), ("second", "b", load.b)):
        state = query.state(operator).to_pylist()
        assert {r[key]: r["count"] for r in state} == fold
    journal = query.journal()
    released, grown = [r for r in journal if r["kind"] == "scale"]
    assert (grown["before"], grown["slots"]) == (1, 2)
    assert re.fullmatch(
        r"planned loads: mean \d+ %, busiest \d+ %; with 2 slots \d+ %", grown["why"]
    )
    assert (released["before"], released["slots"]) == (2, 1)
    assert released["why"] == "slot 1 is released: drained, nothing lives there"
    plans = [r for r in journal if r["kind"] == "plan"]
    assert not [r for r in plans if "failed" in r]
    marked = next(r for r in plans if "slot 1 is drained from now on" in r["why"])
    assert marked["epoch"] < released["epoch"] < grown["epoch"]
    assert sum(marked["moves"].values()) > 0
    moved = {r["epoch"]: sum(r["moved_rows"].values()) for r in journal if r["kind"] == "epoch"}
    assert moved[released["epoch"]] == 0, "what is released has been drained before"
    assert max(epoch for epoch, rows in moved.items() if rows) >= marked["epoch"]
    assert [(r["before"], r["slots"]) for r in journal if r["kind"] == "elastic"] == [
        (2, 1),
        (1, 2),
    ]
