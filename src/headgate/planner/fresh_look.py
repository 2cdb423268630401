"""Is a plan from scratch better than what is in force, and worth its moves?

A plan fits the chance of the rows it was made from, so these flatter it. For a plan that must save
its moves in a few epochs, half of what it promises is counted (`pays`). For one that is to last,
what it is worth on other rows is estimated (`worth_for_others`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headgate.arrays import F64, I32
from headgate.planner.distance import Distances
from headgate.planner.key_graph import KeyGraph, floors
from headgate.planner.placing import Task

ROWS_PER_MOVE = 2.0  # a key that moves is read, sent and written: more work than a row
KEPT = 0.5  # of a promised gain comes true: the plan fits the chance of what it was made from
ROOT = 2.0**0.5  # by so much less is off what twice as many rows say
BROKEN = 1.1  # balance counts as broken beyond so many bounds: what is remembered is only a sample


class Verdict(NamedTuple):
    """Is a plan worth its moves, why, and what broken balance has cost so far, in rows."""

    pays: bool
    why: str
    waited: float


def pays(
    graph: KeyGraph,
    current: I32,
    planned: I32,
    task: Task,
    tolerated: F64,
    rows: float,
    waited: float,
    distances: Distances | None = None,
) -> Verdict:
    """Is a plan worth its moves over the next rows?

    It is if what it saves exceeds what its moves cost, and balance does not break. It saves remote
    rows, and of those that stay remote what they travel less far; and where balance is broken, what
    the busiest slot has more than its share. How long that will go on nobody knows: as long again
    as it has, so a plan waits until what waiting has cost is what its moves cost.
    """
    moves = int((current != planned).sum())
    if not moves:
        return Verdict(False, "the plan moves nothing", waited)
    now, then = (worth(graph, x, distances) for x in (current, planned))
    then = now + KEPT * (then - now)
    gain, cost = (then - now) * rows, moves * ROWS_PER_MOVE
    saves = f"{'saves' if gain >= 0 else 'adds'} {abs(gain):,.0f} remote rows"
    before, after = (graph.imbalance(x, task.slots, task.allowed) for x in (current, planned))
    bound = np.maximum(tolerated, floors(graph, task.slots, task.allowed)) * BROKEN
    was, becomes = float((before / bound).max()), float((after / bound).max())
    mends = was > 1 and becomes - 1 <= max(0.0, (was - 1) / 2)
    waited = waited + float(before.max() - after.max()) * rows if mends else 0.0
    if not mends and becomes <= max(1.0, was):
        return Verdict(
            gain > cost,
            f"locality {now:.2f} -> {then:.2f} for the next {rows:,.0f} rows {saves}; "
            f"moving {moves:,} keys costs {cost:,.0f}",
            waited,
        )
    i = int(np.argmax((before if mends else after) / bound))
    return Verdict(
        mends and gain + waited > cost,
        f"max/mean load of {graph.operators[i]} {before[i]:.2f} -> {after[i]:.2f} (allowed "
        f"{bound[i]:.2f}), which has cost {waited:,.0f} rows; moving {moves:,} keys costs "
        f"{cost:,.0f} rows, {saves}",
        waited,
    )


def worth_for_others(
    graph: KeyGraph,
    planned: I32,
    plan: Callable[[KeyGraph], I32],
    seed: int,
    distances: Distances | None = None,
) -> float:
    """What a plan of these rows is worth on rows that it was not made from; `plan` makes such.

    What a plan is worth on its own rows falls, and what it is worth on others rises, as it is made
    from more rows; both come to the same in the end, and are off by about one over the root of the
    rows. So the rows are dealt into two halves: with what a plan of one is worth on either, and a
    plan of both on its own, it is known what the plan of both is worth on others. Where keys meet
    by chance that is what any plan is worth.
    """
    pieces = np.ceil(graph.w).astype(np.int64)  # an aged count, as if of so many rows
    dealt = np.random.default_rng([seed, graph.edges]).binomial(pieces, 0.5)
    one = graph.w * dealt / np.maximum(pieces, 1)
    half, other = replace(graph, w=one), replace(graph, w=graph.w - one)
    of_half = plan(half)
    own, unseen = worth(half, of_half, distances), worth(other, of_half, distances)
    of_all = worth(graph, planned, distances)
    in_the_end = of_all - (own - of_all) / (ROOT - 1)
    return in_the_end - (in_the_end - unseen) / ROOT


def worth(graph: KeyGraph, slot: I32, distances: Distances | None) -> float:
    """Share of the rows that stay in their slot, or what is saved of their way."""
    if distances is None:
        return graph.locality(slot)
    return distances.worth(graph.u, graph.v, graph.w, slot)
