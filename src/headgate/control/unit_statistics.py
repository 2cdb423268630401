"""What a period of epochs says about units: their loads, states and traffic, as a `Situation`.

A unit is a bucket of an operator's keys or one pinned key (Madsen et al. 2017: a key group). Of
three resources the one with the greatest total use is the bottleneck of the period, and loads are
loads of that one, in percent of what a slot can take:

    time    ms in the operator's tasks, by rows; what the rest of a task takes goes to the rows
            that cross slots, and what is left (sources, stateless operators) to all slots alike;
            all of it counts as use
    memory  bytes of state, if it is known how many a slot may hold
    bytes   bytes of rows that cross slots, in and out, if it is known how many a slot may move a
            second; of an operator, not of each unit: its rows are taken to be alike

Units are counted under their own names, not their slots', so a period can be read again under
other tables. Memory: the sketches of `gather`, and three numbers per unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.arrays import F64, I32, I64, U64
from headgate.commit.facts import StateSize
from headgate.commit.planning import Observed
from headgate.control.observation import gather
from headgate.errors import DeclarationError
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Plan
from headgate.planner.distance import Distances
from headgate.planner.placing import Observation
from headgate.routing.table import RoutingTable

PAIRS_MAX = 1 << 17
STATE_BYTES_MIN = 64.0  # a unit without known state still takes a line in a file
PRIOR_BYTES, PRIOR_SECONDS_PER_BYTE = 1e6, 2e-8  # 50 MB/s, until some state has moved


@dataclass(frozen=True)
class UnitIndex:
    """All units of some tables, numbered: operator after operator, buckets before pins."""

    operators: tuple[str, ...]
    first: Mapping[str, int]
    ids: Mapping[str, U64]
    order: Mapping[str, I64]
    operator: I32
    home: I32
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, RoutingTable],
        labels: Mapping[str, Mapping[int, str]] | None = None,
    ) -> UnitIndex:
        """`labels` are texts of keys that are known, by operator and hash."""
        first: dict[str, int] = {}
        ids: dict[str, U64] = {}
        homes: list[I32] = []
        names: list[str] = []
        for name, table in tables.items():
            unit, home = table.all_units()
            first[name] = len(names)
            ids[name] = unit
            homes.append(home)
            names += [f"{name}[{bucket}]" for bucket in range(table.buckets)]
            known = (labels or {}).get(name, {})
            names += [_key_name(name, h, known.get(h)) for h in table.pinned_h.tolist()]
        sizes = [len(home) for home in homes]
        operator = np.repeat(np.arange(len(homes), dtype=np.int32), sizes)
        order = {name: np.argsort(unit, kind="stable") for name, unit in ids.items()}
        home = np.concatenate(homes).astype(np.int32)
        return cls(tuple(tables), first, ids, order, operator, home, tuple(names))

    def find(
        self, operator: str, unit: U64
    ) -> tuple[I64, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Numbers of units, and which of them are known."""
        if operator not in self.ids:
            return np.zeros(len(unit), np.int64), np.zeros(len(unit), np.bool_)
        ids, order = self.ids[operator], self.order[operator]
        at = np.minimum(np.searchsorted(ids, unit, sorter=order), len(ids) - 1)
        number = order[at]
        return number + self.first[operator], np.asarray(ids[number] == unit)

    def look_up(self, values: Mapping[str, tuple[U64, F64]]) -> F64:
        """A number per unit; 0 for those without one."""
        found = np.zeros(len(self.home))
        for operator, (unit, value) in values.items():
            number, known = self.find(operator, unit)
            np.add.at(found, number[known], value[known])
        return found

    def spread(self, by_operator: Mapping[str, float]) -> F64:
        """A number per operator, for each of its units."""
        return np.array([by_operator[name] for name in self.operators])[self.operator]

    def owners(self, node: I32, operator: str) -> I32:
        """Of an allocation, the part of one operator, as its table wants it."""
        start = self.first[operator]
        return node[start : start + len(self.ids[operator])]


def _key_name(operator: str, h: int, text: str | None) -> str:
    return f"{operator} key #{h:016x}" if text is None else f"{operator} key {text!r}"


@dataclass(frozen=True)
class Capacity:
    """What a slot can take of resources other than time; None: that is never the bottleneck."""

    state_bytes: float | None = None
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise DeclarationError(f"{name}={value}; give more than 0, or None")


@dataclass
class MigrationCost:
    """Seconds per byte of state that moves, from all moves so far, old ones fading.

    It is a sum over tasks that move state side by side: what moving costs, not how long it takes.
    """

    seconds: float = PRIOR_BYTES * PRIOR_SECONDS_PER_BYTE
    bytes: float = PRIOR_BYTES
    fade: float = 0.9

    def learn(self, observed: Sequence[Observed]) -> None:
        for epoch in observed:
            facts = epoch.facts
            moved = 0.0
            for operator, rows in facts.moved_rows.items():
                held = facts.state.get(operator, {}).values()
                total = sum(size.rows for size in held)
                moved += rows * sum(size.bytes for size in held) / total if total else 0.0
            if moved:
                spent = sum(sum(by_slot) for by_slot in facts.moving_ms.values())
                self.seconds = self.fade * self.seconds + spent / 1e3
                self.bytes = self.fade * self.bytes + moved

    @property
    def per_byte(self) -> float:
        return self.seconds / self.bytes


@dataclass(frozen=True)
class Measured:
    """A period as planners see it. `base` is the load that every slot has besides its units."""

    situation: Situation
    resource: str
    base: float
    use: Mapping[str, float]
    timed: bool

    def slot_loads(self, node: I32) -> F64:
        """Load of every slot under an allocation, in percent of what it can take."""
        return self.situation.node_loads(node) + self.base

    def planned_loads(self, plan: Plan) -> F64:
        """The same under a plan, which may cut units anew."""
        return plan.loads + self.base


@dataclass(frozen=True)
class Period:
    """Epochs that ran with one slot count, added up."""

    seen: Observation
    slots: int
    wall_ms: float
    operator_ms: Mapping[str, float]
    task_ms: float | None
    crossing_rows: float
    edges: Mapping[str, tuple[float, float]]
    state: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    merge_rows: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Sequence[Observed], since_ms: int | None) -> Period:
        """`since_ms` is when the epoch before these began."""
        epochs = [epoch.facts for epoch in observed]
        operator_ms: dict[str, float] = {}
        edges: dict[str, tuple[float, float]] = {}
        merged: dict[str, float] = {}
        crossing = 0.0
        for facts in epochs:
            for operator, by_slot in facts.operator_ms.items():
                operator_ms[operator] = operator_ms.get(operator, 0.0) + sum(by_slot)
            for name, edge in facts.edges.items():
                rows, size = edges.get(name, (0.0, 0.0))
                edges[name] = rows + edge.rows, size + edge.remote_bytes
                crossing += edge.remote_rows
            for operator, rows in facts.merge_rows.items():
                merged[operator] = merged.get(operator, 0.0) + rows
                crossing += rows
        told = [sum(facts.engine.task_ms.values()) for facts in epochs if facts.engine.task_ms]
        last = epochs[-1]
        return cls(
            gather(observed, PAIRS_MAX),
            last.slots,
            0.0 if since_ms is None else float(last.now_ms - since_ms),
            operator_ms,
            sum(told) if len(told) == len(epochs) else None,
            crossing,
            edges,
            _state_by_unit(observed),
            merged,
        )

    def measure(
        self,
        tables: Mapping[str, RoutingTable],
        capacity: Capacity,
        cost_per_byte: float,
        *,
        leaving: int = 0,
        distances: Distances | None = None,
    ) -> Measured:
        """The situation under these tables; the last `leaving` slots are to be emptied."""
        index = UnitIndex.of(tables, self.seen.labels)
        slots = next(iter(tables.values())).slots
        rows = index.look_up({op: (k.h, k.rows) for op, k in self.seen.loads.items()})
        state = np.maximum(
            index.look_up({op: _arrays(units) for op, units in self.state.items()}),
            STATE_BYTES_MIN,
        )
        sender, receiver, rate = self._traffic(index)
        to_pct = 100.0 / self.wall_ms if self.wall_ms > 0 else 0.0
        crossing = Traffic(sender, receiver, rate, self._remote_ms() * to_pct)
        time = rows * index.spread({op: self._ms_per_row(op) for op in tables}) * to_pct
        time = time + crossing.remote_load * crossing.remote(index.home)
        spent = self.task_ms or sum(self.operator_ms.values())
        besides = max(0.0, spent * to_pct - float(time.sum()))
        loads = {"time": time}
        if capacity.state_bytes:
            loads["memory"] = 100.0 * state / capacity.state_bytes
        if capacity.bytes_per_second and self.wall_ms > 0:
            per_row = index.spread({op: self._bytes_per_row(op) for op in tables})
            loads["bytes"] = rows * per_row / (capacity.bytes_per_second * self.wall_ms / 1e5)
        use = {"time": besides, "memory": 0.0, "bytes": 0.0}
        use |= {name: use[name] + float(load.sum()) for name, load in loads.items()}
        resource = max(loads, key=lambda name: use[name])
        timed = (self.wall_ms > 0 and use[resource] > 0) or resource == "memory"
        busy = resource == "time" and timed
        load, base = loads[resource] if timed else rows, besides / slots if busy else 0.0
        traffic = crossing if busy else Traffic(sender, receiver, rate)
        nodes = Nodes(np.ones(slots), np.arange(slots) >= slots - leaving, distances)
        units = Units(tuple(tables), index.operator, load, state, index.names)
        situation = Situation(
            units, nodes, index.home, traffic, cost_per_byte, period=self.seen.epoch
        )
        return Measured(situation, resource, base, use, timed)

    # --- inside ----------------------------------------------------------------------------
    def _ms_per_row(self, operator: str) -> float:
        rows = float(np.sum(self.seen.slot_rows.get(operator, 0.0)))
        return self.operator_ms.get(operator, 0.0) / rows if rows else 0.0

    def _remote_ms(self) -> float:
        """What is left of tasks beside their operators, per end of a row that crosses slots."""
        if self.task_ms is None or not self.crossing_rows:
            return 0.0
        left = max(0.0, self.task_ms - sum(self.operator_ms.values()))
        return left / (2.0 * self.crossing_rows)

    def _bytes_per_row(self, operator: str) -> float:
        """Bytes that cross slots, in and out, for a row of the operator."""
        rows = size = 0.0
        for name, (edge_rows, edge_bytes) in self.edges.items():
            producer, _, consumer = name.partition("->")
            if consumer == operator:
                rows += edge_rows
            if operator in (producer, consumer):
                size += edge_bytes
        return size / rows if rows else 0.0

    def _traffic(self, index: UnitIndex) -> tuple[I64, I64, F64]:
        parts: list[tuple[I64, I64, F64]] = []
        for (producer, consumer), pairs in self.seen.pairs.items():
            a, there = index.find(producer, pairs.a)
            b, here = index.find(consumer, pairs.b)
            both = there & here
            parts.append((a[both], b[both], pairs.rows[both]))
        if not parts:
            none = Traffic.none()
            return none.sender, none.receiver, none.rate
        a, b, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        pair, which = np.unique(a * len(index.home) + b, return_inverse=True)
        rate = np.bincount(which, rows, len(pair)).astype(np.float64, copy=False)
        return pair // len(index.home), pair % len(index.home), rate


def _state_by_unit(observed: Sequence[Observed]) -> dict[str, dict[int, float]]:
    """Bytes of state per unit: of each slot what its latest sample and its files say."""
    latest: dict[tuple[str, int], tuple[U64, F64]] = {}
    sizes: Mapping[str, Mapping[int, StateSize]] = {}
    for epoch in observed:
        sizes = epoch.facts.state
        for task in epoch.statistics:
            for operator, sketch in task.state.items():
                latest[operator, task.slot] = (sketch.a, sketch.count)
    found: dict[str, dict[int, float]] = {}
    for (operator, slot), (units, rows) in latest.items():
        held = sizes.get(operator, {}).get(slot)
        size = 0.0 if held is None else float(held.bytes)
        share = size / float(rows.sum()) if rows.sum() else 0.0
        mine = found.setdefault(operator, {})
        for unit, count in zip(units.tolist(), rows.tolist(), strict=True):
            mine[unit] = mine.get(unit, 0.0) + count * share
    return found


def _arrays(by_unit: Mapping[int, float]) -> tuple[U64, F64]:
    return np.array(list(by_unit), np.uint64), np.array(list(by_unit.values()))
