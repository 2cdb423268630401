"""Edges as rows of neighbours: the form in which solvers and kernels walk a graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Adjacency(NamedTuple):
    """Who is tied to whom: the partners of vertex i are `other[starts[i]:starts[i + 1]]`."""

    starts: I64
    other: I64
    weight: F64


def adjacency_of(vertices: int, u: I64, v: I64, w: F64) -> Adjacency:
    """Both directions of every edge, by a counting sort; O(vertices + edges)."""
    return Adjacency(*_both_directions(vertices, u, v, w))


@njit(cache=True)
def _both_directions(vertices, u, v, w):  # type: ignore[no-untyped-def]
    starts = np.zeros(vertices + 1, np.int64)
    for e in range(len(w)):
        starts[u[e] + 1] += 1
        starts[v[e] + 1] += 1
    for i in range(vertices):
        starts[i + 1] += starts[i]
    at = starts[:-1].copy()
    other = np.empty(2 * len(w), np.int64)
    weight = np.empty(2 * len(w), np.float64)
    for e in range(len(w)):
        a, b = u[e], v[e]
        other[at[a]], weight[at[a]] = b, w[e]
        at[a] += 1
        other[at[b]], weight[at[b]] = a, w[e]
        at[b] += 1
    return starts, other, weight
