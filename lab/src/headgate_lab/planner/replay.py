"""Planners to compare with in `headgate replay`: the paper's, and its lower bound.

The paper's (Caneill et al. 2016) is METIS from scratch, nothing repaired: once (offline), or each
period (online).
"""

from __future__ import annotations

import numpy as np
import pymetis

from headgate.arrays import I32
from headgate.offline.replay import FromScratch, ReplayOptions, hash_slots
from headgate.planner.first_cut import equal_operators, metis_parts, scaled, suits_metis
from headgate.planner.key_graph import KeyGraph
from headgate_lab.planner.baseline import plan_worst_case


def offline(options: ReplayOptions) -> FromScratch:
    """One plan of the first window, for good."""
    return FromScratch(options, _paper, once=True)


def online(options: ReplayOptions) -> FromScratch:
    """A plan from scratch each period."""
    return FromScratch(options, _paper)


def online_k_way(options: ReplayOptions) -> FromScratch:
    """The same, with METIS's other algorithm."""
    return FromScratch(options, _k_way)


def worst_case(options: ReplayOptions) -> FromScratch:
    """What goes together is sent apart."""
    return FromScratch(options, _apart)


def _paper(graph: KeyGraph, options: ReplayOptions) -> I32:
    """METIS alone, as pymetis calls it by default: bisection for up to eight parts, else k-way."""
    if not suits_metis(graph, options.slots):
        return hash_slots(graph, options)
    starts, other, weight = graph.adjacency
    kind = pymetis.zero_copy_dtype()
    found = pymetis.part_graph(
        options.slots,
        pymetis.CSRAdjacency(starts.astype(kind), other.astype(kind)),
        vweights=scaled(equal_operators(graph), 0).astype(kind),
        eweights=np.maximum(weight, 1).astype(kind),
        recursive=options.slots <= 8,
        options=pymetis.Options(
            seed=options.seed, ufactor=max(1, round((options.alpha - 1) * 1000)), numbering=0
        ),
    )
    return np.asarray(found.vertex_part, np.int32)


def _k_way(graph: KeyGraph, options: ReplayOptions) -> I32:
    """METIS alone, k-way: a little more local than bisection, and better balanced."""
    if not suits_metis(graph, options.slots):
        return hash_slots(graph, options)
    return metis_parts(graph, options.slots, alpha=options.alpha, seed=options.seed)


def _apart(graph: KeyGraph, options: ReplayOptions) -> I32:
    nowhere = np.zeros(graph.vertices, np.int32)
    slot = plan_worst_case(graph, nowhere, options.slots, seed=options.seed)
    assert slot is not None
    return slot
