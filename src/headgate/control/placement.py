"""Our own placement: single keys go to where their rows are; whole units, where slots are uneven.

Most of the time keys are placed: slots count keys and pairs of keys, and a few keys move after
every epoch, hottest first; a plan that moves much takes several epochs. That evens rows, operator
by operator. If the *time* that slots spend stays uneven all the same, or if slots are to leave,
slots count units instead, buckets and pinned keys, and these are placed by load, traffic and what
moving costs (`units`), until nothing is left to gain. Keys go on from the tables that came of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import U64, Bools
from headgate.commit.facts import EpochFacts, PlanFacts
from headgate.commit.planning import Observed
from headgate.control.policy import MOVES_EXPLAINED, Figure, Proposal, View, gather, joined
from headgate.control.settings import Manager
from headgate.control.units import UnitPlacement
from headgate.planner.placing import NO_ENTRY, Observation, Pins, Placing, Task, make_placing
from headgate.planner.placing import Proposal as KeyPlan
from headgate.routing.space_saving import PAIR_BYTES
from headgate.routing.table import RoutingTable
from headgate.slot.program import Program

LABELS_MAX = 4_096  # texts of keys kept for explanations; some 300 kB


def task_of(
    program: Program, settings: Manager, slots: int, racks: Mapping[str, str] | None = None
) -> Task:
    """What there is to place in a flow, within the limits of the settings."""
    local = program.operators(lambda may: may.local is not None and settings.keeps_new_keys_local)
    return Task(
        operators=program.operators(lambda may: may.be_placed),
        edges=program.key_pairs,
        slots=slots,
        alpha=settings.alpha,
        pins_max=settings.tuning.pins_max,
        moves_max=settings.moves_max,
        born_local=frozenset(local),
        memory_epochs=settings.tuning.memory_epochs,
        seed=settings.tuning.seed,
        racks=racks or {},
        distance_costs=settings.tuning.distance_costs,
    )


class KeyPlacement:
    """Moves single keys to where their rows are, with a planner of keys.

    In a full table hot keys take the entries of cold ones.
    """

    units_of: frozenset[str] = frozenset()

    def __init__(self, task: Task, settings: Manager) -> None:
        self.settings, self._task = settings, task
        self._warm_up = settings.warm_up_epochs
        self._epochs_since = 0
        self._planned_ms: int | None = None
        self._labels: dict[str, dict[int, str]] = {}
        self.slots_changed(task.slots)

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._warm_up > 0 else self._task.born_local

    def slots_changed(self, slots: int) -> None:
        """Another number of slots is another problem: the planner starts with an empty memory."""
        self._begin_anew(slots, {})

    def _begin_anew(self, slots: int, instances: Mapping[str, tuple[int, ...]]) -> None:
        self._task = replace(self._task, slots=slots, instances=instances)
        self._placing: Placing = make_placing(self.settings.planner, self._task)
        self._pairs_max = max(1, slots * self.settings.tuning.statistics_bytes // PAIR_BYTES)
        self._left: dict[str, Pins] = {}

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        instances = {op: x for op, x in view.instances.items() if op in self._task.operators}
        if instances != self._task.instances:
            self._begin_anew(view.slots, instances)
        if not observed:
            return Proposal()
        seen = gather(observed, self._pairs_max)
        mine = {op: seen.loads[op] for op in self._task.operators if op in seen.loads}
        return self.plan(replace(seen, loads=mine), view.tables)

    def plan(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal:
        """The next moves, from a new plan if one is due or from what is left of the last."""
        for operator, texts in seen.labels.items():
            known = self._labels.setdefault(operator, {})
            known.update(texts)
            while len(known) > LABELS_MAX:
                del known[next(iter(known))]
        achieved: dict[Figure, float] = {}
        if seen.locality is not None:
            achieved["locality"] = seen.locality
        self._placing.observe(seen, tables)
        self._epochs_since += seen.epochs
        self._warm_up -= seen.epochs
        if self._warm_up > 0:
            return Proposal(achieved=achieved)
        facts, plan = PlanFacts(planner=self.settings.planner), None
        promised: dict[Figure, float] = {}
        made = self._placing.propose(seen, tables) if self._is_due(seen.now_ms) else None
        if made is not None:
            self._left = dict(made.pins)
            facts = plan = _with_plan(facts, made)
            if made.locality is not None:
                promised["locality"] = made.locality
        changed, moves = self._next_moves(tables)
        if moves:
            left = {op: len(pins.h) for op, pins in self._left.items()}
            plan = replace(facts, top_moves=moves, left=left)
        return Proposal(changed, plan=plan, promised=promised, achieved=achieved)

    # --- inside ----------------------------------------------------------------------------
    def _is_due(self, now_ms: int) -> bool:
        """Is it time for a new plan? If so, a new period begins."""
        if self._epochs_since < self.settings.every_epochs:
            return False
        if self._planned_ms is not None:
            self._planned_ms = min(self._planned_ms, now_ms)  # a clock that was ahead came back
            if now_ms - self._planned_ms < self.settings.every_ms:
                return False
        self._epochs_since, self._planned_ms = 0, now_ms
        return True

    def _next_moves(
        self, tables: Mapping[str, RoutingTable]
    ) -> tuple[dict[str, RoutingTable], tuple[str, ...]]:
        """The hottest part of what is left of the plan, as far as the budget goes."""
        changed: dict[str, RoutingTable] = {}
        lines: list[tuple[float, str]] = []
        for operator, pins in self._left.items():
            now, self._left[operator] = pins.split(self._task.moves_max)
            table = tables[operator]
            gone = now.h[now.slot == NO_ENTRY]
            if len(gone):
                changed[operator] = table = table.unpin_hashes(gone)
                now = now.take(now.slot != NO_ENTRY)
            fits, cold = self._make_room(operator, table, now)
            now = now.take(fits)
            if not len(now.h):
                continue
            before = table.route(now.h)
            if len(cold):
                table = table.unpin_hashes(cold)
            changed[operator] = table.pin_hashes(now.h, now.slot)
            labels = self._labels.get(operator, {})
            for i in range(min(MOVES_EXPLAINED, len(now.h))):
                if before[i] == now.slot[i]:
                    continue
                key = labels.get(int(now.h[i]), f"#{int(now.h[i]):016x}")
                line = f"{operator} {key!r}: slot {before[i]} -> {now.slot[i]}, "
                line += f"{now.rows[i]:,.0f} rows lately, {self._placing.why(operator, now, i)}"
                lines.append((-float(now.rows[i]), line))
        self._left = {op: pins for op, pins in self._left.items() if len(pins.h)}
        return changed, tuple(line for _, line in sorted(lines)[:MOVES_EXPLAINED])

    def _make_room(self, operator: str, table: RoutingTable, pins: Pins) -> tuple[Bools, U64]:
        """Which of these pins fit into a table, and the entries that go for them.

        A key whose entry goes falls back to its hash slot, so its state moves too: pins and
        evictions share the budget of moves.
        """
        tuning, fits = self.settings.tuning, table.is_pinned(pins.h)
        new = np.flatnonzero(~fits)
        room = max(0, tuning.pins_max - len(table.pinned_h))
        fits[new[:room]] = True
        budget = self._task.moves_max - int(fits.sum())
        wanting = new[room:][: max(0, budget // 2)]
        if not len(wanting):
            return fits, np.empty(0, np.uint64)
        held = np.setdiff1d(table.pinned_h, pins.h, assume_unique=True)
        rows = self._placing.rows_lately(operator, held)
        coldest = np.argsort(rows, kind="stable")[: len(wanting)]
        wanting = wanting[: len(coldest)]
        hotter = pins.rows[wanting] > rows[coldest]
        fits[wanting[hotter]] = True
        return fits, held[coldest[hotter]]


def _with_plan(facts: PlanFacts, made: KeyPlan) -> PlanFacts:
    return replace(
        facts,
        why=made.reason,
        planned_keys={op: len(pins.h) for op, pins in made.pins.items()},
        predicted_locality=made.locality,
        predicted_imbalance=made.imbalance,
        seconds=round(made.seconds, 4),
    )


@dataclass(frozen=True)
class PlacementSettings:
    """When units are placed instead of keys.

    Args:
        uneven: The busiest slot's time over the mean that is too much. Times of equal slots differ
            by a tenth or so from epoch to epoch.
        patience_epochs: For so many epochs in a row; doubled whenever placing units did not help.
        slot_ms_min: Mean time of a slot per epoch below which the clock says nothing.
        rest_turns: Turns without a plan after which keys are placed again.
    """

    uneven: float = 1.3
    patience_epochs: int = 8
    slot_ms_min: float = 50.0
    rest_turns: int = 4


class HeadgatePlacement:
    """The planner "headgate" at work on one flow."""

    def __init__(
        self, keys: KeyPlacement, units: UnitPlacement, settings: PlacementSettings | None = None
    ) -> None:
        self._keys, self._units, self.settings = keys, units, settings or PlacementSettings()
        self._places_units = False
        self._uneven_epochs = self._turns_at_rest = 0
        self._patience = self.settings.patience_epochs

    @property
    def units_of(self) -> frozenset[str]:
        """Operators whose units are counted, and placed, in place of keys."""
        return self._units.units_of if self._places_units else frozenset()

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._places_units else self._keys.born_local

    @property
    def is_draining(self) -> bool:
        return self._places_units and self._units.adaptation.is_draining

    def drain(self, slots: int) -> None:
        """Empty so many slots, within the budget, then ask for their release."""
        self._units.adaptation.drain(slots)
        self._places_units, self._turns_at_rest = True, 0

    def slots_changed(self, slots: int) -> None:
        self._keys.slots_changed(slots)
        self._units.slots_changed(slots)
        self._uneven_epochs = 0

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        if self._places_units:
            counted = [epoch for epoch in observed if epoch.counted_units is not False]
            return self._place_units(counted, view)
        observed = [epoch for epoch in observed if not epoch.counted_units]
        proposal = self._keys.propose(observed, view)
        excess = self._unevenness([epoch.facts for epoch in observed])
        if excess is None:
            return proposal
        self._places_units, self._turns_at_rest = True, 0
        why = (
            f"the busiest slot took {excess:.2f} times the mean in {self._uneven_epochs} epochs in "
            "a row; buckets and pinned keys are placed by load"
        )
        facts = proposal.plan or PlanFacts(planner="headgate")
        return replace(proposal, plan=replace(facts, why=joined(facts.why, why)))

    # --- inside ----------------------------------------------------------------------------
    def _place_units(self, observed: Sequence[Observed], view: View) -> Proposal:
        """Until they have been at rest for a while."""
        proposal = self._units.propose(observed, view)
        moved = bool(proposal.tables) or self.is_draining
        self._turns_at_rest = 0 if moved or not observed else self._turns_at_rest + 1
        if self._turns_at_rest >= self.settings.rest_turns:
            self._places_units = False
            self._uneven_epochs = 0
            self._patience *= 2
        return proposal

    def _unevenness(self, epochs: Sequence[EpochFacts]) -> float | None:
        """How uneven slots have been for long enough; None: they have not."""
        excess = 1.0
        for facts in epochs:
            spent = np.sum(list(facts.operator_ms.values()), axis=0)
            mean = float(np.mean(spent)) if np.size(spent) else 0.0
            if mean < self.settings.slot_ms_min:
                continue
            excess = float(np.max(spent)) / mean
            if excess > self.settings.uneven:
                self._uneven_epochs += 1
            else:
                self._uneven_epochs, self._patience = 0, self.settings.patience_epochs
        return excess if self._uneven_epochs >= self._patience else None
