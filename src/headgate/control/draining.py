"""Slots that are to leave: which of them can go, what is left on them, and what is too big to go.

A slot is emptied under the budget of a period. A unit that costs more than a period may would hold
its slot for ever, so when nothing else can be taken off, one such unit a period moves alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headgate.planner.allocation.model import Balance, Situation
from headgate.planner.allocation.plan import Limits, Plan, describe


def marked(situation: Situation, leaving: Sequence[int]) -> Situation:
    """The same units, and these slots leave."""
    gone = np.zeros(len(situation.nodes), np.bool_)
    gone[list(leaving)] = True
    return situation.on(replace(situation.nodes, leaving=gone))


def empty_slots(situation: Situation, leaving: Sequence[int]) -> tuple[int, ...]:
    """Those of the slots that leave which can go now: all if no unit is on any of them.

    Until then those at the end, as nobody gets another number for that.
    """
    used = {*np.unique(situation.home).tolist()}
    if not used & {*leaving}:
        return tuple(sorted(leaving))
    first = len(situation.nodes)
    while first - 1 in leaving and first - 1 not in used:
        first -= 1
    return tuple(range(first, len(situation.nodes)))


def units_left(situation: Situation, plan: Plan | None, leaving: Sequence[int]) -> int:
    """Units that a plan leaves on slots that are to go."""
    node = situation.home if plan is None else plan.node
    return int(np.isin(node, list(leaving)).sum())


def move_alone(
    situation: Situation, limits: Limits, method: str, balance: Balance
) -> tuple[Plan, str] | None:
    """The cheapest unit on slots that leave which is above the budget, to the emptiest slot.

    None if there is none. The line says that the budget is not kept.
    """
    cost, nodes, reach = situation.migration_cost, situation.nodes, situation.reach
    too_big = np.flatnonzero(nodes.leaving[situation.home] & (cost > limits.migration_cost_max))
    if not len(too_big):
        return None
    unit = int(too_big[np.argmin(cost[too_big])])
    loads = situation.node_loads(situation.home) + situation.units.load[unit]
    node = situation.home.astype(np.int32)
    closed = nodes.leaving if reach is None else nodes.leaving | ~reach.nodes[reach.group[unit]]
    node[unit] = np.argmin(np.where(closed, np.inf, loads / nodes.capacity))
    plan = describe(situation, node, method, limits, bound_pct=0.0, balance=balance)
    why = (
        f"{situation.units.name(unit)} costs {cost[unit]:.3g}, more than the "
        f"{limits.migration_cost_max:.3g} of a period: it moves alone"
    )
    return plan, why


def slots_named(slots: Sequence[int]) -> str:
    """Slots as the beginning of a sentence.

    Examples:
        >>> slots_named((2, 3))
        'slots 2, 3 are'
        >>> slots_named([1])
        'slot 1 is'
    """
    names = ", ".join(map(str, slots))
    return f"slot {names} is" if len(slots) == 1 else f"slots {names} are"
