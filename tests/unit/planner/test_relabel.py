from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, keys, weights

from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition
from headgate.planner.relabel import best_matching, relabel
from strategies import examples


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n))
)
@examples(150)
def test_no_matching_is_better(values: list[int]) -> None:
    n = round(len(values) ** 0.5)
    gain = np.array(values, float).reshape(n, n)
    match = best_matching(gain)
    assert sorted(match.tolist()) == list(range(n))
    best = max(gain[np.arange(n), list(p)].sum() for p in permutations(range(n)))
    assert gain[np.arange(n), match].sum() == pytest.approx(best)


def test_nothing_to_match() -> None:
    assert best_matching(np.empty((0, 0))).tolist() == []


def test_large_matrices_match_a_hidden_permutation() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.permutation(60)
    gain = rng.random((60, 60))
    gain[np.arange(60), hidden] += 2
    assert np.array_equal(best_matching(gain), hidden)


def test_a_renamed_plan_is_named_back() -> None:
    graph = blocks(seed=3, groups=7, keys_each=50, pairs=3_000, mixing=0.3)
    plan = partition(graph, 6).slot
    other_names = np.array([3, 5, 0, 1, 4, 2], np.int32)[plan]
    assert np.array_equal(relabel(graph, other_names, plan, 6), plan)


def test_parts_with_fixed_vertices_keep_their_names() -> None:
    graph = KeyGraph.build(
        ["source", "a"],
        [(0, 1, keys(0, 0, 0), keys(7, 8, 9), weights(1, 5, 5))],
        fixed={0: (keys(0), np.array([0], np.int32))},
    )
    plan = np.array([0, 0, 1, 2], np.int32)
    current = np.array([0, 1, 2, 1], np.int32)
    assert relabel(graph, plan, current, 3).tolist() == [0, 0, 2, 1]
