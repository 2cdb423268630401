"""When a flow should have more or fewer slots: stated thresholds, and no going back and forth.

Loads are in percent of what a slot can take, and those of the allocation that is *planned*: uneven
loads are evened before slots are asked for (Madsen et al. 2017, section III.A). Between the
thresholds lies the aim. Growing goes to the least number of slots that brings the mean to the aim,
shrinking too, and only that number: so under a constant load no change is followed by its reverse.
"""

from __future__ import annotations

from headgate.control.settings import Scaling


class Watch:
    """Counts periods in a row above and below the thresholds; says how many slots, and when."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._above = self._below = 0

    def step(self, slots: int, total_pct: float, busiest_pct: float) -> int:
        """Slots there should be after one more period; the same number: stay."""
        rule = self.scaling
        if slots != rule.within(slots):
            return rule.within(slots)
        fitting = rule.fitting(total_pct)
        above = busiest_pct > rule.high_pct and slots < rule.most
        below = total_pct / slots < rule.low_pct and fitting < slots
        self._above = self._above + 1 if above else 0
        self._below = self._below + 1 if below else 0
        if self._above >= rule.hold_periods:
            return min(max(fitting, slots + 1), 2 * slots, rule.most)
        if self._below >= rule.hold_periods:
            return fitting
        return slots

    def begin_anew(self) -> None:
        """Something changed: what was seen before says nothing any more."""
        self._above = self._below = 0
