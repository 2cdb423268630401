"""A load distance below which no allocation gets: what a planner's result is held against."""

from __future__ import annotations

import numpy as np

from headgate.arrays import F64
from headgate.planner.allocation.model import Reach, Situation

BISECTIONS = 40  # of a range: below what two floats differ by


def lower_bound(situation: Situation, budget: float = np.inf) -> float:
    """A load distance (percent of the mean) below which no allocation of measured loads gets.

    Three reasons why it cannot be 0: a unit heavier than a node's share; fewer units than nodes;
    and the budget: an overfull node loses load, and empty ones gain it, at best at the cheapest
    rate there is, a fraction of a unit at the end, and that must be paid. O(units log units).
    """
    nodes, load = situation.nodes, situation.units.load
    total = float(load.sum())
    if total <= 0:
        return 0.0
    mean = total / nodes.staying_capacity
    low = 0.0
    if not nodes.leaving.any():  # else the heaviest unit may sit on a node that does not count
        low = float(load.max()) / float(nodes.capacity.max()) - mean
    if int((load > 0).sum()) < int(nodes.staying.sum()):
        low = max(low, mean)
    if situation.reach is not None:
        low = max(low, _reach_bound(situation, situation.reach, mean))
    return 100.0 * max(low, _paid_bound(situation, mean, budget), 0.0) / mean


def _reach_bound(situation: Situation, reach: Reach, mean: float) -> float:
    """A node has no more than all that may go there; an operator's nodes have all of its load."""
    nodes, home = situation.nodes, situation.home
    if not (nodes.leaving[home] | reach.allows(np.arange(len(home)), home)).all():
        return 0.0  # what is where it should not be may stay there
    total = np.bincount(reach.group, situation.units.load, len(reach.nodes))
    most = (total @ reach.nodes) / nodes.capacity
    low = mean - float(most[nodes.staying].min())
    if not nodes.leaving.any():
        low = max(low, float((total / (reach.nodes @ nodes.capacity)).max()) - mean)
    return low


def _paid_bound(situation: Situation, mean: float, budget: float) -> float:
    """The smallest distance that the budget can pay for, if units could be cut."""
    nodes, load, cost = situation.nodes, situation.units.load, situation.migration_cost
    if not np.isfinite(budget):
        return 0.0
    rate = np.divide(cost, load, out=np.full(len(load), np.inf), where=load > 0)
    cost = np.where(load > 0, cost, 0.0)
    order = np.lexsort((rate, situation.home))
    first = np.searchsorted(situation.home[order], np.arange(len(nodes)))
    shed, paid = _sums(load[order]), _sums(cost[order])
    cheapest = np.argsort(rate, kind="stable")
    all_shed, all_paid = _sums(load[cheapest]), _sums(cost[cheapest])
    loads = situation.node_loads(situation.home, as_measured=True)
    stays, even = nodes.staying, nodes.capacity

    def price(distance: float) -> float:
        excess = np.where(stays, np.maximum(loads - even * (mean + distance), 0.0), 0.0)
        out = np.interp(shed[first] + np.minimum(excess, loads), shed, paid) - paid[first]
        missing = float(np.maximum(even * (mean - distance) - loads, 0.0)[stays].sum())
        return max(float(out[excess > 0].sum()), float(np.interp(missing, all_shed, all_paid)))

    low, high = 0.0, float(np.abs(loads / even - mean)[stays].max())
    if price(0.0) <= budget * (1 + 1e-9):
        return 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if price(middle) <= budget else (middle, high)
    return low * (1 - 1e-9)


def _sums(values: F64) -> F64:
    return np.concatenate([[0.0], np.cumsum(values)])
