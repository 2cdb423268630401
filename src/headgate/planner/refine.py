"""Refinement: win locality back, one move or one exchange at a time, never over a cap.

A pass visits every key and moves it to the slot where its rows cost least, if it fits and gains.
A key that would gain but does not fit may push others out: the keys of its own operator that
leave that slot most cheaply, until there is room, if all together still gain. Keys of one operator
share no edge, so their gains simply add up. Every step lowers the cost (without distances: raises
locality) and keeps all caps, so the result is never worse than the start.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headgate.arrays import I64
from headgate.planner.key_graph import FREE
from headgate.planner.repair import SLACK, Board, cheapest_with_room, costs_of, move

MOST_PASSES = 12
LEAST_GAIN = 1e-4
"""Stop when a pass gains less than this share of the total weight."""
MOST_TRIED = 64
"""Keys looked at, and MOST_PUSHED pushed out, to make room for one."""
MOST_PUSHED = 16


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
            if t != s and out[t] < elsewhere:
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
    came_from = np.empty(MOST_PUSHED, np.int64)
    saved = 0.0
    for v in np.argsort(-wish, kind="mergesort"):
        if wish[v] <= 0.0:
            break
        saved += _push_in(game, v, met, out, limit, cell_start, members, pushed, came_from)
    return saved


@njit(cache=True)
def _push_in(game, v, met, out, limit, cell_start, members, pushed, came_from):  # type: ignore[no-untyped-def]
    """Try to bring v to the slot it wants most; returns the cost saved, 0 if all is as before."""
    slots = game.loads.shape[1]
    o, s = game.op[v], game.slot[v]
    costs_of(game, v, met, out)
    t = s
    for x in range(slots):
        if out[x] < out[t]:
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
        pushed[count], came_from[count] = u, t
        count += 1
    if game.loads[o, t] <= limit[o] and left > 1e-9 * gain:
        return left
    for i in range(count - 1, -1, -1):
        move(game, pushed[i], came_from[i])
    move(game, v, s)
    return 0.0
