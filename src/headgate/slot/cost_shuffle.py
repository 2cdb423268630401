"""Cost-aware shuffle inside one task: give rows their slots by what they cost, and measure that.

The scheduler of an edge is a pure function of the task's rows, in order, and the plan: windows are
cut by number of rows, not by chunks or bytes, and the model of costs is frozen in the plan. Every
task schedules its own rows over all slots; tasks begin with different slots, so that what each
leaves uneven does not add up. Without a model it is round robin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from headgate.arrays import F64, I32, I64, U64
from headgate.routing.cost_model import greedy, longest_first, round_robin
from headgate.routing.cost_sketch import CostSketch, SketchShape
from headgate.routing.hashing import group_rows, hash_columns
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, concat, in_order
from headgate.slot.run_operator import run_stateless
from headgate.topology.graph import CostOptions, Edge, Grouping, Node

WINDOW_ROWS = 16_384  # scheduled together, what takes long first; held in memory until then
Scheduled = tuple[Edge, Rows, I32]


class CostRouting:
    """The schedulers of one task, one per operator with a cost-aware input."""

    def __init__(self, program: Program, plan: EpochPlan, control: Control, producer: int) -> None:
        self._program, self._plan, self._control = program, plan, control
        self._producer = producer
        self._held: dict[int, list[Rows]] = {}
        self._busy_ms: dict[int, F64] = {}
        self._turn: dict[int, int] = {}

    def add(self, edge: Edge, rows: Rows) -> Iterator[Scheduled]:
        """Take rows of an edge; gives back those whose slot is decided, with their slots."""
        options = edge.grouping.cost or CostOptions()
        if options.schedule == "online" or self._model_of(edge) is None:
            yield edge, rows, self._targets(edge, rows, options)
            return
        held = self._held.setdefault(edge.id, [])
        held.append(rows)
        waiting = sum(map(len, held))
        while waiting >= WINDOW_ROWS:
            together = concat(held)
            window = together.slice(0, WINDOW_ROWS)
            waiting -= WINDOW_ROWS
            held[:] = [together.slice(WINDOW_ROWS, waiting)] if waiting else []
            yield edge, window, self._targets(edge, window, options)

    def close(self) -> Iterator[Scheduled]:
        """What is still held, edge by edge."""
        for number in sorted(self._held):
            held, edge = self._held.pop(number), self._program.graph.edges[number]
            if held:
                rows = concat(held)
                yield edge, rows, self._targets(edge, rows, edge.grouping.cost or CostOptions())

    # --- inside ----------------------------------------------------------------------------
    def _model_of(self, edge: Edge) -> object | None:
        return self._plan.costs.get(self._program.graph.nodes[edge.consumer].name)

    def _targets(self, edge: Edge, rows: Rows, options: CostOptions) -> I32:
        operator = self._program.graph.nodes[edge.consumer].name
        slots = self._plan.slots_of(operator)
        model = self._plan.costs.get(operator)
        if model is None:
            turn = self._turn.get(edge.consumer, self._producer)
            self._turn[edge.consumer] = turn + len(rows)
            return self._plan.in_slots(operator, round_robin(turn, len(rows), len(slots)))
        h = hash_columns([rows.batch.column(c) for c in edge.grouping.key], len(rows))
        group, first = group_rows(h)
        times_ms = model.times_ms(h[first])[:, slots]
        busy_ms = self._busy_ms.setdefault(edge.consumer, np.zeros(len(slots)))
        before = busy_ms.copy()
        way = greedy if options.schedule == "online" else longest_first
        targets = way(times_ms, group, busy_ms, self._producer)
        estimated = self._control.estimated_us.setdefault(operator, {})
        for slot, added_ms in zip(slots, (busy_ms - before).tolist(), strict=True):
            estimated[str(slot)] = estimated.get(str(slot), 0) + round(added_ms * 1000)
        return self._plan.in_slots(operator, targets)


PARTS_MAX = 32  # calls of a vectorised function that is being measured
PART_MS_MIN = 1.0  # a call costs some 50 microseconds: a part should take much longer
_PLACE = "__place"


class CostTiming:
    """Execution times per attribute value, measured while an operator runs; `sketches` by operator.

    A function that takes one row at a time is timed row by row. A vectorised one is called on a few
    parts of its rows: rows of equal attribute stay together, parts are about equally heavy, and a
    part's time is shared out over its rows as the model expects it. How rows are cut depends on
    rows and plan alone, and the output is put back into their order, so nothing but the clock
    differs between two runs.
    """

    def __init__(
        self, program: Program, plan: EpochPlan, clock_ns: Callable[[], int], slot: int | None
    ) -> None:
        self._plan, self._clock_ns, self._slot = plan, clock_ns, slot
        self._inputs: dict[int, Grouping] = {
            edge.consumer: edge.grouping
            for edge in program.graph.edges
            if edge.grouping.kind == "cost"
        }
        self.sketches: dict[str, CostSketch] = {}

    def measures(self, node: Node) -> bool:
        return node.id in self._inputs

    def run(self, node: Node, rows: Rows, dead: DeadLetters) -> Rows:
        """As `run_stateless`, and remember what the rows took."""
        grouping = self._inputs[node.id]
        h = hash_columns([rows.batch.column(c) for c in grouping.key], len(rows))
        if node.spec.per_row:
            spent_ns = np.zeros(len(rows), np.int64)
            made = run_stateless(node, rows, dead, self._clock_ns, spent_ns)
            self._sketch(node, grouping).update(h, spent_ns / 1e6)
            return made
        made, spent_ms, group, first = self._run_parts(node, rows, h, dead)
        count = np.bincount(group, minlength=len(first)).astype(np.float64)
        self._sketch(node, grouping).update(h[first], spent_ms, count)
        return made

    # --- inside ----------------------------------------------------------------------------
    def _sketch(self, node: Node, grouping: Grouping) -> CostSketch:
        if node.name not in self.sketches:
            options = grouping.cost or CostOptions()
            shape = SketchShape.within(options.epsilon, options.delta)
            self.sketches[node.name] = CostSketch(shape)
        return self.sketches[node.name]

    def _run_parts(
        self, node: Node, rows: Rows, h: U64, dead: DeadLetters
    ) -> tuple[Rows, F64, I64, I64]:
        """Output in order, and per value its time, with the number of each row's value."""
        group, first = group_rows(h)
        work_ms = self._expected(node, h, first) * np.bincount(group, minlength=len(first))
        part_of = cut(work_ms, self._parts(node, work_ms))
        spent_ms = np.zeros(len(first))
        made: list[Rows] = []
        part_of_row = part_of[group]
        for part in range(int(part_of.max()) + 1):
            at = np.flatnonzero(part_of_row == part)
            some = rows if len(at) == len(rows) else rows.take(at)
            placed = Rows(some.batch, {**some.lineage, _PLACE: at}, some.hashed, some.origin)
            start = self._clock_ns()
            made.append(run_stateless(node, placed, dead))
            took_ms = (self._clock_ns() - start) / 1e6
            mine = part_of == part
            spent_ms[mine] = took_ms * work_ms[mine] / work_ms[mine].sum()
        return in_order(made, _PLACE), spent_ms, group, first

    def _expected(self, node: Node, h: U64, first: I64) -> F64:
        """What a row of each value should take here; without a model all rows are alike."""
        model = self._plan.costs.get(node.name)
        if model is None or self._slot is None:
            return np.ones(len(first))
        return np.maximum(model.times_ms(h[first])[:, self._slot], 1e-6)

    def _parts(self, node: Node, work_ms: F64) -> int:
        if node.name not in self._plan.costs:
            return min(PARTS_MAX, len(work_ms))
        return int(max(1, min(PARTS_MAX, len(work_ms), work_ms.sum() / PART_MS_MIN)))


def cut(work: F64, parts: int) -> I64:
    """Number values by part: neighbours by work, about equal work, no part empty.

    Examples:
        >>> cut(np.array([1.0, 9.0, 1.0, 1.0]), 2).tolist()
        [0, 1, 0, 0]
    """
    order = np.argsort(work, kind="stable")
    share = np.cumsum(work[order]) - work[order] / 2
    part = np.minimum((share * parts / work.sum()).astype(np.int64), parts - 1)
    numbered = np.empty(len(work), np.int64)
    numbered[order] = np.unique(part, return_inverse=True)[1]
    return numbered
