from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, key_graphs

from headgate.errors import HeadgateError
from headgate.planner.distance import COSTS, Distances
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import describe, improve, nearest_names, partition
from headgate.planner.refine import board, refine
from strategies import examples

HOSTS = ["h0", "h0", "h1", "h1", "h2", "h2", "h3", "h3"]
RACKS = {"h0": "r0", "h1": "r0", "h2": "r1", "h3": "r1"}
TREE = Distances.of(HOSTS, RACKS)


def test_classes_of_slots() -> None:
    assert TREE.near[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert TREE.cost[4].tolist() == [4, 4, 4, 4, 0, 1, 2, 2]
    assert np.array_equal(TREE.near, TREE.near.T)


def test_without_racks_all_hosts_share_one_and_a_host_without_a_rack_is_far() -> None:
    assert Distances.of(["a", "b"]).near.tolist() == [[0, 2], [2, 0]]
    assert Distances.of(["a", "b", "c"], {"a": "r", "b": "r"}).near[2].tolist() == [3, 3, 0]


def test_distances_of_another_number_of_slots_are_refused() -> None:
    with pytest.raises(HeadgateError, match="8 slots"):
        partition(blocks(0, 4, 20, 500, 0.2), 6, distances=TREE)


def test_where_balance_forbids_the_slot_pairs_stay_in_host_and_rack() -> None:
    """Two groups of keys, each worth four slots: a rack should hold one group."""
    graph = blocks(seed=1, groups=2, keys_each=60, pairs=20_000, mixing=0.05)
    flat = partition(graph, 8, seed=2)
    near = partition(graph, 8, seed=2, distances=TREE)
    assert near.bound_holds
    by_flat = TREE.weight_by_distance(graph.u, graph.v, graph.w, flat.slot)
    assert near.weight_by_distance[:3].sum() > 0.9 * graph.weight
    assert near.weight_by_distance[:2].sum() > by_flat[:2].sum()
    assert near.weight_by_distance @ COSTS < by_flat @ COSTS


def test_weight_by_distance_adds_up() -> None:
    graph = blocks(seed=1, groups=4, keys_each=20, pairs=2_000, mixing=0.3)
    plan = partition(graph, 8, distances=TREE)
    assert plan.weight_by_distance.sum() == pytest.approx(graph.weight)
    assert plan.weight_by_distance[0] == pytest.approx(plan.locality * graph.weight)
    alone = partition(graph, 8)
    assert alone.weight_by_distance[1:].sum() == pytest.approx((1 - alone.locality) * graph.weight)


@given(key_graphs(), st.integers(0, 99))
@examples(60)
def test_refinement_never_raises_the_cost(graph: KeyGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 8, graph.vertices).astype(np.int32)
    cap = np.maximum(1.1 * graph.total / 8, graph.loads(start, 8).max(axis=1, initial=0))
    game = board(graph, start, 8, cap, TREE.cost)
    saved = refine(game, rng.permutation(graph.vertices))
    before, after = (
        TREE.weight_by_distance(graph.u, graph.v, graph.w, s) @ COSTS for s in (start, game.slot)
    )
    assert before - after == pytest.approx(saved, abs=1e-6)
    assert saved >= 0


@given(key_graphs(), st.integers(0, 99))
@examples(40)
def test_names_are_a_permutation_and_no_swap_would_help(graph: KeyGraph, seed: int) -> None:
    tree = Distances.of(["a", "a", "b", "b"], {"a": "r", "b": "s"})
    part = np.random.default_rng(seed).integers(0, 4, graph.vertices).astype(np.int32)
    named = nearest_names(graph, part, tree)
    pairs = set(zip(part.tolist(), named.tolist()))
    assert len(pairs) == len(set(part.tolist())) == len({b for _, b in pairs})

    def cost(placed: np.ndarray) -> float:
        return float(tree.weight_by_distance(graph.u, graph.v, graph.w, placed) @ COSTS)

    best = min(cost(np.array(p, np.int32)[part]) for p in permutations(range(4)))
    assert best - 1e-9 <= cost(named) <= cost(part) + 1e-9
    for p in range(4):
        for q in range(p):
            swap = np.arange(4, dtype=np.int32)
            swap[[p, q]] = q, p
            assert cost(swap[named]) >= cost(named) - 1e-6


def test_a_given_placement_can_be_described_with_distances() -> None:
    graph = blocks(seed=1, groups=4, keys_each=20, pairs=2_000, mixing=0.3)
    start = (np.arange(graph.vertices) % 8).astype(np.int32)
    found = describe(graph, start, 8, distances=TREE)
    assert improve(graph, start, 8, distances=TREE).weight_by_distance @ COSTS < (
        found.weight_by_distance @ COSTS
    )
