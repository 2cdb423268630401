"""The policy that places whole units, buckets and pinned keys, by load, traffic and moving costs.

It gathers epochs into periods (`unit_statistics`), takes a turn of the adaptation loop after each
(`adaptation`), and turns its plan into routing tables. Every move says why it is made, in one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Observed
from headgate.control.adaptation import Adaptation, Adapted
from headgate.control.policy import Figure, Proposal, SlotsWanted, View
from headgate.control.settings import Manager, Scaling
from headgate.control.unit_statistics import Capacity, Measured, MigrationCost, Period, UnitIndex
from headgate.planner.allocation.model import load_distance
from headgate.planner.allocation.plan import Limits, Plan, Planner
from headgate.planner.distance import Distances
from headgate.routing.table import RoutingTable

MOVES_EXPLAINED = 8  # lines of a plan's record that name single moves
EPOCHS_KEPT = 256  # of a period that does not end; the oldest go first
PLAN_SECONDS = 1.0  # a planner's time; epochs go on meanwhile


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
        self.settings, self.units_of, self._racks = settings, frozenset(operators), racks
        limits = Limits(
            settings.migration_seconds_max, 100.0 * (settings.alpha - 1), seconds=PLAN_SECONDS
        )
        planner = planner or _planner_named(settings)
        self.adaptation = Adaptation(planner, limits, scaling, settings.balance)
        self._capacity = Capacity(
            settings.tuning.slot_state_bytes, settings.tuning.slot_bytes_per_second
        )
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
        if not self._is_due():
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

    def _is_due(self) -> bool:
        if len(self._epochs) < self.settings.every_epochs:
            return False
        assert self._last_ms is not None and self._since_ms is not None
        return self._last_ms - self._since_ms >= self.settings.every_ms

    def _adapt(
        self, period: Period, tables: Mapping[str, RoutingTable], *, scale: bool = True
    ) -> Proposal:
        slots, hosts = next(iter(tables.values())).slots, period.seen.hosts
        measured = period.measure(
            tables,
            self._capacity,
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
            changed = _with_owners(plan, UnitIndex.of(tables), tables)
        if not (changed or adapted.why):
            return Proposal(achieved=achieved)
        promised: dict[Figure, float] = {} if plan is None else {"distance_pct": plan.distance_pct}
        wanted = None if adapted.slots is None else SlotsWanted(adapted.slots, adapted.why)
        return Proposal(
            changed,
            plan=self._facts(measured, adapted),
            promised=promised,
            achieved=achieved,
            slots=wanted,
        )

    def _facts(self, measured: Measured, adapted: Adapted) -> PlanFacts:
        plan, loads = adapted.plan, measured.slot_loads(measured.situation.home)
        facts = PlanFacts(
            planner=self.settings.planner,
            resource=measured.resource,
            slot_loads_pct=tuple(round(x, 1) for x in loads),
            why=adapted.why,
        )
        if plan is None:
            return facts
        return replace(
            facts,
            why="; ".join(filter(None, [adapted.why, plan.explain()])),
            planned_loads_pct=tuple(round(x, 1) for x in measured.planned_loads(plan)),
            predicted_distance_pct=round(plan.distance_pct, 2),
            predicted_locality=round(plan.collocation, 4),
            migration_s=round(plan.migration_cost, 4),
            bound_pct=round(plan.bound_pct, 2),
            gap_pct=round(plan.gap_pct, 2),
            migration_s_per_mb=round(1e6 * self._cost.per_byte, 6),
            top_moves=_first_lines(plan.reasons),
            seconds=round(plan.seconds, 4),
        )


def _first_lines(reasons: Sequence[str]) -> tuple[str, ...]:
    """The heaviest moves, and how many there are besides."""
    left = len(reasons) - MOVES_EXPLAINED
    return (*reasons[:MOVES_EXPLAINED], *([f"and {left:,} more lines"] if left > 0 else []))


def _with_owners(
    plan: Plan, index: UnitIndex, tables: Mapping[str, RoutingTable]
) -> dict[str, RoutingTable]:
    """The tables that a plan changes."""
    made = {op: table.with_owners(index.owners(plan.node, op)) for op, table in tables.items()}
    return {op: table for op, table in made.items() if not table.same_routes(tables[op])}


def _planner_named(settings: Manager) -> Planner:
    """Imported late: planners are compiled, some need a solver, and only a manager wants one."""
    from headgate.planner.allocation.plan import make_allocator

    return make_allocator(settings.planner, balance=settings.balance)
