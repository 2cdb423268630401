"""Tasks of the kit whose time is their rows, so that what is decided from time can be repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.slot.report import Moment, Timing
from headgate.slot.task import Services

MICROSECOND = 1_000


@dataclass
class RowTime(Services):
    """A row takes a microsecond, and so does looking at the clock."""

    clock_ns: Callable[[], int] = field(
        default_factory=lambda: itertools.count(step=MICROSECOND).__next__
    )

    def timed(self, level: int, slot: int, name: str, rows: int, start: Moment) -> None:
        self.timings.append(Timing(level, slot, name, rows, rows * MICROSECOND))
