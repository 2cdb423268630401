"""Planners of allocations by name, for the manager and for whoever compares them."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.errors import HeadgateError
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.measures import Balance
from headgate.planner.allocation.milp import MilpPlanner
from headgate.planner.allocation.plan import Planner
from headgate.planner.registry import load, registered, why_unknown

Clock = Callable[[], float]

ALLOCATORS: dict[str, Callable[[Clock], Planner]] = {
    "headgate": lambda clock: IntegratedPlanner(clock=clock),
    "milp": lambda clock: MilpPlanner(clock=clock),
}


def make_allocator(
    name: str = "headgate", clock: Clock = time.perf_counter, balance: Balance = "total"
) -> Planner:
    """A planner with its default settings; only "headgate" can even every operator by itself.

    Examples:
        >>> make_allocator("milp").name
        'milp'
    """
    if name not in ALLOCATORS and name not in registered("units"):
        raise HeadgateError(why_unknown(name, ALLOCATORS, "units"), planner=name)
    if balance == "total":
        if name in ALLOCATORS:
            return ALLOCATORS[name](clock)
        planner: Planner = load("units", name)(clock=clock)
        return planner
    if name != "headgate":
        raise HeadgateError(f"{name!r} evens the total load; take 'headgate' for every operator's")
    return IntegratedPlanner(IntegratedSettings(balance=balance), clock)
