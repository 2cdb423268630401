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
from headgate.routing.costs import CostSketch, SketchShape
from headgate.routing.hashing import group_rows, hash_columns
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, concat, in_order
from headgate.slot.run_operator import run_stateless
from headgate.topology.graph import Edge, Node

SMALL_ROWS = 2_000  # scheduled by a loop in Python: loading numba takes longer
WINDOW_ROWS = 16_384  # scheduled together, what takes long first; held in memory until then
PARTS_MAX = 32  # calls of a vectorised function that is being measured
PART_MS_MIN = 1.0  # a call costs some 50 microseconds: a part should take much longer
Scheduled = tuple[Edge, Rows, I32]


def greedy(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """Each tuple, in the order they come, to the instance that would be done with it first: as the
    online scheduler of Rivetti et al. 2017, which leaves the tuple's own time out. `busy` is each
    instance's time so far, and grows.

    `times[group[i], j]` is what tuple i takes in instance j. Of equals the first one wins, counted
    from `first`, so that several schedulers do not all begin with the same instance.
    """
    if times.shape[1] != len(busy):
        raise ValueError(f"times of {times.shape[1]} instances, but {len(busy)} are there")
    first %= len(busy)
    targets: I32
    if len(group) > SMALL_ROWS:
        from headgate.routing.chooser import assign  # late: it loads numba

        targets = assign(np.ascontiguousarray(times), group, busy, first)
        return targets
    turn = [*range(first, len(busy)), *range(first)]
    done, costs = busy.tolist(), times.tolist()
    targets = np.empty(len(group), np.int32)
    for i, g in enumerate(group.tolist()):
        cost = costs[g]
        best = min(turn, key=lambda j: done[j] + cost[j])
        done[best] += cost[best]
        targets[i] = best
    busy[:] = done
    return targets


def longest_first(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """As `greedy`, but tuples that take long are placed first; equals in the order they come."""
    order = np.argsort(-times.min(axis=1)[group], kind="stable")
    targets = np.empty(len(group), np.int32)
    targets[order] = greedy(times, group[order], busy, first)
    return targets


def round_robin(start: int, rows: int, slots: int) -> I32:
    """One after the other, from instance `start % slots` on."""
    return ((start + np.arange(rows)) % slots).astype(np.int32)


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
        operator = self._program.graph.nodes[edge.consumer].name
        if edge.grouping.cost.schedule == "online" or operator not in self._plan.costs:
            yield self._scheduled(edge, rows)
            return
        held = self._held.setdefault(edge.id, [])
        held.append(rows)
        waiting = sum(map(len, held))
        while waiting >= WINDOW_ROWS:
            together = concat(held)
            waiting -= WINDOW_ROWS
            held[:] = [together.slice(WINDOW_ROWS, waiting)] if waiting else []
            yield self._scheduled(edge, together.slice(0, WINDOW_ROWS))

    def close(self) -> Iterator[Scheduled]:
        """What is still held, edge by edge."""
        for edge in sorted(self._held):
            held = self._held.pop(edge)
            if held:
                yield self._scheduled(self._program.graph.edges[edge], concat(held))

    def _scheduled(self, edge: Edge, rows: Rows) -> Scheduled:
        operator = self._program.graph.nodes[edge.consumer].name
        slots = self._plan.slots_of(operator)
        model = self._plan.costs.get(operator)
        if model is None:
            turn = self._turn.get(edge.consumer, self._producer)
            self._turn[edge.consumer] = turn + len(rows)
            instances = round_robin(turn, len(rows), len(slots))
            return edge, rows, self._plan.in_slots(operator, instances)
        h = hash_columns([rows.batch.column(c) for c in edge.grouping.key], len(rows))
        group, first = group_rows(h)
        times_ms = model.times_ms(h[first])[:, slots]
        busy_ms = self._busy_ms.setdefault(edge.consumer, np.zeros(len(slots)))
        before_ms = busy_ms.copy()
        schedule = greedy if edge.grouping.cost.schedule == "online" else longest_first
        instances = schedule(times_ms, group, busy_ms, self._producer)
        estimated = self._control.estimated_us.setdefault(operator, {})
        for slot, added_ms in zip(slots, (busy_ms - before_ms).tolist(), strict=True):
            estimated[str(slot)] = estimated.get(str(slot), 0) + round(added_ms * 1000)
        return edge, rows, self._plan.in_slots(operator, instances)


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
        edges = program.graph.edges
        self._inputs = {e.consumer: e.grouping for e in edges if e.grouping.kind == "cost"}
        self.sketches: dict[str, CostSketch] = {}

    def measures(self, node: Node) -> bool:
        return node.id in self._inputs

    def run(self, node: Node, rows: Rows, dead: DeadLetters) -> Rows:
        """As `run_stateless`, and remember what the rows took."""
        grouping = self._inputs[node.id]
        h = hash_columns([rows.batch.column(c) for c in grouping.key], len(rows))
        if node.name not in self.sketches:
            shape = SketchShape.within(grouping.cost.epsilon, grouping.cost.delta)
            self.sketches[node.name] = CostSketch(shape)
        sketch = self.sketches[node.name]
        if node.spec.per_row:
            spent_ns = np.zeros(len(rows), np.int64)
            made = run_stateless(node, rows, dead, self._clock_ns, spent_ns)
            sketch.update(h, spent_ns / 1e6)
            return made
        group, first = group_rows(h)
        count = np.bincount(group, minlength=len(first)).astype(np.float64)
        made, spent_ms = self._run_parts(
            node, rows, dead, group, self._work_ms(node, h[first]) * count
        )
        sketch.update(h[first], spent_ms, count)
        return made

    def _run_parts(
        self, node: Node, rows: Rows, dead: DeadLetters, group: I64, work_ms: F64
    ) -> tuple[Rows, F64]:
        """Output in order, and the time of each value; `work_ms` is what it should take."""
        parts = min(PARTS_MAX, len(work_ms))
        if node.name in self._plan.costs:
            parts = int(max(1, min(parts, work_ms.sum() / PART_MS_MIN)))
        part_of = cut(work_ms, parts)
        spent_ms = np.zeros(len(work_ms))
        made: list[Rows] = []
        for part in range(int(part_of.max()) + 1):
            at = np.flatnonzero(part_of[group] == part)
            some = rows if len(at) == len(rows) else rows.take(at)
            placed = Rows(some.batch, {**some.lineage, "place": at}, some.hashed, some.origin)
            start = self._clock_ns()
            made.append(run_stateless(node, placed, dead))
            took_ms = (self._clock_ns() - start) / 1e6
            mine = part_of == part
            spent_ms[mine] = took_ms * work_ms[mine] / work_ms[mine].sum()
        return in_order(made, "place"), spent_ms

    def _work_ms(self, node: Node, h: U64) -> F64:
        """What a row of each value should take here; without a model all rows are alike."""
        model = self._plan.costs.get(node.name)
        if model is None or self._slot is None:
            return np.ones(len(h))
        return np.maximum(model.times_ms(h)[:, self._slot], 1e-6)


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
