"""ALBIC's steps, one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits
from headgate_lab.planner import albic
from headgate_lab.planner.albic import AlbicPlanner, AlbicSettings, improve
from headgate_lab.planner.collocation import collocated_sets, significant, split_sets
from headgate_lab.planner.milp import MilpSettings
from unit.planner.allocation.clusters import airline, situations


def job(home, rate, load=None):
    """Units 0..2 send to units 3..5; `rate` is 3 x 3."""
    sender, receiver = np.divmod(np.arange(9), 3)
    flow = Traffic(sender, 3 + receiver, np.asarray(rate, float).ravel())
    loads = np.ones(6) if load is None else np.asarray(load, float)
    units = Units(("a", "b"), np.repeat(np.arange(2, dtype=np.int32), 3), loads, np.ones(6))
    return Situation(units, Nodes.alike(3), np.array(home, np.int32), flow)


STRONG = [[9, 1, 2], [1, 6, 1], [2, 1, 7]]


def test_a_pair_counts_above_the_average_of_its_sender():
    counts = significant(job([0] * 6, STRONG), 1.5)  # averages 4, 2.67, 3.33
    assert counts.reshape(3, 3).tolist() == np.eye(3, dtype=bool).tolist()


def test_pairs_that_share_a_unit_and_a_node_are_one_set():
    situation = job([0, 0, 1, 0, 0, 1], [[9, 9, 0], [0, 9, 0], [0, 0, 9]])
    sets = collocated_sets(situation, significant(situation, 1.0))
    assert sets[0] == sets[3] == sets[4] == sets[1]
    assert sets[2] == sets[5] != sets[0]


@pytest.mark.parametrize(("load_max", "cost_max"), [(2.0, np.inf), (100.0, 2.0)])
def test_a_set_too_heavy_or_too_costly_is_split_where_few_rows_are(load_max, cost_max):
    situation = job([0] * 6, [[9, 2, 0], [0, 9, 2], [0, 0, 9]])
    pieces = split_sets(situation, np.zeros(6, np.int64), load_max, cost_max, seed=1)
    assert len(set(pieces.tolist())) == 3
    assert [pieces[i] == pieces[3 + i] for i in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("home", "pieces", "load", "node"),
    [
        ([0, 1, 2, 1, 2, 0], [0, 1, 2, 3, 4, 5], [1, 5, 1, 1, 1, 1], 0),  # 1: the emptier node
        ([0, 1, 2, 1, 1, 0], [0, 1, 2, 3, 3, 5], [1, 1, 1, 1, 1, 1], 1),  # 2: where the set is
        ([0, 1, 0, 1, 1, 0], [0, 1, 0, 3, 3, 5], [1, 9, 1, 1, 1, 1], 0),  # 3: as 1
    ],
)
def test_one_pair_a_call_is_collocated_in_three_cases(home, pieces, load, node):
    situation = job(home, STRONG, load)
    counts = significant(situation, 1.5)
    fixed, told = improve(situation, counts, np.array(pieces), 9.0, np.random.default_rng(0))
    assert {u for u in range(6) if fixed[pieces[u]] >= 0} >= {0, 3}
    assert fixed[pieces[0]] == fixed[pieces[3]] == node
    assert told == (f"collocates a[0] and b[0] on node {node}",)


def test_collocation_grows_call_by_call_and_sets_stay_together():
    situation = airline(1, nodes=4, groups=3)
    planner, limits = AlbicPlanner(), Limits(4_000.0, 20.0, seconds=20)
    shares = [situation.traffic.collocation(situation.home)]
    for period in range(6):
        plan = planner.plan(replace(situation, period=period), limits)
        situation = situation.after(plan.node)
        shares.append(plan.collocation)
    assert shares[-1] > shares[0] + 0.1
    assert plan.migration_cost <= 4_000


def test_a_pair_that_the_budget_cannot_pay_gives_way_to_the_next():
    situation = job([0, 1, 2, 1, 2, 0], STRONG)
    state = np.array([1.0, 1, 1, 1, 1, 1])
    state[[0, 3]] = 50.0
    situation = replace(situation, units=replace(situation.units, state_bytes=state))
    counts = significant(situation, 1.5)
    pieces = np.arange(6)
    fixed, told = improve(situation, counts, pieces, 9.0, np.random.default_rng(0))
    assert fixed[0] == fixed[3] == -1
    assert told[0].startswith("collocates a[2] and b[2]"), "7 rows, the most of the rest"
    assert improve(situation, counts, pieces, 0.5, np.random.default_rng(0))[1] == ()


def test_a_pair_is_not_collocated_on_a_node_that_leaves():
    situation = job([0, 1, 2, 1, 2, 0], STRONG, load=[1, 5, 1, 1, 1, 1])
    leaving = replace(situation, nodes=Nodes.alike(3, leaving=(0,)))
    fixed, told = improve(
        leaving, significant(leaving, 1.5), np.arange(6), 9.0, np.random.default_rng(0)
    )
    assert 0 not in fixed.tolist()
    assert "on node 0" not in told[0]


def test_all_pairs_together_leave_nothing_to_improve():
    situation = job([0, 1, 2, 0, 1, 2], STRONG)
    counts = significant(situation, 1.5)
    fixed, told = improve(situation, counts, np.arange(6), 9.0, np.random.default_rng(0))
    assert (fixed == -1).all() and told == ()


def heap(sets=4):
    """One set of pairs, all on node 0 of two: kept whole it can go nowhere."""
    n = 2 * sets
    chain = np.arange(n - 1)
    flow = Traffic(chain, chain + 1, np.where(chain % 2 == 0, 90.0, 80.0))
    operator = np.arange(n, dtype=np.int32)
    names = tuple(f"o{i}" for i in range(n))
    units = Units(names, operator, np.ones(n), np.ones(n))
    return Situation(units, Nodes.alike(2), np.zeros(n, np.int32), flow)


def test_sets_are_cut_smaller_until_the_load_distance_is_allowed():
    """Step 4: with maxPL of all the load nothing moves; each retry halves it."""
    whole = AlbicSettings(score_factor=0.5, partition_load_pct=400.0)
    lax = AlbicPlanner(whole).plan(heap(), Limits(np.inf, 120.0, seconds=1.0))
    assert lax.migrations == 0, "100 % is allowed: nothing is cut"
    freed = AlbicPlanner(whole).plan(heap(), Limits(np.inf, 5.0, seconds=1.0))
    assert freed.distance_pct <= 5
    assert freed.collocation >= 0.8, "cut where few rows are"


def test_sets_are_cut_until_nothing_is_left_to_cut():
    """A budget of 60 small units cannot even 400 on one node, but it is used by single units."""
    rng = np.random.default_rng(0)
    n = 400
    chain = np.arange(n - 1)
    flow = Traffic(chain, chain + 1, rng.uniform(80, 90, n - 1))
    names = tuple(f"o{i}" for i in range(n))
    units = Units(names, np.arange(n, dtype=np.int32), rng.gamma(2, 1, n), np.ones(n))
    situation = Situation(units, Nodes.alike(4), np.zeros(n, np.int32), flow)
    ticks = itertools.count()
    planner = AlbicPlanner(
        AlbicSettings(
            score_factor=0.5, milp=MilpSettings(variables_per_second=0, whole_variables_max=0)
        ),
        clock=lambda: next(ticks) / 1000,
    )
    plan = planner.plan(situation, Limits(60.0, 2.0, seconds=10.0))

    heaviest = np.sort(units.load)[-60:].sum()
    left = units.load.sum() - heaviest
    best = 100 * (left / (units.load.sum() / 4) - 1)
    assert plan.distance_pct == pytest.approx(best, rel=0.02), "the 60 heaviest have gone"


def test_ties_of_cost_and_load_are_broken_at_random():
    """By load the first units of a chain are half of the set, by cost the last."""
    n = 24
    chain = np.arange(n - 1)
    flow = Traffic(chain, chain + 1, np.ones(n - 1))
    load = np.where(np.arange(n) < 6, 3.0, 1.0)
    units = Units(("a",), np.zeros(n, np.int32), load, load[::-1].copy())
    situation = Situation(units, Nodes.alike(2), np.zeros(n, np.int32), flow)
    sizes = set()
    for seed in range(20):
        pieces = split_sets(situation, np.zeros(n, np.int64), 18.0, 18.0, seed)
        sizes.add(int((pieces == pieces[0]).sum()) < n / 2)
    assert sizes == {True, False}


@settings(max_examples=20, deadline=None)
@given(situation=situations(units_max=14), share=st.floats(0, 1), limit=st.sampled_from([5.0, 30]))
def test_a_plan_keeps_budget_and_marks_and_never_fails(situation, share, limit):
    limits = Limits(share * situation.migration_cost.sum(), limit, seconds=20)
    plan = AlbicPlanner().plan(situation, limits)
    plan.check(situation, limits)
    assert plan.gap_pct >= 0
    assert len(plan.reasons) == plan.migrations


def test_what_is_together_stays_together_when_loads_are_even():
    situation = job([0, 1, 2, 0, 1, 2], STRONG)
    plan = AlbicPlanner().plan(situation, Limits(np.inf, 5.0, seconds=20))
    assert [plan.node[i] == plan.node[3 + i] for i in range(3)] == [True] * 3


def test_a_turn_that_would_end_too_late_is_not_begun(monkeypatch):
    """A clock by hand: to cut sets takes 0.4 s, whatever the machine."""
    now, real = [0.0], albic.split_sets

    def timed(*given):
        now[0] += 0.4
        return real(*given)

    monkeypatch.setattr(albic, "split_sets", timed)
    greedy = AlbicSettings(milp=MilpSettings(variables_per_second=0, whole_variables_max=0))
    apart = airline(1, nodes=4)
    together = replace(apart, home=np.tile(apart.home[:20], 3))
    AlbicPlanner(greedy, clock=lambda: now[0]).plan(together, Limits(np.inf, 0.0, 1.0))
    assert now[0] == pytest.approx(0.8)
