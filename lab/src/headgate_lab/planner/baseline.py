"""Planners to compare with: what the paper measured against, and the paper itself.

A window planner is a pure function: the key graph of a window, where its keys are now, how many
plans were made before, and a seed, to a slot for every key of the graph, or None to leave all as it
is. Keys that are not in the graph are the business of the tables (`to_tables`). The papers know
operators with an instance in every slot only. Where that is not so (`allowed`), keys that a plan
gives to other slots come to the cheapest of their operator's own with room.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pymetis

from headgate.arrays import I32, Bools
from headgate.planner.first_cut import equal_operators, metis_parts, scaled, suits_metis
from headgate.planner.key_graph import FREE, KeyGraph
from headgate.planner.partition import caps
from headgate.planner.refine import board, refine, repair
from headgate.routing.table import hash_table

PAPER_ALPHA = 1.03
BISECTED_MAX = 8  # parts; above it METIS's own programs and pymetis cut k ways


class WindowPlanner(Protocol):
    """Plans from one window at a time. `current` is the slot of every vertex now."""

    def __call__(
        self,
        graph: KeyGraph,
        current: I32,
        slots: int,
        *,
        alpha: float = PAPER_ALPHA,
        plans_made: int = 0,
        seed: int = 0,
        allowed: Bools | None = None,
    ) -> I32 | None: ...


def plan_hash(
    graph: KeyGraph,
    current: I32,
    slots: int,
    *,
    alpha: float = PAPER_ALPHA,
    plans_made: int = 0,
    seed: int = 0,
    allowed: Bools | None = None,
) -> I32 | None:
    """Plain fields grouping: 1/slots of the pairs meet by chance."""
    slot = hash_table(slots).route(graph.h)
    if allowed is not None:
        for i, own in enumerate(allowed):
            mine, there = slice(graph.starts[i], graph.starts[i + 1]), np.flatnonzero(own)
            slot[mine] = there[hash_table(len(there)).route(graph.h[mine])]
    return np.where(graph.fixed != FREE, graph.fixed, slot).astype(np.int32)


def plan_online(
    graph: KeyGraph,
    current: I32,
    slots: int,
    *,
    alpha: float = PAPER_ALPHA,
    plans_made: int = 0,
    seed: int = 0,
    allowed: Bools | None = None,
) -> I32 | None:
    """The paper's online planner: METIS from scratch each period (Caneill et al. 2016, 3.3).

    Balance is METIS's own: the sum over operators within alpha, neither repaired per operator nor
    renamed to spare moves. METIS is called as pymetis does by default: bisection for up to eight
    parts, else k-way. A window too small to cut is hashed.
    """
    if not suits_metis(graph, slots):
        return plan_hash(graph, current, slots, allowed=allowed)
    if slots > BISECTED_MAX or allowed is not None or (graph.fixed != FREE).any():
        return plan_online_k_way(graph, current, slots, alpha=alpha, seed=seed, allowed=allowed)
    starts, other, weight = graph.adjacency
    kind = pymetis.zero_copy_dtype()
    found = pymetis.part_graph(
        slots,
        pymetis.CSRAdjacency(starts.astype(kind), other.astype(kind)),
        vweights=scaled(equal_operators(graph), 0).astype(kind),
        eweights=np.maximum(weight, 1).astype(kind),
        recursive=True,
        options=pymetis.Options(seed=seed, ufactor=max(1, round((alpha - 1) * 1000)), numbering=0),
    )
    return np.asarray(found.vertex_part, np.int32)


def plan_online_k_way(
    graph: KeyGraph,
    current: I32,
    slots: int,
    *,
    alpha: float = PAPER_ALPHA,
    plans_made: int = 0,
    seed: int = 0,
    allowed: Bools | None = None,
) -> I32 | None:
    """The same with METIS's other algorithm: a little more local, and better balanced."""
    if not suits_metis(graph, slots):
        return plan_hash(graph, current, slots, allowed=allowed)
    found = metis_parts(graph, slots, alpha=alpha, seed=seed, allowed=allowed)
    if allowed is None:
        return found
    return board(graph, found, slots, caps(graph, slots, alpha, allowed), allowed=allowed).slot


def plan_offline(
    graph: KeyGraph,
    current: I32,
    slots: int,
    *,
    alpha: float = PAPER_ALPHA,
    plans_made: int = 0,
    seed: int = 0,
    allowed: Bools | None = None,
) -> I32 | None:
    """The paper's offline analysis: one plan from the first window, then never again."""
    if plans_made:
        return None
    return plan_online(graph, current, slots, alpha=alpha, seed=seed, allowed=allowed)


def plan_worst_case(
    graph: KeyGraph,
    current: I32,
    slots: int,
    *,
    alpha: float = PAPER_ALPHA,
    plans_made: int = 0,
    seed: int = 0,
    allowed: Bools | None = None,
) -> I32 | None:
    """Pairs that go together are sent apart, balance kept: the paper's lower bound (4.2).

    A good plan with each operator turned on by one slot parts what was together; the same repair
    and refinement as always, with rows that stay as the cost, part what met by chance.
    """
    start = plan_online(graph, current, slots, alpha=alpha, seed=seed, allowed=allowed)
    assert start is not None
    turned = np.where(graph.fixed != FREE, graph.fixed, (start + graph.op) % slots)
    cap = caps(graph, slots, alpha, allowed)
    game = board(graph, turned.astype(np.int32), slots, cap, np.eye(slots), allowed)
    repair(game)
    np.maximum(game.cap, game.loads.max(axis=1, initial=0.0), out=game.cap)
    refine(game, np.random.default_rng(seed).permutation(graph.vertices))
    return game.slot


BASELINES: Mapping[str, WindowPlanner] = MappingProxyType(
    {
        "hash": plan_hash,
        "worst-case": plan_worst_case,
        "offline": plan_offline,
        "online": plan_online,
        "online-kway": plan_online_k_way,
    }
)
