"""Other parallelism while the flow runs: seldom, and only if it pays.

Every observation says how many rows came, and what a row costs. Their product is the demand, in
instances that are never idle. Too few instances are corrected at once, with room above the recent
peak. Too many are given back only when even the peak of a whole horizon would fit in fewer, and
when those idle all the while have cost as much as a move does: the rule of ski rental, by which
waiting never wastes more than moving would. The band between the two is the hysteresis.

Invariant: two decisions in opposite directions are at least a horizon apart, since giving back
needs a whole horizon seen with the present count.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import ROUNDING


@dataclass(frozen=True)
class Load:
    """One observation: rows per second that came, and core seconds that a row takes."""

    rate: float
    row_s: float

    @property
    def demand(self) -> float:
        return self.rate * self.row_s


@dataclass(frozen=True)
class Wanted:
    """How many slots (or instances, or rows per epoch) there should be, and why, in one line.

    `gone` are the slots that leave, if it matters which ones; none given: the last ones.
    """

    count: int
    why: str
    gone: tuple[int, ...] = ()


@dataclass(frozen=True)
class RescaleOptions:
    """When to change. Shares of instances that are busy; counts are of observations."""

    high: float = 0.95  # busier than this `patience` times, and more instances are added
    target: float = 0.8  # how busy the recent peak is to keep them after a change
    low: float = 0.85  # fewer instances must not be busier than this at the peak of the horizon
    patience: int = 2
    horizon: int = 20  # that must agree, at the least, before anything is given back
    move_cost: float = 120.0  # of a change: one idle instance is kept for so many observations
    least: int = 1
    most: int = 1 << 16

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.low < self.high <= 1:
            raise DeclarationError(
                f"target {self.target}, low {self.low} and high {self.high} must rise and lie "
                "between 0 and 1; else a change would be undone by the next"
            )
        if self.patience < 1 or self.horizon < self.patience or self.least > self.most:
            raise DeclarationError(f"these options never let anything change: {self}")


class Rescaler:
    """Decides after every observation; a change starts a new horizon."""

    def __init__(self, instances: int, options: RescaleOptions | None = None) -> None:
        self.instances, self.options = instances, options or RescaleOptions()
        kept = max(self.options.horizon, math.ceil(self.options.move_cost))
        self._demands: deque[float] = deque(maxlen=kept)

    def observe(self, load: Load) -> Wanted | None:
        """A decision that is already taken into account, or None to stay."""
        self._demands.append(load.demand)
        decision = self._grow() or self._shrink()
        if decision is not None:
            self.moved(decision.count)
        return decision

    def limit(self, least: int, most: int) -> None:
        """No fewer and no more than so many from now on; what runs is not changed by that."""
        self.options = replace(self.options, least=least, most=max(least, most))

    def moved(self, instances: int) -> None:
        """The count changes, whoever decided it; a new horizon begins."""
        self.instances = instances
        self._demands.clear()

    def _grow(self) -> Wanted | None:
        recent, high = [*self._demands][-self.options.patience :], self.options.high
        if len(recent) < self.options.patience or min(recent) <= high * self.instances:
            return None
        wanted = self._fit(max(recent))
        if wanted <= self.instances:
            return None
        return Wanted(wanted, f"demand {max(recent):.2f} is above {high:.0%} of {self.instances}")

    def _shrink(self) -> Wanted | None:
        peaks = accumulate(reversed(self._demands), max)
        for count, peak in enumerate(peaks, start=1):
            wanted = self._fit(peak)
            idle = self.instances - wanted
            if idle < 1:
                return None
            if count < self.options.horizon or idle * count < self.options.move_cost:
                continue
            if peak > self.options.low * wanted:
                return None
            why = (
                f"the peak of {count} observations, {peak:.2f}, keeps {wanted} "
                f"{peak / wanted:.0%} busy; the {idle} idle ones have cost as much as the move"
            )
            return Wanted(wanted, why)
        return None

    def _fit(self, demand: float) -> int:
        wanted = math.ceil(demand / self.options.target * (1 - ROUNDING))
        return min(max(wanted, self.options.least), self.options.most)
