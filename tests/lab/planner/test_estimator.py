from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import key_graphs, keys, weights

from headgate.arrays import I32
from headgate.planner.key_graph import KeyGraph, placement, to_tables
from headgate.planner.partition import partition
from headgate.routing.table import RoutingTable
from headgate_lab.planner.estimator import Calibration, RecentPairs, edges_in, forecast
from strategies import examples
from unit.planner.test_placing import TASK, seen, tables_now


def random_slots(graph: KeyGraph, slots: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, slots, graph.vertices).astype(np.int32)


@given(key_graphs(), st.integers(1, 5), st.integers(0, 99))
@examples(60)
def test_no_plan_means_no_gain_and_nothing_to_do(graph: KeyGraph, slots: int, seed: int) -> None:
    now = random_slots(graph, slots, seed)
    found = forecast(graph, now, now, slots, horizon_rows=1000, calibration=Calibration(0.7))
    assert found.gain_rows == found.cost_rows == found.moved_keys == 0
    assert not found.worth


@given(key_graphs(), st.integers(1, 5), st.integers(0, 99))
@examples(80)
def test_without_drift_the_forecast_is_the_locality_on_the_window(
    graph: KeyGraph, slots: int, seed: int
) -> None:
    now, then = random_slots(graph, slots, seed), random_slots(graph, slots, seed + 100)
    found = forecast(graph, now, then, slots, horizon_rows=500, rows_per_move=2)
    assert found.locality_now == pytest.approx(graph.locality(now))
    assert found.locality_planned == pytest.approx(graph.locality(then))
    assert found.gain_rows == pytest.approx(500 * (found.locality_planned - found.locality_now))
    assert found.moved_keys == int((now != then).sum())
    assert found.cost_rows == 2 * found.moved_keys
    assert found.imbalance_planned == pytest.approx(graph.imbalance(then, slots))


@given(key_graphs(), st.integers(1, 5), st.integers(0, 99), st.floats(0, 1))
@examples(80)
def test_drift_shrinks_the_gain_and_localities_stay_shares(
    graph: KeyGraph, slots: int, seed: int, drift: float
) -> None:
    now, then = random_slots(graph, slots, seed), random_slots(graph, slots, seed + 100)
    full = forecast(graph, now, then, slots, horizon_rows=100)
    known = graph.w * (1 - drift)
    found = forecast(graph, now, then, slots, horizon_rows=100, known=known)
    assert found.gain_rows == pytest.approx((1 - drift) * full.gain_rows, abs=1e-6)
    for kept in (0.0, 0.5, 1.4):
        low = forecast(
            graph, now, then, slots, horizon_rows=1, known=known, calibration=Calibration(kept)
        )
        assert -1e-9 <= low.locality_planned <= 1 + 1e-9
        if kept <= 1:
            assert low.gain_rows * 100 <= found.gain_rows + 1e-6


@given(key_graphs(), key_graphs())
@examples(80)
def test_edges_of_one_graph_are_found_in_another(graph: KeyGraph, other: KeyGraph) -> None:
    def pairs(of: KeyGraph) -> list[tuple[str, str, int, int]]:
        names = np.array(of.operators)
        ends = zip(names[of.op[of.u]], names[of.op[of.v]], of.h[of.u], of.h[of.v])
        return [(a, b, int(x), int(y)) for a, b, x, y in ends]

    mine = {pair: i for i, pair in enumerate(pairs(graph))}
    assert edges_in(graph, other).tolist() == [mine.get(pair, -1) for pair in pairs(other)]


def sample(rng: np.random.Generator, rows: int, share: np.ndarray) -> KeyGraph:
    drawn = np.bincount(rng.choice(share.size, rows, p=share.ravel()), minlength=share.size)
    at = np.flatnonzero(drawn)
    a, b = np.unravel_index(at, share.shape)
    pairs = [(0, 1, a.astype(np.uint64), b.astype(np.uint64), drawn[at].astype(float))]
    return KeyGraph.build(["a", "b"], pairs)


def installed(graph: KeyGraph, slot: I32, tables: dict[str, RoutingTable] | None):
    """The plan's entries over those of earlier plans."""
    new = to_tables(graph, slot, 4)
    if tables is None:
        return new
    return {n: tables[n].pin_hashes(t.pinned_h, t.pinned_slots) for n, t in new.items()}


def test_forecasts_are_unbiased_on_a_stream_that_does_not_change() -> None:
    """Plans fit the chance of their window; drift and what was kept make up for it."""
    rng = np.random.default_rng(7)
    share = rng.pareto(1.1, (60, 300)) * (rng.random((60, 300)) < 0.3)
    share /= share.sum()
    periods = [sample(rng, 4_000, share) for _ in range(14)]
    calibration, promised, tables = Calibration(), 0.0, None
    errors, naive = [], []
    before = periods[0]
    for i in range(1, 13):
        graph = periods[i - 1]
        plan = partition(graph, 4, tries=1, seed=i)
        if tables is not None:
            now = placement(graph, tables)
            known = np.where(edges_in(before, graph) >= 0, graph.w, 0.0)
            kept = known[now[graph.u] == now[graph.v]].sum() / known.sum()
            calibration = calibration.after(promised, kept)
            found = forecast(
                graph, now, plan.slot, 4, horizon_rows=1, known=known, calibration=calibration
            )
            achieved = periods[i].locality(
                placement(periods[i], installed(graph, plan.slot, tables))
            )
            errors.append(found.locality_planned - achieved)
            naive.append(plan.locality - achieved)
        tables, promised, before = installed(graph, plan.slot, tables), plan.locality, graph
    assert np.mean(naive) > 0.05
    assert abs(np.mean(errors[2:])) < 0.02


PAIR = KeyGraph.build(
    ["a", "b"], [(0, 1, keys(1, 2, 3, 4), keys(5, 6, 7, 8), weights(10, 10, 10, 10))]
)
APART = np.array([0, 0, 1, 1, 1, 1, 0, 0], np.int32)
TOGETHER = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int32)


def test_worth_if_the_gain_pays() -> None:
    found = forecast(PAIR, APART, TOGETHER, 2, horizon_rows=1_000, rows_per_move=2)
    assert found.worth
    assert found.reason == (
        "locality 0.00 -> 1.00 for the next 1,000 rows saves 1,000 remote rows; "
        "moving 4 keys costs 8"
    )
    assert not forecast(PAIR, APART, TOGETHER, 2, horizon_rows=1_000, rows_per_move=300).worth


def test_worth_if_a_broken_balance_is_mended() -> None:
    lopsided = np.zeros(8, np.int32)
    found = forecast(PAIR, lopsided, TOGETHER, 2, horizon_rows=1, rows_per_move=100)
    assert found.worth
    assert found.reason.startswith("max/mean load of a 2.00 -> 1.00 (allowed 1.13)")


def test_not_worth_if_it_breaks_the_balance() -> None:
    lopsided = np.zeros(8, np.int32)
    found = forecast(PAIR, APART, lopsided, 2, horizon_rows=10_000)
    assert found.gain_rows > found.cost_rows
    assert not found.worth
    assert "would go 1.00 -> 2.00" in found.reason


def test_an_empty_window_forecasts_nothing() -> None:
    nothing = KeyGraph.build(["a", "b"], [])
    none = np.empty(0, np.int32)
    assert not forecast(nothing, none, none, 3, horizon_rows=10).worth
    assert not edges_in(nothing, nothing).size


def test_calibration_learns_and_forgets() -> None:
    learnt = Calibration().after(0.5, 0.4)
    assert 0.8 < learnt.kept < 1
    assert learnt.after(0.0, 0.4) is learnt
    assert Calibration().after(0.01, 1.0).kept <= 1.5
    for _ in range(40):
        learnt = learnt.after(0.5, 0.4).after_staying(0.4 - learnt.ageing, 0.37)
    assert learnt.kept == pytest.approx(0.8, abs=1e-3)
    assert learnt.ageing == pytest.approx(0.03, abs=1e-3)


def test_what_stays_ages_and_what_is_planned_anew_does_not() -> None:
    young = forecast(PAIR, TOGETHER, APART, 2, horizon_rows=100)
    old = forecast(PAIR, TOGETHER, APART, 2, horizon_rows=100, calibration=Calibration(ageing=0.1))
    assert old.locality_now == pytest.approx(young.locality_now - 0.1)
    assert old.locality_planned == pytest.approx(young.locality_planned)
    assert old.gain_rows == pytest.approx(young.gain_rows + 10)


def test_a_plan_that_changes_nothing_is_not_worth_it() -> None:
    recent, tables = RecentPairs(TASK), tables_now()
    recent.count(seen(0))
    graph = recent.graph()
    current = placement(graph, tables)

    assert not recent.judge(graph, current, current).worth
    recent.forget()
    assert recent.graph().edges == 0


def test_counts_fade() -> None:
    recent = RecentPairs(TASK)
    recent.count(seen(0))
    before = recent.graph().weight
    recent.count(replace(seen(1), pairs={}, loads={}), fade=0.5)

    assert recent.graph().weight == pytest.approx(before / 2)
