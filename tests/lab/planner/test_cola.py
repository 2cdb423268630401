"""COLA on graphs whose best partition is plain, and on PEs that no host can take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits
from headgate_lab.planner.cola import ColaPlanner, Element, fuse, schedule, split, to_blame
from unit.planner.allocation.clusters import airline, situations


def job(load, edges, nodes, home=None, remote_load=0.0):
    """Units with loads as measured at home, and edges (sender, receiver, rate)."""
    table = np.array(edges, float).reshape(-1, 3)
    ends = table[:, :2].astype(np.int64)
    flow = Traffic(ends[:, 0], ends[:, 1], table[:, 2], remote_load)
    home = np.zeros(len(load), np.int32) if home is None else np.array(home, np.int32)
    load = np.array(load, float) + remote_load * flow.remote(home)
    kinds = np.zeros(len(load), np.int32)
    return Situation(
        Units(("work",), kinds, load, np.ones(len(load))), Nodes.alike(nodes), home, flow
    )


def together(plan):
    """The sets of units that share a node."""
    return sorted(np.flatnonzero(plan.node == n).tolist() for n in np.unique(plan.node))


CLIQUES = [(base + a, base + b, 10.0) for base in (0, 3, 6, 9) for a, b in ((0, 1), (1, 2), (0, 2))]
RING = [(2, 3, 1.0), (5, 6, 1.0), (8, 9, 1.0), (11, 0, 1.0)]


def test_four_cliques_in_a_ring_get_a_host_each():
    situation = job([1.0] * 12, CLIQUES + RING, 4)
    plan = ColaPlanner().plan(situation, Limits(distance_max_pct=5.0))
    assert together(plan) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert plan.collocation == pytest.approx(120 / 124)


def test_one_host_needs_no_cut():
    situation = job([1.0] * 12, CLIQUES + RING, 1)
    assert len(split(situation, np.ones(1), 1.05, 0)) == 1


def test_it_splits_no_further_than_the_schedule_needs():
    """Two hosts: three cuts would make four PEs, but two PEs of two cliques are even already."""
    situation = job([1.0] * 12, CLIQUES + RING, 2)
    assert [len(e.units) for e in split(situation, np.ones(2), 1.05, 0)] == [6, 6]


def test_a_wider_balance_saves_a_cut():
    """Loads 4 + 2, tied within: even within a third, unless the four are torn apart."""
    edges = [(0, 1, 9.0), (1, 2, 9.0), (2, 3, 9.0), (4, 5, 9.0), (3, 4, 1.0)]
    situation = job([1.0] * 6, edges, 2)
    loose = ColaPlanner().plan(situation, Limits(distance_max_pct=34.0))
    tight = ColaPlanner().plan(situation, Limits(distance_max_pct=5.0))
    assert together(loose) == [[0, 1, 2, 3], [4, 5]]
    assert loose.collocation > tight.collocation
    assert tight.distance_pct == 0


def test_a_unit_heavier_than_a_host_is_alone_and_tears_nothing_else_apart():
    edges = [(0, 1, 1.0), (1, 2, 9.0), (3, 4, 9.0), (0, 3, 1.0)]
    plan = ColaPlanner().plan(job([30.0, 1.0, 1.0, 1.0, 1.0], edges, 3), Limits(np.inf, 5.0))
    assert together(plan) == [[0], [1, 2], [3, 4]]


def test_largest_first_by_hand():
    """7, 6, 5, 4, 3 on two hosts: 7 | 6, then 5 beside 6, 4 beside 7, 3 beside both alike."""
    assert schedule(np.array([3.0, 4.0, 5.0, 6.0, 7.0]), np.ones(2)).tolist() == [0, 0, 1, 1, 0]
    assert schedule(np.array([4.0, 4.0, 4.0]), np.array([1.0, 2.0])).tolist() == [1, 0, 1]


def test_to_blame_is_the_largest_that_can_be_split_on_the_fullest_host():
    sizes, hosts = np.array([5.0, 4.0, 3.0]), np.ones(2)  # 5 | 4 + 3, mean 6
    none = np.zeros(3, np.bool_)
    assert to_blame(sizes, none, hosts, 1.05) == 1
    assert to_blame(sizes, np.array([False, True, False]), hosts, 1.05) == 2
    assert to_blame(sizes, np.array([False, True, True]), hosts, 1.05) == 0
    assert to_blame(sizes, ~none, hosts, 1.05) is None
    assert to_blame(sizes, none, hosts, 1.2) is None
    assert to_blame(np.array([9.0, 1.0, 2.0]), none, hosts, 1.05) == 0  # no host can take it


def test_pes_that_talk_are_fused_while_the_schedule_stays_even():
    """Four PEs of one unit: 0 with 1, then 2 with 3; all in one would be uneven."""
    situation = job([1.0] * 4, [(0, 1, 5.0), (2, 3, 4.0), (0, 3, 1.0)], 2)
    nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    anywhere = np.ones(2, np.bool_)
    singles = [Element(np.array([unit]), *nothing, 1.0, anywhere) for unit in range(4)]
    part, sizes, _ = fuse(situation, singles, np.ones(2), 1.05)
    assert part.tolist() == [0, 0, 2, 2]
    assert sizes.tolist() == [2.0, 0.0, 2.0, 0.0]


def test_sizes_count_rows_that_leave_a_pe():
    """Where crossing costs, a PE of both ends is smaller than its ends apart."""
    situation = job([1.0, 1.0], [(0, 1, 2.0)], 2, home=[0, 1], remote_load=0.5)
    (whole,) = split(situation, np.ones(1), 1.05, 0)
    assert whole.size == pytest.approx(2.0)
    assert [e.size for e in split(situation, np.ones(2), 1.05, 0)] == pytest.approx([2.0, 2.0])


def test_where_units_are_makes_no_difference():
    situation = airline(2, nodes=4, remote_load=0.0)
    elsewhere = replace(situation, home=situation.home[::-1].copy())
    plans = [ColaPlanner().plan(s, Limits(0.0, 5.0)) for s in (situation, elsewhere)]
    assert plans[0].node.tolist() == plans[1].node.tolist()
    assert plans[0].migrations > 0


@settings(max_examples=30, deadline=None)
@given(situation=situations(units_max=20))
def test_every_unit_is_in_one_pe_and_no_host_is_too_full_while_pes_can_be_split(situation):
    stays = np.flatnonzero(situation.nodes.staying)
    capacity = situation.nodes.capacity[stays]
    elements = split(situation, capacity, 1.1, 0)
    units = np.concatenate([e.units for e in elements])
    assert sorted(units.tolist()) == list(range(len(situation.units)))
    sizes = np.array([e.size for e in elements])
    full = np.bincount(schedule(sizes, capacity), sizes, len(capacity)) / capacity
    if any(len(e.units) > 1 for e in elements):
        heaviest = max((e.size for e in elements if len(e.units) == 1), default=0.0)
        limit = max(1.1 * sizes.sum() / capacity.sum(), heaviest / capacity.min())
        assert full.max() <= limit * (1 + 1e-9)
