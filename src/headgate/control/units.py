"""The policy that places whole units, buckets and pinned keys, by load, traffic and moving costs.

It gathers epochs into periods, takes a turn of the adaptation loop after each (`adaptation`), and
turns its plan into routing tables. Every move says why it is made, in one line.

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
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import F64, I32, I64, U64, Bools
from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Observed
from headgate.control.adaptation import Adaptation, Adapted, MeasuredUnits
from headgate.control.policy import MOVES_EXPLAINED, Figure, Proposal, View, gather, joined
from headgate.control.settings import Manager, PlannerSettings, Scaling
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import Limits, Planner
from headgate.planner.distance import Distances
from headgate.planner.placing import Observation
from headgate.planner.tuning.rescaler import Wanted
from headgate.routing.table import RoutingTable

EPOCHS_KEPT = 256  # of a period that does not end; the oldest go first
PLAN_SECONDS = 1.0  # a planner's time; epochs go on meanwhile
PAIRS_MAX = 1 << 17  # per edge, of all slots together: 3 MB
STATE_BYTES_MIN = 64.0  # a unit without known state still takes a line in a file
PRIOR_BYTES, PRIOR_SECONDS_PER_BYTE = 1e6, 2e-8  # 50 MB/s, until some state has moved


class UnitPlacement:
    """Places the units of some operators, period by period."""

    born_local: frozenset[str] = frozenset()

    def __init__(
        self,
        operators: Sequence[str],
        settings: Manager,
        racks: Mapping[str, str] | None = None,
        *,
        planner: Planner | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        # Late: planners are compiled, some need a solver, and only a manager wants one.
        from headgate.planner.allocation.plan import make_allocator

        self.settings, self.units_of, self._racks = settings, frozenset(operators), racks
        limits = Limits(
            settings.migration_seconds_max, 100.0 * (settings.alpha - 1), seconds=PLAN_SECONDS
        )
        planner = planner or make_allocator(settings.planner, balance=settings.balance)
        self.adaptation = Adaptation(planner, limits, scaling, settings.balance)
        self._cost = MigrationCost()
        self._epochs: list[Observed] = []
        self._period: Period | None = None
        self._since_ms: int | None = None
        self._last_ms: int | None = None
        self._slots_are_new = False
        self._warm_up = settings.warm_up_epochs

    def slots_changed(self, slots: int) -> None:
        self.adaptation.slots_changed(slots)
        self._slots_are_new = True
        self._epochs, self._since_ms = [], self._last_ms

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        """One turn; most turns only add to the period."""
        tables = {op: table for op, table in sorted(view.tables.items()) if op in self.units_of}
        if not tables:
            return Proposal()
        self._cost.learn(observed)
        self._take_in(observed)
        new, self._slots_are_new = self._slots_are_new, False
        if new and self._period is not None:
            return self._adapt(self._period, tables, scale=False)  # fill the new slots at once
        if len(self._epochs) < self.settings.every_epochs:
            return Proposal()
        assert self._last_ms is not None and self._since_ms is not None
        if self._last_ms - self._since_ms < self.settings.every_ms:
            return Proposal()
        self._period = Period.of(self._epochs, self._since_ms)
        self._epochs, self._since_ms = [], self._last_ms
        return self._adapt(self._period, tables)

    # --- inside ----------------------------------------------------------------------------
    def _take_in(self, observed: Sequence[Observed]) -> None:
        for epoch in observed:
            now_ms = epoch.facts.now_ms
            if self._warm_up > 0 or self._since_ms is None:
                self._warm_up -= 1
                self._since_ms = now_ms  # the first only starts the clock
            else:
                self._epochs.append(epoch)
            self._since_ms = min(self._since_ms, now_ms)  # a clock that was ahead came back
            self._last_ms = now_ms
        del self._epochs[:-EPOCHS_KEPT]

    def _adapt(
        self, period: Period, tables: Mapping[str, RoutingTable], *, scale: bool = True
    ) -> Proposal:
        slots, hosts = next(iter(tables.values())).slots, period.seen.hosts
        measured = period.measure(
            tables,
            self.settings.tuning,
            self._cost.per_byte,
            leaving=self.adaptation.leaving,
            distances=Distances.of(hosts, self._racks) if len(hosts) == slots else None,
        )
        situation = measured.situation
        found = load_distance(situation, situation.home, balance=self.settings.balance)
        achieved: dict[Figure, float] = {"distance_pct": found}
        adapted = self.adaptation.step(measured, scale=scale)
        plan, changed = adapted.plan, dict[str, RoutingTable]()
        if plan is not None and plan.migrations:
            index = UnitIndex.of(tables)
            made = {op: t.with_owners(index.owners(plan.node, op)) for op, t in tables.items()}
            changed = {op: t for op, t in made.items() if not t.same_routes(tables[op])}
        if not (changed or adapted.why):
            return Proposal(achieved=achieved)
        return Proposal(
            changed,
            plan=self._facts(measured, adapted),
            promised={} if plan is None else {"distance_pct": plan.distance_pct},
            achieved=achieved,
            slots=None if adapted.slots is None else Wanted(adapted.slots, adapted.why),
        )

    def _facts(self, measured: MeasuredUnits, adapted: Adapted) -> PlanFacts:
        plan, situation = adapted.plan, measured.situation
        loads = situation.node_loads(situation.home) + measured.base
        facts = PlanFacts(
            planner=self.settings.planner,
            resource=measured.resource,
            slot_loads_pct=tuple(round(x, 1) for x in loads),
            why=adapted.why,
        )
        if plan is None:
            return facts
        moves, more = plan.reasons[:MOVES_EXPLAINED], len(plan.reasons) - MOVES_EXPLAINED
        return replace(
            facts,
            why=joined(adapted.why, plan.explain()),
            planned_loads_pct=tuple(round(x, 1) for x in measured.loads_of(plan)),
            predicted_distance_pct=round(plan.distance_pct, 2),
            predicted_locality=round(plan.collocation, 4),
            migration_s=round(plan.migration_cost, 4),
            bound_pct=round(plan.bound_pct, 2),
            gap_pct=round(plan.gap_pct, 2),
            migration_s_per_mb=round(1e6 * self._cost.per_byte, 6),
            top_moves=moves if more <= 0 else (*moves, f"and {more:,} more lines"),
            seconds=round(plan.seconds, 4),
        )


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

    def owners(self, node: I32, operator: str) -> I32:
        """Of an allocation, the part of one operator, as its table wants it."""
        start = self.first[operator]
        return node[start : start + len(self.ids[operator])]


@dataclass
class MigrationCost:
    """Seconds per byte of state that moves, from all moves so far, old ones fading.

    It is a sum over tasks that move state side by side: what moving costs, not how long it takes.
    """

    seconds: float = PRIOR_BYTES * PRIOR_SECONDS_PER_BYTE
    bytes: float = PRIOR_BYTES
    fade: float = 0.9

    def learn(self, observed: Sequence[Observed]) -> None:
        for facts in (epoch.facts for epoch in observed):
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
class Period:
    """Epochs that ran with one slot count, added up."""

    seen: Observation
    wall_ms: float
    operator_ms: Mapping[str, float]
    task_ms: float | None
    crossing_rows: float
    edges: Mapping[str, tuple[float, float]]  # rows, and bytes that crossed slots
    state: Mapping[str, tuple[U64, F64]]  # units, and bytes of state that a slot holds of them

    @classmethod
    def of(cls, observed: Sequence[Observed], since_ms: int | None) -> Period:
        """`since_ms` is when the epoch before these began."""
        epochs = [epoch.facts for epoch in observed]
        operator_ms: dict[str, float] = {}
        edges: dict[str, tuple[float, float]] = {}
        crossing = 0.0
        for facts in epochs:
            for operator, by_slot in facts.operator_ms.items():
                operator_ms[operator] = operator_ms.get(operator, 0.0) + sum(by_slot)
            for name, edge in facts.edges.items():
                rows, size = edges.get(name, (0.0, 0.0))
                edges[name] = rows + edge.rows, size + edge.remote_bytes
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
        leaving: int = 0,
        distances: Distances | None = None,
    ) -> MeasuredUnits:
        """The situation under these tables; the last `leaving` slots are to be emptied."""
        index = UnitIndex.of(tables, self.seen.labels)
        slots = next(iter(tables.values())).slots
        rows = index.add_up({op: (k.h, k.rows) for op, k in self.seen.loads.items()})
        state = np.maximum(index.add_up(self.state), STATE_BYTES_MIN)
        traffic = self._traffic(index)
        to_pct = 100.0 / self.wall_ms if self.wall_ms > 0 else 0.0
        in_operators = sum(self.operator_ms.values())
        spent = self.task_ms or in_operators
        remote_ms = 0.0  # what is left of tasks beside their operators, per end of such a row
        if self.crossing_rows:
            remote_ms = max(0.0, spent - in_operators) / (2.0 * self.crossing_rows)
        time = rows * index.spread({op: self._ms_per_row(op) for op in tables}) * to_pct
        time = time + remote_ms * to_pct * traffic.remote(index.home)
        besides = max(0.0, spent * to_pct - float(time.sum()))
        loads, use = {"time": time}, {"time": besides + float(time.sum())}
        if capacity.slot_state_bytes:
            loads["memory"] = 100.0 * state / capacity.slot_state_bytes
        if capacity.slot_bytes_per_second and self.wall_ms > 0:
            per_row = index.spread({op: self._bytes_per_row(op) for op in tables})
            loads["bytes"] = rows * per_row / (capacity.slot_bytes_per_second * self.wall_ms / 1e5)
        use = {name: float(load.sum()) for name, load in loads.items()} | use
        resource = max(loads, key=lambda name: use[name])
        timed = (self.wall_ms > 0 and use[resource] > 0) or resource == "memory"
        base = 0.0
        if resource == "time" and timed:
            traffic, base = replace(traffic, remote_load=remote_ms * to_pct), besides / slots
        nodes = Nodes(np.ones(slots), np.arange(slots) >= slots - leaving, distances)
        load = loads[resource] if timed else rows
        units = Units(tuple(tables), index.operator, load, state, index.names)
        situation = Situation(
            units, nodes, index.home, traffic, cost_per_byte, period=self.seen.epoch
        )
        return MeasuredUnits(situation, resource, base, timed)

    # --- inside ----------------------------------------------------------------------------
    def _ms_per_row(self, operator: str) -> float:
        rows = float(np.sum(self.seen.slot_rows.get(operator, 0.0)))
        return self.operator_ms.get(operator, 0.0) / rows if rows else 0.0

    def _bytes_per_row(self, operator: str) -> float:
        """Bytes that cross slots, in and out, for a row of the operator."""
        rows = size = 0.0
        for name, (edge_rows, edge_bytes) in self.edges.items():
            producer, _, consumer = name.partition("->")
            rows += edge_rows if consumer == operator else 0.0
            size += edge_bytes if operator in (producer, consumer) else 0.0
        return size / rows if rows else 0.0

    def _traffic(self, index: UnitIndex) -> Traffic:
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
