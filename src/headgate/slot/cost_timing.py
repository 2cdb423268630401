"""What rows behind a cost-aware shuffle take in this task, by the value of their attribute.

Timed is the whole *chain*: the operator behind the shuffle and those without state that its rows
pass to in memory, up to the next exchange. A hidden lineage says of each row in the chain which
group it belongs to, rows of one value that came together, so that time spent in any operator of
the chain goes to the value that caused it.

A function that takes one row at a time is timed row by row. A vectorised one is called on a few
parts, and a part's time can only be shared out over its values as they are expected to cost. If the
same values shared a part every time, an error in what is expected would confirm itself. So half of
the parts are values *apart*, those whose costs matter most and are known least; the others are
values of similar cost whose company changes from epoch to epoch. And rows of a part of n values
count one nth of an nth: it is one measurement of all of them, and says little of any.

In epochs that the plan leaves unmeasured a chain is timed as a whole, which costs nothing: one
call, no groups, no sketches. That is enough to see whether its slots take what they should.

How rows are cut depends on rows and plan alone, and the output is put back into their order, so
nothing but the clock differs between two runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.arrays import F64, I64, U64
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import group_rows, hash_columns, mix
from headgate.slot.failure import DeadLetters
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import PLACE, Rows, in_order
from headgate.slot.run_operator import run_stateless
from headgate.topology.graph import STATELESS, Edge, Node

PARTS_MAX = 32  # calls of a vectorised function that is being measured
PART_MS_MIN = 1.0  # a call costs some 50 microseconds: a part should take much longer
COST = "cost"  # the lineage that leads a row's time to its group
_NO_ROWS = np.empty(0)


@dataclass
class Measured:
    """What one chain's rows took in a task, in groups of equal value; `part` numbers their parts.

    `own_ms` was timed row by row, `part_ms` part by part.
    """

    h: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    count: F64 = field(default_factory=lambda: _NO_ROWS)
    work_ms: F64 = field(default_factory=lambda: _NO_ROWS)
    part: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    own_ms: F64 = field(default_factory=lambda: _NO_ROWS)
    part_ms: F64 = field(default_factory=lambda: _NO_ROWS)
    in_parts: bool = False

    @property
    def spent(self) -> tuple[int, float]:
        return int(self.count.sum()), float(self.own_ms.sum() + self.part_ms.sum())

    def open(self, h: U64, count: F64, work_ms: F64, part: I64) -> int:
        """Begin with more groups; the number of the first."""
        first = len(self.h)
        self.h = np.concatenate([self.h, h])
        self.count = np.concatenate([self.count, count])
        self.work_ms = np.concatenate([self.work_ms, work_ms * count])
        self.part = np.concatenate([self.part, part + len(self.part_ms)])
        self.own_ms = np.concatenate([self.own_ms, np.zeros(len(h))])
        self.part_ms = np.concatenate([self.part_ms, np.zeros(int(part.max()) + 1)])
        return first

    def sketched(self, shape: SketchShape) -> CostSketch:
        """What was learnt of the values."""
        sketch = CostSketch(shape)
        if not self.in_parts:
            sketch.update(self.h, self.own_ms, self.count)
            return sketch
        together = np.bincount(self.part, self.work_ms)
        spent_ms = self.own_ms + self.part_ms[self.part] * self.work_ms / together[self.part]
        weight = 1.0 / np.bincount(self.part)[self.part] ** 2
        sketch.update(self.h, spent_ms * weight, self.count * weight)
        return sketch


class CostTiming:
    """Runs and times the operators of a task that are behind a cost-aware shuffle."""

    def __init__(
        self, program: Program, plan: EpochPlan, clock_ns: Callable[[], int], slot: int | None
    ) -> None:
        self._plan, self._clock_ns, self._slot = plan, clock_ns, slot
        edges = program.graph.edges
        self._inputs = {e.consumer: e.grouping for e in edges if e.grouping.kind == "cost"}
        self._chain_of = chains(program) if self._inputs else {}
        self._names = {head: program.graph.nodes[head].name for head in self._inputs}
        nodes = program.graph.nodes
        self._cuts = {head for at, head in self._chain_of.items() if not nodes[at].spec.per_row}
        self._measured: dict[int, Measured] = {}
        self._whole: dict[int, tuple[int, float]] = {}

    def measures(self, node: Node) -> bool:
        return node.id in self._chain_of

    @property
    def spent(self) -> dict[str, tuple[int, float]]:
        """By the operator behind the shuffle, its rows so far and the milliseconds of its chain."""
        measured = {head: found.spent for head, found in self._measured.items()}
        return {self._names[head]: told for head, told in (self._whole | measured).items()}

    @property
    def sketches(self) -> dict[str, CostSketch]:
        """What was learnt of the rows of operators that were measured."""
        found = {}
        for head, measured in self._measured.items():
            options = self._inputs[head].cost
            shape = SketchShape.within(options.epsilon, options.delta)
            found[self._names[head]] = measured.sketched(shape)
        return found

    def run(self, node: Node, rows: Rows, dead: DeadLetters) -> Rows:
        """As `run_stateless`, and remember what the rows took."""
        head = self._chain_of[node.id]
        if self._names[head] in self._plan.unmeasured:
            return self._run_whole(node, rows, dead, head)
        measured = self._measured.setdefault(head, Measured())
        if node.id == head:
            rows = self._opened(node, rows, measured)
        groups = rows.lineage[COST]
        if node.spec.per_row:
            spent_ns = np.zeros(len(rows), np.int64)
            made = run_stateless(node, rows, dead, self._clock_ns, spent_ns)
            measured.own_ms += np.bincount(groups, spent_ns / 1e6, len(measured.h))
            return made
        measured.in_parts = True
        part_of = measured.part[groups]
        parts = np.unique(part_of)
        outputs: list[Rows] = []
        for part in parts.tolist():
            at = np.flatnonzero(part_of == part)
            some = rows if len(parts) == 1 else rows.take(at)
            placed = Rows(some.batch, {**some.lineage, PLACE: at}, some.hashed, some.origin)
            start = self._clock_ns()
            outputs.append(run_stateless(node, placed, dead))
            measured.part_ms[part] += (self._clock_ns() - start) / 1e6
        return in_order(outputs, PLACE)

    def _run_whole(self, node: Node, rows: Rows, dead: DeadLetters, head: int) -> Rows:
        start = self._clock_ns()
        made = run_stateless(node, rows, dead)
        spent_ms = (self._clock_ns() - start) / 1e6
        before = self._whole.get(head, (0, 0.0))
        came = len(rows) if node.id == head else 0
        self._whole[head] = before[0] + came, before[1] + spent_ms
        return made

    def goes_on(self, edge: Edge) -> bool:
        """Do rows stay in their chain along this edge?"""
        chain = self._chain_of.get(edge.producer)
        return chain is not None and edge.consumer != chain == self._chain_of.get(edge.consumer)

    def _opened(self, node: Node, rows: Rows, measured: Measured) -> Rows:
        """The rows, each with the number of its group."""
        key = self._inputs[node.id].key
        hashed = hash_columns([rows.batch.column(c) for c in key], len(rows))
        group, first = group_rows(hashed)
        h = hashed[first]
        count = np.bincount(group, minlength=len(first)).astype(np.float64)
        slot, parts = self._slot, PARTS_MAX
        model = self._plan.costs.get(node.name) if node.id in self._cuts else None
        work_ms, seen = np.ones(len(h)), np.zeros(len(h))
        if model is not None and slot is not None:
            work_ms, seen = _known(model, h, slot, self._inputs[node.id].cost.schedule == "paper")
            parts = int(max(1, min(parts, (work_ms * count).sum() / PART_MS_MIN)))
        drawn = mix(h ^ mix(np.array([self._plan.epoch * 4096 + (slot or 0)], np.uint64)))
        part = parts_of(work_ms, count, seen, drawn, parts)
        number = measured.open(h, count, work_ms, part)
        return replace(rows, lineage={**rows.lineage, COST: group + number})


def chains(program: Program) -> dict[int, int]:
    """For every operator that a cost-aware shuffle's times include, the one right behind it."""
    found: dict[int, int] = {}
    for node in program.order:
        inputs = program.graph.inputs(node.id)
        if any(edge.grouping.kind == "cost" for edge in inputs):
            found[node.id] = node.id
        elif node.kind in STATELESS and len(inputs) == 1 and not inputs[0].exchanges:
            before = found.get(inputs[0].producer)
            found |= {} if before is None else {node.id: before}
    return found


def without_cost(rows: Rows) -> Rows:
    """The rows as they leave their chain."""
    return replace(rows, lineage={n: v for n, v in rows.lineage.items() if n != COST})


def _known(model: CostModel, h: U64, slot: int, own: bool) -> tuple[F64, F64]:
    """What a row of each value should take here, and how many rows that rests on."""
    times_ms = (model.own_times_ms if own else model.times_ms)(h)[:, slot]
    return np.maximum(times_ms, 1e-6), model.seen(h)


def parts_of(work_ms: F64, count: F64, seen: F64, drawn: U64, parts: int) -> I64:
    """Values' parts, none of them empty: half are values apart, the others are about equally heavy.

    Apart are the values whose rows are the most work for what is known of them; `drawn` decides
    between equals, and which values of similar cost keep company.

    Examples:
        >>> some = np.ones(4), np.ones(4), np.zeros(4), np.arange(4, dtype=np.uint64)
        >>> parts_of(*some, parts=3).tolist()
        [0, 1, 2, 2]
    """
    total = work_ms * count
    if parts >= len(total):
        return np.arange(len(total), dtype=np.int64)
    apart = parts // 2
    need = np.lexsort((drawn, -total / np.sqrt(1.0 + seen)))
    part = np.empty(len(total), np.int64)
    part[need[:apart]] = np.arange(apart)
    rest = need[apart:]
    if len(rest):
        jitter = drawn[rest] / 2.0**64 * 2.0 - 1.0
        part[rest] = apart + cut(total[rest], np.log(work_ms[rest]) + jitter, parts - apart)
    return part


def cut(work: F64, rank: F64, parts: int) -> I64:
    """Number values by part: neighbours by rank, about equal work, no part empty.

    Examples:
        >>> cut(np.array([1.0, 9.0, 1.0, 1.0]), np.array([1.0, 9.0, 1.0, 1.0]), 2).tolist()
        [0, 1, 0, 0]
    """
    order = np.argsort(rank, kind="stable")
    share = np.cumsum(work[order]) - work[order] / 2
    part = np.minimum((share * parts / work.sum()).astype(np.int64), parts - 1)
    numbered = np.empty(len(work), np.int64)
    numbered[order] = np.unique(part, return_inverse=True)[1]
    return numbered
