"""Planners to compare with: what the paper measured against, and the paper itself.

A window planner is a pure function: the key graph of a window, where its keys are now, how many
plans were made before, and a seed, to a slot for every key of the graph, or None to leave all as it
is. Keys that are not in the graph are the business of the tables (`to_tables`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from headgate.arrays import I32
from headgate.planner.key_graph import FREE, KeyGraph, floors
from headgate.planner.partition import metis_parts, suits_metis
from headgate.planner.refine import board, refine, repair
from headgate.routing.table import hash_table

PAPER_ALPHA = 1.03


class WindowPlanner(Protocol):
    """Plans from one window at a time. `current` is the slot of every vertex now."""

    def __call__(
        self, graph: KeyGraph, current: I32, slots: int, *, plans_made: int = 0, seed: int = 0
    ) -> I32 | None: ...


def plan_hash(
    graph: KeyGraph, current: I32, slots: int, *, plans_made: int = 0, seed: int = 0
) -> I32 | None:
    """Plain fields grouping: 1/slots of the pairs meet by chance."""
    return np.where(graph.fixed != FREE, graph.fixed, hash_table(slots).route(graph.h)).astype(
        np.int32
    )


def plan_online(
    graph: KeyGraph, current: I32, slots: int, *, plans_made: int = 0, seed: int = 0
) -> I32 | None:
    """The paper's online planner: METIS from scratch each period (Caneill et al. 2016, 3.3).

    Balance is METIS's own: the sum over operators at alpha 1.03, neither repaired per operator
    nor renamed to spare moves. A window too small to cut is hashed.
    """
    if not suits_metis(graph, slots):
        return plan_hash(graph, current, slots)
    return metis_parts(graph, slots, alpha=PAPER_ALPHA, seed=seed)


def plan_offline(
    graph: KeyGraph, current: I32, slots: int, *, plans_made: int = 0, seed: int = 0
) -> I32 | None:
    """The paper's offline analysis: one plan from the first window, then never again."""
    return None if plans_made else plan_online(graph, current, slots, seed=seed)


def plan_worst_case(
    graph: KeyGraph, current: I32, slots: int, *, plans_made: int = 0, seed: int = 0
) -> I32 | None:
    """Pairs that go together are sent apart, balance kept: the paper's lower bound (4.2).

    A good plan with each operator turned on by one slot parts what was together; the same repair
    and refinement as always, with rows that stay as the cost, part what met by chance.
    """
    start = plan_online(graph, current, slots, seed=seed)
    assert start is not None
    turned = np.where(graph.fixed != FREE, graph.fixed, (start + graph.op) % slots)
    cap = np.maximum(PAPER_ALPHA, floors(graph, slots)) * graph.total / slots
    game = board(graph, turned.astype(np.int32), slots, cap, np.eye(slots))
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
    }
)
