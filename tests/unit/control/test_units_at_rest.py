"""Planners of units on a steady stream: whole flows without a JVM, whose rows are drawn anew."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.control.loop import DecisionLoop
from headgate.control.units import UnitPlacement
from headgate.errors import DeclarationError
from headgate.testing import ListSource, LocalRun, run

pytestmark = pytest.mark.usefixtures("row_time")

EPOCHS, SETTLED, SLOTS, KEYS = 14, 8, 3, 300
PAPER = 10
"""Units that ALBIC moves per period, in figure 3 of Madsen et al. 2017."""


def _rows(epoch: int, rows: int = 1000, kept: float = 0.8) -> list[dict[str, int]]:
    """A share of the rows, four of five, goes on to the same key, always; the rest to any."""
    draw = np.random.default_rng([3, epoch])
    a = draw.integers(0, KEYS, rows)
    goes = draw.random(rows) < 1 - kept
    b = np.where(goes, draw.integers(0, KEYS, rows), a * 7 % KEYS)
    return [{"a": int(x), "b": int(y)} for x, y in zip(a, b, strict=True)]


ROWS = [_rows(epoch) for epoch in range(EPOCHS)]


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        self.now_ms += 200
        return self.now_ms


def follow(planner: str, crowded: bool = False, **settings: object) -> LocalRun:
    """Two operators by key; `crowded`: all buckets begin in slot 0."""
    flow = hg.Flow("rest")
    rows = flow.source(ListSource("a bigint, b bigint", ROWS))
    first = rows.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="first")
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").to_memory("out")
    heap = hg.hash_table(SLOTS, 256).with_buckets(np.zeros(256, np.int32))
    done = run(
        flow,
        slots=SLOTS,
        buckets=256,
        tables={"first": heap, "second": heap} if crowded else {},
        manager=hg.Manager(planner, **settings),  # type: ignore[arg-type]
        clock=Clock(),
        check_purity=False,
    )
    for operator, key in (("first", "a"), ("second", "b")):
        fold = Counter(row[key] for epoch in ROWS for row in epoch)
        assert {r[key]: r["count"] for r in done.state(operator)} == fold
    return done


def moved(done: LocalRun) -> dict[int, int]:
    """Units that moved, by epoch."""
    plans = [r for r in done.journal if r["kind"] == "plan"]
    return {r["epoch"]: sum(r["moves"].values()) for r in plans}


def locality(done: LocalRun, first: int, end: int) -> float:
    edges = [r["edges"]["first->second"] for r in done.records[first:end]]
    local, remote = (sum(e[k] for e in edges) for k in ("local_rows", "remote_rows"))
    return local / (local + remote)


def test_albic_moves_no_more_than_the_papers_ten_units_once_loads_are_even() -> None:
    done = follow("albic")

    late = [units for epoch, units in moved(done).items() if epoch >= SETTLED]
    assert max(late, default=0) <= PAPER
    assert locality(done, SETTLED, EPOCHS) >= locality(done, 0, 2)


@pytest.mark.parametrize("planner", ["milp", "headgate"])
def test_a_converged_plan_moves_nothing_on_steady_input(planner: str) -> None:
    done = follow(planner)

    assert sum(units for epoch, units in moved(done).items() if epoch >= SETTLED) == 0


@pytest.mark.parametrize(("kept", "rows"), [(0.0, 200), (0.8, 1000)])
def test_our_own_planner_of_units_follows_pairs_but_not_the_chance_of_few_rows(
    kept: float, rows: int
) -> None:
    """Whatever a plan promises of 200 rows that go anywhere, in the next epoch it is gone."""
    epochs = [pa.Table.from_pylist(_rows(epoch, rows, kept)) for epoch in range(8)]
    flow = hg.Flow("few")
    first = flow.source(ListSource("a bigint, b bigint", epochs))
    first = first.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="first")
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").to_memory("out")
    manager = hg.Manager(tuning=hg.PlannerSettings(planner_seconds=0.3))
    done = run(
        flow,
        slots=SLOTS,
        buckets=256,
        manager=DecisionLoop(placing=UnitPlacement(("first", "second"), manager)),
        clock=Clock(),
        check_purity=False,
    )

    if kept:
        assert locality(done, 6, 8) > locality(done, 0, 2) + 0.2
    else:
        assert moved(done) == {}


def test_noise_is_not_evened_but_a_crowd_is() -> None:
    """Loads are far beyond chance while all keys are in one slot, and within it soon after."""
    done = follow("milp", crowded=True)

    loads = done.records[-1]["loads"]
    assert max(a + b for a, b in zip(loads["first"], loads["second"], strict=True)) < 1000
    assert sum(units for epoch, units in moved(done).items() if epoch >= SETTLED) == 0


@pytest.mark.parametrize("planner", ["milp", "albic"])
def test_a_limit_in_units_holds_for_every_plan(planner: str) -> None:
    crowded = planner == "milp"  # the other may not find what to move, on a busy machine
    done = follow(planner, crowded, tuning=hg.PlannerSettings(migration_units_max=7))

    assert max(moved(done).values(), default=0) <= 7
    assert not crowded or 7 in moved(done).values()


def test_settings_of_the_papers_planners_are_settings_of_a_manager() -> None:
    """maxLD of 300 % lets all keys stay in one slot; sF out of reach leaves no pair that counts."""
    wide = hg.PlannerSettings(load_distance_max_pct=300.0)
    assert not any(moved(follow("milp", True, tuning=wide)).values())
    no_pairs = hg.PlannerSettings(score_factor=1e9, partition_load_pct=25.0, planner_seconds=0.5)
    assert "collocates" not in str(follow("albic", tuning=no_pairs).journal)
    with pytest.raises(DeclarationError, match="partition_load_pct: only planner='albic'"):
        hg.Manager("milp", tuning=no_pairs)
    with pytest.raises(DeclarationError, match="migration_units_max"):
        hg.PlannerSettings(migration_units_max=0)
    with pytest.raises(DeclarationError, match="planner_seconds=0"):
        hg.PlannerSettings(planner_seconds=0)
    with pytest.raises(DeclarationError, match="migration_units_max"):
        hg.PlannerSettings(migration_unit_max=3)  # type: ignore[call-arg]
