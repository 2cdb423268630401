"""The greedy: units go one by one from the fullest node to the emptiest, while that evens loads.

It is what every solver here is compared with and falls back on. Nodes that leave are emptied first,
then loads are evened; no move that the budget cannot pay is made. Each step lowers the sum of
squared loads per capacity, so it ends. O(steps x (nodes + log units)), at most 4 steps a unit, also
if all units are on one node, as after scaling out: units of a node are kept in the order of their
loads, in a treap. Every unit is in one treap at most, so arrays of one entry a unit hold all of
them. Ranks are random, so a treap of n units is O(log n) deep whatever the order they come in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I32, I64
from headgate.planner.allocation.model import Nodes, Situation, distance_of

NONE, FREE = -1, -1  # no unit; no node that a block must have


class Ordered(NamedTuple):
    """All treaps. A unit may change its `price` and `turn` while it is in none."""

    load: F64
    price: F64  # what it takes to move it
    turn: I64  # of equal loads the lowest comes last, and is found first
    rank: I64  # the highest is the root
    left: I64
    right: I64
    cheapest: F64  # in the subtree

    @classmethod
    def of(cls, load: F64, price: F64, turn: I64) -> Ordered:
        """No unit is in a treap yet."""
        units = len(load)
        rank = np.random.default_rng(0).permutation(units).astype(np.int64)
        none = np.full(units, NONE, np.int64)
        return cls(load, price, turn, rank, none, none.copy(), price.copy())


@njit(cache=True)
def _comes_before(o, a, b):  # type: ignore[no-untyped-def]
    if o.load[a] != o.load[b]:
        return o.load[a] < o.load[b]
    return o.turn[a] > o.turn[b]


@njit(cache=True)
def _refresh(o, root):  # type: ignore[no-untyped-def]
    least = o.price[root]
    if o.left[root] >= 0:
        least = min(least, o.cheapest[o.left[root]])
    if o.right[root] >= 0:
        least = min(least, o.cheapest[o.right[root]])
    o.cheapest[root] = least


@njit(cache=True)
def _split(o, root, unit):  # type: ignore[no-untyped-def]
    """What comes before a unit, and the rest."""
    if root < 0:
        return root, root
    if _comes_before(o, root, unit):
        before, after = _split(o, o.right[root], unit)
        o.right[root] = before
        _refresh(o, root)
        return root, after
    before, after = _split(o, o.left[root], unit)
    o.left[root] = after
    _refresh(o, root)
    return before, root


@njit(cache=True)
def _joined(o, first, second):  # type: ignore[no-untyped-def]
    if first < 0:
        return second
    if second < 0:
        return first
    if o.rank[first] > o.rank[second]:
        o.right[first] = _joined(o, o.right[first], second)
        _refresh(o, first)
        return first
    o.left[second] = _joined(o, first, o.left[second])
    _refresh(o, second)
    return second


@njit(cache=True)
def put(o, root, unit):  # type: ignore[no-untyped-def]
    """The root of a treap with one unit more."""
    o.left[unit] = o.right[unit] = NONE
    o.cheapest[unit] = o.price[unit]
    before, after = _split(o, root, unit)
    return _joined(o, _joined(o, before, unit), after)


@njit(cache=True)
def take(o, root, unit):  # type: ignore[no-untyped-def]
    """The root of a treap without one of its units."""
    if root == unit:
        return _joined(o, o.left[unit], o.right[unit])
    if _comes_before(o, root, unit):
        o.right[root] = take(o, o.right[root], unit)
    else:
        o.left[root] = take(o, o.left[root], unit)
    _refresh(o, root)
    return root


@njit(cache=True)
def last_up_to(o, root, load, budget):  # type: ignore[no-untyped-def]
    """The heaviest unit of at most that load which the budget pays for, or -1."""
    if root < 0 or o.cheapest[root] > budget:
        return np.int64(NONE)
    if o.load[root] > load:
        return last_up_to(o, o.left[root], load, budget)
    found = last_up_to(o, o.right[root], load, budget)
    if found >= 0:
        return found
    if o.price[root] <= budget:
        return root
    return last_up_to(o, o.left[root], load, budget)


@njit(cache=True)
def first_above(o, root, load, budget):  # type: ignore[no-untyped-def]
    """A lightest unit above that load which the budget pays for, or -1."""
    if root < 0 or o.cheapest[root] > budget:
        return np.int64(NONE)
    if o.load[root] <= load:
        return first_above(o, o.right[root], load, budget)
    found = first_above(o, o.left[root], load, budget)
    if found >= 0:
        return found
    if o.price[root] <= budget:
        return root
    return first_above(o, o.right[root], load, budget)


@njit(cache=True)
def nearest(o, root, load, below, budget):  # type: ignore[no-untyped-def]
    """The unit with the load nearest to this, less than `below`, that the budget pays for, or -1.

    Of those that are equally near the one with the lowest turn.
    """
    under = last_up_to(o, root, load, budget)
    over = first_above(o, root, load, budget)
    if over < 0 or o.load[over] >= below:
        return under
    over = last_up_to(o, root, o.load[over], budget)  # of its equals
    if under < 0:
        return over
    gap = abs(o.load[over] - load) - abs(o.load[under] - load)
    return over if gap < 0 or (gap == 0 and o.turn[over] < o.turn[under]) else under


@dataclass(frozen=True)
class Blocks:
    """What the program moves: units, or sets of units that stay together, on one node each.

    `fixed` is the node that a block must have, or -1. `mean` is that of all loads.
    """

    load: F64
    cost: F64
    home: I32
    fixed: I32
    nodes: Nodes
    mean: float

    @classmethod
    def of(cls, situation: Situation) -> Blocks:
        load = situation.units.load
        free = np.full(len(load), FREE, np.int32)
        mean = float(load.sum()) / situation.nodes.staying_capacity
        return cls(
            load,
            situation.migration_cost,
            situation.home.astype(np.int32),
            free,
            situation.nodes,
            mean,
        )

    def loads(self, node: I32) -> F64:
        return np.bincount(node, self.load, len(self.nodes)).astype(np.float64, copy=False)

    def distance(self, node: I32) -> float:
        return distance_of(self.loads(node), self.nodes)

    def cost_of(self, node: I32) -> float:
        """What it costs to get from home to an allocation."""
        return float(self.cost[node != self.home].sum())


def greedy(situation: Situation, budget: float = np.inf) -> I32:
    """A node for every unit, by moves alone, with loads as measured."""
    return greedy_of(Blocks.of(situation), budget)


def greedy_of(blocks: Blocks, budget: float) -> I32:
    """The same for blocks; those that are fixed go there first."""
    home, load, cost, fixed = blocks.home, blocks.load, blocks.cost, blocks.fixed
    capacity, leaving = blocks.nodes.capacity, blocks.nodes.leaving
    node = np.where(fixed >= 0, fixed, home).astype(np.int32)
    order = np.argsort(-load, kind="stable")
    left = budget - blocks.cost_of(node)
    _drain(node, home, load, cost, capacity, leaving, fixed, order, left)
    turn = np.empty(len(node), np.int64)
    turn[order] = np.arange(len(node))
    ordered = Ordered.of(load, np.where(node == home, cost, 0.0), turn)
    can = order[(load[order] > 0) & (fixed[order] < 0) & ~leaving[node[order]]]
    roots = np.full(len(capacity), NONE, np.int64)
    _put_all(ordered, roots, node, can)
    loads, left = blocks.loads(node), budget - blocks.cost_of(node)
    _even(node, home, cost, capacity, leaving, loads, ordered, roots, left)
    return node


@njit(cache=True)
def _step_cost(cost, home, source, target):  # type: ignore[no-untyped-def]
    """What a step adds to the cost of a plan: leaving home is paid, coming back is refunded."""
    if source == home:
        return cost
    return -cost if target == home else 0.0


@njit(cache=True)
def _emptiest(loads, capacity, leaving, extra):  # type: ignore[no-untyped-def]
    best = -1
    for i in range(len(loads)):
        if not leaving[i] and (
            best < 0 or (loads[i] + extra) / capacity[i] < (loads[best] + extra) / capacity[best]
        ):
            best = i
    return best


@njit(cache=True)
def _drain(node, home, load, cost, capacity, leaving, fixed, order, left):  # type: ignore[no-untyped-def]
    """Units of leaving nodes, heaviest first, each to the emptiest node that stays."""
    loads = np.zeros(len(capacity))
    for u in range(len(node)):
        loads[node[u]] += load[u]
    for u in order:
        price = 0.0 if node[u] != home[u] else cost[u]
        if leaving[node[u]] and fixed[u] < 0 and price <= left:
            to = _emptiest(loads, capacity, leaving, load[u])
            loads[node[u]] -= load[u]
            loads[to] += load[u]
            node[u] = to
            left -= price


@njit(cache=True)
def _put_all(o, roots, node, units):  # type: ignore[no-untyped-def]
    for u in units:
        roots[node[u]] = put(o, roots[node[u]], u)


@njit(cache=True)
def _even(node, home, cost, capacity, leaving, loads, o, roots, left):  # type: ignore[no-untyped-def]
    """From the fullest node that can give to the emptiest: the unit nearest to half the gap."""
    nodes, units = len(capacity), len(node)
    level = loads / capacity
    stuck = leaving.copy()
    for step in range(4 * units + 16):
        h = t = -1
        for i in range(nodes):
            if not stuck[i] and (h < 0 or level[i] > level[h]):
                h = i
            if not leaving[i] and (t < 0 or level[i] < level[t]):
                t = i
        if h < 0:
            break
        ideal = (level[h] - level[t]) / (1.0 / capacity[h] + 1.0 / capacity[t])
        u = nearest(o, roots[h], ideal, 2.0 * ideal * (1 - 1e-9), left) if ideal > 0.0 else -1
        if u < 0:
            stuck[h] = True
            continue
        left -= _step_cost(cost[u], home[u], h, t)
        roots[h] = take(o, roots[h], u)
        o.price[u] = cost[u] if t == home[u] else 0.0
        o.turn[u] = -1 - step  # those that came last go on first: they are paid for
        roots[t] = put(o, roots[t], u)
        for i, change in ((h, -o.load[u]), (t, o.load[u])):
            loads[i] += change
            level[i] = loads[i] / capacity[i]
        node[u] = t
        stuck[:] = leaving
