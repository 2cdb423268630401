"""What units cost, as tasks measure it: now and then rows are processed in a few parts, each timed.

A unit's load is not its rows times a mean: some keys cost many times what others do. Timing every
unit apart would cost more than it tells, so in one epoch of `MEASURED_EVERY` a slot draws units
into parts, anew each time, and processes part after part. Who was in which part follows from the
unit and the epoch alone. So only times leave the task, who counts units can tell the parts
(`headgate.control.unit_costs`), and a task that runs twice does the same twice. All rows of a key
are in one part, in their order. A small fixed piece of work beside them tells how fast a host is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from headgate.arrays import I64, U64
from headgate.routing.route import ToOwner
from headgate.slot.plan import EpochPlan
from headgate.slot.program import takes_all_at_once
from headgate.slot.report import Moment, needed_between
from headgate.slot.rows import Rows
from headgate.slot.statistics import Counting
from headgate.topology.graph import Node

MEASURED_EVERY = 8  # epochs: what measuring costs is an eighth of what it costs there
PARTS_MAX = 16
PART_ROWS = 2_048  # of a part, on average, at least: a call takes as long as some hundred rows
YARDSTICK_TRIES = 3
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class UnitTimes:
    """What a slot's task measures of its units, and of its host, into its statistics."""

    def __init__(
        self, plan: EpochPlan, slot: int, counting: Counting, now: Callable[[], Moment]
    ) -> None:
        self._plan, self._counting, self._now = plan, counting, now
        self._measures = bool(plan.unit_statistics) and is_measured(plan.epoch, slot)

    def run(self, node: Node, rows: Rows, work: Callable[[Rows], None]) -> None:
        """Do the operator's work on its rows: at once, or in parts if there is something to learn.

        Only of rows that are here because their key is.
        """
        parts = parts_for(len(rows)) if self._measures else 1
        owned = isinstance(self._plan.routes[node.name].dispatch, ToOwner)
        units = None
        if parts > 1 and owned and not takes_all_at_once(node):
            units = self._counting.units_of(node.name, rows.hashes_by(node.key))
        if units is None:
            work(rows)
            return
        spent_ns = []
        for part in in_parts(rows, part_of_units(units, self._plan.epoch, parts), parts):
            start = self._now()
            if len(part):
                work(part)
            spent_ns.append(needed_between(start, self._now()))
        self._counting.statistics.unit_ns[node.name] = tuple(spent_ns)

    def measure_host(self) -> None:
        """Now and then: how long the same small piece of work takes here, the best of a few."""
        if self._measures:
            took = []
            for _ in range(YARDSTICK_TRIES):
                start = self._now()
                np.sort(_numbers())
                sum(range(2_000))
                took.append(self._now().wall_ns - start.wall_ns)
            self._counting.statistics.yardstick_ns = min(took)


def is_measured(epoch: int, slot: int) -> bool:
    """Does this slot measure in this epoch? Slots take turns."""
    return (epoch + slot) % MEASURED_EVERY == 0


def parts_for(rows: int) -> int:
    """How many parts so many rows make; one: too few to be told apart."""
    return max(1, min(PARTS_MAX, rows // PART_ROWS))


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
