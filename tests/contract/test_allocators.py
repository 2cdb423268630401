"""What every planner of allocations promises, run against each of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import OWN, Limits, make_allocator
from headgate.planner.registry import registered
from unit.planner.allocation.clusters import airline, situations

NAMES = sorted([*OWN, *registered("units")])
BUDGETED = [name for name in NAMES if name != "cola"]


def quick(name):
    """A planner whose clock goes on by a hundredth of a second whenever it is read."""
    ticks = itertools.count()
    return make_allocator(name, clock=lambda: next(ticks) / 100)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(situation=situations(units_max=16), share=st.floats(0, 1))
def test_a_plan_keeps_every_limit(name, situation, share):
    """One node that exists for every unit, nothing onto a leaving node, within the budget."""
    limits = Limits(share * situation.migration_cost.sum(), seconds=0.5)
    if name == "cola":
        limits = replace(limits, migration_cost_max=np.inf)
    plan = quick(name).plan(situation, limits)
    plan.check(situation, limits)
    assert plan.method == name
    assert plan.migrations == (plan.node != situation.home).sum()
    assert len(plan.reasons) == plan.migrations
    assert all("\n" not in line for line in plan.reasons)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(situation=situations(units_max=16, nodes_max=5, instances=True), share=st.floats(0, 1))
def test_units_go_only_where_their_operator_has_an_instance(name, situation, share):
    """Nodes that leave are emptied all the same, as far as there is a budget."""
    own = situation.instances
    for budget in (share * situation.migration_cost.sum(), np.inf):
        limits = Limits(np.inf if name == "cola" else budget, seconds=0.5)
        plan = quick(name).plan(situation, limits)
        for unit in np.flatnonzero(plan.node != situation.home).tolist():
            operator, node = situation.units.operator[unit], int(plan.node[unit])
            places = situation.relocated.get(situation.units.operators[operator])
            assert node in places if places else own[operator, node]
    assert not situation.nodes.leaving[plan.node].any()


@pytest.mark.parametrize("name", ["albic", "flux", "headgate", "milp"])
def test_loads_are_evened_over_some_nodes_too(name):
    """Each node has two of the three operators, and a third of all load each."""
    situation = airline(5, nodes=3, groups=8, remote_load=0.0)
    own = ~np.eye(3, dtype=np.bool_)
    home = np.array([np.flatnonzero(own[o])[0] for o in situation.units.operator], np.int32)
    plan = quick(name).plan(replace(situation, home=home, instances=own), Limits(seconds=20))

    assert plan.distance_pct < 10
    assert own[situation.units.operator, plan.node].all()


@pytest.mark.parametrize("name", ["cola", "flux", "hash", "headgate"])  # HiGHS looks at the clock
def test_equal_input_gives_an_equal_plan(name):
    situation, limits = airline(3, nodes=4), Limits(6_000.0, 5.0, seconds=20)
    first, again = (quick(name).plan(situation, limits) for _ in range(2))
    assert first.node.tolist() == again.node.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_leaves_is_emptied_if_the_budget_allows(name):
    situation = airline(1, nodes=4, groups=3)
    situation = replace(situation, nodes=Nodes.alike(4, leaving=(2,)))
    plan = quick(name).plan(situation, Limits(seconds=20))
    assert not (plan.node == 2).any()


@pytest.mark.parametrize("name", BUDGETED)
def test_no_budget_means_no_moves(name):
    situation = airline(1, nodes=4, groups=3)
    plan = quick(name).plan(situation, Limits(0.0, seconds=20))
    assert plan.migrations == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("budget", [0.0, 1e-300, 1e-9])
def test_states_may_cost_any_number_of_budgets(name, budget):
    """Gigabytes against next to nothing, all on one node, and partners that are one set."""
    flow = Traffic(np.array([0, 1]), np.array([1, 2]), np.ones(2))
    units = Units(("a",), np.zeros(4, np.int32), np.ones(4), np.full(4, 1e9))
    situation = Situation(units, Nodes.alike(2), np.zeros(4, np.int32), flow)
    plan = quick(name).plan(situation, Limits(budget, seconds=0.5))
    assert plan.migrations == 0


@pytest.mark.parametrize("name", ["albic", "flux", "headgate", "milp"])
def test_loads_are_evened(name):
    situation = airline(5, nodes=4, remote_load=0.0)
    start = load_distance(situation, situation.home)
    plan = quick(name).plan(situation, Limits(seconds=20))
    assert plan.distance_pct < start / 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_cluster_without_load_or_units_is_no_trouble(name, nodes):
    full = airline(5, nodes=3, groups=1)
    idle = replace(full, units=replace(full.units, load=np.zeros(9)))
    none = replace(
        full.units, operator=np.empty(0, np.int32), load=np.empty(0), state_bytes=np.empty(0)
    )
    empty = Situation(none, Nodes.alike(nodes), np.empty(0, np.int32))
    for situation in (idle, empty):
        plan = quick(name).plan(situation, Limits(100.0, seconds=20))

        assert plan.node.shape == situation.home.shape
        assert np.isin(plan.node, np.arange(len(situation.nodes))).all()


def test_an_unknown_planner_is_refused_with_the_names_there_are():
    with pytest.raises(HeadgateError, match="headgate, albic"):
        make_allocator("best")
