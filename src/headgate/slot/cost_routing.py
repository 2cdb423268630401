"""Cost-aware shuffle inside one task: hold a window of rows, then give each its slot.

The scheduler of an edge is a pure function of the task's rows, in order, and the plan: windows are
cut by number of rows, not by chunks or bytes, and the model of costs is frozen in the plan. Every
task schedules its own rows over all slots; tasks begin with different slots, so that what each
leaves uneven does not add up. Without a model it is round robin.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headgate.routing.cost_model import greedy, longest_first, round_robin
from headgate.routing.hashing import F64, I32, group_rows, hash_columns
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, concat
from headgate.topology.cost import CostOptions
from headgate.topology.graph import Edge

WINDOW_ROWS = 16_384
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
        told = self._control.estimated_us.setdefault(operator, {})
        for slot, added_ms in zip(slots, (busy_ms - before).tolist(), strict=True):
            told[str(slot)] = told.get(str(slot), 0) + round(added_ms * 1000)
        return self._plan.in_slots(operator, targets)
