"""Minimum-ratio cuts: the two sides of a graph with the least traffic for their weights.

The ratio of a cut is cut(A, B) / (w(A) w(B)). The best one is hard to find (sparsest cut), so we
look where it usually is:

- The spectral sweep: vertices in the order of an eigenvector of the Laplacian, which is the relaxed
  problem, and the best of the cuts between two neighbours in that order. Two such orders are tried.
  It may cut off a small piece, if the ratio asks for it.
- METIS bisections, allowed to be more and less even, where a graph is too large for eigenvectors.

A graph that falls apart is divided between its pieces. Deterministic for a seed; both sides have
vertices, and vertex 0 is on the first.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from headgate.arrays import F64, I64, Bools
from headgate.planner.first_cut import cut_graph

SPECTRAL_MAX = 1_000
"""Vertices up to which eigenvectors are taken: a fifth of a second."""
ORDERS = 2
ALPHAS = (1.03, 1.25, 1.5, 1.75)
LIGHTEST = 1e-6
"""A vertex weighs at least that share of the mean, so that no side has weight 0."""


def minimum_ratio_cut(weight: F64, u: I64, v: I64, w: F64, seed: int = 0) -> Bools:
    """Which vertices are on the first side. There must be two or more.

    Examples:
        >>> ends = np.array([0, 1, 2]), np.array([1, 2, 3])
        >>> minimum_ratio_cut(np.ones(4), *ends, np.array([9.0, 1.0, 9.0])).tolist()
        [True, True, False, False]
    """
    count = len(weight)
    mean = float(weight.mean())
    weight = np.maximum(weight, mean * LIGHTEST) if mean > 0 else np.ones(count)
    piece = _pieces(count, u, v, w)
    if piece.max() > 0:  # nothing has to be cut
        found = [_halves(np.bincount(piece, weight).astype(np.float64))[piece]]
    elif count > SPECTRAL_MAX:
        found = [_metis(weight, u, v, w, alpha, seed) for alpha in ALPHAS]
    else:
        found = [_sweep(order, weight, u, v, w) for order in _orders(weight, u, v, w)]
    best = min(found, key=lambda side: ratio(side, weight, u, v, w))
    return best if best[0] else ~best


def ratio(side: Bools, weight: F64, u: I64, v: I64, w: F64) -> float:
    """Traffic that crosses, over the product of the weights of the two sides."""
    product = float(weight[side].sum()) * float(weight[~side].sum())
    return float(w[side[u] != side[v]].sum()) / product if product > 0 else np.inf


def _pieces(count: int, u: I64, v: I64, w: F64) -> I64:
    tied = w > 0
    graph = coo_array((w[tied], (u[tied], v[tied])), shape=(count, count))
    label: I64 = connected_components(graph, directed=False)[1].astype(np.int64)
    return label


def _halves(weight: F64) -> Bools:
    """Two sides that weigh about the same: the heaviest first, each to the lighter side."""
    side, on = np.zeros(len(weight), np.bool_), [0.0, 0.0]
    for i in np.argsort(-weight, kind="stable"):
        first = on[0] <= on[1]
        side[i] = first
        on[0 if first else 1] += float(weight[i])
    return side


def _orders(weight: F64, u: I64, v: I64, w: F64) -> list[I64]:
    """Vertices by the smoothest vectors on the graph, those of the smallest eigenvalues above 0."""
    count = len(weight)
    ties = np.zeros((count, count))
    np.add.at(ties, (u, v), w)
    ties += ties.T
    np.fill_diagonal(ties, 0.0)
    scale = 1.0 / np.sqrt(weight / weight.mean())
    laplacian = (np.diag(ties.sum(axis=1)) - ties) * np.outer(scale, scale)
    last = min(ORDERS, count - 1)
    _, vectors = scipy.linalg.eigh(laplacian, subset_by_index=[1, last])
    return [np.argsort(vectors[:, i] * scale, kind="stable") for i in range(last)]


def _sweep(order: I64, weight: F64, u: I64, v: I64, w: F64) -> Bools:
    """The best cut into the first so many of an order, and the rest."""
    count = len(order)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    first, last = np.minimum(place[u], place[v]), np.maximum(place[u], place[v])
    opened = np.bincount(first, w, count) - np.bincount(last, w, count)
    crossing = np.maximum(np.cumsum(opened)[:-1], 0.0)
    left = np.cumsum(weight[order])[:-1]
    best = int(np.argmin(crossing / (left * (weight.sum() - left))))
    side: Bools = place <= best
    return side


def _metis(weight: F64, u: I64, v: I64, w: F64, alpha: float, seed: int) -> Bools:
    side: Bools = cut_graph(len(weight), u, v, w, weight, 2, alpha, seed) == 0
    return side if side.any() and not side.all() else _halves(weight)
