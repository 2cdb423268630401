from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation.greedy import greedy
from headgate.planner.allocation.model import Nodes, Situation, Units, load_distance
from headgate.planner.allocation.plan import Limits
from headgate_lab.planner import milp, program
from headgate_lab.planner.milp import MilpPlanner, MilpSettings
from headgate_lab.planner.program import Blocks, Effort, improve_part
from unit.planner.allocation.clusters import airline, best_distance, situations

ROUNDS = 10
"""Plans after which clusters are at rest."""
EXACT = MilpSettings(good_enough_pct=1e-4, limit_share=0.0)


@settings(max_examples=25, deadline=None)
@given(
    situation=st.booleans().flatmap(
        lambda some: situations(units_max=6, nodes_max=3, leaving=False, instances=some)
    ),
    share=st.floats(0, 1),
)
def test_the_program_finds_what_trying_everything_finds(situation, share):
    budget = share * situation.migration_cost.sum()
    best = best_distance(situation, budget)
    plan = MilpPlanner(EXACT).plan(situation, Limits(budget, seconds=5))
    assert plan.distance_pct == pytest.approx(best, abs=0.01)
    assert plan.bound_pct <= best + 0.01


@settings(max_examples=25, deadline=None)
@given(situation=situations(units_max=30, nodes_max=5), share=st.floats(0, 1))
def test_a_plan_is_within_its_budget_and_never_worse_than_the_greedy(situation, share):
    limits = Limits(share * situation.migration_cost.sum(), seconds=0.2)
    plan = MilpPlanner().plan(situation, limits)
    plain = greedy(situation, limits.migration_cost_max)
    assert situation.cost_of(plain) <= limits.migration_cost_max
    assert plan.distance_pct <= load_distance(situation, plain, as_measured=True) + 1e-9
    plan.check(situation, limits)


def test_a_large_instance_is_solved_in_windows_and_near_its_bound():
    rng = np.random.default_rng(3)
    load = rng.gamma(2.0, 1.0, 1000)
    home = rng.integers(0, 20, 1000).astype(np.int32)
    units = Units(("a",), np.zeros(1000, np.int32), load, np.ones(1000))
    situation = Situation(units, Nodes.alike(20), home)
    own = MilpSettings(
        good_enough_pct=0.0, limit_share=0.0, whole_variables_max=19_999, windows_failed=3
    )
    plan = MilpPlanner(own).plan(situation, Limits(100, seconds=30))
    assert plan.gap_pct < 1
    assert plan.extent == "window" and "(windows of it, gap" in plan.explain()
    assert not any("HiGHS on all" in note for note in plan.notes)


@pytest.mark.parametrize("units", [300, 1000])
def test_the_papers_sizes_are_solved_whole_from_the_greedy_on(units, monkeypatch):
    """All units on all 20 nodes are in one program, which begins with a feasible start."""
    rng = np.random.default_rng(3)
    own = Units(("a",), np.zeros(units, np.int32), rng.gamma(2.0, 1.0, units), np.ones(units))
    home = rng.integers(0, 20, units).astype(np.int32)
    situation = Situation(own, Nodes.alike(20), home)
    given, real = [], program.minimise

    def watched(built, start, *rest):
        given.append((built, start))
        return real(built, start, *rest)

    monkeypatch.setattr(program, "minimise", watched)
    exact = MilpSettings(good_enough_pct=0.0, limit_share=0.0, windows_failed=0, branches_max=0)
    limits = Limits(units / 10, seconds=3)
    plan = MilpPlanner(exact).plan(situation, limits)
    ((built, start),) = given
    assert built.whole.sum() == 20 * units
    rows = built.matrix @ start
    assert built.matrix.shape == (units + 20 + 20 + 2, 20 * units + 3), "(1), (3), (4), (2) and (5)"
    assert (rows <= built.row_upper + 1e-9).all() and (rows >= built.row_lower - 1e-9).all()
    assert plan.extent == "whole" and "(whole program, gap" in plan.explain()
    assert plan.notes == (f"HiGHS on all {units} units on 20 nodes",)
    plain = load_distance(situation, greedy(situation, units / 10), as_measured=True)
    assert plan.bound_pct <= plan.distance_pct <= plain


def test_a_node_marked_for_removal_is_drained_by_the_program():
    situation = airline(1, nodes=4, groups=3, remote_load=0.0)
    situation = Situation(situation.units, Nodes.alike(4, leaving=(2,)), situation.home)
    plan = MilpPlanner().plan(situation, Limits(seconds=20))
    assert not (plan.node == 2).any()


def test_no_time_gives_the_greedy():
    ticks = itertools.count(0, 10.0)
    situation = airline(2, nodes=4, groups=3)
    plan = MilpPlanner(clock=lambda: next(ticks)).plan(situation, Limits(40.0, seconds=1))
    assert plan.node.tolist() == greedy(situation, 40.0).tolist()


def test_a_unit_above_twice_the_mean_leaves_the_program_a_solution():
    """It belongs on the large node, for which the greedy has no step: others are emptier."""
    load, capacity = np.array([100.0, 1.0, 1.0]), np.array([1.0, 0.5, 0.5, 0.5])
    units = Units(("a",), np.zeros(3, np.int32), load, np.ones(3))
    nodes = Nodes(capacity, np.zeros(4, np.bool_))
    situation = Situation(units, nodes, np.array([1, 0, 0], np.int32))
    plan = MilpPlanner(EXACT).plan(situation, Limits(seconds=5))
    assert plan.distance_pct == pytest.approx(best_distance(situation, np.inf), abs=0.01)
    assert plan.distance_pct > 100 and plan.node[0] == 0
    assert plan.notes == ("HiGHS on all 3 units on 4 nodes",)


@settings(max_examples=25, deadline=None)
@given(situation=situations(units_max=6, nodes_max=3), share=st.floats(0, 1))
def test_with_nodes_that_leave_the_bound_is_that_of_all_allocations(situation, share):
    budget = share * situation.migration_cost.sum()
    plan = MilpPlanner(EXACT).plan(situation, Limits(budget, seconds=20))
    assert plan.bound_pct <= best_distance(situation, budget) + 1e-6


def test_a_solver_that_finds_nothing_is_not_said_to_have(monkeypatch):
    monkeypatch.setattr(milp, "improve_part", lambda *_: (None, 0.0))
    plan = MilpPlanner(EXACT).plan(hard(), Limits(seconds=60))
    assert plan.notes == ("HiGHS found nothing in time for all 20 units on 4 nodes",)


def test_a_unit_heavier_than_two_shares_leaves_the_greedy():
    units = Units(("a",), np.zeros(3, np.int32), np.array([90.0, 5, 5]), np.ones(3))
    situation = Situation(units, Nodes.alike(3), np.zeros(3, np.int32))
    plan = MilpPlanner().plan(situation, Limits(seconds=20))
    assert sorted(plan.node.tolist()) == [0, 1, 2]
    assert plan.gap_pct < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    situation=situations(units_max=6, nodes_max=3, leaving=False),
    share=st.floats(0, 1),
    own=st.sampled_from([EXACT, MilpSettings(whole_variables_max=0), MilpSettings(branches_max=1)]),
)
def test_the_bound_is_a_bound_however_early_the_solver_stops(situation, share, own):
    """All of it, only windows of it, or one branch: against trying every allocation."""
    budget = share * situation.migration_cost.sum()
    plan = MilpPlanner(own).plan(situation, Limits(budget, seconds=20))
    best = best_distance(situation, budget)
    assert plan.bound_pct <= best + 1e-6 <= plan.distance_pct + 2e-6
    assert plan.gap_pct >= 0


@settings(max_examples=25, deadline=None)
@given(situation=situations(units_max=20, nodes_max=4), share=st.floats(0, 1))
def test_marks_are_kept_and_units_leave_marked_nodes_as_the_budget_allows(situation, share):
    goes = situation.nodes.leaving.copy()
    goes[0] = True
    situation = replace(situation, nodes=replace(situation.nodes, leaving=goes))
    budget = share * situation.migration_cost.sum()
    plan = MilpPlanner().plan(situation, Limits(budget, seconds=0.2))
    moved = plan.node != situation.home
    assert not goes[plan.node[moved]].any()
    assert situation.migration_cost[moved].sum() <= budget * (1 + 1e-9)
    free = MilpPlanner().plan(situation, Limits(seconds=0.2))
    loads = np.bincount(free.node, situation.units.load, len(goes))
    assert loads[0] == 0


def hard(units=20, nodes=4):
    """Loads without a common measure: an even allocation is next to impossible to prove best."""
    load = np.sqrt(np.arange(2, units + 2)) * 10
    own = Units(("a",), np.zeros(units, np.int32), load, np.ones(units))
    return Situation(own, Nodes.alike(nodes), np.zeros(units, np.int32))


def test_a_hard_instance_ends_with_the_branches_it_has():
    """No clock: the time limit is an hour. The plan has an incumbent and a bound all the same."""
    own = MilpSettings(
        good_enough_pct=0.0, limit_share=0.0, variables_per_second=10, branches_max=1
    )
    plan = MilpPlanner(own).plan(hard(), Limits(seconds=3600))
    plain = greedy(hard(), np.inf)
    assert plan.distance_pct <= load_distance(hard(), plain, as_measured=True)
    assert 0 < plan.gap_pct < 5


def test_a_solver_never_gets_more_time_than_is_left(monkeypatch):
    """A clock by hand: every look at it takes a tenth of a second, whatever HiGHS does."""
    ticks, given_s = itertools.count(), []
    now = [0.0]

    def clock():
        now[0] = next(ticks) / 10
        return now[0]

    real = program.minimise

    def watched(built, start, seconds, gap, branches_max):
        given_s.append((now[0], seconds))
        return real(built, start, seconds, gap, 1)

    monkeypatch.setattr(program, "minimise", watched)
    plan = MilpPlanner(MilpSettings(good_enough_pct=0.0, limit_share=0.0), clock).plan(
        hard(), Limits(seconds=2)
    )
    assert given_s and all(at + limit <= 2.0 for at, limit in given_s)
    assert now[0] <= 2.0 + 0.3, "and it does not look at the clock for ever"
    assert plan.seconds <= 2.3


@settings(max_examples=15, deadline=None)
@given(situation=situations(units_max=30, nodes_max=5, traffic=False), share=st.floats(0.1, 1))
def test_under_constant_loads_it_comes_to_rest_and_never_comes_back(situation, share):
    limits = Limits(share * situation.migration_cost.sum(), seconds=0.2)
    seen = {situation.home.tobytes()}
    for _ in range(ROUNDS):
        plan = MilpPlanner(MilpSettings(branches_max=100)).plan(situation, limits)
        if not plan.migrations:
            break
        assert plan.node.tobytes() not in seen or situation.nodes.leaving.any()
        seen.add(plan.node.tobytes())
        situation = situation.after(plan.node)
    else:
        pytest.fail(f"still moving after {ROUNDS} rounds")


def test_a_unit_that_costs_many_budgets_does_not_blur_what_others_cost():
    """The program, from home: two units of 1 can be paid, the heaviest of 1e12 cannot."""
    load, state = np.array([9.0, 5.0, 4.0, 4.0]), np.array([1e12, 1.0, 1.0, 1.0])
    units = Units(("a",), np.zeros(4, np.int32), load, state)
    blocks = Blocks.of(Situation(units, Nodes.alike(2), np.zeros(4, np.int32)))
    for budget, moved in ((2.0, 2), (1.0, 1), (0.0, 0)):
        node, _ = improve_part(
            blocks, blocks.home, np.arange(4), blocks.nodes.staying, budget, Effort(5.0, 1e-6)
        )
        assert node is not None and (node != 0).sum() == moved
        assert node[0] == 0
