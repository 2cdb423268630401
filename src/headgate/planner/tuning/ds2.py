"""The scaling rule of DS2 (Kalavri et al., OSDI 2018), as a baseline.

From the time that instances were really busy DS2 gets an operator's true processing rate, and from
the sources' rates the rate it must keep up with. The instances it needs are their quotient, rounded
up. A decision is taken once per policy interval, from the median of the last `activation` of them,
after `warm_up` intervals in which a change settles. It has no band: a quotient that crosses a whole
number is a reconfiguration.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from headgate.planner.tuning.optimizer import ROUNDING
from headgate.planner.tuning.rescaler import Load, Rescale


@dataclass(frozen=True)
class Ds2Options:
    """`headroom` is DS2's target rate ratio: 1 asks for exactly what comes."""

    warm_up: int = 1
    activation: int = 1
    headroom: float = 1.0


class Ds2:
    """One operator, or one pool of instances that all work is shared by."""

    def __init__(self, instances: int, options: Ds2Options | None = None) -> None:
        self.options = options or Ds2Options()
        self.instances = instances
        self._warming = 0
        self._wanted: deque[int] = deque(maxlen=self.options.activation)

    def observe(self, load: Load) -> Rescale | None:
        """A decision that is already taken into account, or None to stay."""
        if self._warming:
            self._warming -= 1
            return None
        needed = load.demand * self.options.headroom
        self._wanted.append(max(1, math.ceil(needed * (1 - ROUNDING))))
        if len(self._wanted) < self.options.activation:
            return None
        wanted = round(median(self._wanted))
        if wanted == self.instances:
            return None
        self.instances = wanted
        self._warming = self.options.warm_up
        self._wanted.clear()
        return Rescale(wanted, f"{needed:.2f} true instances are needed")
