"""A manager that places whole units, buckets and pinned keys, and decides how many slots there are.

It gathers epochs into periods (`unit_statistics`), takes a turn of the adaptation loop after each
(`adaptation`), and turns its plan into routing tables, and into spreads where a key is cut
(`split_units`). Pure, like every manager: epochs in,
decisions out. Every decision says why, and every move why it is made, in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.commit.facts import CutFacts, OutcomeFacts, PlanFacts
from headgate.commit.planning import Decision, Observed, slots_of
from headgate.control.adaptation import Adaptation, Adapted
from headgate.control.split_units import SplitUnits, by_unit
from headgate.control.unit_index import UnitIndex
from headgate.control.unit_statistics import Capacity, Measured, MigrationCost, Period
from headgate.planner.allocation.model import Balance, Extras, load_distance
from headgate.planner.allocation.plan import Limits, Plan, Planner
from headgate.planner.distance import Distances
from headgate.routing.route import Shares
from headgate.routing.table import RoutingTable
from headgate.topology.duration import duration_us

if TYPE_CHECKING:
    from headgate.control.settings import Manager, Scaling

MOVES_TOLD = 8
EPOCHS_KEPT = 256
"""Epochs of a period that are held until it ends; the oldest go first."""


class AllocationManager:
    """Decides for one flow, period by period."""

    born_local: frozenset[str] = frozenset()

    def __init__(
        self,
        operators: Sequence[str],
        settings: Manager,
        racks: Mapping[str, str] | None = None,
        planner: Planner | None = None,
        cuttable: Iterable[str] = (),
        scaling: Scaling | None = None,
    ) -> None:
        self._split = SplitUnits(cuttable)
        self.settings, self.units_of = settings, self._split.operators | set(operators)
        self._racks = racks
        limits = Limits(settings.migration_seconds_max, 100.0 * (settings.alpha - 1), seconds=1.0)
        planner = planner or planner_named(settings.planner, settings.balance)
        self._loop = Adaptation(planner, limits, scaling, settings.balance)
        self._capacity = Capacity(settings.slot_state_bytes, settings.slot_bytes_per_second)
        self._cost = MigrationCost()
        self._every_ms = 0 if settings.every is None else duration_us(settings.every) // 1000
        self._epochs: list[Observed] = []
        self._period: Period | None = None
        self._since_ms: int | None = None
        self._last_ms: int | None = None
        self._slots = 0
        self._warm_up = settings.warm_up_epochs
        self._promised: float | None = None

    @property
    def statistics_bytes(self) -> int:
        return self.settings.statistics_bytes

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        """One turn, after some epochs; most turns only add to the period."""
        tables = {op: table for op, table in sorted(tables.items()) if op in self.units_of}
        slots = slots_of(tables)
        if not tables:
            return Decision()
        self._cost.learn(observed)
        changed = bool(self._slots) and slots != self._slots
        self._slots = slots
        if changed:
            self._loop.slots_changed(slots)
            self._split.begin_anew()
            self._epochs, self._since_ms = [], self._last_ms
        self._take_in([epoch for epoch in observed if epoch.facts.slots == slots])
        if changed and self._period is not None:
            return self._adapt(self._period, tables, scale=False)  # fill the new slots at once
        if not self._is_due():
            return Decision()
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

    def _is_due(self) -> bool:
        if len(self._epochs) < self.settings.every_epochs:
            return False
        assert self._last_ms is not None and self._since_ms is not None
        return self._last_ms - self._since_ms >= self._every_ms

    def _adapt(
        self, period: Period, tables: Mapping[str, RoutingTable], *, scale: bool = True
    ) -> Decision:
        slots = slots_of(tables)
        hosts = period.seen.hosts
        named = self._split.named(tables, period)
        index = UnitIndex.of(named)
        measured = by_unit(period, named, self._split.operators).measure(
            named,
            self._capacity,
            self._cost.per_byte,
            leaving=self._loop.leaving,
            distances=Distances.of(hosts, self._racks) if len(hosts) == slots else None,
        )
        measured = self._split.cut(measured, index, tables, period)
        outcome = self._outcome(measured)
        adapted = self._loop.step(measured, scale=scale)
        extras: Extras = {} if measured.situation.cut is None else measured.situation.cut.extras
        recut = False
        if adapted.plan is not None:
            recut, extras = adapted.plan.extras != extras, adapted.plan.extras
            named = _with_owners(adapted.plan, index, named)
        changed = {op: table for op, table in named.items() if not table.same_routes(tables[op])}
        moves = adapted.plan is not None and bool(adapted.plan.migrations)
        told = self._told(measured, adapted) if moves or recut or adapted.why else None
        self._split.take(extras, index, named)
        decided = Decision(changed, told, outcome)
        if self._split.operators:
            cut = {op: Shares(spread) for op, spread in self._split.spreads.items()}
            decided = replace(decided, dispatch=cut)
        if adapted.slots is None:
            return decided
        return replace(decided, slots=adapted.slots, scaling=adapted.why)

    def _outcome(self, measured: Measured) -> OutcomeFacts | None:
        """The load distance that the last plan promised against that of this period."""
        promised, self._promised = self._promised, None
        if promised is None:
            return None
        found = load_distance(
            measured.situation, measured.situation.home, balance=self.settings.balance
        )
        return OutcomeFacts(
            predicted_distance_pct=round(promised, 2),
            achieved_distance_pct=round(found, 2),
            error=round(promised - found, 2),
        )

    def _told(self, measured: Measured, adapted: Adapted) -> PlanFacts:
        plan, loads = adapted.plan, measured.slot_loads(measured.situation.home)
        told = PlanFacts(
            planner=self.settings.planner,
            resource=measured.resource,
            slot_loads_pct=tuple(round(x, 1) for x in loads),
            why=adapted.why,
        )
        if plan is None:
            return told
        self._promised = plan.distance_pct
        return replace(
            told,
            why="; ".join(filter(None, [adapted.why, plan.explain()])),
            planned_loads_pct=tuple(round(x, 1) for x in measured.planned_loads(plan)),
            predicted_distance_pct=round(plan.distance_pct, 2),
            predicted_locality=round(plan.collocation, 4),
            migration_s=round(plan.migration_cost, 4),
            bound_pct=round(plan.bound_pct, 2),
            gap_pct=round(plan.gap_pct, 2),
            migration_s_per_mb=round(1e6 * self._cost.per_byte, 6),
            top_moves=_heaviest(plan.reasons),
            cut=CutFacts(len(plan.extras), plan.pieces),
            seconds=round(plan.seconds, 4),
        )


def _heaviest(reasons: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and how many there are besides."""
    more = [f"and {len(reasons) - MOVES_TOLD:,} more lines"] if len(reasons) > MOVES_TOLD else []
    return (*reasons[:MOVES_TOLD], *more)


def _with_owners(
    plan: Plan, index: UnitIndex, tables: Mapping[str, RoutingTable]
) -> dict[str, RoutingTable]:
    """The tables as a plan has them."""
    if not plan.migrations:
        return dict(tables)
    made = {op: table.with_owners(index.owners(plan.node, op)) for op, table in tables.items()}
    return {op: table if made[op].same_routes(table) else made[op] for op, table in tables.items()}


def planner_named(name: str, balance: Balance = "total") -> Planner:
    """A planner of allocations. Imported late: some are compiled, some need a solver."""
    from headgate.planner.allocation.allocator import make_allocator

    return make_allocator("headgate" if name == "allocation" else name, balance=balance)
