"""Repair and refinement: balance for every operator first, then locality under the caps.

Repair: a solver balances the sum over operators, or overshoots. Three steps, each only if the one
before left an operator over its cap: `_shed` moves the keys whose leaving costs least per row of
excess; `_pack` places all keys of that operator anew, heaviest first, each where its partners are
if it fits; at last the heaviest go to the emptiest slot, whoever their partners are (longest
processing time first), which is within 4/3 of the best there is.

Refinement: a pass visits every key and moves it to the slot where its rows cost least, if it fits
and gains. A key that would gain but does not fit may push others out: the keys of its own operator
that leave that slot most cheaply, until there is room, if all together still gain. Keys of one
operator share no edge, so their gains simply add up. Every step lowers the cost and keeps all caps.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I32, I64, Bools
from headgate.planner.key_graph import FREE, KeyGraph

MOST_PASSES = 12  # a limit: a pass that gains little ends it earlier
LEAST_GAIN = 1e-4  # share of the total weight; a pass that gains less is the last
MOST_TRIED, MOST_PUSHED = 64, 16  # keys looked at, and pushed out, to make room for one
SLACK = 1e-9  # relative room for rounding in every comparison of loads


class Board(NamedTuple):
    """What the kernels see. `slot` and `loads` change in place, the rest stays."""

    starts: I64
    other: I64
    weight: F64
    op: I32
    load: F64
    fixed: I32
    cost: F64
    allowed: Bools  # [operator, slot]
    slot: I32
    loads: F64
    cap: F64


def board(
    graph: KeyGraph,
    slot: I32,
    slots: int,
    cap: F64,
    cost: F64 | None = None,
    allowed: Bools | None = None,
) -> Board:
    """A board for a placement; `cap` is the load allowed per operator and slot.

    `cost[s, t]` is what a row between slots s and t costs (symmetric, 0 on the diagonal);
    without it every row that leaves its slot costs 1. `allowed` says which operator has an
    instance in which slot, if not all have one in every slot. Keys in other slots are brought to
    the cheapest of their own with room, heaviest first.
    """
    if cost is None:
        cost = 1.0 - np.eye(slots)
    if allowed is None:
        allowed = np.ones((len(graph.operators), slots), np.bool_)
    own = np.ascontiguousarray(slot, np.int32).copy()
    game = Board(
        *graph.adjacency,
        graph.op,
        graph.load,
        graph.fixed,
        np.ascontiguousarray(cost, np.float64),
        np.ascontiguousarray(allowed),
        own,
        graph.loads(own, slots),
        np.asarray(cap, np.float64),
    )
    lost = np.flatnonzero(~game.allowed[graph.op, own] & (graph.fixed == FREE))
    for op in np.unique(graph.op[lost]).tolist():
        mine = lost[graph.op[lost] == op]
        mine = mine[np.argsort(-game.load[mine], kind="stable")]
        _pack(game, mine, op, game.cap[op] * (1 + SLACK))
    return game


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
        if t == game.slot[v] or game.loads[o, t] + game.load[v] > limit or not game.allowed[o, t]:
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
        best = emptiest = -1
        for t in range(slots):
            if not game.allowed[o, t]:
                continue
            if emptiest < 0 or game.loads[o, t] < game.loads[o, emptiest]:
                emptiest = t
            if game.loads[o, t] + game.load[v] > limit:
                continue
            if best < 0 or (out[t], game.loads[o, t]) < (out[best], game.loads[o, best]):
                best = t
        t = best if best >= 0 else emptiest
        game.loads[o, t] += game.load[v]
        game.slot[v] = t
    return game.loads[o].max()


def refine(game: Board, order: I64, passes: int = MOST_PASSES) -> float:
    """Improve the placement; returns the cost saved. `order` is the order of visits."""
    total = float(game.weight.sum()) / 2
    saved = 0.0
    for _ in range(passes):
        gain = _single_moves(game, order)
        gain += _exchanges(game)
        saved += gain
        if gain <= LEAST_GAIN * total:
            break
    return saved


def spare_moves(game: Board, current: I32, passes: int = MOST_PASSES) -> None:
    """Let keys stay where they are now if that costs no more and they fit, the heaviest first."""
    away = np.flatnonzero((game.slot != current) & (game.fixed == FREE))
    away = away[np.argsort(-game.load[away], kind="stable")]
    for _ in range(passes):
        if not _stay(game, away, current):
            break


@njit(cache=True)
def _stay(game, away, current):  # type: ignore[no-untyped-def]
    slots = game.loads.shape[1]
    met, out = np.empty(slots), np.empty(slots)
    stayed = 0
    for v in away:
        o, s, t = game.op[v], game.slot[v], current[v]
        if s == t or not game.allowed[o, t]:
            continue
        if game.loads[o, t] + game.load[v] > game.cap[o] * (1 + SLACK):
            continue
        costs_of(game, v, met, out)
        if out[t] <= out[s] * (1 + SLACK):
            move(game, v, t)
            stayed += 1
    return stayed


@njit(cache=True)
def _single_moves(game, order):  # type: ignore[no-untyped-def]
    slots = game.loads.shape[1]
    met, out = np.empty(slots), np.empty(slots)
    limit = game.cap * (1 + SLACK)
    saved = 0.0
    for v in order:
        if game.fixed[v] != FREE or game.starts[v] == game.starts[v + 1]:
            continue
        costs_of(game, v, met, out)
        s = game.slot[v]
        if out[s] <= 0.0:
            continue
        t = cheapest_with_room(game, v, out, limit[game.op[v]])
        if t >= 0 and out[s] - out[t] > 1e-9 * out[s]:
            saved += out[s] - out[t]
            move(game, v, t)
    return saved


@njit(cache=True)
def _exchanges(game):  # type: ignore[no-untyped-def]
    """Let keys that would gain elsewhere push cheaper ones out; the largest wish first."""
    vertices, slots = len(game.op), game.loads.shape[1]
    met, out = np.empty(slots), np.empty(slots)
    limit = game.cap * (1 + SLACK)
    wish = np.zeros(vertices, np.float64)
    leave = np.full(vertices, np.inf)
    for v in range(vertices):
        if game.fixed[v] != FREE or game.load[v] <= 0.0:
            continue
        costs_of(game, v, met, out)
        s = game.slot[v]
        elsewhere = np.inf
        for t in range(slots):
            if t != s and out[t] < elsewhere and game.allowed[game.op[v], t]:
                elsewhere = out[t]
        wish[v] = out[s] - elsewhere
        leave[v] = -wish[v] / game.load[v]
    # per (operator, slot): its keys, the cheapest to push out per unit of load first
    cell_start = np.zeros(len(game.cap) * slots + 1, np.int64)
    for v in range(vertices):
        cell_start[game.op[v] * slots + game.slot[v] + 1] += 1
    cell_start = np.cumsum(cell_start)
    fill = cell_start[:-1].copy()
    members = np.empty(vertices, np.int64)
    for v in np.argsort(leave, kind="mergesort"):
        c = game.op[v] * slots + game.slot[v]
        members[fill[c]] = v
        fill[c] += 1
    pushed = np.empty(MOST_PUSHED, np.int64)
    saved = 0.0
    for v in np.argsort(-wish, kind="mergesort"):
        if wish[v] <= 0.0:
            break
        saved += _push_in(game, v, met, out, limit, cell_start, members, pushed)
    return saved


@njit(cache=True)
def _push_in(game, v, met, out, limit, cell_start, members, pushed):  # type: ignore[no-untyped-def]
    """Try to bring v to the slot it wants most; returns the cost saved, 0 if all is as before."""
    slots = game.loads.shape[1]
    o, s = game.op[v], game.slot[v]
    costs_of(game, v, met, out)
    t = s
    for x in range(slots):
        if out[x] < out[t] and game.allowed[o, x]:
            t = x
    gain = out[s] - out[t]
    if t == s or gain <= 1e-9 * out[s] or game.load[v] > limit[o]:
        return 0.0
    move(game, v, t)  # over the cap for a moment
    left, count, tried = gain, 0, 0
    for at in range(cell_start[o * slots + t], cell_start[o * slots + t + 1]):
        if game.loads[o, t] <= limit[o] or count == MOST_PUSHED or tried == MOST_TRIED:
            break
        u = members[at]
        if u == v or game.slot[u] != t or game.fixed[u] != FREE or game.load[u] <= 0.0:
            continue
        tried += 1
        costs_of(game, u, met, out)
        x = cheapest_with_room(game, u, out, limit[o])
        if x < 0 or out[x] - out[t] >= left:
            continue
        left -= out[x] - out[t]
        move(game, u, x)
        pushed[count] = u
        count += 1
    if game.loads[o, t] <= limit[o] and left > 1e-9 * gain:
        return left
    for i in range(count - 1, -1, -1):
        move(game, pushed[i], t)
    move(game, v, s)
    return 0.0
