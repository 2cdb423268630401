"""Cost-aware shuffle inside one task: give rows their slots by what they cost.

The scheduler of an edge is a pure function of the task's rows, in order, and the plan: windows are
cut by number of rows, not by chunks or bytes, and the model of costs is frozen in the plan. Every
task schedules its own rows over all slots; tasks begin with different slots, so that what each
leaves uneven does not add up. A slot begins with what else it will have to do in the epoch, as far
as the plan knows. Without a model it is round robin. What rows cost is measured in `cost_timing`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headgate.arrays import F64, I32, I64
from headgate.routing import kernels
from headgate.routing.hashing import group_rows, hash_columns
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import Rows, concat
from headgate.topology.graph import Edge

WINDOW_ROWS = 16_384  # scheduled together, what takes long first; held in memory until then
Scheduled = tuple[Edge, Rows, I32]


def greedy(times: F64, group: I64, busy: F64, first: int = 0, *, ahead: bool = True) -> I32:
    """Each tuple, in the order they come, to the instance that would be done with it first.
    `busy` is each instance's time so far, and grows.

    `times[group[i], j]` is what tuple i takes in instance j. Of equals the first one wins, counted
    from `first`, so that several schedulers do not all begin with the same instance. Not looking
    `ahead` leaves the tuple's own time out: least work so far, the online scheduler of Rivetti et
    al. 2017.
    """
    if times.shape[1] != len(busy):
        raise ValueError(f"times of {times.shape[1]} instances, but {len(busy)} are there")
    first %= len(busy)
    if kernels.compiled is not None:
        return kernels.assign(kernels.compiled, times, group, busy, first, ahead)
    turn = [*range(first, len(busy)), *range(first)]
    done = busy.tolist()
    targets: I32 = np.empty(len(group), np.int32)
    for i, cost in enumerate(times[group].tolist()):
        best = (
            min(turn, key=lambda j: done[j] + cost[j]) if ahead else min(turn, key=done.__getitem__)
        )
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
        if edge.grouping.cost.schedule != "batch" or operator not in self._plan.costs:
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
        model, way = self._plan.costs.get(operator), edge.grouping.cost.schedule
        if model is None or (way == "paper" and not model.is_whole):
            turn = self._turn.get(edge.consumer, self._producer)
            self._turn[edge.consumer] = turn + len(rows)
            instances = round_robin(turn, len(rows), len(slots))
            return edge, rows, self._plan.in_slots(operator, instances)
        h = hash_columns([rows.batch.column(c) for c in edge.grouping.key], len(rows))
        group, first = group_rows(h)
        estimate = model.own_times_ms if way == "paper" else model.times_ms
        times_ms = estimate(h[first])[:, slots]
        if edge.consumer not in self._busy_ms:
            beside_ms = self._plan.beside_ms.get(operator) or (0.0,) * self._plan.slots
            self._busy_ms[edge.consumer] = np.array([beside_ms[slot] for slot in slots])
        busy_ms = self._busy_ms[edge.consumer]
        before_ms = busy_ms.copy()
        if way == "batch":
            instances = longest_first(times_ms, group, busy_ms, self._producer)
        else:
            instances = greedy(times_ms, group, busy_ms, self._producer, ahead=way == "online")
        estimated = self._control.estimated_us.setdefault(operator, {})
        for slot, added_ms in zip(slots, (busy_ms - before_ms).tolist(), strict=True):
            estimated[str(slot)] = estimated.get(str(slot), 0) + round(added_ms * 1000)
        return edge, rows, self._plan.in_slots(operator, instances)
