"""Split units: nothing is lost by a cut, and nothing is cut that need not be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation import integrated
from headgate.planner.allocation.cutting import after, cut_up, fused
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits
from headgate.planner.allocation.splitting import CUT_SHARES, PIECE_PCT, Splitter
from headgate.planner.allocation.worth import worth_of
from unit.planner.allocation.clusters import situations

ROUNDS = 40
"""Plans after which the small clusters of the property test are at rest."""
FAST = IntegratedSettings(steps_min=2_000, steps_per_unit=100)


@pytest.fixture(scope="module", autouse=True)
def without_a_solver():
    """The time of a solver is real; without one a plan depends on the steps of its search alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrated, "PROGRAM_UNITS", 0)
        yield


def planner():
    """A planner whose clock goes on by a thousandth of a second whenever it is read."""
    ticks = itertools.count()
    return IntegratedPlanner(FAST, clock=lambda: next(ticks) / 1000)


@st.composite
def splittable(draw, **options):
    """Small clusters in which some units may be cut, some are, and one may be far too heavy."""
    whole = draw(situations(**options))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    load = whole.units.load.copy()
    if draw(st.booleans()):
        load[rng.integers(len(load))] += draw(st.sampled_from([0.5, 1.0, 3.0])) * load.sum()
    whole = replace(whole, units=replace(whole.units, load=load))
    can = rng.random(len(load)) < 0.7
    extras = {}
    for u in np.flatnonzero(can & (rng.random(len(load)) < 0.2)).tolist():
        others = [n for n in range(len(whole.nodes)) if n != whole.home[u]]
        on = rng.choice(others, rng.integers(1, len(others) + 1), replace=False)
        extras[u] = tuple((int(n), float(0.9 / len(on))) for n in sorted(on))
    return cut_up(whole, can, rng.integers(0, 3, len(load)).astype(float), extras)


def whole_again(situation):
    """The same with nothing that is cut."""
    return cut_up(situation.cut.whole, situation.cut.can, situation.cut.merge_rate, {})


def one_heavy(nodes=4, share=3.0, light=60, can=True):
    """A unit with `share` times a node's mean, and light ones, all at random homes."""
    rng = np.random.default_rng(3)
    rest = rng.gamma(4.0, 1.0, light)
    heavy = rest.sum() * share / (nodes - share)
    load = np.concatenate([[heavy], rest])
    home = rng.integers(0, nodes, light + 1).astype(np.int32)
    units = Units(("count",), np.zeros(light + 1, np.int32), load, np.ones(light + 1))
    mask = np.zeros(light + 1, np.bool_)
    mask[0] = can
    return cut_up(Situation(units, Nodes.alike(nodes), home), mask, np.ones(light + 1), {})


@settings(max_examples=60, deadline=None)
@given(situation=splittable())
def test_cutting_loses_no_load_and_no_rows(situation):
    cut = situation.cut
    whole = cut.whole
    assert np.bincount(cut.owner, situation.base_load) == pytest.approx(whole.base_load)
    assert np.bincount(cut.owner, cut.share) == pytest.approx(np.ones(len(whole.units)))
    t, n = situation.traffic, len(whole.units)
    between = np.zeros((n, n))
    np.add.at(between, (cut.owner[t.sender], cut.owner[t.receiver]), t.rate)
    merged = {u: cut.merge_rate[u] * len(on) for u, on in cut.extras.items()}
    assert {u: between[u, u] for u in merged} == pytest.approx(merged)
    np.fill_diagonal(between, 0.0)
    direct = np.zeros((n, n))
    np.add.at(direct, (whole.traffic.sender, whole.traffic.receiver), whole.traffic.rate)
    assert between == pytest.approx(direct)


@settings(max_examples=40, deadline=None)
@given(situation=splittable(), seed=st.integers(0, 99))
def test_pieces_that_meet_are_one_and_weigh_the_same(situation, seed):
    rng = np.random.default_rng(seed)
    node = rng.integers(0, len(situation.nodes), len(situation.units)).astype(np.int32)
    joined, at = fused(situation, node)
    places = list(zip(joined.cut.owner.tolist(), at.tolist(), strict=True))
    assert len(set(places)) == len(places)
    before = np.bincount(node, situation.base_load, len(situation.nodes))
    assert np.bincount(at, joined.base_load, len(joined.nodes)) == pytest.approx(before)


@settings(max_examples=12, deadline=None)
@given(situation=splittable(), limit=st.sampled_from([1.0, 5.0, 20.0]))
def test_a_plan_that_may_cut_is_never_worse_than_one_that_may_not(situation, limit):
    limits = Limits(np.inf, limit, seconds=4.0)
    start = whole_again(situation)
    plain = planner().plan(start.cut.whole, limits)
    plan = planner().plan(start, limits)
    made = after(start, plan.node, plan.extras)
    then = worth_of(made, made.home, "total", limits)
    without = worth_of(start, plain.node, "total", limits)
    behind = then.left_behind, then.left_load
    assert behind <= (without.left_behind, without.left_load + 1e-9)
    if behind >= (without.left_behind, without.left_load - 1e-9):
        assert then.excess + then.pieces <= without.excess + 0.05
    assert plan.distance_pct == pytest.approx(then.excess + limit, abs=1e-6) or not then.excess


@settings(max_examples=12, deadline=None)
@given(situation=splittable(), limit=st.sampled_from([0.5, 5.0, 20.0]), share=st.floats(0.2, 1))
def test_planning_with_cuts_comes_to_rest_and_never_comes_back(situation, limit, share):
    limits = Limits(share * situation.cut.whole.migration_cost.sum(), limit, seconds=4.0)
    seen = {(situation.cut.whole.home.tobytes(), str(situation.cut.extras))}
    for _ in range(ROUNDS):
        plan = planner().plan(situation, limits)
        assert all(situation.cut.can[u] for u in plan.extras)
        for u, on in plan.extras.items():
            places = [n for n, _ in on]
            assert len(set(places)) == len(places) and plan.node[u] not in places
            assert 0 < sum(x for _, x in on) < 1 and min(x for _, x in on) > 0
        told = {u for u in {*plan.extras, *situation.cut.extras}
                if plan.extras.get(u) != situation.cut.extras.get(u)}  # fmt: skip
        assert len([line for line in plan.reasons if "it with" in line or "joined" in line]) == len(
            told
        )
        if not plan.migrations and not told:
            break
        state = plan.node.tobytes(), str(plan.extras)
        assert state not in seen
        seen.add(state)
        situation = after(situation, plan.node, plan.extras)
    else:
        pytest.fail(f"still changing after {ROUNDS} rounds")


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), nodes=st.integers(2, 5), limit=st.sampled_from([1.0, 5.0]))
def test_nothing_is_cut_if_no_unit_is_too_heavy(seed, nodes, limit):
    rng = np.random.default_rng(seed)
    load = rng.gamma(8.0, 1.0, 40 * nodes)
    assert load.max() <= CUT_SHARES[-1] * load.sum() / nodes
    home = rng.integers(0, nodes, len(load)).astype(np.int32)
    units = Units(("count",), np.zeros(len(load), np.int32), load, np.ones(len(load)))
    situation = Situation(units, Nodes.alike(nodes), home)
    start = cut_up(situation, np.ones(len(load), np.bool_), np.ones(len(load)), {})
    for budget in (np.inf, 2.0):
        plan = planner().plan(start, Limits(budget, limit, seconds=4.0))
        assert not plan.extras


def test_a_unit_that_no_node_can_take_is_cut_and_the_line_says_why():
    plan = planner().plan(one_heavy(), Limits(np.inf, 5.0))
    assert list(plan.extras) == [0]
    assert plan.distance_pct <= 5
    assert "1 are cut" in plan.explain()
    assert plan.reasons[0].startswith(f"count[0]: cut, node {plan.node[0]} shares it with")
    assert "it has 300 % of a node's share" in plan.reasons[0]
    stays = planner().plan(one_heavy(can=False), Limits(np.inf, 5.0))
    assert not stays.extras and stays.distance_pct > 150


def test_a_unit_that_has_become_light_is_joined():
    heavy = one_heavy()
    plan = planner().plan(heavy, Limits(np.inf, 5.0))
    load = heavy.cut.whole.units.load.copy()
    load[0] = load[1]
    lighter = replace(
        heavy.cut.whole, units=replace(heavy.cut.whole.units, load=load), home=plan.node
    )
    now = cut_up(lighter, heavy.cut.can, heavy.cut.merge_rate, plan.extras)
    again = planner().plan(now, Limits(np.inf, 5.0))
    assert again.extras == {}
    joined = f"count[0]: joined on node {again.node[0]}, loads are even enough without the cut"
    assert again.reasons[0] == joined


def test_a_cut_must_pay_for_its_merge_rows():
    """With rows that cost so much between nodes that each piece costs more than it brings."""
    load = np.array([30.0, 10.0, 10.0])
    flow = Traffic(np.array([1]), np.array([2]), np.array([1e-6]), 1.0)
    units = Units(("a", "b"), np.array([0, 0, 1], np.int32), load, np.ones(3))
    whole = Situation(units, Nodes.alike(2), np.array([0, 1, 1], np.int32), flow)
    can = np.array([True, False, False])
    cheap = planner().plan(cut_up(whole, can, np.full(3, 0.01), {}), Limits(0.0, 5.0))
    assert list(cheap.extras) == [0] and cheap.distance_pct < 5
    dear = planner().plan(cut_up(whole, can, np.full(3, 5.0), {}), Limits(0.0, 5.0))
    assert not dear.extras
    assert dear.distance_pct == pytest.approx(20) and PIECE_PCT < 15


def test_loads_that_tremble_do_not_make_cuts_come_and_go():
    """A unit at the edge of what a node can take, loads of 5 % noise, a limit of 5 %."""
    rng = np.random.default_rng(5)
    for share in (0.9, 1.0, 1.1, 1.3):
        situation, changes = one_heavy(share=share, light=200), 0
        truth = situation.cut.whole.units.load
        for _ in range(15):
            whole = situation.cut.whole
            load = truth * rng.normal(1.0, 0.05, len(truth)).clip(0.5)
            whole = replace(whole, units=replace(whole.units, load=load))
            cut = situation.cut
            now = cut_up(whole, cut.can, cut.merge_rate, cut.extras)
            plan = planner().plan(now, Limits(np.inf, 5.0, seconds=4.0))
            changes += plan.extras.keys() != cut.extras.keys()
            situation = after(now, plan.node, plan.extras)
        assert changes <= 2, share


@pytest.mark.parametrize(("ticks", "searches"), [([], 3), ([0.0, 0.0], 2), ([9.0], 1)])
def test_no_step_begins_when_time_is_up(ticks, searches):
    """The first search is always made; without a clock that runs, both rounds of cuts are too."""
    made = []
    times = iter(ticks)

    def search(situation, _):
        made.append(situation)
        return situation.home

    splitter = Splitter(
        search,
        excess=lambda *_: 100.0,
        better=lambda *_: False,
        limits=Limits(),
        clock=lambda: next(times, 9.0 if ticks else 0.0),
    )
    splitter.run(one_heavy(), 0.5, 1.0)

    assert len(made) == searches
