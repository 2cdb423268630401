"""A unit that is too big for a budget, and which slots can go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.draining import empty_slots, marked, move_alone, units_left
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
@given(
    situation=situations(leaving=False),
    leaving=st.sets(st.integers(0, 5)),
    budget=st.integers(0, 4),
)
def test_slots_can_go_once_no_unit_is_on_them(situation, leaving, budget):
    """And what moves alone is one unit, off a slot that leaves, onto one that stays."""
    slots = len(situation.nodes)
    leaving = tuple(slot for slot in sorted(leaving) if slot < slots)[: slots - 1]
    home = situation.home.tolist()
    can_go = empty_slots(situation, leaving)
    assert {*can_go} <= {*leaving} - {*home}
    if not {*leaving} & {*home}:
        assert can_go == leaving
    else:
        wait = {*range(slots)} - {*can_go}
        assert wait == {*range(len(wait))} and max(wait) not in {*leaving} - {*home}
    found = move_alone(marked(situation, leaving), Limits(budget), "milp", "total")
    behind = [u for u, s in enumerate(home) if s in leaving]
    behind = [u for u in behind if situation.migration_cost[u] > budget]
    assert (found is None) == (not behind)
    if found is not None:
        (unit,) = np.flatnonzero(found[0].node != situation.home)
        assert unit in behind and found[0].node[unit] not in leaving
        before = units_left(replace(situation), None, leaving)
        assert units_left(situation, found[0], leaving) == before - 1
