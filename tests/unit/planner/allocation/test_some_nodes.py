"""Operators with instances on some nodes only, as planners of allocations see them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError
from headgate.planner.allocation.greedy import greedy
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import Limits, describe
from headgate.planner.distance import Distances
from unit.planner.allocation.clusters import situations


def two_operators(
    loads: list[list[float]], homes: list[list[int]], own: list[list[int]]
) -> Situation:
    """Units of a and of b: their loads, their homes, and the nodes of each operator."""
    nodes = 1 + max(max(places) for places in own)
    operator = np.repeat(np.arange(2, dtype=np.int32), [len(x) for x in loads])
    units = Units(("a", "b"), operator, np.concatenate(loads).astype(float), np.ones(len(operator)))
    instances = np.zeros((2, nodes), np.bool_)
    for i, places in enumerate(own):
        instances[i, places] = True
    home = np.concatenate(homes).astype(np.int32)
    return Situation(units, Nodes.alike(nodes), home, instances=instances)


def test_what_a_node_cannot_give_it_gives_when_another_has_made_room():
    """a may go from 0 to 1, b from 1 to 2."""
    situation = two_operators([[10] * 5, [10] * 2], [[0] * 5, [1] * 2], [[0, 1], [1, 2]])

    assert np.bincount(greedy(situation), minlength=3).tolist() == [3, 2, 2]


@settings(max_examples=60, deadline=None)
@given(situation=situations(instances=True), share=st.floats(0, 1))
def test_the_greedy_evens_within_reach_and_budget(situation, share):
    budget = share * situation.migration_cost.sum()
    node = greedy(situation, budget)
    moved = np.flatnonzero(node != situation.home)

    assert situation.cost_of(node) <= budget * (1 + 1e-9)
    assert situation.reach is None or situation.reach.allows(moved, node[moved]).all()
    if not situation.nodes.leaving.any():
        before, after = (
            (situation.node_loads(x, as_measured=True) / situation.nodes.capacity).max()
            for x in (situation.home, node)
        )
        assert after <= before * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    situation=situations(instances=True),
    share=st.floats(0, 1),
    balance=st.sampled_from(["total", "operator"]),
)
def test_our_planner_is_never_worse_than_staying(situation, share, balance):
    ticks = iter(range(10**9))
    planner = IntegratedPlanner(
        IntegratedSettings(balance=balance), clock=lambda: next(ticks) / 100
    )
    limits = Limits(share * situation.migration_cost.sum(), 5.0, seconds=0.5)
    plan = planner.plan(situation, limits)  # which checks it

    if not situation.nodes.leaving.any():
        stays = load_distance(situation, situation.home, balance=balance)
        assert plan.distance_pct <= max(stays, 5.0) + 0.06


def test_an_operator_is_even_over_its_own_nodes():
    situation = two_operators([[5, 5], [3, 3, 3]], [[0, 1], [0, 1, 2]], [[0, 1], [0, 1, 2]])

    assert load_distance(situation, situation.home, balance="operator") == 0
    assert load_distance(situation, situation.home) == pytest.approx(100 * (19 / 3 - 3) / (19 / 3))
    crooked = np.array([0, 0, 0, 1, 2], np.int32)
    assert load_distance(situation, crooked, balance="operator") == pytest.approx(100)


def test_an_operator_whose_nodes_all_leave_gets_others():
    situation = two_operators([[5, 5], [3, 3, 3]], [[2, 3], [0, 1, 3]], [[2, 3], [0, 1, 3]])
    leaving = situation.on(Nodes.alike(4, leaving=(2, 3)))

    assert situation.relocated == {} and leaving.relocated == {"a": (0, 1)}
    assert leaving.reach is not None and leaving.reach.nodes[1].tolist() == [1, 1, 0, 1]
    assert leaving.on(Nodes.alike(4)).relocated == {}, "they stay after all"
    one = situation.on(Nodes.alike(4, leaving=(3,)))
    assert one.relocated == {}, "one instance is left of each"


def test_other_nodes_for_an_operator_are_near_whom_it_talks_to_and_even_over_hosts():
    situation = two_operators([[1, 1], [1, 1]], [[4, 5], [0, 3]], [[4, 5], [0, 3, 4, 5]])
    talk = Traffic(np.array([0, 1]), np.array([2, 3]), np.ones(2))
    gone = Nodes.alike(6, leaving=(4, 5))
    assert replace(situation, traffic=talk).on(gone).relocated == {"a": (0, 3)}
    hosts = replace(gone, distances=Distances.of(["x", "x", "y", "y", "y", "y"]))
    assert {s // 2 for s in situation.on(hosts).relocated["a"]} == {0, 1}


def test_new_nodes_are_for_operators_that_are_everywhere():
    situation = two_operators([[5, 5], [3, 3]], [[0, 1], [0, 1]], [[0], [0, 1]])
    wider = situation.on(Nodes.alike(3))

    assert wider.instances.tolist() == [[True, False, False], [True, True, True]]
    assert wider.on(Nodes.alike(2)).instances.tolist() == situation.instances.tolist()


def test_plans_and_situations_that_do_not_fit_are_refused():
    situation = two_operators([[5, 5], [3, 3]], [[0, 0], [0, 1]], [[0], [0, 1]])
    limits = Limits()
    plan = describe(situation, np.array([0, 1, 0, 1], np.int32), "x", limits)
    with pytest.raises(HeadgateError, match="without an instance of its operator"):
        plan.check(situation, limits)
    with pytest.raises(HeadgateError, match="an operator without an instance"):
        replace(situation, instances=np.array([[False, False], [True, True]]))
    with pytest.raises(HeadgateError, match="instances of shape"):
        replace(situation, instances=np.ones((2, 3), np.bool_))
