"""What a planner of allocations sees, and how good an allocation is (Madsen et al. 2017).

A *unit* is a key group: a bucket of an operator's keys, or one pinned key. Its load is that of the
bottleneck resource over one period, in percent of a node of capacity 1, as measured: what it pays
for rows that cross nodes is in it. Moving a unit costs mc = cost_per_byte x its state. A node that
is *leaving* is to be emptied and then released.

- mean: load of all nodes over the capacity of those that stay (the paper rounds it up to a whole
  percent; we do not, because our loads need not be percentages);
- load distance: the largest |load - mean| over the nodes that stay, here in percent of the mean;
- lower bound: no allocation within the migration budget has a smaller load distance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from headgate.arrays import F64, I32, I64, Bools
from headgate.errors import HeadgateError
from headgate.planner.distance import Distances
from headgate.planner.key_graph import Adjacency, adjacency_of


@dataclass(frozen=True)
class Units:
    """Loads and states of units; `operator` is a number into `operators`."""

    operators: tuple[str, ...]
    operator: I32
    load: F64
    state_bytes: F64
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.load)

    def name(self, unit: int) -> str:
        """What people call a unit: its name, else its operator and its number within it."""
        if self.names:
            return self.names[unit]
        first = int(np.searchsorted(self.operator, self.operator[unit]))
        return f"{self.operators[self.operator[unit]]}[{unit - first}]"


@dataclass(frozen=True)
class Traffic:
    """Rows (or bytes) per period from unit to unit. Each pair of units is there at most once.

    `remote_load` is the load that one row costs at each of its two ends if it crosses nodes.
    """

    sender: I64
    receiver: I64
    rate: F64
    remote_load: float = 0.0

    @classmethod
    def none(cls) -> Traffic:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @cached_property
    def total(self) -> float:
        return float(self.rate.sum())

    def collocation(self, node: I32) -> float:
        """The collocation factor: share of the traffic between units on one node; 1 without any."""
        if not self.total:
            return 1.0
        return float(self.rate[node[self.sender] == node[self.receiver]].sum()) / self.total

    def remote(self, node: I32) -> F64:
        """Rows that each unit sends to or gets from other nodes."""
        apart = node[self.sender] != node[self.receiver]
        rows = np.zeros(len(node))
        for end in (self.sender, self.receiver):
            rows += np.bincount(end[apart], self.rate[apart], len(node))
        return rows


@dataclass(frozen=True)
class Nodes:
    """The cluster: capacity (1 is a plain node), which are to go, and how far apart they are."""

    capacity: F64
    leaving: Bools
    distances: Distances | None = None

    @classmethod
    def alike(cls, count: int, leaving: tuple[int, ...] = ()) -> Nodes:
        goes = np.zeros(count, np.bool_)
        goes[list(leaving)] = True
        return cls(np.ones(count), goes)

    def __len__(self) -> int:
        return len(self.capacity)

    @cached_property
    def staying(self) -> Bools:
        return ~self.leaving

    @cached_property
    def staying_capacity(self) -> float:
        return float(self.capacity[self.staying].sum())


@dataclass(frozen=True)
class Situation:
    """All that is known at the end of a period. `home` is the node that each unit is on."""

    units: Units
    nodes: Nodes
    home: I32
    traffic: Traffic = field(default_factory=Traffic.none)
    cost_per_byte: float = 1.0
    period: int = 0

    def __post_init__(self) -> None:
        units, nodes = len(self.units), len(self.nodes)
        wrong = None
        if not self.nodes.staying.any():
            wrong = "no node that stays; keep at least one"
        elif not (self.nodes.capacity > 0).all():
            wrong = "a node without capacity; mark it as leaving instead"
        elif self.home.shape != (units,) or len(self.units.state_bytes) != units:
            wrong = f"{units} loads, {len(self.units.state_bytes)} states, {len(self.home)} homes"
        elif units and not (self.home.min() >= 0 and self.home.max() < nodes):
            wrong = f"a unit on a node outside 0..{nodes - 1}"
        elif not (np.isfinite(self.units.load).all() and (self.units.load >= 0).all()):
            wrong = "a load that is negative or not a number"
        if wrong:
            raise HeadgateError(f"nothing to plan from: {wrong}", nodes=nodes, units=units)

    @cached_property
    def migration_cost(self) -> F64:
        """Mc of every unit."""
        return self.cost_per_byte * self.units.state_bytes

    @cached_property
    def adjacency(self) -> Adjacency:
        """Who talks to whom, both directions."""
        t = self.traffic
        return adjacency_of(len(self.units), t.sender, t.receiver, t.rate)

    @cached_property
    def remote(self) -> F64:
        """Rows that each unit exchanges with other nodes, as things are."""
        return self.traffic.remote(self.home)

    @cached_property
    def base_load(self) -> F64:
        """What a unit costs wherever its partners are."""
        paid = self.traffic.remote_load * self.remote
        return np.maximum(self.units.load - paid, 0.0)

    def unit_loads(self, node: I32) -> F64:
        """Loads as they would be under an allocation; at home they are those measured."""
        if not self.traffic.remote_load:
            return self.units.load
        paid = self.traffic.remote_load * (self.traffic.remote(node) - self.remote)
        return np.maximum(self.units.load + paid, 0.0)

    def node_loads(self, node: I32, *, as_measured: bool = False) -> F64:
        """Load per node; `as_measured` leaves out what collocation saves, as the paper's MILP."""
        load = self.units.load if as_measured else self.unit_loads(node)
        return np.bincount(node, load, len(self.nodes)).astype(np.float64, copy=False)

    def collocation(self, node: I32) -> float:
        """The collocation factor of an allocation."""
        return self.traffic.collocation(node)

    def moved(self, node: I32) -> I64:
        """Units that an allocation takes away from their home."""
        return np.flatnonzero(node != self.home).astype(np.int64)

    def cost_of(self, node: I32) -> float:
        """What it costs to get to an allocation."""
        return float(self.migration_cost[node != self.home].sum())

    def on(self, nodes: Nodes) -> Situation:
        """The same units on another cluster; every node that a unit is on must be in it."""
        return replace(self, nodes=nodes)

    def after(self, node: I32) -> Situation:
        """The same period as it would be measured under an allocation."""
        units = replace(self.units, load=self.unit_loads(node))
        return replace(self, units=units, home=node)


BISECTIONS = 40  # of a range: below what two floats differ by
Balance = Literal["total", "operator"]
"""What is to be even: the load of nodes, or the load that every operator gives them."""


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


def far_rows(situation: Situation, node: I32) -> float:
    """Rows that leave their node; those to near nodes count in part."""
    t, near = situation.traffic, nearness(situation)
    if not t.total:
        return 0.0
    if len(near):
        return float(t.rate @ (1.0 - near[node[t.sender], node[t.receiver]]))
    return (1.0 - t.collocation(node)) * t.total


def nearness(situation: Situation) -> F64:
    """1 on the same node down to 0 for the farthest class; empty if nothing is known."""
    distances = situation.nodes.distances
    return np.empty((0, 0)) if distances is None else distances.nearness


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
