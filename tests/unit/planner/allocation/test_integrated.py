"""The integrated planner: what it weighs, one thing at a time, and that it comes to rest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation import integrated
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import Limits
from headgate.planner.distance import Distances
from headgate_lab.planner.milp import MilpPlanner
from unit.planner.allocation.clusters import airline, situations

ROUNDS = 40
"""Plans after which the small clusters of the property test are at rest."""
FAST = IntegratedSettings(steps_min=4_000, steps_per_unit=200)


def planner(own=FAST):
    """A planner whose clock goes on by a thousandth of a second whenever it is read."""
    ticks = itertools.count()
    return IntegratedPlanner(own, clock=lambda: next(ticks) / 1000)


def pairs(names=(), nodes=None, remote_load=0.5):
    """Two operators of four units; unit i of the first sends to unit i of the second, all apart."""
    flow = Traffic(np.arange(4), np.arange(4, 8), np.full(4, 10.0), remote_load)
    home = np.array([0, 1, 2, 3, 1, 2, 3, 0], np.int32)
    units = Units(
        ("a", "b"), np.repeat(np.arange(2, dtype=np.int32), 4), np.full(8, 15.0), np.ones(8), names
    )
    return Situation(units, nodes or Nodes.alike(4), home, flow)


@settings(max_examples=15, deadline=None)
@given(situation=situations(), share=st.floats(0.2, 1), limit=st.sampled_from([0.5, 5.0, 20.0]))
def test_repeated_planning_comes_to_rest_and_never_comes_back(situation, share, limit):
    limits = Limits(share * situation.migration_cost.sum(), limit, seconds=1.0)
    seen = {situation.home.tobytes()}
    for _ in range(ROUNDS):
        plan = planner().plan(situation, limits)
        if not plan.migrations:
            break
        assert plan.node.tobytes() not in seen
        seen.add(plan.node.tobytes())
        situation = situation.after(plan.node)
    else:
        pytest.fail(f"still moving after {ROUNDS} rounds")


@settings(max_examples=6, deadline=None)
@given(situation=situations(traffic=False), share=st.floats(0.2, 1))
def test_the_program_does_not_get_worse_when_it_plans_again(situation, share):
    """Constant loads: the distance falls or stays, so what oscillates costs no balance."""
    limits = Limits(share * situation.migration_cost.sum(), seconds=20)
    before = np.inf if situation.nodes.leaving.any() else load_distance(situation, situation.home)
    for _ in range(3):
        plan = MilpPlanner().plan(situation, limits)
        assert plan.distance_pct <= before + 1e-6
        situation = situation.after(plan.node)
        before = np.inf if situation.nodes.leaving.any() else plan.distance_pct


def test_partners_are_brought_together_within_the_budget():
    situation = pairs()
    plan = planner().plan(situation, Limits(2.0, 60.0))
    assert plan.migrations <= 2
    assert plan.collocation >= 0.5
    whole = planner().plan(situation, Limits(8.0, 60.0))
    assert whole.collocation == 1


def test_it_foresees_what_collocation_saves():
    situation = airline(1, nodes=4)
    plan = planner(IntegratedSettings()).plan(situation, Limits(8_000.0, 8.0, seconds=60))
    again = situation.after(plan.node)
    assert load_distance(again, again.home) == pytest.approx(plan.distance_pct)
    assert again.units.load.sum() < situation.units.load.sum()
    assert plan.distance_pct <= 8


def test_pinned_keys_and_buckets_are_one_kind_of_unit():
    names = ("key 'ana'", *(f"bucket {i}" for i in range(7)))
    plan = planner().plan(pairs(names), Limits(8.0, 60.0))
    assert plan.reasons
    assert all(line.startswith(("key 'ana'", "bucket ")) for line in plan.reasons)


def test_every_move_is_explained_in_a_line():
    drained = pairs(nodes=Nodes.alike(4, leaving=(0,)))
    plan = planner().plan(drained, Limits(8.0, 60.0))
    lines = [line for line in plan.reasons if "node 0 is to be removed" in line]
    assert len(lines) == 2
    together = planner().plan(pairs(), Limits(8.0, 60.0))
    assert any("rows of it stay on its node" in line for line in together.reasons)
    heavy = Situation(
        Units(("a",), np.zeros(4, np.int32), np.full(4, 9.0), np.ones(4)),
        Nodes.alike(2),
        np.array([0, 0, 0, 1], np.int32),
    )
    evened = planner().plan(heavy, Limits())
    assert "evens loads: without it node 0 would have 150.0 % of the mean" in evened.reasons[0]


def test_each_operator_is_evened_if_asked():
    units = Units(("a", "b"), np.array([0, 0, 1, 1], np.int32), np.full(4, 5.0), np.ones(4))
    situation = Situation(units, Nodes.alike(2), np.array([0, 0, 1, 1], np.int32))
    assert planner().plan(situation, Limits()).migrations == 0
    by_operator = planner(replace(FAST, balance="operator")).plan(situation, Limits())
    assert sorted(by_operator.node[:2].tolist()) == [0, 1]
    assert sorted(by_operator.node[2:].tolist()) == [0, 1]


def test_a_near_node_is_better_than_a_far_one():
    """Partners too heavy for one node go to two nodes of one host."""
    hosts = Distances.of(["x", "y", "x", "y"])
    nodes = replace(Nodes.alike(4), distances=hosts)
    flow = Traffic(np.array([0, 1]), np.array([2, 3]), np.full(2, 10.0), 0.0)
    units = Units(("a", "b"), np.array([0, 0, 1, 1], np.int32), np.full(4, 50.0), np.ones(4))
    situation = Situation(units, nodes, np.array([0, 1, 3, 2], np.int32), flow)
    plan = planner().plan(situation, Limits(4.0, 5.0))
    assert load_distance(situation, plan.node) == 0
    near = hosts.near[plan.node[:2], plan.node[2:]]
    assert near.tolist() == [1, 1]


def test_little_time_still_gives_a_plan_that_holds():
    ticks = itertools.count(0, 10.0)
    situation, limits = airline(2, nodes=4, groups=3), Limits(4_000.0, 5.0)
    plan = IntegratedPlanner(clock=lambda: next(ticks)).plan(situation, limits)
    plan.check(situation, limits)
    assert plan.distance_pct <= load_distance(situation, situation.home)


@pytest.mark.parametrize("step_s", [1e-6, 1e-4, 1e-2])
def test_searches_end_in_time_however_long_a_step_takes(monkeypatch, step_s):
    """A clock that goes on with every step, by hand: partners of a unit may be one or thousands."""
    now, steps, real = [0.0], [], integrated.anneal

    def timed(field, rules, state, count, heat):
        now[0] += count * step_s
        steps.append(count)
        return real(field, rules, state, count, heat)

    monkeypatch.setattr(integrated, "anneal", timed)
    search = IntegratedPlanner(clock=lambda: now[0])
    search.plan(airline(2, nodes=4, groups=3), Limits(4_000.0, 0.0, seconds=1.0))
    assert now[0] <= 1.0 or sum(steps) == search.settings.probe_steps
    assert step_s != 1e-4 or now[0] > 0.2, "it uses the time there is"


@pytest.mark.parametrize("seed", range(6))
def test_a_load_that_is_all_rows_vanishes_when_partners_meet(seed):
    """Operators that take no time to speak of: the mean load comes to 0, or below by rounding."""
    rng = np.random.default_rng(seed)
    flow = Traffic(np.arange(8), np.arange(8, 16), rng.integers(1, 1000, 8) * 1.0, 0.01)
    home = rng.integers(0, 2, 16).astype(np.int32)
    load = flow.remote_load * flow.remote(home)
    units = Units(("a", "b"), np.repeat(np.arange(2, dtype=np.int32), 8), load, np.ones(16))
    situation = Situation(units, Nodes.alike(2), home, flow)
    plan = planner().plan(situation, Limits(np.inf, 5.0))
    assert plan.collocation > 0.98, "but for pairs that are not worth a move"
