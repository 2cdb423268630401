from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, key_graphs, keys, weights

from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition
from headgate.planner.tables import placement, to_tables
from headgate.routing.table import hash_table
from strategies import examples

GRAPH = blocks(seed=3, groups=7, keys_each=50, pairs=3_000, mixing=0.3)


def test_every_placed_key_has_an_entry_and_is_routed_to_it() -> None:
    plan = partition(GRAPH, 6)
    tables = to_tables(GRAPH, plan, 6)
    assert sorted(tables) == ["a", "b"]
    assert sum(len(t.pinned_h) for t in tables.values()) == GRAPH.vertices
    assert np.array_equal(placement(GRAPH, tables), plan.slot)
    assert np.array_equal(placement(GRAPH, list(tables.values())), plan.slot)


def test_a_cap_keeps_the_hottest_and_hashes_the_rest() -> None:
    plan = partition(GRAPH, 6)
    table = to_tables(GRAPH, plan, 6, cap=20)["b"]
    mine = np.flatnonzero(GRAPH.op == 1)
    hottest = mine[np.argsort(-GRAPH.load[mine], kind="stable")[:20]]
    assert sorted(table.pinned_h) == sorted(GRAPH.h[hottest])
    others = np.setdiff1d(mine, hottest)
    assert np.array_equal(table.route(GRAPH.h[others]), hash_table(6).route(GRAPH.h[others]))


def test_entries_of_keys_unknown_to_the_plan_stay_while_there_is_room() -> None:
    graph = KeyGraph.build(["a", "b"], [(0, 1, keys(1), keys(2), weights(5))])
    table = hash_table(4)
    elsewhere = (table.route(keys(8, 9)) + np.array([1, 0])) % 4  # 8 differs from its hash
    old = {"a": table.pin_hashes(keys(1, 8, 9), np.array([3, *elsewhere], np.int32))}
    slot = np.array([2, 2], np.int32)
    kept = to_tables(graph, slot, 4, old)
    assert kept["a"].pinned_h.tolist() == [1, 8, 9]
    assert kept["a"].route(keys(1, 8, 9)).tolist() == [2, *elsewhere]
    assert kept["a"].version == old["a"].version + 1
    assert to_tables(graph, slot, 4, old, cap=2)["a"].pinned_h.tolist() == [1, 8]
    assert to_tables(graph, slot, 4, old, keep=False)["a"].pinned_h.tolist() == [1]


def test_buckets_are_kept() -> None:
    graph = KeyGraph.build(["a", "b"], [(0, 1, keys(1), keys(2), weights(5))])
    owners = np.random.default_rng(0).integers(0, 4, 1024).astype(np.int32)
    old = {"b": hash_table(4).with_buckets(owners)}
    new = to_tables(graph, np.array([0, 1], np.int32), 4, old)["b"]
    assert np.array_equal(new.bucket_slots, owners)


def test_a_source_has_no_table() -> None:
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, keys(0, 1), keys(8, 9), weights(3, 4))],
        fixed={0: (keys(0, 1), np.array([0, 1], np.int32))},
    )
    plan = partition(graph, 2)
    tables = to_tables(graph, plan, 2)
    assert sorted(tables) == ["a"]
    assert np.array_equal(placement(graph, tables), plan.slot)


@given(key_graphs(), st.integers(1, 5))
@examples(40)
def test_back_and_forth(graph: KeyGraph, slots: int) -> None:
    plan = partition(graph, slots)
    first = to_tables(graph, plan, slots)
    assert np.array_equal(placement(graph, first), plan.slot)
    again = to_tables(graph, plan, slots, first)
    assert all(again[name].same_routes(first[name]) for name in first)
