"""METIS as the first guess: a good cut of the whole graph, its balance only about right.

METIS (Karypis and Kumar 1998) balances one number per vertex, and takes integers. Each operator's
loads are scaled to the same total, so that all count alike; what METIS cannot promise, balance
per operator, is left to `repair`. Fixed vertices are unknown to METIS: those of one slot are drawn
together into one *anchor* vertex, heavy enough that no two anchors fit into one part.
"""

from __future__ import annotations

import numpy as np
import pymetis

from headgate.arrays import F64, I32, I64
from headgate.planner.adjacency import adjacency_of
from headgate.planner.key_graph import FREE, KeyGraph

TOTAL = float(1 << 28)
"""Sum of the integer weights: METIS counts in 32 bits, and adds both directions of an edge."""
MANY_EDGES = 500_000
ANCHOR_SHARES = 3
FEWEST_KEYS_PER_SLOT = 4
"""METIS leaves parts empty, and complains on stdout, when there are fewer."""


def suits_metis(graph: KeyGraph, slots: int) -> bool:
    """Is there something to cut, and enough of it?"""
    return slots > 1 and graph.weight > 0 and graph.vertices >= FEWEST_KEYS_PER_SLOT * slots


def metis_parts(graph: KeyGraph, slots: int, *, alpha: float, seed: int) -> I32:
    """A part for every vertex, numbered so that fixed vertices have their slot.

    Deterministic for a seed. Balanced to about alpha over all operators together, no more.
    """
    load = equal_operators(graph)
    anchored = bool((graph.fixed != FREE).any())
    tied = graph.w > 0
    u, v, w = graph.u[tied], graph.v[tied], graph.w[tied]
    at = np.arange(graph.vertices)
    spread = alpha
    if anchored:
        at, load, spread = _with_anchors(graph, slots, load, alpha)
        u, v = at[u], at[v]
        u, v, w = u[u != v], v[u != v], w[u != v]
    part = cut_graph(len(load), u, v, w, load, slots, spread, seed)
    if anchored:
        name = np.full(slots, -1, np.int32)
        name[part[-slots:]] = np.arange(slots, dtype=np.int32)
        if (name < 0).any():  # two anchors shared a part after all: name the rest as they come
            name[name < 0] = np.setdiff1d(np.arange(slots), name)
        part = name[part]
    return np.where(graph.fixed != FREE, graph.fixed, part[at]).astype(np.int32)


def equal_operators(graph: KeyGraph) -> F64:
    """Loads scaled so that every operator with load sums to 1."""
    return graph.load / np.where(graph.total > 0, graph.total, 1.0)[graph.op]


def scaled(values: F64, least: int) -> I32:
    """Integers in proportion to the values, with a sum near TOTAL and none below `least`."""
    total = float(values.sum())
    return np.maximum(np.rint(values * (TOTAL / total if total > 0 else 1.0)), least).astype(
        np.int32
    )


def _with_anchors(graph: KeyGraph, slots: int, load: F64, alpha: float) -> tuple[I64, F64, float]:
    """Where each vertex goes when fixed ones are merged, the loads then, and the alpha then.

    The anchors are the last `slots` vertices. With a weight of 3 mean shares, two in one part
    would weigh 6 shares where the mean is 4.
    """
    free = graph.fixed == FREE
    count = int(free.sum())
    at = np.where(free, np.cumsum(free) - 1, count + graph.fixed).astype(np.int64)
    share = float(load[free].sum()) / slots or 1.0
    merged = np.concatenate([load[free], np.full(slots, ANCHOR_SHARES * share)])
    return at, merged, (ANCHOR_SHARES + alpha) / (ANCHOR_SHARES + 1)


def cut_graph(
    vertices: int,
    u: I64,
    v: I64,
    w: F64,
    load: F64,
    slots: int,
    alpha: float,
    seed: int,
) -> I32:
    """A part for every vertex of a plain graph, balanced by load to about alpha."""
    kind = pymetis.zero_copy_dtype()
    starts, other, weight = adjacency_of(vertices, u, v, scaled(w, 1).astype(np.float64))
    options = pymetis.Options(
        seed=(seed + 1) % (1 << 31),  # 0 and 1 are the same to srand()
        ufactor=max(1, round((alpha - 1) * 1000)),
        numbering=0,
    )
    if len(w) > MANY_EDGES:
        options.niter = 3  # of 10: a third less time, and `refine` follows anyway
    result = pymetis.part_graph(
        slots,
        pymetis.CSRAdjacency(starts.astype(kind), other.astype(kind)),
        vweights=scaled(load, 0).astype(kind),
        eweights=weight.astype(kind),
        recursive=False,  # k-way cuts were 1-5 points more local here, at equal cost
        options=options,
    )
    return np.asarray(result.vertex_part, np.int32)
