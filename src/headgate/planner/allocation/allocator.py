"""Planners of allocations by name, for the manager and for whoever compares them."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.errors import HeadgateError
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.model import Balance
from headgate.planner.allocation.plan import Planner
from headgate.planner.registry import load, registered, why_unknown

Clock = Callable[[], float]

OWN = ("headgate",)


def make_allocator(
    name: str = "headgate", clock: Clock = time.perf_counter, balance: Balance = "total"
) -> Planner:
    """A planner with its default settings; only "headgate" can even every operator by itself."""
    if name == "headgate":
        return IntegratedPlanner(IntegratedSettings(balance=balance), clock)
    if name not in registered("units"):
        raise HeadgateError(why_unknown(name, OWN, "units"), planner=name)
    if balance != "total":
        raise HeadgateError(f"{name!r} evens the total load; take 'headgate' for every operator's")
    planner: Planner = load("units", name)(clock=clock)
    return planner
