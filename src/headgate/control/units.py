"""The policy that places whole units, buckets and pinned keys, by load, traffic and moving costs.

It gathers epochs into periods, takes a turn of the adaptation loop after each (`adaptation`), and
turns its plan into routing tables. Every move says why it is made, in one line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Observed
from headgate.control.adaptation import Adaptation, Adapted, MeasuredUnits
from headgate.control.chance import PERIODS_HEARD
from headgate.control.draining import marked
from headgate.control.policy import MOVES_EXPLAINED, Figure, Proposal, View, joined
from headgate.control.settings import Manager, Scaling
from headgate.control.unit_costs import HostSpeeds, UnitCosts
from headgate.control.unit_period import Period, UnitIndex
from headgate.planner.allocation.model import load_distance
from headgate.planner.allocation.plan import Limits, Planner
from headgate.planner.distance import Distances
from headgate.planner.tuning.rescaler import Wanted
from headgate.routing.table import RoutingTable

EPOCHS_KEPT = 256  # of a period that does not end; the oldest go first
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
            settings.migration_seconds_max,
            settings.distance_max_pct,
            seconds=settings.tuning.planner_seconds,
        )
        planner = planner or make_allocator(
            settings.planner, balance=settings.balance, own=settings.tuning.of_planner
        )
        self.adaptation = Adaptation(planner, limits, scaling, settings.balance)
        self._cost = MigrationCost()
        self._unit_costs = UnitCosts()
        self._speeds = HostSpeeds(settings.tuning.host_speeds)
        self._epochs: list[Observed] = []
        self._period: Period | None = None
        self._before: deque[Period] = deque(maxlen=PERIODS_HEARD)
        self._since_ms: int | None = None
        self._last_ms: int | None = None
        self._slots_are_new = False
        self._instances: Mapping[str, tuple[int, ...]] | None = None
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
        before, self._instances = self._instances, dict(view.instances)
        self._slots_are_new |= before not in (None, self._instances)
        self._learn(observed)
        self._take_in(observed)
        new, self._slots_are_new = self._slots_are_new, False
        if new and self._period is not None:
            return self._adapt(self._period, tables, view, scale=False)  # fill the new slots
        if len(self._epochs) < self.settings.every_epochs:
            return Proposal()
        assert self._last_ms is not None and self._since_ms is not None
        if self._last_ms - self._since_ms < self.settings.every_ms:
            return Proposal()
        if self._period is not None:
            self._before.appendleft(self._period)
        self._period = Period.of(self._epochs, self._since_ms)
        self._epochs, self._since_ms = [], self._last_ms
        return self._adapt(self._period, tables, view)

    # --- inside ----------------------------------------------------------------------------
    def _learn(self, observed: Sequence[Observed]) -> None:
        self._cost.learn(observed)
        self._speeds.learn(observed)
        for epoch in observed:
            speeds = dict(enumerate(self._speeds.of(epoch.facts.engine.hosts).tolist()))
            self._unit_costs.learn([epoch], speeds)

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
        self, period: Period, tables: Mapping[str, RoutingTable], view: View, *, scale: bool = True
    ) -> Proposal:
        slots, hosts = next(iter(tables.values())).slots, period.seen.hosts
        measured = period.measure(
            tables,
            self.settings.tuning,
            self._cost.per_byte,
            leaving=self.adaptation.leaving,
            distances=Distances.of(hosts, self._racks, self.settings.tuning.distance_costs)
            if len(hosts) == slots
            else None,
            instances=view.instances,
            cost_least=self.settings.migration_seconds_least,
            costs=self._unit_costs,
            speeds=self._speeds.of(hosts),
            before=tuple(self._before),
        )
        index = UnitIndex.of(tables)
        heard = tuple(earlier.traffic(index) for earlier in self._before)
        measured = replace(measured, before=heard)
        situation = measured.situation
        found = load_distance(situation, situation.home, balance=self.settings.balance)
        achieved: dict[Figure, float] = {"distance_pct": found}
        adapted = self.adaptation.step(measured, scale=scale)
        plan, changed = adapted.plan, dict[str, RoutingTable]()
        if plan is not None and plan.migrations:
            made = {op: t.with_owners(index.owners(plan.node, op)) for op, t in tables.items()}
            changed = {op: t for op, t in made.items() if not t.same_routes(tables[op])}
        # Tables follow instances, wherever a plan would have taken their units.
        instances = marked(situation, self.adaptation.leaving).relocated
        changed = {op: table for op, table in changed.items() if op not in instances}
        if not (changed or adapted.why or instances):
            return Proposal(achieved=achieved)
        return Proposal(
            changed,
            plan=self._facts(measured, adapted, instances),
            promised={} if plan is None else {"distance_pct": plan.distance_pct},
            achieved=achieved,
            slots=None
            if adapted.slots is None
            else Wanted(adapted.slots, adapted.why, adapted.gone),
            instances=instances,
        )

    def _facts(
        self, measured: MeasuredUnits, adapted: Adapted, instances: Mapping[str, tuple[int, ...]]
    ) -> PlanFacts:
        plan = adapted.plan
        told = (
            f"{op} gets its instances in slots {', '.join(map(str, own))}: all it has leave"
            for op, own in instances.items()
        )
        facts = PlanFacts(
            planner=self.settings.planner,
            resource=measured.resource,
            slot_loads_pct=tuple(round(x, 1) for x in measured.loads),
            why=joined(adapted.why, *told, measured.told),
        )
        if plan is None:
            return facts
        moves, more = plan.reasons[:MOVES_EXPLAINED], len(plan.reasons) - MOVES_EXPLAINED
        return replace(
            facts,
            why=joined(facts.why, plan.explain()),
            planned_loads_pct=tuple(round(x, 1) for x in measured.loads_of(plan)),
            predicted_distance_pct=round(plan.distance_pct, 2),
            predicted_locality=round(plan.collocation, 4),
            migration_s=round(plan.migration_cost, 4),
            bound_pct=round(plan.bound_pct, 2),
            gap_pct=round(plan.gap_pct, 2),
            extent=plan.extent,
            migration_s_per_mb=round(1e6 * self._cost.per_byte, 6),
            top_moves=moves if more <= 0 else (*moves, f"and {more:,} more lines"),
            seconds=round(plan.seconds, 4),
        )


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
