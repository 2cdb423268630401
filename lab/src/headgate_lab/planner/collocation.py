"""Sets of units that belong together: steps 1 and 2 of ALBIC (Madsen et al. 2017).

A pair counts if its traffic exceeds what its sender sends to a unit downstream on average,
times a score factor. Pairs that count and share a node are merged into sets; a set that is too
heavy or too costly to move is split by balanced graph partitioning, so that few rows are cut.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import pdtrc

from headgate.arrays import F64, I64, Bools
from headgate.planner.allocation.model import Situation
from headgate.planner.first_cut import cut_graph

SPLIT_ALPHA = 1.03
FALSE_ALARM = 0.00135  # three standard deviations, one side


def significant(situation: Situation, score_factor: float) -> Bools:
    """Which pairs count: out(gi, gj) > avg(gi) * score_factor (step 1).

    avg(gi) is what gi sends over the number of units downstream of it, those of the operators it
    sends to.
    """
    found: Bools = situation.traffic.rate > _average(situation) * score_factor
    return found


def clear_of_chance(situation: Situation) -> Bools:
    """Which pairs have more rows than their sender's average would give by chance.

    The paper counts many rows per pair. Where rows are fewer than pairs, an average is a part of a
    row and whoever met once would count: all units would be one set, too big to move.
    """
    average = _average(situation)
    found: Bools = pdtrc(np.ceil(situation.traffic.rate) - 1.0, average) < FALSE_ALARM
    return found


def _average(situation: Situation) -> F64:
    """avg(gi) of every pair's sender."""
    traffic, operator = situation.traffic, situation.units.operator
    if not len(traffic.rate):
        return np.zeros(0)
    kinds = len(situation.units.operators)
    sends = np.zeros((kinds, kinds), np.bool_)
    sends[operator[traffic.sender], operator[traffic.receiver]] = True
    downstream = sends @ np.bincount(operator, minlength=kinds)
    out = np.bincount(traffic.sender, traffic.rate, len(situation.units))
    average: F64 = out / np.maximum(downstream[operator], 1)
    return average[traffic.sender]


def collocated_sets(situation: Situation, counts: Bools) -> I64:
    """A set number for every unit: units joined by pairs that count and share a node (step 2)."""
    t, home, units = situation.traffic, situation.home, len(situation.units)
    joined = counts & (home[t.sender] == home[t.receiver])
    graph = coo_array(
        (np.ones(int(joined.sum())), (t.sender[joined], t.receiver[joined])), (units, units)
    )
    _, label = connected_components(graph, directed=False)
    return np.asarray(label, np.int64)


def split_sets(situation: Situation, sets: I64, load_max: float, cost_max: float, seed: int) -> I64:
    """Sets cut so that none is heavier than `load_max` or costlier than `cost_max`, if possible.

    Vertices weigh what is further above its maximum, migration cost or load; at random if both are.
    """
    load, cost = situation.units.load, situation.migration_cost
    loads, costs = (np.bincount(sets, x).astype(np.float64) for x in (load, cost))
    by_load, by_cost = _times(loads, load_max), _times(costs, cost_max)
    coin = np.random.default_rng((seed, situation.period)).random(len(loads)) < 0.5
    costly = (by_cost > by_load) | ((by_cost == by_load) & coin)
    pieces = sets.copy()
    count = len(loads)
    insides = _Insides(situation, sets)
    for s in np.flatnonzero(np.maximum(by_load, by_cost) > 1.0).tolist():
        members = insides.units(s)
        parts = math.ceil(min(max(by_load[s], by_cost[s]), len(members)))
        if parts < 2:
            continue
        weight = (cost if costly[s] else load)[members]
        part = insides.cut(s, weight, parts, seed)
        pieces[members] = np.where(part > 0, count + part, s)
        count += parts
    _, numbered = np.unique(pieces, return_inverse=True)
    return numbered.astype(np.int64)


def nodes_of_sets(situation: Situation, sets: I64) -> Bools | None:
    """[set, node]: where all units of a set may go; None: everywhere."""
    reach = situation.reach
    if reach is None:
        return None
    open_to = np.ones((int(sets.max(initial=-1)) + 1, len(situation.nodes)), np.bool_)
    for group, nodes in enumerate(reach.nodes):
        open_to[np.unique(sets[reach.group == group])] &= nodes
    return open_to


def split_by_reach(situation: Situation, sets: I64) -> I64:
    """Sets on a node that they cannot stay on, and that have no other in common, by operator.

    The paper's operators are on all nodes: their sets can always move as one.
    """
    open_to, nodes = nodes_of_sets(situation, sets), situation.nodes
    if open_to is None or situation.reach is None:
        return sets
    lost: Bools = ~np.asarray((open_to & nodes.staying).any(axis=1))
    stuck = nodes.leaving[situation.home] & lost[sets]
    groups = np.int64(len(situation.reach.nodes) + 1)
    group = np.where(stuck, situation.reach.group + 1, 0)
    found: I64 = np.unique(sets * groups + group, return_inverse=True)[1].astype(np.int64)
    return found


def _times(values: F64, most: float) -> F64:
    """How many times the most that is allowed; infinitely many if nothing is."""
    if most > 0:
        with np.errstate(over="ignore"):
            return values / most
    return np.where(values > 0, np.inf, 0.0)


class _Insides:
    """Units and pairs of every set, sorted once: sets are many, and so are pairs."""

    def __init__(self, situation: Situation, sets: I64) -> None:
        t, count = situation.traffic, np.arange(int(sets.max(initial=-1)) + 2)
        self._units = np.argsort(sets, kind="stable")
        self._first_unit = np.searchsorted(sets[self._units], count)
        inside = np.flatnonzero((sets[t.sender] == sets[t.receiver]) & (t.sender != t.receiver))
        self._pairs = inside[np.argsort(sets[t.sender[inside]], kind="stable")]
        self._first_pair = np.searchsorted(sets[t.sender[self._pairs]], count)
        self._place = np.empty(len(sets), np.int64)
        self._traffic = t

    def units(self, s: int) -> I64:
        return self._units[self._first_unit[s] : self._first_unit[s + 1]]

    def cut(self, s: int, weight: F64, parts: int, seed: int) -> I64:
        """A part for each unit of a set."""
        units, t = self.units(s), self._traffic
        if parts == len(units):
            return np.arange(parts)
        self._place[units] = np.arange(len(units))
        pairs = self._pairs[self._first_pair[s] : self._first_pair[s + 1]]
        u, v = self._place[t.sender[pairs]], self._place[t.receiver[pairs]]
        found = cut_graph(len(units), u, v, t.rate[pairs], weight, parts, SPLIT_ALPHA, seed)
        return found.astype(np.int64)
