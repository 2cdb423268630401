"""Repair: make the bound hold for every operator, at the least loss of locality.

A solver balances the sum over operators, or overshoots. Three steps, each only if the one before
left an operator over its cap: `shed` moves the keys whose leaving costs least per row of excess;
`pack` places all keys of that operator anew, heaviest first, each where its partners are if it
fits; at last the heaviest go to the emptiest slot, whoever their partners are (longest processing
time first), which is within 4/3 of the best there is. Kernels work on plain arrays: see `Board`.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I32, I64
from headgate.planner.key_graph import FREE, KeyGraph

SLACK = 1e-9
"""Relative room for rounding in every comparison of loads."""


class Board(NamedTuple):
    """What the kernels see. `slot` and `loads` change in place, the rest stays."""

    starts: I64
    other: I64
    weight: F64
    op: I32
    load: F64
    fixed: I32
    cost: F64
    slot: I32
    loads: F64
    cap: F64


def board(graph: KeyGraph, slot: I32, slots: int, cap: F64, cost: F64 | None = None) -> Board:
    """A board for a placement; `cap` is the load allowed per operator and slot.

    `cost[s, t]` is what a row between slots s and t costs (symmetric, 0 on the diagonal);
    without it every row that leaves its slot costs 1.
    """
    if cost is None:
        cost = 1.0 - np.eye(slots)
    own = np.ascontiguousarray(slot, np.int32).copy()
    return Board(
        *graph.adjacency,
        graph.op,
        graph.load,
        graph.fixed,
        np.ascontiguousarray(cost, np.float64),
        own,
        graph.loads(own, slots),
        np.asarray(cap, np.float64),
    )


def repair(game: Board) -> None:
    """Bring every operator under its cap if that can be found; see the module for how far."""
    _shed(game)
    for op in range(len(game.cap)):
        limit = game.cap[op] * (1 + SLACK)
        if game.loads[op].max() <= limit:
            continue
        mine = np.flatnonzero((game.op == op) & (game.fixed == FREE))
        mine = mine[np.argsort(-game.load[mine], kind="stable")]
        before = game.slot[mine].copy(), game.loads[op].copy()
        even = _pack(game, mine, op, 0.0)
        emptiest = game.slot[mine].copy(), game.loads[op].copy()
        game.slot[mine], game.loads[op] = before
        found = _pack(game, mine, op, max(limit, even))
        if found > max(limit, even) * (1 + SLACK):
            best = before if before[1].max() <= even else emptiest
            game.slot[mine], game.loads[op] = best


@njit(cache=True)
def costs_of(game, v, met, out):  # type: ignore[no-untyped-def]
    """Cost of the rows of vertex v for every slot it could be in, into `out`.

    O(its edges + slots x slots its partners are in). `met` is scratch: weight met in each slot.
    """
    slots = len(out)
    met[:] = 0.0
    for e in range(game.starts[v], game.starts[v + 1]):
        met[game.slot[game.other[e]]] += game.weight[e]
    out[:] = 0.0
    for s in range(slots):
        if met[s] > 0.0:
            for t in range(slots):
                out[t] += met[s] * game.cost[s, t]


@njit(cache=True)
def move(game, v, t):  # type: ignore[no-untyped-def]
    o = game.op[v]
    game.loads[o, game.slot[v]] -= game.load[v]
    game.loads[o, t] += game.load[v]
    game.slot[v] = t


@njit(cache=True)
def cheapest_with_room(game, v, out, limit):  # type: ignore[no-untyped-def]
    """The cheapest other slot where v fits, the emptier of equals; -1 if there is none."""
    o, best = game.op[v], -1
    for t in range(len(out)):
        if t == game.slot[v] or game.loads[o, t] + game.load[v] > limit:
            continue
        if best < 0 or (out[t], game.loads[o, t]) < (out[best], game.loads[o, best]):
            best = t
    return best


@njit(cache=True)
def _price(game, v, met, out, limit):  # type: ignore[no-untyped-def]
    """(loss per row of excess removed, where to) for the cheapest way out of an overfull slot."""
    s = game.slot[v]
    costs_of(game, v, met, out)
    t = cheapest_with_room(game, v, out, limit)
    if t < 0:
        return 0.0, -1
    excess = game.loads[game.op[v], s] - limit
    return (out[t] - out[s]) / min(game.load[v], excess), t


@njit(cache=True)
def _shed(game):  # type: ignore[no-untyped-def]
    """Move keys out of overfull slots, the cheapest per row of excess first.

    Prices only rise while an excess shrinks and slots fill, so a stale price is put back into
    the heap once it is known; O(edges of keys in overfull slots x log), with few repeats.
    """
    slots = game.loads.shape[1]
    met, out = np.empty(slots), np.empty(slots)
    limit = game.cap * (1 + SLACK)
    heap = [(0.0, 0)]
    heap.pop()
    for v in range(len(game.op)):
        o = game.op[v]
        if game.fixed[v] != FREE or game.load[v] <= 0:
            continue
        if game.loads[o, game.slot[v]] > limit[o]:
            price, t = _price(game, v, met, out, limit[o])
            if t >= 0:
                heap.append((price, v))
    heapq.heapify(heap)
    tries = np.zeros(len(game.op), np.int8)
    while len(heap) > 0:
        known, v = heapq.heappop(heap)
        o = game.op[v]
        if game.loads[o, game.slot[v]] <= limit[o]:
            continue
        price, t = _price(game, v, met, out, limit[o])
        if t < 0:
            continue
        if price > known + 1e-12 and tries[v] < 20 and len(heap) > 0 and price > heap[0][0]:
            tries[v] += 1
            heapq.heappush(heap, (price, v))
            continue
        move(game, v, t)


@njit(cache=True)
def _pack(game, mine, o, limit):  # type: ignore[no-untyped-def]
    """Place these keys of one operator anew, in this order; returns the fullest slot's load.

    Each goes to the cheapest slot where it fits under the limit, else to the emptiest; a limit
    of 0 is the plain rule, always the emptiest.
    """
    slots = game.loads.shape[1]
    met, out = np.zeros(slots), np.zeros(slots)
    for v in mine:
        game.loads[o, game.slot[v]] -= game.load[v]
    for s in range(slots):
        game.loads[o, s] = max(game.loads[o, s], 0.0)
    for v in mine:
        if limit > 0.0:
            costs_of(game, v, met, out)
        best, emptiest = -1, 0
        for t in range(slots):
            if game.loads[o, t] < game.loads[o, emptiest]:
                emptiest = t
            if game.loads[o, t] + game.load[v] > limit:
                continue
            if best < 0 or (out[t], game.loads[o, t]) < (out[best], game.loads[o, best]):
                best = t
        t = best if best >= 0 else emptiest
        game.loads[o, t] += game.load[v]
        game.slot[v] = t
    return game.loads[o].max()
