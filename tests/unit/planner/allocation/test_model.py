from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.model import (
    Nodes,
    Situation,
    Traffic,
    Units,
    load_distance,
)
from headgate.planner.allocation.plan import Limits, describe
from unit.planner.allocation.clusters import best_distance, situations


def three_units(home: list[int], nodes: Nodes, flow: Traffic | None = None) -> Situation:
    units = Units(("a", "b"), np.array([0, 0, 1], np.int32), np.array([30.0, 20, 10]), np.ones(3))
    return Situation(units, nodes, np.array(home, np.int32), flow or Traffic.none())


def test_load_distance_is_the_largest_deviation_from_the_mean_in_percent_of_it():
    situation = three_units([0, 1, 1], Nodes.alike(2))
    assert load_distance(situation, situation.home) == 0
    assert load_distance(situation, np.array([0, 0, 1], np.int32)) == pytest.approx(100 * 20 / 30)


def test_a_leaving_node_gives_its_load_to_the_mean_but_is_not_measured():
    situation = three_units([0, 1, 2], Nodes.alike(3, leaving=(0,)))
    # mean 60 / 2 nodes that stay; they have 20 and 10
    assert load_distance(situation, situation.home) == pytest.approx(100 * 20 / 30)


def test_a_node_of_twice_the_capacity_is_even_at_twice_the_load():
    nodes = Nodes(np.array([2.0, 1.0]), np.zeros(2, np.bool_))
    situation = three_units([0, 1, 0], nodes)
    assert load_distance(situation, situation.home) == 0


def test_collocating_a_pair_saves_its_remote_load_at_both_ends():
    flow = Traffic(np.array([0]), np.array([2]), np.array([8.0]), remote_load=0.5)
    situation = three_units([0, 1, 1], Nodes.alike(2), flow)
    together = np.array([0, 1, 0], np.int32)
    assert situation.node_loads(situation.home).tolist() == [30, 30]
    assert situation.node_loads(together).tolist() == [26 + 6, 20]
    assert flow.collocation(situation.home) == 0
    assert flow.collocation(together) == 1
    assert situation.after(together).after(situation.home).units.load.tolist() == [30, 20, 10]


@settings(max_examples=60, deadline=None)
@given(
    situation=st.booleans().flatmap(
        lambda some: situations(units_max=6, nodes_max=3, instances=some)
    ),
    share=st.floats(0, 1),
)
def test_no_allocation_beats_the_lower_bound(situation, share):
    budget = share * situation.migration_cost.sum()
    assert lower_bound(situation, budget) <= best_distance(situation, budget) + 1e-6


def test_a_plan_that_breaks_a_limit_is_refused():
    situation = three_units([0, 1, 1], Nodes.alike(3, leaving=(2,)))
    for node, budget in (([0, 1, 2], 9), ([1, 0, 1], 1), ([0, 1, 3], 9)):
        limits = Limits(budget)
        place = np.array(node, np.int32)
        plan = replace(describe(situation, place % 3, "x", limits), node=place)
        with pytest.raises(HeadgateError, match="nothing was installed"):
            plan.check(situation, limits)


def test_a_cluster_without_a_node_that_stays_is_refused():
    with pytest.raises(HeadgateError, match="keep at least one"):
        three_units([0, 0, 0], Nodes.alike(1, leaving=(0,)))
