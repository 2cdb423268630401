"""The adaptation loop over whole days of load: slots follow it, and never to and fro."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
from tests.scenario.plant import Plant

import headgate as hg

RULE = hg.Scaling(min_slots=1, max_slots=8, high_pct=75, low_pct=40, hold_periods=2)


def managed(planner: str = "milp", **settings: object) -> hg.Manager:
    given = {"every": 3, "alpha": 1.1, **settings}
    return hg.Manager(planner, **given)  # type: ignore[arg-type]


def turns(slots: list[int]) -> list[int]:
    return [count for count, _ in groupby(slots)]


@pytest.mark.parametrize(("pct", "expected"), [(30.0, 1), (150.0, 3), (340.0, 6)])
def test_a_constant_load_gets_its_slots_and_keeps_them(pct: float, expected: int) -> None:
    plant = Plant(managed(), scaling=RULE, slots=2)

    plant.run(100, lambda _: pct)

    seen = turns(plant.slots)
    assert seen == sorted(seen) or seen == sorted(seen, reverse=True)
    assert abs(seen[-1] - expected) <= 1
    assert plant.slots[-1] == plant.slots[-40]
    assert max(plant.busiest[-30:]) < 85
    assert sum(plant.moved[-30:]) == 0, "a constant load needs no moves"


def test_slots_follow_a_load_that_rises_and_falls_without_going_to_and_fro() -> None:
    """One day: quiet, a rise to four times the load, quiet again."""
    plant = Plant(managed(), scaling=RULE, slots=2)

    plant.run(180, lambda epoch: 180 + 140 * math.sin(math.pi * min(1, epoch / 150)) ** 2 * 2)

    seen = turns(plant.slots)
    top = seen.index(max(seen))
    assert max(seen) >= 6
    assert seen[: top + 1] == sorted(seen[: top + 1]), seen
    assert seen[top:] == sorted(seen[top:], reverse=True), seen
    assert plant.slots[-1] < max(seen)


def test_a_short_spike_changes_nothing() -> None:
    plant = Plant(managed(), scaling=RULE, slots=2)

    plant.run(60, lambda epoch: 400 if epoch in (31, 32) else 110)

    assert turns(plant.slots) == [2]


def test_scaling_in_drains_under_the_budget_before_a_slot_goes() -> None:
    """A unit holds 100 kB and costs about 2 ms to move: 8 of them a period."""
    plant = Plant(managed(migration_seconds_max=0.0165), scaling=RULE, slots=6)

    plant.run(120, lambda _: 100)

    assert plant.slots[-1] == 2
    assert 0 < max(plant.moved) <= 8
    assert [line for line in plant.lines if "drained from now on" in line]


def test_buckets_without_rows_do_not_hold_a_drain_up() -> None:
    plant = Plant(managed(migration_seconds_max=0.0165), scaling=RULE, slots=6)
    plant.share[-16:] = 0

    plant.run(120, lambda _: 100)

    assert plant.slots[-1] == 2
