"""A unit that is too big for a budget, and which slots can go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.adaptation import marked, move_alone, slots_in_use, units_left
from headgate.planner.allocation.model import Nodes, Situation, Units
from headgate.planner.allocation.plan import Limits
from unit.planner.allocation.clusters import situations


def three(state: list[float]) -> Situation:
    """Three slots, of which the last leaves; units 2 and 3 are on it."""
    units = Units(("op",), np.zeros(4, np.int32), np.array([5.0, 2.0, 8.0, 1.0]), np.array(state))
    return Situation(units, Nodes.alike(3, (2,)), np.array([0, 1, 2, 2], np.int32))


def test_the_cheapest_of_them_goes_to_the_emptiest_slot() -> None:
    found = move_alone(three([9.0, 9.0, 50.0, 40.0]), Limits(10.0), "milp", "total")

    assert found is not None
    plan, why = found
    assert plan.node.tolist() == [0, 1, 2, 1]
    assert plan.reasons == ("op[3]: node 2 -> 1, node 2 is to be removed",)
    assert why == "op[3] costs 40, more than the 10 of a period: it moves alone"


def test_what_the_budget_pays_for_is_no_business_of_it() -> None:
    assert move_alone(three([90.0, 90.0, 10.0, 1.0]), Limits(10.0), "milp", "total") is None


@settings(max_examples=40, deadline=None)
@given(situation=situations(leaving=False), leaving=st.integers(0, 3), budget=st.integers(0, 4))
def test_slots_in_use_are_those_that_stay_and_those_with_units(situation, leaving, budget):
    """And what moves alone is one unit, off a slot that leaves, onto one that stays."""
    slots = len(situation.nodes)
    leaving = min(leaving, slots - 1)
    stays = slots - leaving
    used = {*range(stays), *situation.home.tolist()}
    assert slots_in_use(situation, leaving) == max(used) + 1
    found = move_alone(marked(situation, leaving), Limits(budget), "milp", "total")
    behind = np.flatnonzero((situation.home >= stays) & (situation.migration_cost > budget))
    assert (found is None) == (not len(behind))
    if found is not None:
        (unit,) = np.flatnonzero(found[0].node != situation.home)
        assert unit in behind and found[0].node[unit] < stays
        before = units_left(replace(situation), None, leaving)
        assert units_left(situation, found[0], leaving) == before - 1
