"""First cuts of a key graph, by METIS or Mt-KaHyPar; `partition` repairs and refines them.

METIS (Karypis and Kumar 1998) balances one number per vertex, and takes integers, so each
operator's loads are scaled to the same total. Fixed vertices are unknown to METIS: those of one
slot are drawn together into one *anchor* vertex, heavy enough that no two anchors fit into one
part. Mt-KaHyPar cuts a little better and takes longer; it is optional.

An operator may have instances in some slots only (`allowed`). METIS is then told what all operators
together put into each slot if each is even over its own, so that keys which belong together fit
into the slots that their operators share. Keys may still come to slots of other operators.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import pymetis

from headgate.arrays import F64, I32, I64, Bools
from headgate.errors import HeadgateError
from headgate.planner.key_graph import FREE, KeyGraph, adjacency_of

Quality = Literal["metis", "mt-kahypar"]

TOTAL = float(1 << 28)  # of integer weights: METIS adds both directions of an edge in 32 bits
MANY_EDGES = 500_000  # above it METIS makes 3 of its 10 rounds: a third less time, measured
ANCHOR_SHARES = 3  # weight of an anchor: two in one part would have 6 shares where the mean is 4
FEWEST_KEYS_PER_SLOT = 4  # with fewer METIS leaves parts empty, and complains on stdout


def first_cut(
    graph: KeyGraph,
    slots: int,
    alpha: float,
    seed: int,
    quality: Quality,
    allowed: Bools | None = None,
) -> I32:
    """A part for every vertex; a graph too small to cut is dealt out."""
    if quality == "mt-kahypar":
        return mt_kahypar_parts(graph, slots, alpha=alpha, seed=seed)
    if suits_metis(graph, slots):
        return metis_parts(graph, slots, alpha=alpha, seed=seed, allowed=allowed)
    return np.random.default_rng(seed).integers(0, slots, graph.vertices).astype(np.int32)


def suits_metis(graph: KeyGraph, slots: int) -> bool:
    """Is there something to cut, and enough of it?"""
    return slots > 1 and graph.weight > 0 and graph.vertices >= FEWEST_KEYS_PER_SLOT * slots


def metis_parts(
    graph: KeyGraph, slots: int, *, alpha: float, seed: int, allowed: Bools | None = None
) -> I32:
    """A part for every vertex, numbered so that fixed vertices have their slot.

    Deterministic for a seed. Balanced to about alpha over all operators together, no more: with
    `allowed`, each slot gets what its operators put there if each is even over its own slots.
    Their keys may be in other slots all the same.
    """
    load = equal_operators(graph)
    anchored = bool((graph.fixed != FREE).any())
    tied = graph.w > 0
    u, v, w = graph.u[tied], graph.v[tied], graph.w[tied]
    at, spread = np.arange(graph.vertices), alpha
    if allowed is not None and not anchored:
        busy = graph.total > 0
        share = (allowed / allowed.sum(axis=1, keepdims=True))[busy | ~busy.any()].sum(axis=0)
        there = np.flatnonzero(share).astype(np.int32)  # some slots may have none of them
        part = cut_graph(len(load), u, v, w, load, len(there), alpha, seed, share[there])
        return there[part]
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
    whole = np.rint(values * (TOTAL / total if total > 0 else 1.0))
    return np.maximum(whole, least).astype(np.int32)


def _with_anchors(graph: KeyGraph, slots: int, load: F64, alpha: float) -> tuple[I64, F64, float]:
    """Where each vertex goes when fixed ones are merged, the loads then, and the alpha then.

    The anchors are the last `slots` vertices.
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
    share: F64 | None = None,
) -> I32:
    """A part for every vertex of a plain graph, balanced by load to about alpha.

    `share` is what each part should get, in any unit; without it all get the same.
    """
    kind = pymetis.zero_copy_dtype()
    starts, other, weight = adjacency_of(vertices, u, v, scaled(w, 1).astype(np.float64))
    options = pymetis.Options(
        seed=(seed + 1) % (1 << 31),  # 0 and 1 are the same to srand()
        ufactor=max(1, round((alpha - 1) * 1000)),
        numbering=0,
    )
    if len(w) > MANY_EDGES:
        options.niter = 3
    result = pymetis.part_graph(
        slots,
        pymetis.CSRAdjacency(starts.astype(kind), other.astype(kind)),
        vweights=scaled(load, 0).astype(kind),
        eweights=weight.astype(kind),
        tpwgts=None if share is None else (share / share.sum()).tolist(),
        recursive=False,  # k-way cuts were 1-5 points more local here, at equal cost
        options=options,
    )
    return np.asarray(result.vertex_part, np.int32)


def mt_kahypar_parts(graph: KeyGraph, slots: int, *, alpha: float, seed: int) -> I32:
    """A part for every vertex, fixed ones in theirs; deterministic for a seed.

    Balanced to about alpha over all operators together. Graphs too small to cut are dealt out.
    """
    library, runtime = _start()
    if not suits_metis(graph, slots):
        dealt = (np.arange(graph.vertices) % slots).astype(np.int32)
        return np.where(graph.fixed != FREE, graph.fixed, dealt).astype(np.int32)
    # Its deterministic presets take no notice of a seed: vertices are renumbered by it instead.
    order = np.random.default_rng(seed).permutation(graph.vertices)
    at = np.argsort(order)
    context = runtime.context_from_preset(library.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(slots, alpha - 1, library.Objective.CUT)
    context.logging = False
    tied = graph.w > 0
    ends = np.stack([at[graph.u[tied]], at[graph.v[tied]]], axis=1)
    solver_graph = runtime.create_graph(
        context,
        graph.vertices,
        len(ends),
        list(map(tuple, ends.tolist())),
        scaled(equal_operators(graph), 1)[order].tolist(),
        scaled(graph.w[tied], 1).tolist(),
    )
    if (graph.fixed != FREE).any():
        solver_graph.add_fixed_vertices(graph.fixed[order].tolist(), slots)
    return np.asarray(solver_graph.partition(context).get_partition(), np.int32)[at]


@cache
def _start() -> tuple[Any, Any]:
    try:
        import mtkahypar
    except ImportError as missing:
        raise HeadgateError(
            "quality mode needs Mt-KaHyPar, which is not installed; "
            'pip install "headgate[quality]", or plan with quality="metis"',
            extra="quality",
        ) from missing
    return mtkahypar, mtkahypar.initialize(2)  # threads
