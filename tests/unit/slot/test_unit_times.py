"""Rows of units in parts: whole units, in their order, the same results, and times that tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.commit.planning import Decision, Observed
from headgate.control.unit_costs import UnitCosts
from headgate.routing.hashing import hash_columns
from headgate.slot.rows import Rows
from headgate.slot.task import Services
from headgate.slot.unit_times import (
    MEASURED_EVERY,
    PARTS_MAX,
    in_parts,
    part_of_units,
    rows_of_parts,
)
from headgate.testing import ListSource, LocalRun, run
from strategies import examples

BUCKETS, ROWS, HEAVY = 64, 200, 7


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(5, 8))
@examples(50)
def test_parts_have_every_row_once_and_in_its_order(drawn: list[int], parts: int) -> None:
    rows = Rows(pa.record_batch({"n": pa.array(range(len(drawn)), pa.int64())}))

    found = in_parts(rows, np.array(drawn, np.int64), parts)

    by_part = [[n for n, part in enumerate(drawn) if part == p] for p in range(parts)]
    assert [part.batch.column("n").to_pylist() for part in found] == by_part


def test_the_plan_says_how_many_rows_take_long_enough_to_be_timed() -> None:
    rows, spent = {"op": (100, 300), "idle": (0, 0)}, {"op": (150.0, 50.0), "idle": (0.0, 0.0)}

    assert rows_of_parts(MEASURED_EVERY, rows, spent) == {"op": 30}, "0.5 ms a row, for 15 ms"
    assert rows_of_parts(MEASURED_EVERY + 1, rows, spent) == {}


def test_units_are_drawn_anew_every_epoch() -> None:
    unit = np.random.default_rng(3).integers(0, 1 << 63, 4_000).astype(np.uint64)
    drawn = [part_of_units(unit, epoch, 8) for epoch in range(3)]

    for part in drawn:
        assert np.bincount(part).min() > 400, "of 500, if all parts are alike"
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs((drawn[one] == drawn[other]).mean() - 1 / 8) < 0.03


@dataclass
class Watching:
    """A manager that has units counted, and decides nothing."""

    statistics_bytes = 1 << 16
    born_local: frozenset[str] = frozenset()
    units_of: frozenset[str] = frozenset({"counts"})
    observed: list[Observed] = field(default_factory=list)

    def step(self, observed: Any, tables: Any) -> Decision:
        self.observed += observed
        return Decision()


class Costly(hg.Count):
    """A count for which a row of the heavy key takes fifty times as long as another."""

    now_ns = 0

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        heavy = int((rows.batch.column("k").to_numpy() == HEAVY).sum())
        Costly.now_ns += 1_000_000_000 * (len(rows) + 49 * heavy)
        return super().process(rows, state, clock)


class First(Costly):
    """Puts out the first row of every call, and does not say that it is that one."""

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        super().process(rows, state, clock)
        return hg.Output(rows.batch.slice(0, 1))


class ByCosts(Services):
    """Tasks in which only costly rows take time."""

    def __init__(self, store: Any) -> None:
        super().__init__(store, clock_ns=lambda: Costly.now_ns)


def counted(
    manager: Watching | None, epochs: int, slots: int = 1, *, of: type[Costly] = Costly
) -> LocalRun:
    flow = hg.Flow("measured")
    draw = [np.random.default_rng([5, epoch]).permutation(ROWS).tolist() for epoch in range(epochs)]
    rows = [[{"k": k, "n": n} for n, k in enumerate(keys)] for keys in draw]
    source = ListSource("k bigint, n bigint", rows)
    keyed = flow.source(source).key_by("k").process(of(emit="rows"), name="counts")
    keyed.to_memory("out")
    return run(flow, slots=slots, buckets=BUCKETS, manager=manager, check_purity=False)


def test_measuring_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.testing.Services", ByCosts)
    manager, epochs = Watching(), MEASURED_EVERY + 1
    measured, usual = counted(manager, epochs), counted(None, epochs)

    (task,) = [t for epoch in manager.observed for t in epoch.statistics if t.unit_ns]
    assert len(task.unit_ns["counts"]) == PARTS_MAX
    assert task.loads["counts"].total == ROWS
    by_key = [defaultdict[int, list[int]](list) for _ in range(2)]
    for rows, done in zip(by_key, (measured, usual), strict=True):
        for row in done.rows("out"):
            rows[row["k"]].append(row["n"])
    assert by_key[0] == by_key[1], "rows of a key, in their order"
    assert measured.rows("out") == usual.rows("out"), "rows of one task keep their order"
    assert Counter(map(str, measured.state("counts"))) == Counter(map(str, usual.state("counts")))


def test_an_operator_need_not_say_what_its_rows_are_made_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.testing.Services", ByCosts)
    manager, epochs = Watching(), MEASURED_EVERY + 1

    out = counted(manager, epochs, of=First).rows("out")

    assert sum(len(t.unit_ns) for epoch in manager.observed for t in epoch.statistics) == 1
    assert len(out) == epochs - 1 + PARTS_MAX


def test_what_parts_take_tells_the_unit_that_is_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.testing.Services", ByCosts)
    manager, costs = Watching(), UnitCosts()
    counted(manager, 4 * MEASURED_EVERY + 1)
    costs.learn(manager.observed, {})

    table = hg.hash_table(1, BUCKETS)
    heavy = table.units(hash_columns([pa.array([HEAVY])], 1))
    unit, _ = table.all_units()
    factor = costs.factors("counts", unit)
    assert unit[factor.argmax()] == heavy[0]
    others = np.delete(factor, factor.argmax())
    assert factor.max() > 5 * np.median(others)
    assert others.max() < 3 * np.median(others)
