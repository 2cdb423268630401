"""The greedy: units go one by one from the fullest node to the emptiest, while that evens loads.

It is what every solver here is compared with and falls back on. Nodes that leave are emptied first,
then loads are evened; no move that the budget cannot pay is made. Each step lowers the sum of
squared loads per capacity, so it ends. O(steps x units of a node).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headgate.planner.adjacency import F64
from headgate.planner.allocation.model import I32, Bools, Situation


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
    _even(node, home, load, cost, capacity, leaving, fixed, order, left)
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
def _even(node, home, load, cost, capacity, leaving, fixed, order, left):  # type: ignore[no-untyped-def]
    """From the fullest node that can give to the emptiest: the unit nearest to half the gap."""
    nodes, units = len(capacity), len(node)
    loads = np.zeros(nodes)
    for u in range(units):
        loads[node[u]] += load[u]
    first = np.full(nodes, -1, np.int64)  # linked lists of the units of a node
    after = np.full(units, -1, np.int64)
    for i in range(units - 1, -1, -1):
        u = order[i]
        after[u] = first[node[u]]
        first[node[u]] = u
    stuck = leaving.copy()
    for _ in range(4 * units + 16):
        h = -1
        for i in range(nodes):
            if not stuck[i] and (h < 0 or loads[i] / capacity[i] > loads[h] / capacity[h]):
                h = i
        if h < 0:
            break
        t = _emptiest(loads, capacity, leaving, 0.0)
        spread = loads[h] / capacity[h] - loads[t] / capacity[t]
        ideal = spread / (1.0 / capacity[h] + 1.0 / capacity[t])
        best, last, before_best = -1, -1, -1
        u = first[h]
        while u >= 0:
            price = step_cost(cost[u], home[u], h, t)
            if (
                fixed[u] < 0
                and 0.0 < load[u] < 2.0 * ideal * (1 - 1e-9)
                and price <= left
                and (best < 0 or abs(load[u] - ideal) < abs(load[best] - ideal))
            ):
                best, before_best = u, last
            last = u
            u = after[u]
        if best < 0:
            stuck[h] = True
            continue
        left -= (
            -cost[best] if t == home[best] else (cost[best] if node[best] == home[best] else 0.0)
        )
        if before_best < 0:
            first[h] = after[best]
        else:
            after[before_best] = after[best]
        after[best] = first[t]
        first[t] = best
        loads[h] -= load[best]
        loads[t] += load[best]
        node[best] = t
        for i in range(nodes):
            stuck[i] = leaving[i]


def cost_of(node: I32, home: I32, cost: F64) -> float:
    """What it costs to get from home to an allocation."""
    return float(cost[node != home].sum())
