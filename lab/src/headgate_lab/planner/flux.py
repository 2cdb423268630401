"""Flux: nodes in pairs, fullest with emptiest, each pair moves the unit that evens it best.

The policy of Shah, Hellerstein, Chandrasekaran and Franklin, "Flux: an adaptive partitioning
operator for continuous query systems" (ICDE 2003), as Madsen et al. 2017 use it. Where each rule
is from:

- A round after each period of statistics; the fullest node is paired with the emptiest, the next
  with the next: Flux.
- A pair moves at most one unit a round: Flux. Its text was not at hand; this is how it is commonly
  told.
- All moves of a period together cost at most maxMigrations: Madsen et al., section IV-A, who give
  MILP and Flux the same. To be able to spend it, rounds are repeated within a period, on the loads
  of that period, until the budget is spent or no pair gains.
- Decided here: a pair moves the unit after which its two nodes are nearest to each other, the first
  of equals, and none if that is not nearer than before. There is no threshold below which a pair is
  left alone: Madsen et al. state none, and any would only make Flux less even.

Madsen et al. know nodes marked for removal, Flux does not: they are donors before all others, and
give their heaviest unit first. Neither knows operators with instances on some nodes only: a pair
moves a unit that the taker may have, and a node that is to be removed takes the emptiest of those
that may have any of its units, if its own taker may have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headgate.arrays import F64, I32
from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.plan import Limits, Plan, describe

Clock = Callable[[], float]
NONE = -1
LEAST_GAIN = 1e-9


class FluxPlanner:
    """Pairs of nodes, fullest with emptiest, one unit a pair and round.

    Args:
        rounds_max: Rounds per period; 1 is one exchange per pair, whatever the budget.
        clock: Says when the time is over.
    """

    name = "flux"
    collocates = False

    def __init__(self, rounds_max: int = 1_000, clock: Clock = time.perf_counter) -> None:
        self.rounds_max = rounds_max
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        node, load = situation.home.astype(np.int32), situation.units.load
        loads = situation.node_loads(node, as_measured=True)
        left = limits.migration_cost_max
        for _ in range(self.rounds_max):
            made = 0
            for donor, partner in pairs(situation, node, loads):
                taker = partner
                unit = evens_best(situation, node, loads, donor, taker, left)
                if unit == NONE and situation.nodes.leaving[donor]:
                    taker, unit = another_taker(situation, node, loads, donor, left)
                if unit == NONE:
                    continue
                left -= _price(situation, node)[unit]
                loads[donor] -= load[unit]
                loads[taker] += load[unit]
                node[unit] = taker
                made += 1
            if not made or self._clock() - began >= limits.seconds:
                break
        seconds = self._clock() - began
        found = describe(situation, node, self.name, limits, seconds=seconds, as_measured=True)
        found.check(situation, limits)
        return found


def pairs(situation: Situation, node: I32, loads: F64) -> list[tuple[int, int]]:
    """Donors and takers of a round: first with last, by load, nodes that leave before all."""
    nodes = situation.nodes
    there = nodes.staying | (np.bincount(node, minlength=len(nodes)) > 0)
    level = np.where(nodes.leaving, np.inf, loads / nodes.capacity)
    order = [int(n) for n in np.argsort(-level, kind="stable") if there[n]]
    return list(zip(order[: len(order) // 2], order[::-1], strict=False))


def evens_best(
    situation: Situation, node: I32, loads: F64, donor: int, taker: int, left: float
) -> int:
    """The unit of the donor that brings the two nodes nearest to each other, or NONE."""
    nodes, load = situation.nodes, situation.units.load
    mine = np.flatnonzero((node == donor) & (_price(situation, node) <= left))
    if situation.reach is not None:
        mine = mine[situation.reach.allows(mine, np.full(len(mine), taker))]
    if nodes.leaving[taker] or not len(mine):
        return NONE
    if nodes.leaving[donor]:
        return int(mine[np.argmax(load[mine])])
    level = loads / nodes.capacity
    gap = level[donor] - level[taker]
    after = np.abs(gap - load[mine] * (1 / nodes.capacity[donor] + 1 / nodes.capacity[taker]))
    best = int(np.argmin(after))
    return int(mine[best]) if after[best] < gap * (1 - LEAST_GAIN) else NONE


def another_taker(
    situation: Situation, node: I32, loads: F64, donor: int, left: float
) -> tuple[int, int]:
    """The emptiest node that may have a unit of a node to be removed, and that unit, or NONE."""
    if situation.reach is None:
        return NONE, NONE
    level = np.where(situation.nodes.leaving, np.inf, loads / situation.nodes.capacity)
    for taker in np.argsort(level, kind="stable").tolist():
        unit = evens_best(situation, node, loads, donor, taker, left)
        if unit != NONE:
            return taker, unit
    return NONE, NONE


def _price(situation: Situation, node: I32) -> F64:
    """What it costs to move each unit once more: nothing if it has left its home anyway."""
    return np.where(node == situation.home, situation.migration_cost, 0.0)
