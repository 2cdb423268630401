"""Planners as the allocation benches run them: as shipped, with a time limit and a stopwatch.

Compiled code is loaded before the clock starts. The solver of `milp` and `albic` ends by time, so
their figures depend on the machine: measure where it is idle.
"""

from __future__ import annotations

import time

import numpy as np

from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits, Plan, make_allocator

Lines = dict[str, list[float]]


class Runner:
    """A planner with a stopwatch outside of it."""

    def __init__(self, name: str) -> None:
        self._planner = make_allocator(name)
        self._warm_up()

    def plan(self, situation: Situation, limits: Limits) -> tuple[Plan, float]:
        """The plan, and how many seconds it took."""
        began = time.perf_counter()
        found = self._planner.plan(situation, limits)
        return found, time.perf_counter() - began

    def _warm_up(self) -> None:
        """A tiny cluster, with and without traffic and its cost."""
        operator = np.repeat(np.arange(2, dtype=np.int32), 8)
        units = Units(("a", "b"), operator, np.arange(1.0, 17.0), np.ones(16))
        home = (np.arange(16) % 5 % 3).astype(np.int32)
        ends = np.arange(8), np.arange(8, 16)
        for flow in (Traffic.none(), Traffic(*ends, np.ones(8)), Traffic(*ends, np.ones(8), 0.1)):
            self.plan(Situation(units, Nodes.alike(3), home, flow), Limits(8.0, 0.1, 0.1))


def means(found: dict[str, Lines], key: str, skip: int = 0) -> dict[str, float]:
    """Mean of a line after the first periods, for the planners that have it."""
    return {name: float(np.mean(x[key][skip:])) for name, x in found.items() if x.get(key)}
