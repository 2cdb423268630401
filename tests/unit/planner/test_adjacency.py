"""Kernels of graphs against loops over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.adjacency import (
    adjacency_of,
    strongest,
    weight_across,
    weight_apart,
    weight_toward,
)


@settings(max_examples=40, deadline=None)
@given(
    vertices=st.integers(1, 8),
    edges=st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 7)), st.integers(0, 4)),
    place=st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
def test_each_sum_is_that_of_a_loop(vertices, edges, place):
    edges = {(a, b): w for (a, b), w in edges.items() if a < b < vertices}
    u = np.array([a for a, _ in edges], np.int64)
    v = np.array([b for _, b in edges], np.int64)
    w = np.array(list(edges.values()), float)
    at = np.array(place[:vertices], np.int32)
    near = np.array([[1, 0.5, 0], [0.5, 1, 0.25], [0, 0.25, 1]])
    across, toward, apart = np.zeros(vertices), np.zeros((vertices, 3)), 0.0
    for (a, b), weight in edges.items():
        toward[a, at[b]] += weight
        toward[b, at[a]] += weight
        apart += weight * (1 - near[at[a], at[b]])
        if at[a] != at[b]:
            across[[a, b]] += weight
    both = adjacency_of(vertices, u, v, w)
    partner, total = strongest(both)

    assert weight_across(at, u, v, w).tolist() == across.tolist()
    assert weight_apart(at, u, v, w, near) == pytest.approx(apart)
    assert weight_toward(both, at, 3).tolist() == toward.tolist()
    assert total.tolist() == toward.sum(axis=1).tolist()
    for a in range(vertices):
        mine = {b if a == c else c: x for (c, b), x in edges.items() if a in (c, b)}
        assert mine[partner[a]] == max(mine.values()) if mine else partner[a] == -1
