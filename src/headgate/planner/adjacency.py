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


def strongest(edges: Adjacency) -> tuple[I64, F64, F64]:
    """For each vertex its heaviest partner, or -1, the weight of that edge and of all; O(edges)."""
    found: tuple[I64, F64, F64] = _strongest(edges.starts, edges.other, edges.weight)
    return found


def weight_toward(edges: Adjacency, place: npt.NDArray[np.int32], places: int) -> F64:
    """[vertex, place]: the weight between a vertex and all that is at a place; O(edges)."""
    found: F64 = _toward(edges.starts, edges.other, edges.weight, place, places)
    return found


def weight_across(place: npt.NDArray[np.int32], u: I64, v: I64, w: F64) -> F64:
    """The weight of the edges of each vertex whose other end is elsewhere; O(edges)."""
    found: F64 = _across(place, u, v, w)
    return found


def weight_apart(place: npt.NDArray[np.int32], u: I64, v: I64, w: F64, near: F64) -> float:
    """The weight of edges, each as far as its ends' places are not near (0 to 1); O(edges)."""
    return float(_apart(place, u, v, w, near))


@njit(cache=True)
def _strongest(starts, other, weight):  # type: ignore[no-untyped-def]
    partner = np.full(len(starts) - 1, -1, np.int64)
    bond, total = np.zeros(len(partner)), np.zeros(len(partner))
    for a in range(len(partner)):
        for e in range(starts[a], starts[a + 1]):
            total[a] += weight[e]
            if partner[a] < 0 or weight[e] >= bond[a]:
                partner[a], bond[a] = other[e], weight[e]
    return partner, bond, total


@njit(cache=True)
def _toward(starts, other, weight, place, places):  # type: ignore[no-untyped-def]
    found = np.zeros((len(starts) - 1, places))
    for a in range(len(found)):
        for e in range(starts[a], starts[a + 1]):
            found[a, place[other[e]]] += weight[e]
    return found


@njit(cache=True)
def _across(place, u, v, w):  # type: ignore[no-untyped-def]
    sent, got = np.zeros(len(place)), np.zeros(len(place))
    for e in range(len(w)):
        if place[u[e]] != place[v[e]]:
            sent[u[e]] += w[e]
            got[v[e]] += w[e]
    return sent + got


@njit(cache=True)
def _apart(place, u, v, w, near):  # type: ignore[no-untyped-def]
    total = 0.0
    for e in range(len(w)):
        total += w[e] * (1.0 - near[place[u[e]], place[v[e]]])
    return total


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
