"""Fields grouping as a planner: units stay where their number puts them.

Only a node that leaves is emptied, as far as the budget goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.plan import Limits, Plan, describe

Clock = Callable[[], float]


class HashPlanner:
    """No planning at all."""

    name = "hash"
    collocates = False

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        node = situation.home.astype(np.int32)
        homeless = np.flatnonzero(situation.nodes.leaving[node])
        paid = np.cumsum(situation.migration_cost[homeless]) <= limits.migration_cost_max
        going, reach = homeless[paid], situation.reach
        for group in range(1 if reach is None else len(reach.nodes)):
            stays, mine = situation.nodes.staying, going
            if reach is not None:
                stays, mine = stays & reach.nodes[group], going[reach.group[going] == group]
            open_to = np.flatnonzero(stays)
            node[mine] = open_to[mine % len(open_to)]
        seconds = self._clock() - began
        found = describe(situation, node, self.name, limits, seconds=seconds, as_measured=True)
        found.check(situation, limits)
        return found
