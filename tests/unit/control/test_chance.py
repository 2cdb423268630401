"""What speaks for a plan: rows it was not made from, or more than the best of all plans would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.arrays import I32
from headgate.control.chance import is_more_than_chance, is_more_than_luck, rows_that_speak
from headgate.planner.allocation.integrated import IntegratedPlanner
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits

UNITS, SLOTS = 100, 3
"""Units of each of two operators; a row of unit n goes to unit 7 n of the other, or to any."""


def period(seed: int, rows: int, kept: float) -> Situation:
    """Rows of which a share goes the way it always goes. Units are where hashes put them."""
    draw = np.random.default_rng([11, seed])
    a = draw.integers(0, UNITS, rows)
    b = np.where(draw.random(rows) < kept, a * 7 % UNITS, draw.integers(0, UNITS, rows))
    pair, count = np.unique(a * 2 * UNITS + UNITS + b, return_counts=True)
    sender, receiver = pair // (2 * UNITS), pair % (2 * UNITS)
    traffic = Traffic(sender, receiver, count.astype(np.float64))
    operator = np.repeat(np.arange(2, dtype=np.int32), UNITS)
    load = np.concatenate([np.bincount(a, minlength=UNITS), np.bincount(b, minlength=UNITS)])
    units = Units(("a", "b"), operator, load.astype(np.float64), np.ones(2 * UNITS))
    home = (np.random.default_rng(5).permutation(2 * UNITS) % SLOTS).astype(np.int32)
    return Situation(units, Nodes.alike(SLOTS), home, traffic)


def best(situation: Situation) -> I32:
    """Time stands still for the planner, so it finds the same on every machine."""
    found = IntegratedPlanner(clock=lambda: 0.0).plan(situation, Limits(distance_max_pct=30.0))
    assert found.migrations
    return found.node


@pytest.mark.parametrize("rows", [200, 2_000])
def test_the_best_plan_for_noise_is_lucky_and_no_more(rows: int) -> None:
    now, before = period(0, rows, 0.0), [period(n, rows, 0.0).traffic for n in range(1, 5)]
    node = best(now)

    assert is_more_than_chance(now, node), "by the rows that chose it, it is no chance"
    assert not is_more_than_luck(now, node)
    assert not is_more_than_luck(now, node, before)


def test_two_periods_that_agree_speak_for_a_plan_where_rows_are_few() -> None:
    now, before = period(0, 200, 0.8), period(1, 200, 0.8).traffic
    node = best(now)

    assert not is_more_than_luck(now, node)
    assert is_more_than_luck(now, node, [before])


def test_a_period_before_a_change_does_not_speak_for_it_but_the_first_after_it_does() -> None:
    now, after, other = period(0, 200, 0.8), period(1, 200, 0.8), period(2, 200, 0.0)
    node = best(now)

    assert not is_more_than_luck(now, node, [other.traffic])
    assert is_more_than_luck(now, node, [after.traffic, *4 * [other.traffic]])


def test_many_rows_speak_for_themselves_in_the_period_that_shows_a_change() -> None:
    now, before = period(0, 20_000, 0.8), period(1, 20_000, 0.0).traffic

    assert is_more_than_luck(now, best(now), [before])


def test_a_plan_that_parts_nobody_and_brings_nobody_together_is_no_chance() -> None:
    now = period(0, 200, 0.8)
    turned = ((now.home + 1) % SLOTS).astype(np.int32)

    assert is_more_than_luck(now, turned)
    assert is_more_than_luck(replace(now, traffic=Traffic.none()), turned)


@pytest.mark.parametrize("rows", [200, 1_000, 5_000, 50_000])
def test_rows_that_go_anywhere_speak_for_no_pair(rows: int) -> None:
    now, before = period(0, rows, 0.0), [period(n, rows, 0.0).traffic for n in range(1, 5)]
    speak = rows_that_speak(now.traffic, before, len(now.units))

    assert speak.rate.sum() <= 0.01 * rows
    assert speak.total == now.traffic.total == rows
    assert speak.collocation(now.home) <= 0.01


@pytest.mark.parametrize("rows", [1_000, 5_000])
def test_pairs_speak_and_the_rows_between_them_do_not(rows: int) -> None:
    now, before = period(0, rows, 0.8), [period(n, rows, 0.8).traffic for n in range(1, 5)]
    speak = rows_that_speak(now.traffic, before, len(now.units))
    real = speak.receiver - UNITS == speak.sender * 7 % UNITS

    assert speak.rate[real].sum() >= 0.75 * rows
    assert speak.rate[~real].sum() <= 0.02 * rows


def test_nothing_speaks_where_no_row_goes_on() -> None:
    none = Traffic.none()

    assert rows_that_speak(none, [none], 10).total == 0.0
