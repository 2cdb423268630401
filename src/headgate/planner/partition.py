"""Placing keys: cut the key graph into slots, with the bound alpha held for every operator.

A solver gives a first cut, `repair` makes the balance hold per operator (the paper's definition,
Caneill et al. 2016, section 3.1), `refine` wins back locality under the caps. The cap of an
operator is max(alpha, floor) x mean load, where the floor is what the heaviest keys force. Several
seeds are tried while the graph is small, and the best is kept. The result is checked.

METIS (Karypis and Kumar 1998) balances one number per vertex, and takes integers, so each
operator's loads are scaled to the same total. Fixed vertices are unknown to METIS: those of one
slot are drawn together into one *anchor* vertex, heavy enough that no two anchors fit into one
part. Mt-KaHyPar cuts a little better and takes longer; it is optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import pymetis

from headgate.arrays import F64, I32, I64
from headgate.errors import HeadgateError
from headgate.planner.distance import COSTS, Distances
from headgate.planner.key_graph import FREE, KeyGraph, adjacency_of, floors, imbalance_of
from headgate.planner.refine import SLACK, board, refine, repair

Quality = Literal["metis", "mt-kahypar"]

TOTAL = float(1 << 28)  # of integer weights: METIS adds both directions of an edge in 32 bits
MANY_EDGES = 500_000  # above it METIS makes 3 of its 10 rounds: a third less time, measured
ANCHOR_SHARES = 3  # weight of an anchor: two in one part would have 6 shares where the mean is 4
FEWEST_KEYS_PER_SLOT = 4  # with fewer METIS leaves parts empty, and complains on stdout
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

    @property
    def imbalance(self) -> F64:
        """Max/mean slot load of each operator."""
        return imbalance_of(self.loads)

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
    if tries is None:
        affordable = EDGES_AFFORDED // max(graph.edges, 1)  # by size and not by clock
        tries = min(max(affordable, 1), MOST_TRIES) if quality == "metis" else 1
    best: tuple[tuple[float, float], Partition] | None = None
    for attempt in range(tries if slots > 1 else 1):
        start = _first_cut(graph, slots, alpha, seed + 7919 * attempt, quality)
        if distances is not None and not (graph.fixed != FREE).any():
            start = nearest_names(graph, start, distances)
        found = improve(graph, start, slots, alpha, seed + attempt, distances, quality)
        over = float((found.imbalance / np.maximum(alpha, found.floor)).max(initial=1.0))
        cost = -found.locality
        if distances is not None:
            cost = float(found.weight_by_distance @ COSTS)
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
) -> Partition:
    """Repair and refine any placement of the graph, such as the one that is in force."""
    start = np.where(graph.fixed != FREE, graph.fixed, slot).astype(np.int32)
    cap = np.maximum(alpha, floors(graph, slots)) * graph.total / slots
    game = board(graph, start, slots, cap, None if distances is None else distances.cost)
    repair(game)
    np.maximum(game.cap, game.loads.max(axis=1), out=game.cap)  # what gave way is not undone
    refine(game, np.random.default_rng(seed).permutation(graph.vertices))
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
    apart = distances or Distances.of(["host"] * slots)
    return Partition(
        graph.operators,
        slots,
        slot,
        graph.loads(slot, slots),
        floors(graph, slots),
        alpha,
        graph.locality(slot),
        apart.weight_by_distance(graph.u, graph.v, graph.w, slot),
        method,
    )


def _first_cut(graph: KeyGraph, slots: int, alpha: float, seed: int, quality: Quality) -> I32:
    if quality == "mt-kahypar":
        return mt_kahypar_parts(graph, slots, alpha=alpha, seed=seed)
    if suits_metis(graph, slots):
        return metis_parts(graph, slots, alpha=alpha, seed=seed)
    return np.random.default_rng(seed).integers(0, slots, graph.vertices).astype(np.int32)


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


def nearest_names(graph: KeyGraph, part: I32, distances: Distances) -> I32:
    """Name the parts so that those with much traffic between them are near each other.

    A solver's numbers mean nothing. Two names are swapped as long as that lowers the cost; each
    step takes the best swap, O(slots^3) a step on the traffic between parts.
    """
    slots, cost = distances.slots, distances.cost
    cell = part[graph.u].astype(np.int64) * slots + part[graph.v]
    traffic = np.bincount(cell, graph.w, slots * slots).reshape(slots, slots)
    traffic = traffic + traffic.T
    np.fill_diagonal(traffic, 0.0)
    name = np.arange(slots)
    for _ in range(4 * slots):
        between = cost[np.ix_(name, name)]
        # what part p pays under the name of part q, others unchanged
        pays = traffic @ between
        own = np.diag(pays)
        change = pays + pays.T - own[:, None] - own[None, :] + 2 * traffic * between
        p, q = np.unravel_index(int(np.argmin(change)), change.shape)
        if change[p, q] >= -1e-9 * max(traffic.sum(), 1.0):
            break
        name[[p, q]] = name[[q, p]]
    return name[part].astype(np.int32)


def relabel(graph: KeyGraph, plan: I32, current: I32, slots: int) -> I32:
    """The plan with its parts renamed so that the most weight stays in its slot.

    A solver numbers its parts as it likes. Renaming costs no locality and no balance, and saves
    moves (1.2 to 1.5 times fewer on the pair data). A part that holds fixed vertices keeps its
    name. Distances between slots are not looked at. O(vertices + slots^3).
    """
    cell = plan.astype(np.int64) * slots + current
    stays = np.bincount(cell, graph.load, slots * slots).reshape(slots, slots)
    name = np.arange(slots)
    bound = np.unique(plan[graph.fixed != FREE])
    free = np.setdiff1d(name, bound)
    name[free] = free[best_matching(stays[np.ix_(free, free)])]
    return name[plan].astype(np.int32)


def best_matching(gain: F64) -> I64:
    """For each row of a square matrix its column, so that the sum is the largest possible."""
    from scipy.optimize import linear_sum_assignment  # late: only who renames parts needs it

    return np.asarray(linear_sum_assignment(gain, maximize=True)[1], np.int64)


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
    at, spread = np.arange(graph.vertices), alpha
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
    vertices: int, u: I64, v: I64, w: F64, load: F64, slots: int, alpha: float, seed: int
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
        options.niter = 3
    result = pymetis.part_graph(
        slots,
        pymetis.CSRAdjacency(starts.astype(kind), other.astype(kind)),
        vweights=scaled(load, 0).astype(kind),
        eweights=weight.astype(kind),
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
