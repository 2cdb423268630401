"""Slots that are to leave: which can be released, what is left, and what is too big to move.

The last slots leave, so those at the end that hold nothing can go before others are empty. What
costs more to move than a period may would stay for ever, and its slot with it. So when nothing else
can be taken off these slots, one such unit a period moves by itself, whatever it costs: a drain
ends after as many periods as there are units, at most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headgate.planner.allocation.cutting import fused
from headgate.planner.allocation.model import Balance, Situation
from headgate.planner.allocation.plan import Limits, Plan, describe


def marked(situation: Situation, leaving: int) -> Situation:
    """The same units, and the last slots leave."""
    slots = len(situation.nodes)
    gone = np.arange(slots) >= slots - leaving
    return situation.on(replace(situation.nodes, leaving=gone))


def slots_in_use(situation: Situation, leaving: int) -> int:
    """Slots there must be: those that stay, and those that leave up to the last with a unit."""
    last = int(situation.home.max(initial=-1))
    return max(len(situation.nodes) - leaving, last + 1)


def units_left(situation: Situation, plan: Plan | None, leaving: int) -> int:
    """Units and pieces that a plan leaves on slots that are to go."""
    stays = len(situation.nodes) - leaving
    if plan is None:
        return int((situation.home >= stays).sum())
    pieces = sum(n >= stays for parts in plan.extras.values() for n, _ in parts)
    return int((plan.node >= stays).sum()) + pieces


def move_alone(
    situation: Situation, limits: Limits, method: str, balance: Balance
) -> tuple[Plan, str] | None:
    """The cheapest unit on slots that leave which is above the budget, to the emptiest slot.

    None if there is none. The line says that the budget is not kept.
    """
    cost, nodes = situation.migration_cost, situation.nodes
    too_big = np.flatnonzero(nodes.leaving[situation.home] & (cost > limits.migration_cost_max))
    if not len(too_big):
        return None
    unit = int(too_big[np.argmin(cost[too_big])])
    loads = situation.node_loads(situation.home) + situation.units.load[unit]
    node = situation.home.astype(np.int32)
    node[unit] = np.argmin(np.where(nodes.leaving, np.inf, loads / nodes.capacity))
    made, place = (situation, node) if situation.cut is None else fused(situation, node)
    plan = describe(made, place, method, limits, bound_pct=0.0, balance=balance)
    if made.cut is not None:
        plan = replace(plan, node=place[: len(made.cut.whole.home)], extras=made.cut.extras)
    why = (
        f"{situation.units.name(unit)} costs {cost[unit]:.3g}, more than the "
        f"{limits.migration_cost_max:.3g} of a period: it moves alone"
    )
    return plan, why


def slots_named(first: int, end: int) -> str:
    """Slots from the first to before the end, as the beginning of a sentence.

    Examples:
        >>> slots_named(2, 4)
        'slots 2, 3 are'
        >>> slots_named(3, 4)
        'slot 3 is'
    """
    names = ", ".join(str(slot) for slot in range(first, end))
    return f"slot {names} is" if end - first == 1 else f"slots {names} are"
