"""Edges as rows of neighbours: the form in which solvers and kernels walk a graph.

Numba comes with it, so whoever only describes a graph imports it where it is called. Each kernel is
O(vertices + edges).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I64


class Adjacency(NamedTuple):
    """Who is tied to whom: the partners of vertex i are `other[starts[i]:starts[i + 1]]`."""

    starts: I64
    other: I64
    weight: F64


@njit(cache=True)
def strongest(edges):  # type: ignore[no-untyped-def]
    """For each vertex its heaviest partner, or -1, and the weight of all its edges."""
    starts, other, weight = edges
    partner = np.full(len(starts) - 1, -1, np.int64)
    bond, total = np.zeros(len(partner)), np.zeros(len(partner))
    for a in range(len(partner)):
        for e in range(starts[a], starts[a + 1]):
            total[a] += weight[e]
            if partner[a] < 0 or weight[e] >= bond[a]:
                partner[a], bond[a] = other[e], weight[e]
    return partner, total


@njit(cache=True)
def weight_toward(edges, place, places):  # type: ignore[no-untyped-def]
    """[vertex, place]: the weight between a vertex and all that is at a place."""
    starts, other, weight = edges
    found = np.zeros((len(starts) - 1, places))
    for a in range(len(found)):
        for e in range(starts[a], starts[a + 1]):
            found[a, place[other[e]]] += weight[e]
    return found


@njit(cache=True)
def weight_across(place, u, v, w):  # type: ignore[no-untyped-def]
    """The weight of the edges of each vertex whose other end is elsewhere."""
    sent, got = np.zeros(len(place)), np.zeros(len(place))
    for e in range(len(w)):
        if place[u[e]] != place[v[e]]:
            sent[u[e]] += w[e]
            got[v[e]] += w[e]
    return sent + got


@njit(cache=True)
def weight_apart(place, u, v, w, near):  # type: ignore[no-untyped-def]
    """The weight of edges, each as far as its ends' places are not near (0 to 1)."""
    total = 0.0
    for e in range(len(w)):
        total += w[e] * (1.0 - near[place[u[e]], place[v[e]]])
    return total


@njit(cache=True)
def adjacency_of(vertices, u, v, w):  # type: ignore[no-untyped-def]
    """Both directions of every edge, by a counting sort."""
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
    return Adjacency(starts, other, weight)
