"""How good an allocation is, in the words of Madsen et al. 2017.

- mean: load of all nodes over the capacity of those that stay (the paper rounds it up to a whole
  percent; we do not, because our loads need not be percentages);
- load distance: the largest |load - mean| over the nodes that stay, here in percent of the mean;
- load index: average load now over average load at the start, times 100;
- lower bound: no allocation within the migration budget has a smaller load distance.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from headgate.arrays import F64, I32
from headgate.planner.allocation.model import Nodes, Situation

BISECTIONS = 40
Balance = Literal["total", "operator"]
"""What is to be even: the load of nodes, or the load that every operator gives them."""


def mean_load(loads: F64, nodes: Nodes) -> float:
    """Load per capacity if the nodes that stay shared everything evenly."""
    return float(loads.sum()) / nodes.staying_capacity


def distance_of(loads: F64, nodes: Nodes) -> float:
    """Load distance of node loads, in percent of the mean; of several rows of them the largest."""
    mean = loads.sum(axis=-1, keepdims=True) / nodes.staying_capacity
    off = np.abs(loads / nodes.capacity - mean)[..., nodes.staying]
    return 100.0 * float((off / np.where(mean > 0, mean, np.inf)).max(initial=0.0))


def load_distance(
    situation: Situation, node: I32, *, as_measured: bool = False, balance: Balance = "total"
) -> float:
    """Load distance of an allocation, in percent of the mean; by operator that of the worst."""
    loads = class_loads(situation, node, balance, as_measured=as_measured)
    return distance_of(loads, situation.nodes)


def class_loads(
    situation: Situation, node: I32, balance: Balance, *, as_measured: bool = False
) -> F64:
    """[class, node]: loads of what is evened together, all units or those of an operator."""
    load = situation.units.load if as_measured else situation.unit_loads(node)
    kinds = balance_classes(situation, balance)
    classes, nodes = int(kinds.max(initial=0)) + 1, len(situation.nodes)
    found = np.bincount(kinds * np.int64(nodes) + node, load, classes * nodes)
    return found.astype(np.float64, copy=False).reshape(classes, nodes)


def balance_classes(situation: Situation, balance: Balance) -> I32:
    """The class of every unit."""
    if balance == "operator":
        return situation.units.operator.astype(np.int32)
    return np.zeros(len(situation.units), np.int32)


def load_index(now: float, at_start: float) -> float:
    """100 is the load right after the start."""
    return 100.0 * now / at_start if at_start > 0 else 100.0


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
    return 100.0 * max(low, _paid_bound(situation, mean, budget), 0.0) / mean


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
