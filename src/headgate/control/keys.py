"""The policy that moves single keys to where their rows are, with a planner of keys.

A plan that moves much is carried out over several epochs, hottest keys first. In a full table hot
keys take the entries of cold ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headgate.arrays import I32, U64
from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Observed
from headgate.control.observation import gather
from headgate.control.policy import Figure, Proposal, View
from headgate.control.settings import Manager
from headgate.planner.placing import Observation, Pins, Placing, Task, make_placing
from headgate.planner.placing import Proposal as KeyPlan
from headgate.routing.space_saving import PAIR_BYTES
from headgate.routing.table import RoutingTable
from headgate.slot.program import Program

LABELS_MAX = 4_096  # texts of keys kept for explanations; some 300 kB
MOVES_EXPLAINED = 8  # lines of a plan's record that name single moves


def task_of(
    program: Program, settings: Manager, slots: int, racks: Mapping[str, str] | None = None
) -> Task:
    """What there is to place in a flow, within the limits of the settings."""
    local = program.operators(lambda may: may.local is not None and settings.born_local)
    return Task(
        operators=program.operators(lambda may: may.be_placed),
        edges=program.key_pairs,
        slots=slots,
        alpha=settings.alpha,
        pins_max=settings.tuning.pins_max,
        moves_max=settings.tuning.moves_max,
        born_local=frozenset(local),
        memory_epochs=settings.tuning.memory_epochs,
        seed=settings.tuning.seed,
        racks=racks or {},
    )


class KeyPlacement:
    """Places the keys of one flow."""

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
        self._task = replace(self._task, slots=slots)
        self._placing: Placing = make_placing(self.settings.planner, self._task)
        self._pairs_max = max(1, slots * self.settings.tuning.statistics_bytes // PAIR_BYTES)
        self._left: dict[str, Pins] = {}

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        if not observed:
            return Proposal()
        seen = gather(observed, self._pairs_max)
        mine = {op: seen.loads[op] for op in self._task.operators if op in seen.loads}
        return self.plan(replace(seen, loads=mine), view.tables)

    def plan(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal:
        """The next moves, from a new plan if one is due or from what is left of the last."""
        self._learn_labels(seen)
        achieved: dict[Figure, float] = {}
        if seen.locality is not None:
            achieved["locality"] = seen.locality
        self._placing.observe(seen, tables)
        self._epochs_since += seen.epochs
        self._warm_up -= seen.epochs
        if self._warm_up > 0:
            return Proposal(achieved=achieved)
        plan: PlanFacts | None = None
        promised: dict[Figure, float] = {}
        made = self._new_plan(seen, tables)
        if made is not None:
            self._left = dict(made.pins)
            plan = self._facts(made)
            if made.locality is not None:
                promised["locality"] = made.locality
        changed, moves = self._next_moves(tables)
        if moves:
            left = {op: len(pins.h) for op, pins in self._left.items() if len(pins.h)}
            plan = replace(
                plan or PlanFacts(planner=self.settings.planner), top_moves=moves, left=left
            )
        return Proposal(changed, plan=plan, promised=promised, achieved=achieved)

    # --- inside ----------------------------------------------------------------------------
    def _new_plan(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> KeyPlan | None:
        if not self._is_due(seen):
            return None
        self._epochs_since, self._planned_ms = 0, seen.now_ms
        return self._placing.propose(seen, tables)

    def _is_due(self, seen: Observation) -> bool:
        if self._epochs_since < self.settings.every_epochs:
            return False
        if self._planned_ms is None:
            return True
        self._planned_ms = min(self._planned_ms, seen.now_ms)  # a clock that was ahead came back
        return seen.now_ms - self._planned_ms >= self.settings.every_ms

    def _next_moves(
        self, tables: Mapping[str, RoutingTable]
    ) -> tuple[dict[str, RoutingTable], tuple[str, ...]]:
        """The hottest part of what is left of the plan, as far as the budget goes."""
        changed: dict[str, RoutingTable] = {}
        lines: list[tuple[float, str]] = []
        for operator, pins in self._left.items():
            now, self._left[operator] = pins.split(self.settings.tuning.moves_max)
            table = tables[operator]
            fits, cold = self._make_room(operator, table, now)
            now = now.take(fits)
            if not len(now.h):
                continue
            before = table.route(now.h)
            if len(cold):
                table = table.unpin_hashes(cold)
            changed[operator] = table.pin_hashes(now.h, now.slot)
            for i in range(min(MOVES_EXPLAINED, len(now.h))):
                if before[i] != now.slot[i]:
                    lines.append((-float(now.rows[i]), self._line(operator, now, before, i)))
        self._left = {op: pins for op, pins in self._left.items() if len(pins.h)}
        return changed, tuple(line for _, line in sorted(lines)[:MOVES_EXPLAINED])

    def _make_room(
        self, operator: str, table: RoutingTable, pins: Pins
    ) -> tuple[npt.NDArray[np.bool_], U64]:
        """Which of these pins fit into a table, and the entries that go for them.

        A key whose entry goes falls back to its hash slot, so its state moves too: pins and
        evictions share the budget of moves.
        """
        fits = table.is_pinned(pins.h)
        new = np.flatnonzero(~fits)
        room = max(0, self.settings.tuning.pins_max - len(table.pinned_h))
        fits[new[:room]] = True
        budget = self.settings.tuning.moves_max - int(fits.sum())
        wanting = new[room:][: max(0, budget // 2)]
        if not len(wanting):
            return fits, np.empty(0, np.uint64)
        held = np.setdiff1d(table.pinned_h, pins.h, assume_unique=True)
        rows = self._placing.rows_lately(operator, held)
        coldest = np.argsort(rows, kind="stable")[: len(wanting)]
        hotter = pins.rows[wanting[: len(coldest)]] > rows[coldest]
        fits[wanting[: len(coldest)][hotter]] = True
        return fits, held[coldest[hotter]]

    def _line(self, operator: str, pins: Pins, before: I32, i: int) -> str:
        key = self._labels.get(operator, {}).get(int(pins.h[i]), f"#{int(pins.h[i]):016x}")
        return (
            f"{operator} {key!r}: slot {int(before[i])} -> {int(pins.slot[i])}, "
            f"{pins.rows[i]:,.0f} rows lately, {self._placing.why(operator, pins, i)}"
        )

    def _facts(self, made: KeyPlan) -> PlanFacts:
        return PlanFacts(
            planner=self.settings.planner,
            why=made.reason,
            planned_keys={op: len(pins.h) for op, pins in made.pins.items()},
            predicted_locality=made.locality,
            predicted_imbalance=made.imbalance,
            seconds=round(made.seconds, 4),
        )

    def _learn_labels(self, seen: Observation) -> None:
        for operator, texts in seen.labels.items():
            known = self._labels.setdefault(operator, {})
            known.update(texts)
            while len(known) > LABELS_MAX:
                del known[next(iter(known))]
