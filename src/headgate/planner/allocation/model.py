"""What a planner of allocations sees, and how good an allocation is (Madsen et al. 2017).

A *unit* is a key group: a bucket of an operator's keys, or one pinned key. Its load is that of the
bottleneck resource over one period, in percent of a node of capacity 1, as measured: what it pays
for rows that cross nodes is in it. Moving a unit costs mc = cost_per_byte x its state. A node that
is *leaving* is to be emptied and then released.

- mean: load of all nodes over the capacity of those that stay (the paper rounds it up to a whole
  percent; we do not, because our loads need not be percentages);
- load distance: the largest |load - mean| over the nodes that stay, here in percent of the mean;
- lower bound: no allocation within the migration budget has a smaller load distance.

An operator may have instances on some nodes only: its units go to those. One whose nodes are all
leaving gets others in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from headgate.arrays import F64, I32, I64, Bools
from headgate.errors import HeadgateError
from headgate.planner.distance import Distances
from headgate.planner.instances import place_instances
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
    `anywhere` are further rows, of which nobody knows between whom: they count as apart.
    """

    sender: I64
    receiver: I64
    rate: F64
    remote_load: float = 0.0
    anywhere: float = 0.0

    @classmethod
    def none(cls) -> Traffic:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @cached_property
    def total(self) -> float:
        return float(self.rate.sum()) + self.anywhere

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

    def grown(self, count: int) -> Nodes:
        """So many nodes that all stay, the new ones plain."""
        capacity = np.ones(count)
        capacity[: len(self)] = self.capacity[:count]
        return Nodes(capacity, np.zeros(count, np.bool_))

    def __len__(self) -> int:
        return len(self.capacity)

    @cached_property
    def staying(self) -> Bools:
        return ~self.leaving

    @cached_property
    def staying_capacity(self) -> float:
        return float(self.capacity[self.staying].sum())


@dataclass(frozen=True)
class Reach:
    """Where units may go: each to the nodes in the row of its group."""

    group: I32
    nodes: Bools

    def allows(self, unit: I64, node: I64 | I32) -> Bools:
        return self.nodes[self.group[unit], node]


@dataclass(frozen=True)
class Situation:
    """All that is known at the end of a period. `home` is the node that each unit is on.

    `instances` ([operator, node]) says where operators have an instance; empty: everywhere. However
    small its state, a unit costs `cost_least` to move: a budget / n lets n units move, at most.
    """

    units: Units
    nodes: Nodes
    home: I32
    traffic: Traffic = field(default_factory=Traffic.none)
    cost_per_byte: float = 1.0
    period: int = 0
    instances: Bools = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    cost_least: float = 0.0

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
        elif self.instances.size and self.instances.shape != (len(self.units.operators), nodes):
            wrong = f"instances of shape {self.instances.shape}"
        elif self.instances.size and not self.instances.any(axis=1).all():
            wrong = "an operator without an instance"
        if wrong:
            raise HeadgateError(f"nothing to plan from: {wrong}", nodes=nodes, units=units)

    @cached_property
    def migration_cost(self) -> F64:
        """Mc of every unit."""
        return np.maximum(self.cost_per_byte * self.units.state_bytes, self.cost_least)

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

    @cached_property
    def relocated(self) -> dict[str, tuple[int, ...]]:
        """New nodes for the operators that have instances on leaving nodes only."""
        if not self.instances.size or not self.nodes.leaving.any():
            return {}
        names, stays = self.units.operators, np.flatnonzero(self.nodes.staying)
        now = {
            op: np.flatnonzero(own[stays]) for op, own in zip(names, self.instances, strict=True)
        }
        count = self.instances.sum(axis=1).tolist()
        found = place_instances(
            {op: len(now[op]) or n for op, n in zip(names, count, strict=True)},
            len(stays),
            work=dict(zip(names, self._by_operator(self.units.load).tolist(), strict=True)),
            talks=self._talks(),
            hosts=[] if self.nodes.distances is None else self.nodes.distances.hosts(stays),
            now={op: tuple(kept.tolist()) for op, kept in now.items()},
        )
        return {op: tuple(stays[list(found[op])].tolist()) for op in names if not len(now[op])}

    @cached_property
    def reach(self) -> Reach | None:
        """Where the units of every operator may go; None: everywhere."""
        if not self.instances.size or self.instances.all():
            return None
        allowed = self.instances.copy()
        for operator, places in self.relocated.items():
            own = self.units.operators.index(operator)
            allowed[own] = False
            allowed[own, list(places)] = True
        return Reach(self.units.operator.astype(np.int32), allowed)

    def _by_operator(self, values: F64) -> F64:
        found = np.bincount(self.units.operator, values, len(self.units.operators))
        return found.astype(np.float64, copy=False)

    def _talks(self) -> dict[tuple[str, str], float]:
        names, t, operator = self.units.operators, self.traffic, self.units.operator
        pair = operator[t.sender].astype(np.int64) * len(names) + operator[t.receiver]
        rows = np.bincount(pair, t.rate, len(names) ** 2)
        return {
            (names[i // len(names)], names[i % len(names)]): float(rows[i])
            for i in np.flatnonzero(rows).tolist()
        }

    def on(self, nodes: Nodes) -> Situation:
        """The same units on another cluster; every node that a unit is on must be in it.

        Operators that are everywhere have an instance on new nodes too, the others do not.
        """
        instances, more = self.instances, len(nodes) - len(self.nodes)
        if instances.size and more:
            new = np.repeat(instances.all(axis=1, keepdims=True), max(more, 0), axis=1)
            instances = np.concatenate([instances[:, : len(nodes)], new], axis=1)
        return replace(self, nodes=nodes, instances=instances)

    def after(self, node: I32) -> Situation:
        """The same period as it would be measured under an allocation."""
        units = replace(self.units, load=self.unit_loads(node))
        return replace(self, units=units, home=node)


Balance = Literal["total", "operator"]
"""What is to be even: the load of nodes, or the load that every operator gives them."""


def distance_of(loads: F64, nodes: Nodes) -> float:
    """Load distance of node loads, in percent of the mean."""
    mean = loads.sum() / nodes.staying_capacity
    off = np.abs(loads / nodes.capacity - mean)[nodes.staying]
    return 100.0 * float((off / (mean if mean > 0 else np.inf)).max(initial=0.0))


def load_distance(
    situation: Situation, node: I32, *, as_measured: bool = False, balance: Balance = "total"
) -> float:
    """Load distance of an allocation, in percent of the mean; by operator that of the worst.

    An operator's is that of the nodes that its units may go to.
    """
    loads = class_loads(situation, node, balance, as_measured=as_measured)
    counts = class_nodes(situation, balance)
    mean = loads.sum(axis=1, keepdims=True) / class_room(situation, balance)[:, None]
    off = np.abs(loads / situation.nodes.capacity - mean)
    share = off / np.where(mean > 0, mean, np.inf)
    return 100.0 * float(share[counts].max(initial=0.0))


def class_nodes(situation: Situation, balance: Balance) -> Bools:
    """[class, node]: the nodes over which a class is to be even; they stay and may have it."""
    classes = int(balance_classes(situation, balance).max(initial=0)) + 1
    stays = np.tile(situation.nodes.staying, (classes, 1))
    if balance == "operator" and situation.reach is not None:
        stays &= situation.reach.nodes[:classes]
    return stays


def class_room(situation: Situation, balance: Balance) -> F64:
    """Capacity of these nodes, by class."""
    if balance == "operator" and situation.reach is not None:
        return np.asarray(class_nodes(situation, balance) @ situation.nodes.capacity)
    classes = int(balance_classes(situation, balance).max(initial=0)) + 1
    return np.full(classes, situation.nodes.staying_capacity)


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
        return t.anywhere + float(t.rate @ (1.0 - near[node[t.sender], node[t.receiver]]))
    return (1.0 - t.collocation(node)) * t.total


def nearness(situation: Situation) -> F64:
    """1 on the same node down to 0 for the farthest class; empty if nothing is known."""
    distances = situation.nodes.distances
    return np.empty((0, 0)) if distances is None else distances.nearness
