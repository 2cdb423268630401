"""When a flow should have more or fewer slots: stated thresholds, and no going back and forth.

Loads are in percent of what a slot can take, and those of the allocation that is *planned*: uneven
loads are evened before slots are asked for (Madsen et al. 2017, section III.A). Between the
thresholds lies the aim. Growing goes to the least number of slots that brings the mean to the aim,
shrinking too, and only that number: so under a constant load no change is followed by its reverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.errors import DeclarationError


@dataclass(frozen=True)
class Scaling:
    """How many slots a flow may have, and when it gets more or fewer.

    Args:
        min_slots: Never fewer.
        max_slots: Never more.
        high_pct: More slots if the busiest slot of the planned allocation is above this.
        low_pct: Fewer slots if all slots together are below this, on average.
        hold_periods: For so many periods in a row, before anything changes.
    """

    min_slots: int = 1
    max_slots: int = 8
    high_pct: float = 75.0
    low_pct: float = 40.0
    hold_periods: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min_slots <= self.max_slots:
            raise DeclarationError(
                f"min_slots={self.min_slots}, max_slots={self.max_slots}; "
                "give 1 <= min_slots <= max_slots"
            )
        if not 0 < self.low_pct < self.high_pct <= 100:
            raise DeclarationError(
                f"low_pct={self.low_pct:g}, high_pct={self.high_pct:g}; "
                "give 0 < low_pct < high_pct <= 100"
            )
        if self.hold_periods < 1:
            raise DeclarationError(f"hold_periods={self.hold_periods}; it must be at least 1")

    @property
    def aim_pct(self) -> float:
        """The mean load to go for: half way between the thresholds."""
        return (self.low_pct + self.high_pct) / 2

    def fitting(self, total_pct: float) -> int:
        """The least number of slots whose mean load is at most the aim, within the limits."""
        needed = max(1, math.ceil(total_pct / self.aim_pct - 1e-9))
        return min(max(needed, self.min_slots), self.max_slots)


class Watch:
    """Counts periods in a row above and below the thresholds; says how many slots, and when."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._above = self._below = 0

    def step(self, slots: int, total_pct: float, busiest_pct: float) -> int:
        """Slots there should be after one more period; the same number: stay."""
        rule = self.scaling
        if slots < rule.min_slots or slots > rule.max_slots:
            return min(max(slots, rule.min_slots), rule.max_slots)
        fitting = rule.fitting(total_pct)
        above = busiest_pct > rule.high_pct and slots < rule.max_slots
        below = total_pct / slots < rule.low_pct and fitting < slots
        self._above = self._above + 1 if above else 0
        self._below = self._below + 1 if below else 0
        if self._above >= rule.hold_periods:
            return min(max(fitting, slots + 1), 2 * slots, rule.max_slots)
        if self._below >= rule.hold_periods:
            return fitting
        return slots

    def begin_anew(self) -> None:
        """Something changed: what was seen before says nothing any more."""
        self._above = self._below = 0
