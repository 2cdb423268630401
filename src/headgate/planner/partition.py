"""Placing keys: cut the key graph into slots, with the bound alpha held for every operator.

A solver gives a first cut, `repair` makes the balance hold per operator (the paper's definition,
Caneill et al. 2016, section 3.1), `refine` wins back locality under the caps. The cap of an
operator is max(alpha, floor) x mean load, where the floor is what the heaviest keys force. Several
seeds are tried while the graph is small, and the best is kept. The result is checked.

An operator may have instances in some slots only (`allowed`): keys that a cut gives to slots of
others come to the nearest of their own, and balance is counted over these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from headgate.arrays import F64, I32, I64, Bools
from headgate.errors import HeadgateError
from headgate.planner.distance import Distances
from headgate.planner.first_cut import Quality, first_cut
from headgate.planner.instances import instance_counts
from headgate.planner.key_graph import FREE, KeyGraph, floors, imbalance_of
from headgate.planner.refine import SLACK, board, refine, repair, spare_moves

MOST_TRIES = 8
EDGES_AFFORDED = 100_000  # of all tries together: they end within a fraction of a second


@dataclass(frozen=True)
class Partition:
    """A slot for every vertex of a key graph, and what it is worth on that graph."""

    operators: tuple[str, ...]
    slots: int
    slot: I32
    loads: F64
    floor: F64
    alpha: float
    locality: float
    weight_by_distance: F64
    method: str = "metis"
    allowed: Bools | None = None

    @property
    def imbalance(self) -> F64:
        """Max/mean slot load of each operator."""
        return imbalance_of(self.loads, self.allowed)

    @property
    def bound_holds(self) -> bool:
        """Is every operator within max(alpha, its floor)?"""
        return bool((self.imbalance <= np.maximum(self.alpha, self.floor) * (1 + 2 * SLACK)).all())

    def check(self, graph: KeyGraph) -> None:
        """Every vertex has one slot that exists, fixed ones theirs, and the sums are right."""
        wrong = None
        if self.slot.shape != (graph.vertices,):
            wrong = f"{len(self.slot)} placements for {graph.vertices} keys"
        elif graph.vertices and not (self.slot.min() >= 0 and self.slot.max() < self.slots):
            wrong = f"a slot outside 0..{self.slots - 1}"
        elif (bound := graph.fixed != FREE).any() and (self.slot != graph.fixed)[bound].any():
            wrong = "a fixed vertex was moved"
        elif self.allowed is not None and not self.allowed[graph.op, self.slot][~bound].all():
            wrong = "a key in a slot without an instance of its operator"
        elif not np.allclose(self.loads, graph.loads(self.slot, self.slots)):
            wrong = "loads that are not those of its placement"
        elif (self.imbalance < self.floor * (1 - 1e-6)).any():
            wrong = "an imbalance below its floor"
        if wrong:
            raise HeadgateError(f"the plan ({self.method}) has {wrong}; nothing was installed")


def partition(
    graph: KeyGraph,
    slots: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    quality: Quality = "metis",
    distances: Distances | None = None,
    tries: int | None = None,
    allowed: Bools | None = None,
) -> Partition:
    """Place every key so that few rows leave their slot and no operator exceeds its bound.

    Deterministic for (graph, slots, alpha, seed, quality, distances, tries, allowed). `tries` is
    the number of seeds, by default 8 for small graphs down to 1 for large ones, and 1 for
    Mt-KaHyPar. `allowed` ([operator, slot]) says who has an instance where, if not all everywhere.
    """
    _refuse(graph, slots, alpha, distances)
    if quality not in get_args(Quality):
        raise HeadgateError(f"no partitioner {quality!r}; there are {', '.join(get_args(Quality))}")
    if tries is None:
        affordable = EDGES_AFFORDED // max(graph.edges, 1)  # by size and not by clock
        tries = min(max(affordable, 1), MOST_TRIES) if quality == "metis" else 1
    best: tuple[tuple[float, float], Partition] | None = None
    for attempt in range(tries if slots > 1 else 1):
        start = first_cut(graph, slots, alpha, seed + 7919 * attempt, quality, allowed)
        if distances is not None and not (graph.fixed != FREE).any():
            start = nearest_names(graph, start, distances, allowed)
        found = improve(graph, start, slots, alpha, seed + attempt, distances, quality, allowed)
        over = float((found.imbalance / np.maximum(alpha, found.floor)).max(initial=1.0))
        cost = -found.locality
        if distances is not None:
            cost = float(found.weight_by_distance @ distances.costs)
        value = max(over, 1 + 2 * SLACK), cost
        if best is None or value < best[0]:
            best = value, found
    assert best is not None
    best[1].check(graph)
    return best[1]


def improve(
    graph: KeyGraph,
    slot: I32,
    slots: int,
    alpha: float = 1.03,
    seed: int = 0,
    distances: Distances | None = None,
    method: str = "improved",
    allowed: Bools | None = None,
) -> Partition:
    """Repair and refine any placement of the graph, such as the one that is in force."""
    start = np.where(graph.fixed != FREE, graph.fixed, slot).astype(np.int32)
    cost = None if distances is None else distances.cost
    game = board(graph, start, slots, caps(graph, slots, alpha, allowed), cost, allowed)
    repair(game)
    np.maximum(game.cap, game.loads.max(axis=1), out=game.cap)  # what gave way is not undone
    refine(game, np.random.default_rng(seed).permutation(graph.vertices))
    return describe(
        graph,
        game.slot,
        slots,
        alpha=alpha,
        distances=distances,
        method=method,
        allowed=allowed,
    )


def caps(graph: KeyGraph, slots: int, alpha: float, allowed: Bools | None = None) -> F64:
    """The load that every operator may put into one slot: alpha, or what its keys force."""
    most = np.maximum(alpha, floors(graph, slots, allowed))
    return most * graph.total / instance_counts(allowed, len(graph.operators), slots)


def describe(
    graph: KeyGraph,
    slot: I32,
    slots: int,
    *,
    alpha: float = 1.03,
    distances: Distances | None = None,
    method: str = "given",
    allowed: Bools | None = None,
) -> Partition:
    """What a placement is worth on a graph, nothing changed."""
    apart = distances or Distances.of(["host"] * slots)
    return Partition(
        graph.operators,
        slots,
        slot,
        graph.loads(slot, slots),
        floors(graph, slots, allowed),
        alpha,
        graph.locality(slot),
        apart.weight_by_distance(graph.u, graph.v, graph.w, slot),
        method,
        allowed,
    )


def _refuse(graph: KeyGraph, slots: int, alpha: float, distances: Distances | None) -> None:
    most = int(graph.fixed.max(initial=FREE))
    wrong = None
    if slots < 1:
        wrong = f"a partition into {slots} slots; it takes at least one"
    elif not alpha >= 1:
        wrong = f"alpha {alpha}: max/mean load is never below 1"
    elif most >= slots:
        wrong = f"a vertex is fixed to slot {most}, but there are {slots} slots"
    elif distances is not None and distances.slots != slots:
        wrong = f"distances between {distances.slots} slots for a partition into {slots}"
    if wrong:
        raise HeadgateError(wrong, slots=slots, alpha=alpha)


def nearest_names(
    graph: KeyGraph, part: I32, distances: Distances, allowed: Bools | None = None
) -> I32:
    """Name the parts so that those with much traffic between them are near each other.

    A solver's numbers mean nothing, but for slots of different operators. Two names are swapped as
    long as that lowers the cost; each step takes the best swap, O(slots^3) a step on the traffic
    between parts.
    """
    slots, cost = distances.slots, distances.cost
    cell = part[graph.u].astype(np.int64) * slots + part[graph.v]
    traffic = np.bincount(cell, graph.w, slots * slots).reshape(slots, slots)
    traffic = traffic + traffic.T
    np.fill_diagonal(traffic, 0.0)
    kind = kinds_of_slots(slots, allowed)
    name = np.arange(slots)
    for _ in range(4 * slots):
        between = cost[np.ix_(name, name)]
        # what part p pays under the name of part q, others unchanged
        pays = traffic @ between
        own = np.diag(pays)
        change = pays + pays.T - own[:, None] - own[None, :] + 2 * traffic * between
        change[kind[:, None] != kind] = 0.0
        p, q = np.unravel_index(int(np.argmin(change)), change.shape)
        if change[p, q] >= -1e-9 * max(traffic.sum(), 1.0):
            break
        name[[p, q]] = name[[q, p]]
    return name[part].astype(np.int32)


def relabel(
    graph: KeyGraph, plan: I32, current: I32, slots: int, allowed: Bools | None = None
) -> I32:
    """The plan with its parts renamed so that the most weight stays in its slot.

    A solver numbers its parts as it likes. Renaming costs no locality and no balance, and saves
    moves (1.2 to 1.5 times fewer on the pair data). A part that holds fixed vertices keeps its
    name; the others change it only with slots of the same operators. Distances between slots are
    not looked at. O(vertices + slots^3).
    """
    cell = plan.astype(np.int64) * slots + current
    stays = np.bincount(cell, graph.load, slots * slots).reshape(slots, slots)
    name = np.arange(slots)
    bound = np.unique(plan[graph.fixed != FREE])
    kind = kinds_of_slots(slots, allowed)
    for one in np.unique(kind):
        free = np.setdiff1d(np.flatnonzero(kind == one), bound)
        name[free] = free[best_matching(stays[np.ix_(free, free)])]
    return name[plan].astype(np.int32)


def spared(
    graph: KeyGraph,
    plan: I32,
    current: I32,
    slots: int,
    *,
    alpha: float = 1.03,
    distances: Distances | None = None,
    allowed: Bools | None = None,
) -> I32:
    """The plan without moves that bring nothing, balance kept.

    In slots that an operator does not share with those it talks to, its keys are all alike.
    """
    cost = None if distances is None else distances.cost
    game = board(graph, plan, slots, caps(graph, slots, alpha, allowed), cost, allowed)
    np.maximum(game.cap, game.loads.max(axis=1), out=game.cap)
    spare_moves(game, current)
    return game.slot


def kinds_of_slots(slots: int, allowed: Bools | None) -> I64:
    """A number for every slot, the same for slots that have instances of the same operators."""
    if allowed is None:
        return np.zeros(slots, np.int64)
    return np.unique(allowed, axis=1, return_inverse=True)[1].reshape(slots).astype(np.int64)


def best_matching(gain: F64) -> I64:
    """For each row of a square matrix its column, so that the sum is the largest possible."""
    from scipy.optimize import linear_sum_assignment  # late: only who renames parts needs it

    return np.asarray(linear_sum_assignment(gain, maximize=True)[1], np.int64)
