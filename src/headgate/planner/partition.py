"""Placing keys: cut the key graph into slots, with the bound alpha held for every operator.

A solver gives a first cut, `repair` makes the balance hold per operator (the paper's definition,
Caneill et al. 2016, section 3.1), `refine` wins back locality under the caps. The cap of an
operator is max(alpha, floor) x mean load, where the floor is what the heaviest keys force. Several
seeds are tried while the graph is small, and the best is kept. The result is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from headgate.arrays import F64, I32
from headgate.errors import HeadgateError
from headgate.planner.distance import Distances, nearest_names
from headgate.planner.floor import floors
from headgate.planner.key_graph import FREE, KeyGraph, imbalance_of
from headgate.planner.metis import metis_parts, suits_metis
from headgate.planner.refine import refine
from headgate.planner.repair import SLACK, board, repair

Quality = Literal["metis", "mt-kahypar"]
MOST_TRIES = 8
EDGES_AFFORDED = 100_000
"""Edges of all tries together."""


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

    @property
    def imbalance(self) -> F64:
        """Max/mean slot load of each operator."""
        return imbalance_of(self.loads)

    @property
    def achieved(self) -> F64:
        return self.imbalance

    @property
    def alpha_holds(self) -> bool:
        """Is every operator within alpha?"""
        return bool((self.imbalance <= self.alpha * (1 + 2 * SLACK)).all())

    @property
    def bound_holds(self) -> bool:
        """Is every operator within max(alpha, its floor)?"""
        return bool((self.imbalance <= np.maximum(self.alpha, self.floor) * (1 + 2 * SLACK)).all())

    def explain(self) -> str:
        """One line: what was reached, and where a bound gave way, why."""
        parts = [
            f"{name} {got:.3f}" + ("" if got <= self.alpha * (1 + 2 * SLACK) else f" ({why})")
            for name, got, why in zip(self.operators, self.imbalance, self._reasons())
        ]
        return (
            f"locality {self.locality:.3f} over {self.slots} slots; max/mean load "
            f"{', '.join(parts) or 'of nothing'}; alpha {self.alpha:g}"
        )

    def _reasons(self) -> list[str]:
        return [
            f"keys cannot be cut: floor {low:.3f}"
            if low > self.alpha
            else "no closer packing found"
            for low in self.floor
        ]

    def check(self, graph: KeyGraph) -> None:
        """Every vertex has one slot that exists, fixed ones theirs, and the sums are right."""
        wrong = None
        if self.slot.shape != (graph.vertices,):
            wrong = f"{len(self.slot)} placements for {graph.vertices} keys"
        elif graph.vertices and not (self.slot.min() >= 0 and self.slot.max() < self.slots):
            wrong = f"a slot outside 0..{self.slots - 1}"
        elif (bound := graph.fixed != FREE).any() and (self.slot != graph.fixed)[bound].any():
            wrong = "a fixed vertex was moved"
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
) -> Partition:
    """Place every key so that few rows leave their slot and no operator exceeds its bound.

    Deterministic for (graph, slots, alpha, seed, quality, distances, tries). `tries` is the number
    of seeds, by default 8 for small graphs down to 1 for large ones, and 1 for Mt-KaHyPar.
    """
    _refuse(graph, slots, alpha, distances)
    if quality not in get_args(Quality):
        raise HeadgateError(f"no partitioner {quality!r}; there are {', '.join(get_args(Quality))}")
    tries = tries or (_affordable(graph) if quality == "metis" else 1)
    best: tuple[tuple[float, float], Partition] | None = None
    for attempt in range(tries if slots > 1 else 1):
        start = _first_cut(graph, slots, alpha, seed + 7919 * attempt, quality)
        if distances is not None and not (graph.fixed != FREE).any():
            start = nearest_names(graph, start, distances)
        found = improve(
            graph,
            start,
            slots,
            alpha=alpha,
            seed=seed + attempt,
            distances=distances,
            method=quality,
        )
        over = float((found.imbalance / np.maximum(alpha, found.floor)).max(initial=1.0))
        value = max(over, 1 + 2 * SLACK), _cost(found, distances)
        if best is None or value < best[0]:
            best = value, found
    assert best is not None
    best[1].check(graph)
    return best[1]


def improve(
    graph: KeyGraph,
    slot: I32,
    slots: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    distances: Distances | None = None,
    method: str = "improved",
) -> Partition:
    """Repair and refine any placement of the graph, such as the one that is in force."""
    start = np.where(graph.fixed != FREE, graph.fixed, slot).astype(np.int32)
    low = floors(graph, slots)
    cap = np.maximum(alpha, low) * graph.total / slots
    cost = None if distances is None else distances.cost
    game = board(graph, start, slots, cap, cost)
    repair(game)
    np.maximum(game.cap, game.loads.max(axis=1), out=game.cap)
    order = np.random.default_rng(seed).permutation(graph.vertices)
    refine(game, order)
    return describe(graph, game.slot, slots, alpha=alpha, distances=distances, method=method)


def describe(
    graph: KeyGraph,
    slot: I32,
    slots: int,
    *,
    alpha: float = 1.03,
    distances: Distances | None = None,
    method: str = "given",
) -> Partition:
    """What a placement is worth on a graph, nothing changed."""
    return Partition(
        graph.operators,
        slots,
        slot,
        graph.loads(slot, slots),
        floors(graph, slots),
        alpha,
        graph.locality(slot),
        (distances or Distances.of(["host"] * slots)).weight_by_distance(graph, slot),
        method,
    )


def _cost(found: Partition, distances: Distances | None) -> float:
    if distances is None:
        return -found.locality
    return float(found.weight_by_distance @ np.asarray(distances.costs))


def _affordable(graph: KeyGraph) -> int:
    """How many seeds fit into a fraction of a second, by size and not by clock."""
    return min(max(EDGES_AFFORDED // max(graph.edges, 1), 1), MOST_TRIES)


def _first_cut(graph: KeyGraph, slots: int, alpha: float, seed: int, quality: Quality) -> I32:
    if quality == "mt-kahypar":
        from headgate.planner.quality import mt_kahypar_parts

        return mt_kahypar_parts(graph, slots, alpha=alpha, seed=seed)
    if suits_metis(graph, slots):
        return metis_parts(graph, slots, alpha=alpha, seed=seed)
    return np.random.default_rng(seed).integers(0, slots, graph.vertices).astype(np.int32)


def _refuse(graph: KeyGraph, slots: int, alpha: float, distances: Distances | None) -> None:
    if slots < 1:
        raise HeadgateError(f"a partition into {slots} slots; it takes at least one", slots=slots)
    if not alpha >= 1:
        raise HeadgateError(f"alpha {alpha}: max/mean load is never below 1", alpha=alpha)
    if graph.vertices and int(graph.fixed.max()) >= slots:
        raise HeadgateError(
            f"a vertex is fixed to slot {int(graph.fixed.max())}, but there are {slots} slots",
            slot=int(graph.fixed.max()),
            slots=slots,
        )
    if distances is not None and distances.slots != slots:
        raise HeadgateError(
            f"distances between {distances.slots} slots for a partition into {slots}", slots=slots
        )
