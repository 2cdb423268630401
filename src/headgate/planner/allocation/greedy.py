"""The greedy: units go one by one from the fullest node to the emptiest, while that evens loads.

It is what every solver here is compared with and falls back on. Nodes that leave are emptied first,
then loads are evened; no move that the budget cannot pay is made. Each step lowers the sum of
squared loads per capacity, so it ends. O(steps x (nodes + log units)), at most 4 steps a unit, also
if all units are on one node, as after scaling out: units of a node are kept in order (`ordered`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headgate.arrays import F64, I32, Bools
from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.ordered import NONE, Ordered, nearest, put, take


def greedy(situation: Situation, budget: float = np.inf) -> I32:
    """A node for every unit, by moves alone, with loads as measured."""
    node = situation.home.astype(np.int32).copy()
    return greedy_from(
        node,
        situation.home,
        situation.units.load,
        situation.migration_cost,
        situation.nodes.capacity,
        situation.nodes.leaving,
        np.full(len(node), -1, np.int32),
        budget,
    )


def greedy_from(
    node: I32,
    home: I32,
    load: F64,
    cost: F64,
    capacity: F64,
    leaving: Bools,
    fixed: I32,
    budget: float,
) -> I32:
    """The same from any start, changed in place; units with `fixed` >= 0 go there first."""
    bound = np.flatnonzero((fixed >= 0) & (fixed != node))
    node[bound] = fixed[bound]
    left = budget - float(cost[node != home].sum())
    order = np.argsort(-load, kind="stable")
    _drain(node, home, load, cost, capacity, leaving, fixed, order, left)
    left = budget - float(cost[node != home].sum())
    turn = np.empty(len(node), np.int64)
    turn[order] = np.arange(len(node))
    ordered = Ordered.of(load, np.where(node == home, cost, 0.0), turn)
    can = order[(load[order] > 0) & (fixed[order] < 0) & ~leaving[node[order]]]
    roots = np.full(len(capacity), NONE, np.int64)
    _put_all(ordered, roots, node, can)
    loads = np.bincount(node, load, len(capacity)).astype(np.float64, copy=False)
    _even(node, home, cost, capacity, leaving, loads, ordered, roots, left)
    return node


@njit(cache=True)
def step_cost(cost, home, source, target):  # type: ignore[no-untyped-def]
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
        left -= step_cost(cost[u], home[u], h, t)
        roots[h] = take(o, roots[h], u)
        o.price[u] = cost[u] if t == home[u] else 0.0
        o.turn[u] = -1 - step  # those that came last go on first: they are paid for
        roots[t] = put(o, roots[t], u)
        for i, change in ((h, -o.load[u]), (t, o.load[u])):
            loads[i] += change
            level[i] = loads[i] / capacity[i]
        node[u] = t
        stuck[:] = leaving


def cost_of(node: I32, home: I32, cost: F64) -> float:
    """What it costs to get from home to an allocation."""
    return float(cost[node != home].sum())
