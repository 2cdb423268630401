"""Walks over rows of neighbours as machine code; a module apart, so that numba is loaded late."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def strongest(starts, other, weight):  # type: ignore[no-untyped-def]
    partner = np.full(len(starts) - 1, -1, np.int64)
    bond, total = np.zeros(len(partner)), np.zeros(len(partner))
    for a in range(len(partner)):
        for e in range(starts[a], starts[a + 1]):
            total[a] += weight[e]
            if partner[a] < 0 or weight[e] >= bond[a]:
                partner[a], bond[a] = other[e], weight[e]
    return partner, bond, total


@njit(cache=True)
def toward(starts, other, weight, place, places):  # type: ignore[no-untyped-def]
    found = np.zeros((len(starts) - 1, places))
    for a in range(len(found)):
        for e in range(starts[a], starts[a + 1]):
            found[a, place[other[e]]] += weight[e]
    return found


@njit(cache=True)
def across(place, u, v, w):  # type: ignore[no-untyped-def]
    sent, got = np.zeros(len(place)), np.zeros(len(place))
    for e in range(len(w)):
        if place[u[e]] != place[v[e]]:
            sent[u[e]] += w[e]
            got[v[e]] += w[e]
    return sent + got


@njit(cache=True)
def apart(place, u, v, w, near):  # type: ignore[no-untyped-def]
    total = 0.0
    for e in range(len(w)):
        total += w[e] * (1.0 - near[place[u[e]], place[v[e]]])
    return total


@njit(cache=True)
def both_directions(vertices, u, v, w):  # type: ignore[no-untyped-def]
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
