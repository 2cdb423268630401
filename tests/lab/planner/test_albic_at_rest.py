"""ALBIC in the adaptation loop: rows drawn anew in every period, loads even enough."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.control.adaptation import Adaptation, MeasuredUnits
from headgate.control.chance import CHANCE, PERIODS_HEARD
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits
from headgate_lab.planner.albic import AlbicPlanner, AlbicSettings

NODES, BUCKETS, KEYS, MOST = 3, 1024, 300, AlbicSettings().rest_units_max


def periods(rows: int, kept: float, count: int) -> tuple[list[float], list[int]]:
    """The collocation of every period, and units that moved after it.

    Of the rows so many stay with their partner, always; the others go anywhere.
    """
    draw = np.random.default_rng(5)
    first, second = draw.integers(0, BUCKETS, KEYS), BUCKETS + draw.integers(0, BUCKETS, KEYS)
    operator = np.repeat(np.arange(2, dtype=np.int32), BUCKETS)
    home = np.arange(2 * BUCKETS, dtype=np.int32) % NODES
    loop = Adaptation(AlbicPlanner(), Limits(1.0, 5.0), None)
    noise = CHANCE * 100.0 * ((NODES - 1) / rows) ** 0.5
    heard: tuple[Traffic, ...] = ()
    found, moved = [], []
    for period in range(count):
        a = draw.integers(0, KEYS, rows)
        b = np.where(draw.random(rows) < kept, a * 7 % KEYS, draw.integers(0, KEYS, rows))
        ends = first[a], second[b]
        load = sum(np.bincount(end, minlength=2 * BUCKETS) for end in ends) * 100.0 / rows
        pair, rate = np.unique(ends[0] * (2 * BUCKETS) + ends[1], return_counts=True)
        flow = Traffic(pair // (2 * BUCKETS), pair % (2 * BUCKETS), rate.astype(np.float64))
        units = Units(("a", "b"), operator, load, np.full(2 * BUCKETS, 64.0))
        situation = Situation(units, Nodes.alike(NODES), home, flow, 1e-8, period)
        plan = loop.step(MeasuredUnits(situation, "time", 0.0, True, noise, before=heard)).plan
        found.append(situation.collocation(home))
        moved.append(0 if plan is None else plan.migrations)
        home = home if plan is None else plan.node
        heard = (flow, *heard)[:PERIODS_HEARD]
    return found, moved


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_among_many_units_collocation_grows_by_ten_units_a_period(rows: int) -> None:
    found, moved = periods(rows, 0.8, 30)

    assert max(moved) <= MOST
    assert found[10] > found[0] + 0.2
    assert found[20] > found[10] + 0.1
    assert min(found[-5:]) > 0.80, "of .87 that there are"
    assert sum(moved[-5:]) <= MOST, "there is nothing left to bring together"


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_rows_that_go_anywhere_move_nothing(rows: int) -> None:
    assert not any(periods(rows, 0.0, 8)[1])
