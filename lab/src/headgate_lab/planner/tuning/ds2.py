"""DS2 (Kalavri et al., OSDI 2018) as a baseline: its rule, and its manager as it was released.

From the time that instances were really busy DS2 gets an operator's true processing rate, and from
the sources' rates the rate it must keep up with. The instances it needs are their quotient, rounded
up. The defaults are those of the manager in strymon-system/ds2 (`manager.rs`, `ds2.toml`): two
policy intervals are skipped after the start and after every change, and one instance too many is
no reason to change. That is its band; `RULE` goes without it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from headgate.planner.tuning.cost_model import ROUNDING
from headgate.planner.tuning.rescaler import Load, Wanted


@dataclass(frozen=True)
class Ds2Options:
    """The manager's settings, and two that it does not have.

    Args:
        warm_up: Policy intervals to skip after the start and after a change (`warm_up_time`).
        activation: Evaluations since then before a change is made (`activation_time`). The last
            of them decides.
        factor: More instances than are needed, 0.25 for a quarter (`scaling_factor`).
        spares_one: Do not give back a single instance, as the manager does not.
        takes_median: Let the median of the last `activation` evaluations decide. The manager
            leaves this open.
    """

    warm_up: int = 2
    activation: int = 1
    factor: float = 0.0
    spares_one: bool = True
    takes_median: bool = False


RULE = Ds2Options(warm_up=1, spares_one=False)


class Ds2:
    """One operator, or one pool of instances that all work is shared by."""

    def __init__(self, instances: int, options: Ds2Options | None = None) -> None:
        self.options = options or Ds2Options()
        self.instances = instances
        self._begin()

    def observe(self, load: Load) -> Wanted | None:
        """A decision that is already taken into account, or None to stay."""
        if self._skipped < self.options.warm_up:
            self._skipped += 1
            return None
        needed = load.demand * (1 + self.options.factor)
        self._evaluated.append(max(1, math.ceil(needed * (1 - ROUNDING))))
        if len(self._evaluated) < self.options.activation:
            return None
        wanted = self._evaluated[-1]
        if self.options.takes_median:
            wanted = round(median(self._evaluated))
        if not self._is_significant(wanted):
            return None
        self.instances = wanted
        self._begin()
        return Wanted(wanted, f"{needed:.2f} true instances are needed")

    def _is_significant(self, wanted: int) -> bool:
        fewest = self.instances - 1 if self.options.spares_one else self.instances
        return wanted > self.instances or wanted < fewest

    def _begin(self) -> None:
        self._skipped = 0
        self._evaluated: deque[int] = deque(maxlen=self.options.activation)
