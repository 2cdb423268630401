"""Atoms: units that sit together and talk much, moved as one so that evening loads tears nothing.

Pairs that share a node and exceed the score of ALBIC (traffic above `score_factor` times the
sender's average over all its downstream units) are joined, strongest first, as long as an atom
stays below a share of a node's load and of the budget. O(pairs log pairs).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headgate.planner.adjacency import F64, I64
from headgate.planner.allocation.model import I32, Bools, Situation


def significant(situation: Situation, score_factor: float) -> Bools:
    """Which pairs count: out(gi, gj) > avg(gi) * score_factor (step 1 of ALBIC).

    avg(gi) is what gi sends over the number of units downstream of it, those of the
    operators it sends to.
    """
    traffic, operator = situation.traffic, situation.units.operator
    if not len(traffic.rate):
        return np.zeros(0, np.bool_)
    kinds = len(situation.units.operators)
    sends = np.zeros((kinds, kinds), np.bool_)
    sends[operator[traffic.sender], operator[traffic.receiver]] = True
    downstream = sends @ np.bincount(operator, minlength=kinds)
    out = np.bincount(traffic.sender, traffic.rate, len(situation.units))
    average = out / np.maximum(downstream[operator], 1)
    found: Bools = traffic.rate > average[traffic.sender] * score_factor
    return found


def atoms_of(
    situation: Situation,
    node: I32,
    strong: Bools,
    *,
    load_max: float,
    cost_max: float,
) -> I64:
    """An atom number for every unit under an allocation, from 0 on without gaps."""
    traffic = situation.traffic
    joins = np.flatnonzero(strong & (node[traffic.sender] == node[traffic.receiver]))
    joins = joins[np.argsort(-traffic.rate[joins], kind="stable")]
    root = _join(
        len(node),
        traffic.sender[joins],
        traffic.receiver[joins],
        situation.unit_loads(node),
        situation.migration_cost,
        load_max,
        cost_max,
    )
    _, atom = np.unique(root, return_inverse=True)
    return atom.astype(np.int64)


@njit(cache=True)
def _join(units, u, v, load, cost, load_max, cost_max):  # type: ignore[no-untyped-def]
    root = np.arange(units)
    load, cost = load.copy(), cost.copy()
    for e in range(len(u)):
        a, b = u[e], v[e]
        while root[a] != a:
            root[a] = root[root[a]]
            a = root[a]
        while root[b] != b:
            root[b] = root[root[b]]
            b = root[b]
        if a != b and load[a] + load[b] <= load_max and cost[a] + cost[b] <= cost_max:
            root[b] = a
            load[a] += load[b]
            cost[a] += cost[b]
    for i in range(units):
        a = i
        while root[a] != a:
            a = root[a]
        root[i] = a
    return root


def sums(atom: I64, values: F64, count: int) -> F64:
    return np.bincount(atom, values, count).astype(np.float64, copy=False)
