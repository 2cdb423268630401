"""The manager: observe, plan, decide, install. Pure: epochs in, decisions out.

It runs in the driver, between or beside epochs, and touches neither engine nor storage: the
coordinator brings it what was counted and carries its decisions out. A plan that moves much is
spread over epochs, hottest keys first. Every decision says in one line why it was made, what it
should bring, and, later, what it brought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headgate.commit.facts import OutcomeFacts, PlanFacts
from headgate.commit.planning import Decides, Decision, Observed, PlacesUnits, Planning
from headgate.control.hot_keys import WithHotKeys
from headgate.control.observation import gather
from headgate.control.settings import Manager, Scaling
from headgate.planner.compiling import compile_allocation_kernels, compile_kernels
from headgate.planner.placing import Observation, Pins, Placing, Proposal, Task, make_placing
from headgate.routing.hashing import I32, U64
from headgate.routing.space_saving import PAIR_BYTES
from headgate.routing.table import RoutingTable
from headgate.slot.program import Program
from headgate.topology.duration import duration_us

CUTTING_PLANNERS = ("allocation",)
LABELS_MAX = 4_096
MOVES_TOLD = 8


def plan_with(
    manager: Manager | Decides | None,
    program: Program,
    slots: int,
    *,
    racks: Mapping[str, str] | None = None,
    scaling: Scaling | None = None,
    beside: bool = True,
) -> Planning | None:
    """A manager at work on a flow; None stays None unless a grouping of the flow needs one.

    Operators that are placed by load, or split if it pays, get a manager that does only that.
    `scaling` is for planners of units, which measure the load of slots.
    """
    if isinstance(manager, Manager) and not program.stateful:
        return None  # there are no keys to place
    if isinstance(manager, Manager) and manager.places_units:
        from headgate.control.allocation_manager import AllocationManager

        cuts = manager.planner in CUTTING_PLANNERS
        placed = program.operators(lambda may: may.be_placed)
        cuttable = program.operators(lambda may: may.be_cut and cuts)
        manager = AllocationManager(placed, manager, racks, cuttable=cuttable, scaling=scaling)
    elif isinstance(manager, Manager):
        manager = PlacementManager(task_of(program, manager, slots, racks), manager)
    kernels = kernels_of(manager)
    if WithHotKeys.has_work(program, manager):
        manager = WithHotKeys(manager, program)
    if manager is None:
        return None
    planning = Planning(manager, beside=beside)
    if kernels is not None:
        planning.prepare(kernels)
    return planning


def kernels_of(manager: Decides | None) -> Callable[[], None] | None:
    """What compiles the code that a manager plans with; None: it needs none."""
    if isinstance(manager, PlacementManager):
        return compile_kernels
    return compile_allocation_kernels if isinstance(manager, PlacesUnits) else None


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
        pins_max=settings.pins_max,
        moves_max=settings.moves_max,
        born_local=frozenset(local),
        memory_epochs=settings.memory_epochs,
        seed=settings.seed,
        racks=racks or {},
    )


class PlacementManager:
    """Decides for one flow. Keeps what its planner remembers and what is left of a plan.

    Two engines drive it: Spark's epochs (`step`), and the message-by-message simulator (`decide`).
    """

    def __init__(self, task: Task, settings: Manager) -> None:
        self.settings, self._task = settings, task
        self._born_local = task.born_local
        self._placing: Placing = make_placing(settings.planner, task)
        self._pairs_max = max(1, task.slots * settings.statistics_bytes // PAIR_BYTES)
        self._every_ms = 0 if settings.every is None else duration_us(settings.every) // 1000
        self._left: dict[str, Pins] = {}
        self._labels: dict[str, dict[int, str]] = {}
        self._epochs_since = 0
        self._epochs_left_to_watch = settings.warm_up_epochs
        self._planned_ms: int | None = None
        self._promised: float | None = None

    @property
    def statistics_bytes(self) -> int:
        return self.settings.statistics_bytes

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._epochs_left_to_watch > 0 else self._born_local

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        """One turn of the loop, after some epochs."""
        slots = next((table.slots for table in tables.values()), self._task.slots)
        if slots != self._task.slots:
            self._begin_anew(slots)
        observed = [epoch for epoch in observed if epoch.facts.slots == slots]
        return self.decide(gather(observed, self._pairs_max), tables) if observed else Decision()

    def decide(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Decision:
        """What to do about what was seen."""
        self._learn_labels(seen)
        plan: PlanFacts | None = None
        outcome = self._outcome(seen)
        self._placing.observe(seen, tables)
        self._epochs_since += seen.epochs
        self._epochs_left_to_watch -= seen.epochs
        if self._epochs_left_to_watch > 0:
            return Decision(outcome=outcome)
        if self._is_due(seen):
            proposal = self._placing.propose(seen, tables)
            self._epochs_since, self._planned_ms = 0, seen.now_ms
            if proposal is not None:
                self._left = dict(proposal.pins)
                plan = self._told(proposal)
        changed, moves = self._next_moves(tables)
        if moves:
            plan = plan or PlanFacts(planner=self.settings.planner)
            left = {op: len(pins.h) for op, pins in self._left.items() if len(pins.h)}
            plan = replace(plan, top_moves=tuple(moves), left=left)
        return Decision(changed, plan, outcome)

    # --- inside ----------------------------------------------------------------------------
    def _begin_anew(self, slots: int) -> None:
        """Another number of slots is another problem: what was planned for the old one is void."""
        self._task = replace(self._task, slots=slots)
        self._placing = make_placing(self.settings.planner, self._task)
        self._pairs_max = max(1, slots * self.settings.statistics_bytes // PAIR_BYTES)
        self._left, self._promised = {}, None

    def _outcome(self, seen: Observation) -> OutcomeFacts | None:
        """What the last plan promised against what these epochs had."""
        promised, self._promised = self._promised, None
        if promised is None or seen.locality is None:
            return None
        return OutcomeFacts(
            predicted_locality=round(promised, 4),
            achieved_locality=round(seen.locality, 4),
            error=round(promised - seen.locality, 4),
        )

    def _is_due(self, seen: Observation) -> bool:
        if self._epochs_since < self.settings.every_epochs:
            return False
        if self._planned_ms is None:
            return True
        self._planned_ms = min(self._planned_ms, seen.now_ms)  # a clock that was ahead came back
        return seen.now_ms - self._planned_ms >= self._every_ms

    def _next_moves(
        self, tables: Mapping[str, RoutingTable]
    ) -> tuple[dict[str, RoutingTable], list[str]]:
        """The hottest part of what is left of the plan, as far as the budget goes."""
        changed: dict[str, RoutingTable] = {}
        told: list[tuple[float, str]] = []
        for operator, pins in self._left.items():
            now, self._left[operator] = pins.split(self.settings.moves_max)
            if not len(now.h):
                continue
            table = tables[operator]
            before = table.route(now.h)
            fits, cold = self._make_room(operator, table, now)
            now, before = now.take(fits), before[fits]
            if not len(now.h):
                continue
            if len(cold):
                table = table.unpin_hashes(cold)
            changed[operator] = table.pin_hashes(now.h, now.slot)
            for i in range(min(MOVES_TOLD, len(now.h))):
                if before[i] != now.slot[i]:
                    told.append((-float(now.rows[i]), self._line(operator, now, before, i)))
        self._left = {op: pins for op, pins in self._left.items() if len(pins.h)}
        return changed, [line for _, line in sorted(told)[:MOVES_TOLD]]

    def _make_room(
        self, operator: str, table: RoutingTable, pins: Pins
    ) -> tuple[npt.NDArray[np.bool_], U64]:
        """Which of these pins fit into a table, and the entries that go for them.

        In a full table a key takes the entry of a colder one, which falls back to its hash slot.
        Pins and entries that go are within the budget of moves together.
        """
        nothing = np.empty(0, np.uint64)
        fits = table.is_pinned(pins.h)
        new = np.flatnonzero(~fits)
        room = max(0, self.settings.pins_max - len(table.pinned_h))
        fits[new[:room]] = True
        wanting = new[room:]
        budget = self.settings.moves_max - int(fits.sum())
        wanting = wanting[: max(0, budget // 2)]
        if not len(wanting):
            return fits, nothing
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

    def _told(self, proposal: Proposal) -> PlanFacts:
        self._promised = proposal.locality
        return PlanFacts(
            planner=self.settings.planner,
            why=proposal.reason,
            planned_keys={op: len(pins.h) for op, pins in proposal.pins.items()},
            predicted_locality=proposal.locality,
            predicted_imbalance=proposal.imbalance,
            seconds=round(proposal.seconds, 4),
        )

    def _learn_labels(self, seen: Observation) -> None:
        for operator, texts in seen.labels.items():
            known = self._labels.setdefault(operator, {})
            known.update(texts)
            while len(known) > LABELS_MAX:
                del known[next(iter(known))]
