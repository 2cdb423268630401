"""ALBIC's steps, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headgate.planner.allocation.albic import AlbicPlanner, improve
from headgate.planner.allocation.collocation import collocated_sets, significant, split_sets
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits
from unit.planner.allocation.clusters import airline


def job(home, rate, load=None):
    """Units 0..2 send to units 3..5; `rate` is 3 x 3."""
    sender, receiver = np.divmod(np.arange(9), 3)
    flow = Traffic(sender, 3 + receiver, np.asarray(rate, float).ravel())
    loads = np.ones(6) if load is None else np.asarray(load, float)
    units = Units(("a", "b"), np.repeat(np.arange(2, dtype=np.int32), 3), loads, np.ones(6))
    return Situation(units, Nodes.alike(3), np.array(home, np.int32), flow)


STRONG = [[9, 1, 2], [1, 6, 1], [2, 1, 7]]


def test_a_pair_counts_above_the_average_of_its_sender():
    counts = significant(job([0] * 6, STRONG), 1.5)  # averages 4, 2.67, 3.33
    assert counts.reshape(3, 3).tolist() == np.eye(3, dtype=bool).tolist()


def test_pairs_that_share_a_unit_and_a_node_are_one_set():
    situation = job([0, 0, 1, 0, 0, 1], [[9, 9, 0], [0, 9, 0], [0, 0, 9]])
    sets = collocated_sets(situation, significant(situation, 1.0))
    assert sets[0] == sets[3] == sets[4] == sets[1]
    assert sets[2] == sets[5] != sets[0]


@pytest.mark.parametrize(("load_max", "cost_max"), [(2.0, np.inf), (100.0, 2.0)])
def test_a_set_too_heavy_or_too_costly_is_split_where_few_rows_are(load_max, cost_max):
    situation = job([0] * 6, [[9, 2, 0], [0, 9, 2], [0, 0, 9]])
    pieces = split_sets(situation, np.zeros(6, np.int64), load_max, cost_max, seed=1)
    assert len(set(pieces.tolist())) == 3
    assert [pieces[i] == pieces[3 + i] for i in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("home", "pieces", "load", "node"),
    [
        ([0, 1, 2, 1, 2, 0], [0, 1, 2, 3, 4, 5], [1, 5, 1, 1, 1, 1], 0),  # 1: the emptier node
        ([0, 1, 2, 1, 1, 0], [0, 1, 2, 3, 3, 5], [1, 1, 1, 1, 1, 1], 1),  # 2: where the set is
        ([0, 1, 0, 1, 1, 0], [0, 1, 0, 3, 3, 5], [1, 9, 1, 1, 1, 1], 0),  # 3: as 1
    ],
)
def test_one_pair_a_call_is_collocated_in_three_cases(home, pieces, load, node):
    situation = job(home, STRONG, load)
    counts = significant(situation, 1.5)
    fixed, told = improve(situation, counts, np.array(pieces), 9.0, np.random.default_rng(0))
    assert {u for u in range(6) if fixed[pieces[u]] >= 0} >= {0, 3}
    assert fixed[pieces[0]] == fixed[pieces[3]] == node
    assert told == (f"collocates a[0] and b[0] on node {node}",)


def test_collocation_grows_call_by_call_and_sets_stay_together():
    situation = airline(1, nodes=4, groups=3)
    planner, limits = AlbicPlanner(), Limits(4_000.0, 20.0, seconds=0.4)
    shares = [situation.traffic.collocation(situation.home)]
    for period in range(6):
        plan = planner.plan(replace(situation, period=period), limits)
        situation = situation.after(plan.node)
        shares.append(plan.collocation)
    assert shares[-1] > shares[0] + 0.1
    assert plan.migration_cost <= 4_000
