"""The loops of the integrated planner: what a move or a swap brings, and which to make next.

What moves is an *atom*: units that stay together. Taking atom a from node s to node t changes the
loads of these two nodes only, because a row costs `remote` at both of its ends if it crosses:

    load(s) - size(a) + 2 remote toward(a, s)        toward(a, n): rows between a and node n
    load(t) + size(a) - 2 remote toward(a, t)        size(a): its load if all its rows cross

so a move is judged in O(1) and made in O(partners). `pull` is `toward` seen through the distances
between nodes. Loads are kept per balance class: one for all units, or one per operator.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.planner.adjacency import F64, I64
from headgate.planner.allocation.greedy import step_cost
from headgate.planner.allocation.model import I32, Bools

SPENT = 0


class Field(NamedTuple):
    """Atoms on nodes. `at`, `loads`, `toward`, `pull`, the lists and `account` change in place."""

    starts: I64
    other: I64
    weight: F64
    size: F64  # [atom, class]
    whole: F64  # [atom], sum of its sizes
    toward: F64  # [atom, node]
    pull: F64  # the same array if all nodes are equally far
    near: F64  # [node, node], 1 on the diagonal; empty if all are equally far
    at: I32
    loads: F64  # [class, node]
    capacity: F64
    leaving: Bools
    first_member: I64
    member: I64
    home: I32
    cost: F64
    first: I64
    after: I64
    before: I64
    account: F64  # what has been spent
    remote: float
    worth: float  # of a row that stays on its node, in load


@njit(cache=True)
def price(f, a, t):  # type: ignore[no-untyped-def]
    """What taking an atom to a node adds to the cost of the plan."""
    total = 0.0
    for i in range(f.first_member[a], f.first_member[a + 1]):
        u = f.member[i]
        total += step_cost(f.cost[u], f.home[u], f.at[a], t)
    return total


@njit(cache=True)
def settle(f, a, t):  # type: ignore[no-untyped-def]
    """Take an atom to a node: books, lists and partners."""
    s = f.at[a]
    f.account[SPENT] += price(f, a, t)
    whole = max(f.whole[a], 1e-300)
    for k in range(f.loads.shape[0]):
        part = f.size[a, k] / whole
        f.loads[k, s] += -f.size[a, k] + 2.0 * f.remote * part * f.toward[a, s]
        f.loads[k, t] += f.size[a, k] - 2.0 * f.remote * part * f.toward[a, t]
    if f.before[a] >= 0:
        f.after[f.before[a]] = f.after[a]
    else:
        f.first[s] = f.after[a]
    if f.after[a] >= 0:
        f.before[f.after[a]] = f.before[a]
    f.before[a], f.after[a] = -1, f.first[t]
    if f.first[t] >= 0:
        f.before[f.first[t]] = a
    f.first[t] = a
    f.at[a] = t
    for e in range(f.starts[a], f.starts[a + 1]):
        p, w = f.other[e], f.weight[e]
        f.toward[p, s] -= w
        f.toward[p, t] += w
        if len(f.near):
            for n in range(len(f.capacity)):
                f.pull[p, n] += w * (f.near[t, n] - f.near[s, n])


@njit(cache=True)
def means(f):  # type: ignore[no-untyped-def]
    """Mean load per class: all load over the capacity that stays."""
    room = 0.0
    for i in range(len(f.capacity)):
        if not f.leaving[i]:
            room += f.capacity[i]
    found = np.zeros(f.loads.shape[0])
    for k in range(len(found)):
        found[k] = max(f.loads[k].sum(), 1e-300) / room
    return found


@njit(cache=True)
def tied(f, a, b):  # type: ignore[no-untyped-def]
    """Rows between two atoms."""
    for e in range(f.starts[a], f.starts[a + 1]):
        if f.other[e] == b:
            return f.weight[e]
    return 0.0


@njit(cache=True)
def unevenness(load, capacity, mean, dead):  # type: ignore[no-untyped-def]
    """Squared deviation beyond a dead zone, as a share of the mean, weighted by capacity."""
    off = abs(load / (capacity * mean) - 1.0) - dead
    return capacity * off * off if off > 0.0 else 0.0


@njit(cache=True)
def _change(f, a, b, s, t, bond, mean, dead):  # type: ignore[no-untyped-def]
    """Change of unevenness of nodes s and t if a goes to t and, if b >= 0, b comes to s."""
    total = 0.0
    part_b = 0.0
    for k in range(f.loads.shape[0]):
        part = f.size[a, k] / max(f.whole[a], 1e-300)
        out = f.size[a, k] - 2.0 * f.remote * part * f.toward[a, s]
        into = f.size[a, k] - 2.0 * f.remote * part * (f.toward[a, t] - bond)
        if b >= 0:
            part_b = f.size[b, k] / max(f.whole[b], 1e-300)
            into -= f.size[b, k] - 2.0 * f.remote * part_b * f.toward[b, t]
            out -= f.size[b, k] - 2.0 * f.remote * part_b * (f.toward[b, s] - bond)
        if not f.leaving[s]:
            total += unevenness(f.loads[k, s] - out, f.capacity[s], mean[k], dead)
            total -= unevenness(f.loads[k, s], f.capacity[s], mean[k], dead)
        total += unevenness(f.loads[k, t] + into, f.capacity[t], mean[k], dead)
        total -= unevenness(f.loads[k, t], f.capacity[t], mean[k], dead)
    return total


@njit(cache=True)
def _saved(f, a, b, s, t, bond):  # type: ignore[no-untyped-def]
    """Load saved by rows that no longer cross (or cross less far)."""
    rows = f.pull[a, t] - f.pull[a, s]
    if b >= 0:
        far = 1.0 - f.near[s, t] if len(f.near) else 1.0
        rows += f.pull[b, s] - f.pull[b, t] - 2.0 * bond * far
    return f.worth * rows


@njit(cache=True)
def drain(f, order, budget, strictness):  # type: ignore[no-untyped-def]
    """Empty the leaving nodes, in this order of atoms, as far as the budget goes."""
    for a in order:
        s = f.at[a]
        if not f.leaving[s]:
            continue
        mean = means(f)
        best, best_gain = -1, 0.0
        for t in range(len(f.capacity)):
            if f.leaving[t]:
                continue
            gain = _saved(f, a, -1, s, t, 0.0)
            gain -= strictness * mean.sum() * _change(f, a, -1, s, t, 0.0, mean, 0.0)
            if best < 0 or gain > best_gain:
                best, best_gain = t, gain
        if best >= 0 and f.account[SPENT] + price(f, a, best) <= budget:
            settle(f, a, best)


@njit(cache=True)
def _best_pull(f, a, mean, budget, strictness, least, scans):  # type: ignore[no-untyped-def]
    """The step that brings atom a nearer to its partners with the best gain per cost.

    Returns (gain per cost, node, atom to swap with or -1). Of the nodes that save most, `scans` are
    searched for an atom to swap with.
    """
    s = f.at[a]
    scale = strictness * mean.sum()
    crumb = 0.05 * f.cost.mean() + 1e-12
    left = budget - f.account[SPENT]
    best, to, swap = 0.0, -1, -1
    top = np.full(scans, -1, np.int64)
    for t in range(len(f.capacity)):
        if t == s or f.leaving[t]:
            continue
        saved = _saved(f, a, -1, s, t, 0.0)
        if saved < least:
            continue
        i = scans - 1
        while i >= 0 and (top[i] < 0 or saved > _saved(f, a, -1, s, top[i], 0.0)):
            if i + 1 < scans:
                top[i + 1] = top[i]
            top[i] = t
            i -= 1
        cost = price(f, a, t)
        if cost <= left:
            gain = saved - scale * _change(f, a, -1, s, t, 0.0, mean, 0.0)
            ratio = gain / (max(cost, 0.0) + crumb)
            if gain >= least and ratio > best:
                best, to, swap = ratio, t, -1
    for t in top:
        if t < 0 or price(f, a, t) > left:
            continue
        b = f.first[t]
        while b >= 0:
            cost = price(f, a, t) + price(f, b, s)
            if cost <= left and not f.leaving[s]:
                bond = tied(f, a, b)
                saved = _saved(f, a, b, s, t, bond)
                if saved >= least:
                    gain = saved - scale * _change(f, a, b, s, t, bond, mean, 0.0)
                    ratio = gain / (max(cost, 0.0) + crumb)
                    if gain >= least and ratio > best * 1.01:
                        best, to, swap = ratio, t, b
            b = f.after[b]
    return best, to, swap


@njit(cache=True)
def gather(f, budget, strictness, least, scans, steps):  # type: ignore[no-untyped-def]
    """Bring atoms to their partners, best gain per cost first, at most `steps` times.

    Stale gains are judged again before a step is made. Returns the number of steps.
    """
    mean = means(f)
    heap = [(0.0, -1)]
    heap.pop()
    for a in range(len(f.at)):
        if f.starts[a + 1] > f.starts[a]:
            ratio, t, _ = _best_pull(f, a, mean, budget, strictness, least, scans)
            if t >= 0:
                heapq.heappush(heap, (-ratio, a))
    made = 0
    tries = 0
    while heap and made < steps and tries < 20 * steps + 4 * len(f.at):
        tries += 1
        _, a = heapq.heappop(heap)
        ratio, t, b = _best_pull(f, a, mean, budget, strictness, least, scans)
        if t < 0:
            continue
        if heap and ratio < -0.9 * heap[0][0]:
            heapq.heappush(heap, (-ratio, a))
            continue
        s = f.at[a]
        settle(f, a, t)
        if b >= 0:
            settle(f, b, s)
        made += 1
        mean = means(f)
        heapq.heappush(heap, (-ratio / 2, a))
    return made


@njit(cache=True)
def worst_node(f, mean):  # type: ignore[no-untyped-def]
    """(largest deviation as a share of the mean, its node)."""
    worst, where = 0.0, -1
    for i in range(len(f.capacity)):
        if f.leaving[i]:
            continue
        for k in range(f.loads.shape[0]):
            off = abs(f.loads[k, i] / (f.capacity[i] * mean[k]) - 1.0)
            if off > worst:
                worst, where = off, i
    return worst, where


@njit(cache=True)
def even(f, budget, target, patience, scans, steps):  # type: ignore[no-untyped-def]
    """Bring the worst node nearer to the mean, step by step, until all are within `target`.

    A step is a move, or, if no move brings the node in, a swap with one of the `scans` nodes that
    are furthest to the other side. `patience` weighs saved load against evenness, so that rows are
    torn apart last. Ends after `steps`, or when no step helps. Returns the number of steps.
    """
    nodes = len(f.capacity)
    crumb = 0.3 * f.cost.mean() + 1e-12
    stuck = np.zeros(nodes, np.bool_)
    dead = 0.8 * target
    made = 0
    while made < steps:
        mean = means(f)
        worst, w = 0.0, -1
        for i in range(nodes):
            if f.leaving[i] or stuck[i]:
                continue
            for k in range(f.loads.shape[0]):
                off = abs(f.loads[k, i] / (f.capacity[i] * mean[k]) - 1.0)
                if off > worst:
                    worst, w = off, i
        if w < 0 or worst <= target:
            break
        over = 0.0
        for k in range(f.loads.shape[0]):
            over += f.loads[k, w] / (f.capacity[w] * mean[k]) - 1.0
        fill = np.empty(nodes)
        for i in range(nodes):
            fill[i] = 1e300 if f.leaving[i] or i == w else 0.0
            for k in range(f.loads.shape[0]):
                fill[i] += f.loads[k, i] / (f.capacity[i] * mean[k]) * (1.0 if over > 0 else -1.0)
        ranked = np.argsort(fill, kind="mergesort")[:scans]
        found = _best_evening(f, w, over > 0, ranked, mean, budget, dead, patience, crumb)
        if found[1] < 0:
            stuck[w] = True
            continue
        _, a, t, b = found
        s = f.at[a]
        settle(f, a, t)
        if b >= 0:
            settle(f, b, s)
        stuck[:] = False
        made += 1
    return made


@njit(cache=True)
def _best_evening(f, w, over, ranked, mean, budget, dead, patience, crumb):  # type: ignore[no-untyped-def]
    """(worth per cost, atom, where to, atom in return or -1) of the best step that evens node w."""
    left = budget - f.account[SPENT]
    total = mean.sum()
    best, ba, bt, bb = 0.0, -1, -1, -1
    excess = 0.0
    for k in range(f.loads.shape[0]):
        excess += abs(f.loads[k, w] - f.capacity[w] * mean[k])
    clean = False  # the node is so far off that a move is all it needs for now
    for n in ranked:
        if f.leaving[n] or n == w:
            continue
        giver, taker = (w, n) if over else (n, w)
        a = f.first[giver]
        while a >= 0:
            cost = price(f, a, taker)
            if cost <= left:
                change = _change(f, a, -1, giver, taker, 0.0, mean, dead)
                if change < -1e-12:
                    gain = -change + patience * _saved(f, a, -1, giver, taker, 0.0) / total
                    ratio = gain / (max(cost, 0.0) + crumb)
                    if gain > 1e-12 and ratio > best:
                        best, ba, bt, bb = ratio, a, taker, -1
                        clean = f.whole[a] <= excess
            a = f.after[a]
    if clean:
        return best, ba, bt, bb
    for n in ranked:
        if f.leaving[n] or n == w:
            continue
        a = f.first[w]
        while a >= 0:
            first = price(f, a, n)
            b = f.first[n]
            while b >= 0:
                cost = first + price(f, b, w)
                if cost <= left and (f.whole[a] > f.whole[b]) == over:
                    change = _change(f, a, b, w, n, 0.0, mean, dead)
                    if change < -1e-12:
                        bond = tied(f, a, b)
                        if bond > 0.0:
                            change = _change(f, a, b, w, n, bond, mean, dead)
                        gain = -change + patience * _saved(f, a, b, w, n, bond) / total
                        ratio = gain / (max(cost, 0.0) + crumb)
                        if change < -1e-12 and gain > 1e-12 and ratio > best:
                            best, ba, bt, bb = ratio, a, n, b
                b = f.after[b]
            a = f.after[a]
    return best, ba, bt, bb
