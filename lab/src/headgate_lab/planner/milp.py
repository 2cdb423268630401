"""The planner of Madsen et al. 2017 that balances by mixed-integer programming alone.

The program is the product's (`headgate.planner.allocation.milp`). What is not better than staying
is dropped: under constant loads the load distance falls or nothing moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.planner.allocation.greedy import Blocks
from headgate.planner.allocation.milp import SOLVER_SHARE, MilpSettings, solve
from headgate.planner.allocation.model import Situation, lower_bound
from headgate.planner.allocation.plan import Limits, Plan, describe

Clock = Callable[[], float]
SAME = 1e-9


class MilpPlanner:
    """Balance by mixed-integer programming, under a migration budget."""

    name = "milp"
    collocates = False

    def __init__(
        self, settings: MilpSettings | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self.settings = settings or MilpSettings()
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        bound = lower_bound(situation, limits.migration_cost_max)
        blocks = Blocks.of(situation)
        node, bound, notes = solve(
            blocks,
            limits.migration_cost_max,
            bound,
            began + SOLVER_SHARE * limits.seconds,
            self.settings,
            self._clock,
        )
        if not situation.nodes.leaving[blocks.home].any() and blocks.distance(
            blocks.home
        ) <= blocks.distance(node) * (1 + SAME):
            node, notes = blocks.home, (*notes, "not better than staying")
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=bound,
            notes=notes,
            as_measured=True,
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found
