"""Flux by hand: pairs of nodes, one unit a pair and round, within the budget."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.planner.allocation.model import Nodes, Situation, Units
from headgate.planner.allocation.plan import Limits
from headgate_lab.planner.flux import FluxPlanner


def situation_of(load, home, nodes):
    load = np.array(load, float)
    units = Units(("count",), np.zeros(len(load), np.int32), load, np.ones(len(load)))
    nodes = nodes if isinstance(nodes, Nodes) else Nodes.alike(nodes)
    return Situation(units, nodes, np.array(home, np.int32))


# Node 0: 9 + 5 + 3 + 1 = 18. Node 1: 8 + 4 = 12. Node 2: 6. Node 3: 2 + 2 = 4.  Mean 10.
LOADS = [9, 5, 3, 1, 8, 4, 6, 2, 2]
HOMES = [0, 0, 0, 0, 1, 1, 2, 3, 3]


def test_one_round_by_hand():
    """0 pairs with 3: of a gap of 14, 9 leaves -4 and 5 leaves 4: the first of equals, 9, moves.
    1 pairs with 2: a gap of 6; 4 leaves -2, so 4 moves.
    """
    plan = FluxPlanner(rounds_max=1).plan(situation_of(LOADS, HOMES, 4), Limits())
    assert plan.node.tolist() == [3, 0, 0, 0, 1, 2, 2, 3, 3]
    assert plan.loads.tolist() == [9, 8, 10, 13]


def test_rounds_go_on_until_no_pair_gains():
    """Then 13, 10, 9, 8: 3 pairs with 1, a gap of 5, moves a 2: 11, 10. 2 and 0: a gap of 1, stays.
    Then 11, 10, 10, 9: 3 and 0, a gap of 2; a 2 would turn it round. 1 and 2 are alike. The end.
    """
    plan = FluxPlanner().plan(situation_of(LOADS, HOMES, 4), Limits())
    assert plan.node.tolist() == [3, 0, 0, 0, 1, 2, 2, 1, 3]
    assert plan.loads.tolist() == [9, 10, 10, 11]
    assert plan.distance_pct == pytest.approx(10.0)


def test_the_budget_ends_it():
    plan = FluxPlanner().plan(situation_of(LOADS, HOMES, 4), Limits(1.0))
    assert plan.migrations == 1
    assert plan.loads.tolist() == [9, 12, 6, 13]


def test_nodes_that_leave_are_emptied_though_most_leave_and_units_are_idle():
    situation = situation_of([3, 2, 0, 4, 1], [0, 0, 1, 1, 2], Nodes.alike(3, leaving=(0, 1)))
    assert FluxPlanner().plan(situation, Limits()).node.tolist() == [2] * 5
