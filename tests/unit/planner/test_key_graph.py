from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, key_graphs, keys, weights

from headgate.errors import HeadgateError
from headgate.planner.key_graph import FREE, KeyGraph, placement, to_tables
from headgate.planner.partition import partition
from headgate.routing.table import hash_table
from strategies import examples


def chain() -> KeyGraph:
    return KeyGraph.build(
        ["a", "b", "c"],
        [
            (0, 1, keys(5, 5, 6), keys(1, 2, 1), weights(3, 4, 5)),
            (1, 2, keys(1, 1, 2), keys(9, 8, 9), weights(4, 4, 4)),
        ],
    )


def test_a_key_in_the_middle_of_a_chain_is_counted_once() -> None:
    graph = chain()
    assert graph.h.tolist() == [5, 6, 1, 2, 8, 9]
    assert graph.load.tolist() == [7, 5, 8, 4, 4, 8]
    assert graph.total.tolist() == [12, 12, 12]


def test_a_row_that_goes_to_two_consumers_loads_its_key_once() -> None:
    graph = KeyGraph.build(
        ["a", "b", "c"],
        [
            (0, 1, keys(1, 1), keys(1, 2), weights(3, 4)),
            (0, 2, keys(1), keys(7), weights(7)),
        ],
    )
    assert graph.total.tolist() == [7, 7, 7]


def test_rows_of_two_producers_add_up() -> None:
    graph = KeyGraph.build(
        ["a", "b", "c"],
        [(0, 2, keys(1), keys(7), weights(3)), (1, 2, keys(1), keys(7), weights(4))],
    )
    assert graph.total.tolist() == [3, 4, 7]


def test_equal_pairs_are_added_up() -> None:
    one = (0, 1, keys(1, 2, 1), keys(3, 3, 3), weights(1, 1, 2))
    graph = KeyGraph.build(["a", "b"], [one, one])
    assert graph.w.tolist() == [6, 2]


def test_measured_loads_win_and_bring_keys_without_pairs() -> None:
    pairs = [(0, 1, keys(1), keys(2), weights(5))]
    graph = KeyGraph.build(["a", "b"], pairs, {0: (keys(1, 4), weights(9, 2))})
    assert graph.h.tolist() == [1, 4, 2]
    assert graph.load.tolist() == [9, 2, 5]


def test_source_partitions_are_fixed_and_weigh_nothing() -> None:
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, keys(0, 1), keys(8, 8), weights(3, 4))],
        fixed={0: (keys(0, 1, 2), np.array([0, 1, 1], np.int32))},
    )
    assert graph.fixed.tolist() == [0, 1, 1, FREE]
    assert graph.load.tolist() == [0, 0, 0, 7]


def test_a_source_partition_without_a_slot_is_refused() -> None:
    with pytest.raises(HeadgateError, match="no fixed slot"):
        KeyGraph.build(
            ["source", "a"],
            [(0, 1, keys(0, 3), keys(8, 8), weights(3, 4))],
            fixed={0: (keys(0), np.zeros(1, np.int32))},
        )


def test_locality_and_loads_of_a_placement() -> None:
    graph = chain()
    slot = np.array([0, 1, 0, 1, 1, 0], np.int32)
    assert graph.locality(slot) == (3 + 4) / 24
    assert graph.loads(slot, 2).tolist() == [[7, 5], [8, 4], [8, 4]]
    assert graph.imbalance(slot, 2).tolist() == [7 / 6, 8 / 6, 8 / 6]


def test_an_empty_graph_has_no_row_to_send() -> None:
    graph = KeyGraph.build(["a", "b"], [])
    nothing = np.empty(0, np.int32)
    assert graph.locality(nothing) == 1
    assert graph.imbalance(nothing, 3).tolist() == [1, 1]
    assert graph.adjacency.starts.tolist() == [0]


def test_top_edges_keeps_the_heaviest_pairs() -> None:
    kept = chain().top_edges(2)
    assert kept.w.tolist() == [4, 5]
    assert kept.h.tolist() == [5, 6, 1, 2]
    assert kept.load.tolist() == [4, 5, 5, 4]


@given(key_graphs(), st.integers(0, 30))
@examples(100)
def test_shape(graph: KeyGraph, k: int) -> None:
    for part in (graph, graph.top_edges(k)):
        place = list(zip(part.op.tolist(), part.h.tolist()))
        assert place == sorted(set(place))
        ties = list(zip(part.u.tolist(), part.v.tolist()))
        assert ties == sorted(set(ties))
        starts, other, weight = part.adjacency
        assert starts[-1] == len(other) == len(weight) == 2 * part.edges
        both = np.bincount(part.u, part.w, part.vertices) + np.bincount(
            part.v, part.w, part.vertices
        )
        mine = np.repeat(np.arange(part.vertices), np.diff(starts))
        assert np.allclose(np.bincount(mine, weight, part.vertices), both)
    assert graph.top_edges(k).weight == pytest.approx(np.sort(graph.w)[::-1][:k].sum())


GRAPH = blocks(seed=3, groups=7, keys_each=50, pairs=3_000, mixing=0.3)


def test_every_placed_key_has_an_entry_and_is_routed_to_it() -> None:
    plan = partition(GRAPH, 6)
    tables = to_tables(GRAPH, plan.slot, 6)
    assert sorted(tables) == ["a", "b"]
    assert sum(len(t.pinned_h) for t in tables.values()) == GRAPH.vertices
    assert np.array_equal(placement(GRAPH, tables), plan.slot)


def test_a_cap_keeps_the_hottest_and_hashes_the_rest() -> None:
    plan = partition(GRAPH, 6)
    table = to_tables(GRAPH, plan.slot, 6, cap=20)["b"]
    mine = np.flatnonzero(GRAPH.op == 1)
    hottest = mine[np.argsort(-GRAPH.load[mine], kind="stable")[:20]]
    assert sorted(table.pinned_h) == sorted(GRAPH.h[hottest])
    others = np.setdiff1d(mine, hottest)
    assert np.array_equal(table.route(GRAPH.h[others]), hash_table(6).route(GRAPH.h[others]))


def test_a_source_has_no_table() -> None:
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, keys(0, 1), keys(8, 9), weights(3, 4))],
        fixed={0: (keys(0, 1), np.array([0, 1], np.int32))},
    )
    plan = partition(graph, 2)
    tables = to_tables(graph, plan.slot, 2)
    assert sorted(tables) == ["a"]
    assert np.array_equal(placement(graph, tables), plan.slot)


@given(key_graphs(), st.integers(1, 5))
@examples(40)
def test_back_and_forth(graph: KeyGraph, slots: int) -> None:
    plan = partition(graph, slots)
    first = to_tables(graph, plan.slot, slots)
    assert np.array_equal(placement(graph, first), plan.slot)
