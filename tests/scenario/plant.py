"""A flow as its manager sees it, without an engine: rows by unit, a clock, and what slots cost.

One operator feeds another. Every epoch lasts a second; a row takes the same time everywhere. Slots
that are asked for are there some epochs later. State moves with the tables, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import headgate as hg
from headgate.commit.facts import EpochFacts, StateSize
from headgate.commit.planning import Observed
from headgate.control.loop import DecisionLoop
from headgate.control.units import UnitPlacement
from headgate.planner.allocation.greedy import greedy
from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.statistics import TaskStatistics

BUCKETS = 64
MS_PER_ROW = 0.01


class Greedy:
    """The incumbent of the MILP, without the solver: quick, and good enough for a plant."""

    name = "greedy"
    collocates = False

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        node = greedy(situation, limits.migration_cost_max)
        return describe(situation, node, self.name, limits, bound_pct=0.0)


class Plant:
    """Runs a manager over epochs of a given load, and keeps what became of the slots."""

    def __init__(
        self,
        manager: hg.Manager,
        slots: int,
        *,
        scaling: hg.Scaling | None = None,
        delay: int = 2,
        seed: int = 0,
    ) -> None:
        planner = Greedy() if manager.planner == "milp" else None
        units = UnitPlacement(("first", "second"), manager, planner=planner, scaling=scaling)
        self.manager = DecisionLoop(placing=units)
        self.tables = {op: hash_table(slots, BUCKETS) for op in ("first", "second")}
        self.delay, self.rng = delay, np.random.default_rng(seed)
        weight = self.rng.pareto(2.0, BUCKETS) + 0.2
        self.share = weight / weight.sum()
        self.epoch = self.now_ms = 0
        self.coming: tuple[int, int, tuple[int, ...]] | None = None
        self.slots: list[int] = []
        self.moved: list[int] = []
        self.busiest: list[float] = []
        self.lines: list[str] = []

    def run(self, epochs: int, pct: Callable[[int], float]) -> None:
        """So many epochs; `pct` is the load of all slots together, in percent of one slot."""
        for epoch in range(epochs):
            self._one(pct(epoch))

    def _one(self, pct: float) -> None:
        slots = self.tables["first"].slots
        rows = self.share * (pct / 100 * 1000 / MS_PER_ROW / 2)
        rows = rows * self.rng.uniform(0.95, 1.05, BUCKETS)
        observed, loads = self._observed(rows, slots)
        self.slots.append(slots)
        self.busiest.append(float(loads.max()) / 10)
        self.epoch, self.now_ms = self.epoch + 1, self.now_ms + 1000
        decision = self.manager.step([observed], dict(self.tables))
        self.moved.append(0)
        for operator, table in decision.tables.items():
            self._install(operator, table)
        self.lines += [str(decision.plan.why)] if decision.plan is not None else []
        if decision.slots is not None:
            self.coming = (self.epoch + self.delay, decision.slots, decision.gone)
        if self.coming is not None and self.coming[0] <= self.epoch:
            self._resize(*self.coming[1:])
            self.coming = None

    def _install(self, operator: str, table: RoutingTable) -> None:
        self.moved[-1] += int((table.bucket_slots != self.tables[operator].bucket_slots).sum())
        self.tables[operator] = table

    def _resize(self, slots: int, gone: tuple[int, ...]) -> None:
        for operator, table in list(self.tables.items()):
            stay = [slot for slot in range(table.slots) if slot not in gone]
            if gone:
                left = [slot for slot in stay if slot >= slots]
                name = np.arange(table.slots, dtype=np.int32)
                free = [slot for slot in gone if slot < slots]
                name[[*left, *free]] = [*free, *left]
                self.tables[operator] = table = table.renamed(name, table.slots)
            self._install(operator, table.resized(slots, even=False))

    def _observed(self, rows: Any, slots: int) -> tuple[Observed, Any]:
        loads: dict[str, tuple[int, ...]] = {}
        spent: dict[str, tuple[float, ...]] = {}
        total = np.zeros(slots)
        tasks = [TaskStatistics(slot) for slot in range(slots)]
        state: dict[str, dict[int, StateSize]] = {}
        ids = self.tables["first"].all_units()[0][:BUCKETS]
        none = np.zeros(BUCKETS, np.uint64)
        for operator, table in self.tables.items():
            by_slot = np.bincount(table.bucket_slots, rows, slots)
            loads[operator] = tuple(by_slot.astype(int).tolist())
            spent[operator] = tuple((by_slot * MS_PER_ROW).tolist())
            total += by_slot * MS_PER_ROW
            state[operator] = {}
            for slot, task in enumerate(tasks):
                mine = table.bucket_slots == slot
                task.loads[operator] = _sketch(ids[mine], none[mine], rows[mine])
                task.state[operator] = _sketch(ids[mine], none[mine], np.ones(int(mine.sum())))
                held = int(mine.sum())
                state[operator][slot] = StateSize(held, held * 100_000)
        here = self.tables["first"].bucket_slots
        for slot, task in enumerate(tasks):
            mine = here == slot
            task.pairs["first", "second"] = _sketch(ids[mine], ids[mine], rows[mine])
        facts = EpochFacts(
            epoch=self.epoch,
            slots=slots,
            rows=int(rows.sum()),
            now_ms=self.now_ms,
            loads=loads,
            operator_ms=spent,
            state=state,
        )
        return Observed(facts, tasks), total


def _sketch(a: Any, b: Any, rows: Any) -> PairSketch:
    sketch = PairSketch(4 * BUCKETS)
    sketch.update(a, b, rows)
    return sketch
