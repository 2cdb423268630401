from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, key_graphs, keys, weights

from headgate.planner.key_graph import FREE, KeyGraph, floors, placement
from headgate.routing.table import hash_table
from headgate_lab.planner.baseline import BASELINES, plan_offline, plan_online, plan_worst_case
from strategies import examples

GRAPH = blocks(seed=3, groups=60, keys_each=8, pairs=30_000, mixing=0.2, mixed_hash=True)
NOW = np.zeros(GRAPH.vertices, np.int32)


def locality(name: str) -> float:
    plan = BASELINES[name](GRAPH, NOW, 6, seed=1)
    assert plan is not None
    return GRAPH.locality(plan)


def test_worst_case_below_hash_below_online() -> None:
    assert locality("worst-case") < 0.05
    assert locality("hash") == pytest.approx(1 / 6, abs=0.06)
    assert locality("online") == locality("offline") > 0.6


def test_hash_is_what_an_empty_table_does() -> None:
    empty = dict.fromkeys(GRAPH.operators, hash_table(6))
    assert np.array_equal(BASELINES["hash"](GRAPH, NOW, 6), placement(GRAPH, empty))


def test_offline_plans_once() -> None:
    assert plan_offline(GRAPH, NOW, 6, plans_made=1) is None


def test_online_depends_on_the_window_alone() -> None:
    other = np.ones(GRAPH.vertices, np.int32)
    first, second = (plan_online(GRAPH, at, 6, plans_made=n) for at, n in ((NOW, 0), (other, 5)))
    assert np.array_equal(first, second)


def test_the_worst_case_keeps_its_balance() -> None:
    plan = plan_worst_case(GRAPH, NOW, 6)
    assert plan is not None
    bound = np.maximum(1.03, floors(GRAPH, 6))
    assert (GRAPH.imbalance(plan, 6) <= bound * (1 + 1e-6)).all()


@given(key_graphs(), st.integers(1, 5), st.sampled_from(sorted(BASELINES)))
@examples(80)
def test_any_graph_gets_a_slot_for_every_key(graph: KeyGraph, slots: int, name: str) -> None:
    plan = BASELINES[name](graph, np.zeros(graph.vertices, np.int32), slots)
    assert plan is not None
    assert plan.dtype == np.int32
    assert plan.shape == (graph.vertices,)
    assert ((plan >= 0) & (plan < slots)).all()


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_fixed_vertices_stay(name: str) -> None:
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, keys(0, 1), keys(8, 9), weights(3, 4))],
        fixed={0: (keys(0, 1), np.array([1, 0], np.int32))},
    )
    plan = BASELINES[name](graph, np.zeros(4, np.int32), 2)
    assert plan is not None
    assert plan[graph.fixed != FREE].tolist() == [1, 0]
