"""The greedy: units go one by one from the fullest node to the emptiest, while that evens loads.

It is where every search here may start, and what it falls back on. Nodes that leave are emptied
first, then loads are evened; no move that the budget cannot pay is made. A unit moves once at most,
so what cannot be paid now never can, and what a node cannot give now it never can: both are struck
out. O(units x (nodes + log units)), also if all units are on one node, as after scaling out.

Units that may go to some nodes only (`Reach`) go to the emptiest of these; a node that could not
give is asked again after every move, as one that took may have given since.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headgate.arrays import F64, I32
from headgate.planner.allocation.model import Nodes, Reach, Situation

FREE = -1  # no node that a unit must have


def greedy(situation: Situation, budget: float = np.inf) -> I32:
    """A node for every unit, by moves alone, with loads as measured."""
    units = situation.units
    free = np.full(len(units), FREE, np.int32)
    return even_out(
        units.load,
        situation.migration_cost,
        situation.home,
        free,
        situation.nodes,
        budget,
        situation.reach,
    )


def even_out(
    load: F64,
    cost: F64,
    home: I32,
    fixed: I32,
    nodes: Nodes,
    budget: float,
    reach: Reach | None = None,
) -> I32:
    """The same for anything with a load; what is fixed goes there first."""
    node = np.where(fixed >= 0, fixed, home).astype(np.int32)
    left = budget - float(cost[node != home].sum())
    loads = np.bincount(node, load, len(nodes)).astype(np.float64, copy=False)
    leaves = nodes.leaving[node] & (fixed < 0)
    heaviest = np.flatnonzero(leaves)
    heaviest = heaviest[np.argsort(-load[heaviest], kind="stable")]
    group, closed = np.zeros(len(load), np.int32), nodes.leaving[None].copy()
    if reach is not None:
        group, closed = reach.group, ~reach.nodes | nodes.leaving
    left = _drain(node, loads, load, cost, nodes.capacity, group, closed, heaviest, left)
    can = np.flatnonzero((load > 0) & (node == home) & (fixed < 0) & ~leaves)
    order = can[np.lexsort((load[can], node[can]))]
    if reach is not None:
        _even_within(node, loads, load, order, cost, nodes.capacity, group, closed, left)
        return node
    first = 1 + np.searchsorted(node[order], np.arange(len(nodes) + 1))
    units = np.concatenate([[-1], order, [-1]]).astype(np.int64)
    sizes = np.concatenate([[0.0], load[order], [0.0]])
    _even(node, loads, sizes, units, first, cost, nodes.capacity, nodes.leaving, left)
    return node


@njit(cache=True)
def _drain(node, loads, load, cost, capacity, group, closed, units, left):  # type: ignore[no-untyped-def]
    """Each of these units to the emptiest node that is not closed; what is left of the budget."""
    for u in units:
        if cost[u] > left:
            continue
        to = -1
        for i in range(len(loads)):
            full = (loads[i] + load[u]) / capacity[i]
            if not closed[group[u], i] and (to < 0 or full < (loads[to] + load[u]) / capacity[to]):
                to = i
        if to < 0:
            continue
        loads[node[u]] -= load[u]
        loads[to] += load[u]
        node[u] = to
        left -= cost[u]
    return left


@njit(cache=True)
def _even(node, loads, sizes, units, first, cost, capacity, leaving, left):  # type: ignore[no-untyped-def]
    """From the fullest node that can give to the emptiest: the unit nearest to half the gap.

    `units` are sorted by node and size, between two sentinels; `below` and `above` lead from each
    place to the nearest that is not struck out.
    """
    below, above = np.arange(len(units)), np.arange(len(units))
    level = loads / capacity
    done = leaving.copy()
    while True:
        h = t = -1
        for i in range(len(level)):
            if not done[i] and (h < 0 or level[i] > level[h]):
                h = i
            if not leaving[i] and (t < 0 or level[i] < level[t]):
                t = i
        if h < 0:
            return
        ideal = (level[h] - level[t]) / (1.0 / capacity[h] + 1.0 / capacity[t])
        start, end = first[h], first[h + 1]
        middle = start + np.searchsorted(sizes[start:end], ideal, side="right")
        chosen = _affordable(below, above, below, middle - 1, units, cost, left)
        if chosen < start:
            chosen = -1
        over = _affordable(below, above, above, middle, units, cost, left)
        fits = over < end and sizes[over] < 2.0 * ideal * (1 - 1e-9)
        if fits and (chosen < 0 or sizes[over] - ideal < ideal - sizes[chosen]):
            chosen = over
        if chosen < 0 or ideal <= 0.0:
            done[h] = True
            continue
        u = units[chosen]
        below[chosen], above[chosen] = chosen - 1, chosen + 1
        left -= cost[u]
        node[u] = t
        loads[h] -= sizes[chosen]
        loads[t] += sizes[chosen]
        level[h], level[t] = loads[h] / capacity[h], loads[t] / capacity[t]


@njit(cache=True)
def _even_within(node, loads, load, units, cost, capacity, group, closed, left):  # type: ignore[no-untyped-def]
    """The same where nodes are closed to some groups of units: the move that levels a node best.

    `units` are sorted by node; each is looked at while it is where it was.
    """
    level = loads / capacity
    first = np.searchsorted(node[units], np.arange(len(level) + 1))
    home = node[units].copy()
    emptiest = np.empty(closed.shape[0], np.int64)
    done = np.zeros(len(level), np.bool_)
    while True:
        h = -1
        for i in range(len(level)):
            if not done[i] and first[i] < first[i + 1] and (h < 0 or level[i] > level[h]):
                h = i
        if h < 0:
            return
        for g in range(len(emptiest)):
            emptiest[g] = -1
            for i in range(len(level)):
                if (
                    not closed[g, i]
                    and i != h
                    and (emptiest[g] < 0 or level[i] < level[emptiest[g]])
                ):
                    emptiest[g] = i
        chosen, best = -1, level[h] * (1 - 1e-9)
        for j in range(first[h], first[h + 1]):
            u = units[j]
            t = emptiest[group[u]]
            if node[u] != home[j] or t < 0 or cost[u] > left:
                continue
            after = max(level[h] - load[u] / capacity[h], level[t] + load[u] / capacity[t])
            if after < best:
                chosen, best = u, after
        if chosen < 0:
            done[h] = True
            continue
        t = emptiest[group[chosen]]
        left -= cost[chosen]
        node[chosen] = t
        loads[h] -= load[chosen]
        loads[t] += load[chosen]
        level[h], level[t] = loads[h] / capacity[h], loads[t] / capacity[t]
        done[:] = False


@njit(cache=True)
def _affordable(below, above, way, at, units, cost, left):  # type: ignore[no-untyped-def]
    """The next place that way whose unit the budget pays for; others are struck out."""
    while True:
        while way[at] != at:
            way[at] = way[way[at]]
            at = way[at]
        if units[at] < 0 or cost[units[at]] <= left:
            return at
        below[at], above[at] = at - 1, at + 1
