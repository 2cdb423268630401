"""What units cost, as tasks measure it: now and then rows are processed in a few parts, each timed.

A unit's load is not its rows times a mean: some keys cost many times what others do. Timing every
unit apart would cost more than it tells, so in one epoch of `MEASURED_EVERY` all slots draw units
into parts, anew each time, and process part after part. (If slots took turns, a slot would be late
in every epoch.) How large parts are the plan says, by what rows took before; who is in which part
follows from the unit and the epoch alone. So only times leave the task, who counts units can tell
the parts (`headgate.control.unit_costs`), and a task that runs twice does the same twice. All rows
of a key are in one part, in their order; what comes of the parts is put back into the order of the
rows, which operators of other keys may go by. A small fixed piece of work tells how fast a host is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from headgate.arrays import I64, U64
from headgate.routing.route import ToOwner
from headgate.slot.plan import EpochPlan
from headgate.slot.program import takes_all_at_once
from headgate.slot.report import queued_ns
from headgate.slot.rows import PLACE, Rows, concat, in_order
from headgate.slot.statistics import Counting
from headgate.topology.graph import Node

MEASURED_EVERY = 32  # epochs; where it measures, a slot takes up to half as long again
PARTS_MAX = 16
PART_MS = 15.0  # of a part, at least: a call takes about 1 ms besides its rows
YARDSTICK_TRIES = 3
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class UnitTimes:
    """What a slot's task measures of its units, and of its host, into its statistics."""

    def __init__(self, plan: EpochPlan, counting: Counting, clock_ns: Callable[[], int]) -> None:
        self._plan, self._counting, self._clock_ns = plan, counting, clock_ns

    def run(self, node: Node, rows: Rows, work: Callable[[Rows], Rows | None]) -> Rows | None:
        """Do the operator's work on its rows: at once, or in parts if there is something to learn.

        Only of rows that are here because their key is. What the operator puts out is in the order
        of the rows it is made from, as far as the operator tells.
        """
        part_rows = self._plan.part_rows.get(node.name, len(rows) + 1)
        parts = min(PARTS_MAX, len(rows) // part_rows)
        owned = isinstance(self._plan.routes[node.name].dispatch, ToOwner)
        units = None
        if parts > 1 and owned and not takes_all_at_once(node):
            units = self._counting.units_of(node.name, rows.hashes_by(node.key))
        if units is None:
            return work(rows)
        spent_ns, outputs = [], list[Rows]()
        placed = replace(rows, lineage={**rows.lineage, PLACE: np.arange(len(rows))})
        for part in in_parts(placed, part_of_units(units, self._plan.epoch, parts), parts):
            start = self._needed_ns()
            made = work(part) if len(part) else None
            spent_ns.append(self._needed_ns() - start)
            outputs += [] if made is None or not len(made) else [made]
        self._counting.statistics.unit_ns[node.name] = tuple(spent_ns)
        if not outputs:
            return None
        if all(PLACE in made.lineage for made in outputs):
            return in_order(outputs, PLACE)
        return concat([made.without((PLACE,)) for made in outputs])

    def measure_host(self) -> None:
        """Now and then: how long the same small piece of work takes here, the best of a few."""
        if self._plan.part_rows:
            took = []
            for _ in range(YARDSTICK_TRIES):
                start = self._needed_ns()
                np.sort(_numbers())
                sum(range(2_000))
                took.append(self._needed_ns() - start)
            self._counting.statistics.yardstick_ns = min(took)

    def _needed_ns(self) -> int:
        """A clock that stands still while the thread is in line for a core.

        Cheaper than that of the process's own time, which took 3 ms to read on a busy machine.
        """
        return self._clock_ns() - (queued_ns() or 0)


def rows_of_parts(
    epoch: int, rows: Mapping[str, Sequence[int]], spent_ms: Mapping[str, Sequence[float]]
) -> dict[str, int]:
    """Rows that a part must have, by operator, from what rows took before; none: not measured."""
    if epoch % MEASURED_EVERY != 0:
        return {}
    took = {op: sum(spent_ms.get(op, ())) / sum(by) for op, by in rows.items() if sum(by)}
    return {op: math.ceil(PART_MS / ms) for op, ms in took.items() if ms > 0}


def part_of_units(unit: U64, epoch: int, parts: int) -> I64:
    """The part that every unit is in, drawn anew for every epoch."""
    with np.errstate(over="ignore"):
        drawn = (unit ^ (np.uint64(epoch + 1) * _SPREAD)) * _MIX
    drawn = (drawn ^ (drawn >> np.uint64(31))) * _SPREAD
    return ((drawn >> np.uint64(32)) % np.uint64(parts)).astype(np.int64)


def in_parts(rows: Rows, part: I64, parts: int) -> list[Rows]:
    """Rows by part, in their order; a part may have none."""
    ends = np.cumsum(np.bincount(part, minlength=parts)).tolist()
    together = rows.take(np.argsort(part.astype(np.uint8), kind="stable").astype(np.int64))
    starts = [0, *ends[:-1]]
    return [together.slice(first, end - first) for first, end in zip(starts, ends, strict=True)]


@cache
def _numbers() -> I64:
    return np.random.default_rng(0).integers(0, 1 << 40, 1 << 12)
