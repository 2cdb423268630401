"""Planners of allocations by name, for the manager, the benches and the command line."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.errors import HeadgateError
from headgate.planner.allocation.albic import AlbicPlanner
from headgate.planner.allocation.baselines import ColaPlanner, FluxPlanner, HashPlanner
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.measures import Balance
from headgate.planner.allocation.milp import MilpPlanner
from headgate.planner.allocation.plan import Planner

Clock = Callable[[], float]

ALLOCATORS: dict[str, Callable[[Clock], Planner]] = {
    "headgate": lambda clock: IntegratedPlanner(clock=clock),
    "milp": lambda clock: MilpPlanner(clock=clock),
    "albic": lambda clock: AlbicPlanner(clock=clock),
    "flux": lambda clock: FluxPlanner(clock=clock),
    "cola": lambda clock: ColaPlanner(clock=clock),
    "hash": lambda clock: HashPlanner(clock=clock),
}


def make_allocator(
    name: str = "headgate", clock: Clock = time.perf_counter, balance: Balance = "total"
) -> Planner:
    """A planner with its default settings; only "headgate" can even every operator by itself.

    Examples:
        >>> make_allocator("milp").name
        'milp'
    """
    if name not in ALLOCATORS:
        raise HeadgateError(f"no planner named {name!r}; there are {', '.join(ALLOCATORS)}")
    if balance == "total":
        return ALLOCATORS[name](clock)
    if name != "headgate":
        raise HeadgateError(f"{name!r} evens the total load; take 'headgate' for every operator's")
    return IntegratedPlanner(IntegratedSettings(balance=balance), clock)
