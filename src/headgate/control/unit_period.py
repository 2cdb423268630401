"""Some epochs added up: what every unit cost and where its rows went, as planners see it.

A unit is a bucket of an operator's keys or one pinned key (Madsen et al. 2017: a key group). Of
three resources the one with the greatest total use is the bottleneck of the period, and loads are
loads of that one, in percent of what a slot can take:

    time    ms in the operator's tasks without what moving took, by rows and what a row of the unit
            costs (`unit_costs`); what the rest of a task takes goes to the rows that cross slots,
            and what is left (sources, stateless operators) to all slots alike; all of it counts as
            use. Hosts may be faster and slower: it is the time of a host of speed 1
    memory  bytes of state, if it is known how many a slot may hold
    bytes   bytes of rows that cross slots, in and out, if it is known how many a slot may move a
            second: of an edge between slots by the rows of a unit that cross, of others by its rows

Units are counted under their own names, not their slots', so a period can be read again under
other tables. Memory: the sketches of `gather`, and three numbers per unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headgate.arrays import F64, I32, I64, U64, Bools
from headgate.commit.planning import Observed
from headgate.control.adaptation import MeasuredUnits
from headgate.control.chance import CHANCE
from headgate.control.policy import gather
from headgate.control.settings import PlannerSettings
from headgate.control.unit_costs import UnitCosts
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.distance import Distances
from headgate.planner.instances import allowed_slots
from headgate.planner.placing import Observation
from headgate.routing.table import RoutingTable

PAIRS_MAX = 1 << 17  # per edge, of all slots together: 3 MB
STATE_BYTES_MIN = 64.0  # a unit without known state still takes a line in a file


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
            first[name] = len(names)
            ids[name], home = table.all_units()
            homes.append(home)
            names += [f"{name}[{bucket}]" for bucket in range(table.buckets)]
            texts = {h: repr(text) for h, text in (labels or {}).get(name, {}).items()}
            names += [f"{name} key {texts.get(h, f'#{h:016x}')}" for h in table.pinned_h.tolist()]
        operator = np.repeat(np.arange(len(homes), dtype=np.int32), [len(home) for home in homes])
        order = {name: np.argsort(unit, kind="stable") for name, unit in ids.items()}
        home = np.concatenate(homes).astype(np.int32)
        return cls(tuple(tables), first, ids, order, operator, home, tuple(names))

    def find(self, operator: str, unit: U64) -> tuple[I64, Bools]:
        """Numbers of units, and which of them are known."""
        if operator not in self.ids:
            return np.zeros(len(unit), np.int64), np.zeros(len(unit), np.bool_)
        ids, order = self.ids[operator], self.order[operator]
        at = np.minimum(np.searchsorted(ids, unit, sorter=order), len(ids) - 1)
        number = order[at]
        return number + self.first[operator], np.asarray(ids[number] == unit)

    def add_up(self, values: Mapping[str, tuple[U64, F64]]) -> F64:
        """A number per unit, the sum of its values; 0 without any."""
        found = np.zeros(len(self.home))
        for operator, (unit, value) in values.items():
            number, known = self.find(operator, unit)
            np.add.at(found, number[known], value[known])
        return found

    def spread(self, by_operator: Mapping[str, float]) -> F64:
        """A number per operator, for each of its units."""
        return np.array([by_operator[name] for name in self.operators])[self.operator]

    def factors(self, costs: UnitCosts | None) -> F64:
        """What a row of every unit costs against a mean row."""
        if costs is None:
            return np.ones(len(self.home))
        return np.concatenate([costs.factors(name, self.ids[name]) for name in self.operators])

    def owners(self, node: I32, operator: str) -> I32:
        """Of an allocation, the part of one operator, as its table wants it."""
        start = self.first[operator]
        return node[start : start + len(self.ids[operator])]


@dataclass(frozen=True)
class Period:
    """Epochs that ran with one slot count, added up."""

    seen: Observation
    wall_ms: float
    operator_ms: Mapping[str, F64]  # by slot
    task_ms: float | None
    crossing_rows: float
    edges: Mapping[str, tuple[float, bool]]  # bytes that crossed slots, and whether from one
    state: Mapping[str, tuple[U64, F64]]  # units, and bytes of state that a slot holds of them

    @classmethod
    def of(cls, observed: Sequence[Observed], since_ms: int | None) -> Period:
        """`since_ms` is when the epoch before these began."""
        epochs = [epoch.facts for epoch in observed]
        operator_ms: dict[str, F64] = {}
        edges: dict[str, tuple[float, bool]] = {}
        crossing = 0.0
        for facts in epochs:
            for operator, by_slot in facts.operator_ms.items():
                spent = np.array(by_slot) - np.array(facts.moving_ms.get(operator, 0.0))
                operator_ms[operator] = operator_ms.get(operator, 0.0) + np.maximum(spent, 0.0)
            for name, edge in facts.edges.items():
                before, _ = edges.get(name, (0.0, True))
                edges[name] = before + edge.remote_bytes, edge.between_slots
                crossing += edge.remote_rows
            crossing += sum(facts.merge_rows.values())
        timed = all(facts.engine.task_ms for facts in epochs)
        return cls(
            gather(observed, PAIRS_MAX),
            0.0 if since_ms is None else float(epochs[-1].now_ms - since_ms),
            operator_ms,
            sum(sum(facts.engine.task_ms.values()) for facts in epochs) if timed else None,
            crossing,
            edges,
            _state_by_unit(observed),
        )

    def measure(
        self,
        tables: Mapping[str, RoutingTable],
        capacity: PlannerSettings,
        cost_per_byte: float,
        *,
        leaving: Sequence[int] = (),
        distances: Distances | None = None,
        instances: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        cost_least: float = 0.0,
        costs: UnitCosts | None = None,
        speeds: F64 | None = None,
        before: Sequence[Period] = (),
    ) -> MeasuredUnits:
        """The situation under these tables; the slots `leaving` are to be emptied.

        `speeds` are those of the slots (default: all 1), `costs` what is known of units, `before`
        the periods whose times say how much times differ by themselves.
        """
        index = UnitIndex.of(tables, self.seen.labels)
        slots = next(iter(tables.values())).slots
        then = np.ones(0) if speeds is None else speeds  # of the slots there were
        speeds = then if len(then) == slots else np.ones(slots)
        rows = index.add_up({op: (k.h, k.rows) for op, k in self.seen.loads.items()})
        state = np.maximum(index.add_up(self.state), STATE_BYTES_MIN)
        traffic = self.traffic(index)
        to_pct = 100.0 / self.wall_ms if self.wall_ms > 0 else 0.0
        took, spent, remote_ms = self._spent(then)
        weight = rows * index.factors(costs)
        time = self._shared_out(index, weight, took) * to_pct
        time = time + remote_ms * to_pct * traffic.remote(index.home)
        besides = max(0.0, spent * to_pct - float(time.sum()))
        loads, use = {"time": time}, {"time": besides + float(time.sum())}
        rooms, hosts = {"time": speeds}, self.seen.hosts
        if capacity.slot_state_bytes:
            each, rooms["memory"] = _by_slot(capacity.slot_state_bytes, hosts, slots)
            loads["memory"] = 100.0 * state / each
        if capacity.slot_bytes_per_second and self.wall_ms > 0:
            each, rooms["bytes"] = _by_slot(capacity.slot_bytes_per_second, hosts, slots)
            sent = self._bytes(index, rows, traffic)
            loads["bytes"] = sent / (each * self.wall_ms / 1e5)
        use = {name: float(load.sum()) for name, load in loads.items()} | use
        resource = max(loads, key=lambda name: use[name])
        timed = (self.wall_ms > 0 and use[resource] > 0) or resource == "memory"
        base = 0.0
        if resource == "time" and timed:
            traffic, base = replace(traffic, remote_load=remote_ms * to_pct), besides / slots
        room = rooms[resource]
        nodes = Nodes(room, np.isin(np.arange(slots), list(leaving)), distances)
        load = loads[resource] if timed else rows
        units = Units(tuple(tables), index.operator, load, state, index.names)
        allowed = allowed_slots(tuple(tables), slots, instances)
        situation = Situation(
            units,
            nodes,
            index.home,
            traffic,
            cost_per_byte,
            period=self.seen.epoch,
            instances=np.empty((0, 0), np.bool_) if allowed is None else allowed,
            cost_least=cost_least,
        )
        most = max((float(by_slot.sum()) for by_slot in self.seen.slot_rows.values()), default=0.0)
        noise = CHANCE * 100.0 * math.sqrt((slots - 1) / most) if most else 0.0
        noise = 0.0 if resource == "memory" else noise  # which is there, not drawn anew
        if resource == "time" and timed:
            doubt = self._clock_noise(index, weight, room, then, before, costs)
            noise = math.hypot(noise, CHANCE * doubt)
        told = _in_words(resource, use, rooms) if timed else ""
        return MeasuredUnits(situation, resource, base, timed, noise, told)

    def traffic(self, index: UnitIndex) -> Traffic:
        """Rows between units that are known, whatever their tables were when they were counted."""
        none = np.empty(0, np.int64)
        parts: list[tuple[I64, I64, F64]] = [(none, none, np.empty(0))]
        for (producer, consumer), pairs in self.seen.pairs.items():
            a, there = index.find(producer, pairs.a)
            b, here = index.find(consumer, pairs.b)
            both = there & here
            parts.append((a[both], b[both], pairs.rows[both]))
        a, b, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        pair, which = np.unique(a * len(index.home) + b, return_inverse=True)
        rate = np.bincount(which, rows, len(pair)).astype(np.float64, copy=False)
        return Traffic(pair // len(index.home), pair % len(index.home), rate)

    # --- inside ----------------------------------------------------------------------------
    def _spent(self, speeds: F64) -> tuple[dict[str, float], float, float]:
        """Ms of operators, of whole tasks, and per end of a row that crosses: on a plain host.

        The last is what is left of tasks beside their operators.
        """
        took = {
            op: float(ms @ speeds) if len(ms) == len(speeds) else float(ms.sum())
            for op, ms in self.operator_ms.items()
        }
        inside = sum(took.values())
        spent = (self.task_ms or 0.0) * float(speeds.mean() if len(speeds) else 1.0) or inside
        crossing = 2.0 * self.crossing_rows
        return took, spent, max(0.0, spent - inside) / crossing if crossing else 0.0

    def _clock_noise(
        self,
        index: UnitIndex,
        weight: F64,
        room: F64,
        speeds: F64,
        before: Sequence[Period],
        costs: UnitCosts | None,
    ) -> float:
        """Standard deviation of a slot's load, in percent of the mean, that times alone give.

        Of this period's rows, with what rows took in each period heard; and of what parts of units
        took, by how far they were off. A pause is one period of several: it explains itself.
        """
        slots, crosses = len(room), self.traffic(index).remote(index.home)
        cells = index.operator * np.int64(slots) + index.home
        of_slots = np.bincount(cells, weight, len(index.operators) * slots)
        of_slots = of_slots.reshape(len(index.operators), slots)
        of_slots = of_slots / np.maximum(of_slots.sum(axis=1, keepdims=True), 1e-300)
        remote = np.bincount(index.home, crosses, slots)
        rows = self._rows_of(index)
        now, _, remote_ms = self._spent(speeds)
        loads = []
        for period in (self, *before):
            took, _, each = period._spent(speeds)
            old = period._rows_of(index)
            ms = [
                took[op] / n * m if op in took and n else now.get(op, 0.0)
                for op, m, n in zip(index.operators, rows, old, strict=True)
            ]
            load = np.array(ms) @ of_slots + remote * (each or remote_ms)
            loads.append(load / room * float(room.sum()) / max(float(load.sum()), 1e-300))
        varies = np.var(loads, axis=0, ddof=1) if len(loads) > 1 else np.zeros(slots)
        if costs is not None:
            mine = np.array([now.get(op, 0.0) for op in index.operators])[:, None] * of_slots
            off = np.array([costs.doubt(op, slots) for op in index.operators]) * mine
            share = np.sqrt((off**2).sum(axis=0)) / room * float(room.sum())
            varies = varies + (share / max(float(mine.sum()), 1e-300)) ** 2
        return 100.0 * math.sqrt(float(varies.max(initial=0.0)))

    def _rows_of(self, index: UnitIndex) -> list[float]:
        by_slot = self.seen.slot_rows
        return [float(by_slot[op].sum()) if op in by_slot else 0.0 for op in index.operators]

    def _shared_out(self, index: UnitIndex, weight: F64, totals: Mapping[str, float]) -> F64:
        """What operators have in all, by the weight of their units; nothing where none has any."""
        of_all = np.bincount(index.operator, weight, len(index.operators))[index.operator]
        share = np.divide(weight, of_all, out=np.zeros(len(weight)), where=of_all > 0)
        return share * index.spread({op: totals.get(op, 0.0) for op in index.operators})

    def _bytes(self, index: UnitIndex, rows: F64, traffic: Traffic) -> F64:
        """Bytes that cross slots for every unit, in and out.

        Those of an edge go to the units whose rows cross, as far as they were counted.
        """
        found, home = np.zeros(len(rows)), index.home
        apart = home[traffic.sender] != home[traffic.receiver]
        ends = (traffic.receiver, traffic.sender)
        crosses = [np.bincount(e[apart], traffic.rate[apart], len(rows)) for e in ends]
        for name, (size, between_slots) in self.edges.items():
            for end, operator in enumerate(reversed(name.split("->"))):
                if operator not in index.first:
                    continue
                mine = index.operator == index.operators.index(operator)
                weight = np.where(mine, crosses[end] if between_slots else rows, 0.0)
                weight = weight if weight.any() else np.where(mine, rows, 0.0)
                found += self._shared_out(index, weight, {operator: size})
        return found


def _by_slot(
    given: float | Mapping[str, float], hosts: Sequence[str], slots: int
) -> tuple[float, F64]:
    """The capacity of a plain slot, which is the mean, and of every slot against that.

    A host that is not named has the least of those that are: it must not get too much.
    """
    if not isinstance(given, Mapping):
        return given, np.ones(slots)
    if len(hosts) != slots:
        return float(np.mean(list(given.values()))), np.ones(slots)
    found = np.array([given.get(host, min(given.values())) for host in hosts], np.float64)
    return float(found.mean()), found / found.mean()


def _in_words(resource: str, use: Mapping[str, float], rooms: Mapping[str, F64]) -> str:
    """The bottleneck and the other resources, in percent of what all slots can take; a line."""
    shares = {name: f"{name} {use[name] / rooms[name].sum():.0f} %" for name in use}
    others = [share for name, share in shares.items() if name != resource]
    line = f"the bottleneck is {shares[resource]} of what slots can take"
    line += f" ({', '.join(others)})" if others else ""
    for name in dict.fromkeys(("time", resource)):
        what, room = "speeds" if name == "time" else f"shares of {name}", rooms[name]
        if (room != room[0]).any():
            line += f"; {what} of slots {', '.join(f'{x:.2g}' for x in room)}"
    return line


def _state_by_unit(observed: Sequence[Observed]) -> dict[str, tuple[U64, F64]]:
    """Bytes of state per unit: of each slot what its latest sample and its files say."""
    latest = {
        (operator, task.slot): sketch
        for epoch in observed
        for task in epoch.statistics
        for operator, sketch in task.state.items()
    }
    parts: dict[str, list[tuple[U64, F64]]] = {}
    for (operator, slot), sketch in latest.items():
        held = observed[-1].facts.state.get(operator, {}).get(slot)
        rows = float(sketch.count.sum())
        share = held.bytes / rows if held is not None and rows else 0.0
        parts.setdefault(operator, []).append((sketch.a, sketch.count * share))
    return {
        operator: (np.concatenate([u for u, _ in found]), np.concatenate([b for _, b in found]))
        for operator, found in parts.items()
    }
