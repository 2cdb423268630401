"""Planners to compare with: hash, Flux and COLA, each as published.

- `HashPlanner`: units stay where their number puts them; only a node that leaves is emptied.
- `FluxPlanner` (Shah et al. 2003): the fullest node is paired with the emptiest, the next with the
  next, and each pair moves the one unit that evens it best; again, while the budget lasts.
- `ColaPlanner` (Khandekar et al. 2009): a balanced graph partitioning of all units, from scratch.
  It knows neither where units are nor a migration budget; that is what it is here to show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headgate.planner.adjacency import F64
from headgate.planner.allocation.model import I32, Situation
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate.planner.metis import FEWEST_KEYS_PER_SLOT, cut_graph

Clock = Callable[[], float]
COLA_ALPHA = 1.03


class HashPlanner:
    """Fields grouping: no planning at all."""

    name = "hash"
    collocates = False

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        node = situation.home.astype(np.int32)
        stays = np.flatnonzero(situation.nodes.staying)
        homeless = np.flatnonzero(situation.nodes.leaving[node])
        paid = np.cumsum(situation.migration_cost[homeless]) <= limits.migration_cost_max
        node[homeless[paid]] = stays[homeless[paid] % len(stays)]
        return _told(situation, node, self.name, limits, self._clock() - began)


class FluxPlanner:
    """Pairs of nodes, fullest with emptiest, one unit a pair and round."""

    name = "flux"
    collocates = False

    def __init__(self, rounds_max: int = 1_000, clock: Clock = time.perf_counter) -> None:
        self.rounds_max = rounds_max
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        node, nodes = situation.home.astype(np.int32), situation.nodes
        load, cost = situation.units.load, situation.migration_cost
        loads = situation.node_loads(node, as_measured=True)
        left = limits.migration_cost_max
        for _ in range(self.rounds_max):
            made = 0
            level = np.where(nodes.leaving, np.inf, loads / nodes.capacity)
            order = np.argsort(-level, kind="stable")
            for donor, taker in zip(order[: len(order) // 2], order[::-1], strict=False):
                unit = _evens_best(situation, node, loads, int(donor), int(taker), left)
                if unit < 0:
                    continue
                left -= cost[unit] if node[unit] == situation.home[unit] else 0.0
                loads[donor] -= load[unit]
                loads[taker] += load[unit]
                node[unit] = taker
                made += 1
            if not made or self._clock() - began >= limits.seconds:
                break
        return _told(situation, node, self.name, limits, self._clock() - began)


class ColaPlanner:
    """A partition of the whole graph into nodes, anew each time."""

    name = "cola"
    collocates = True

    def __init__(self, seed: int = 0, clock: Clock = time.perf_counter) -> None:
        self.seed = seed
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        t, units = situation.traffic, len(situation.units)
        stays = np.flatnonzero(situation.nodes.staying).astype(np.int32)
        part = np.arange(units, dtype=np.int32) % len(stays)
        if len(stays) > 1 and t.total > 0 and units >= FEWEST_KEYS_PER_SLOT * len(stays):
            part = cut_graph(
                units,
                t.sender,
                t.receiver,
                t.rate,
                situation.units.load,
                len(stays),
                COLA_ALPHA,
                self.seed + situation.period,
            )
        free = replace(limits, migration_cost_max=np.inf)
        return _told(situation, stays[part], self.name, free, self._clock() - began)


def _evens_best(
    situation: Situation, node: I32, loads: F64, donor: int, taker: int, left: float
) -> int:
    """The unit of the donor that brings the two nodes nearest to each other; -1 if none does."""
    nodes, load = situation.nodes, situation.units.load
    if nodes.leaving[taker]:
        return -1
    mine = np.flatnonzero(node == donor)
    price = np.where(node[mine] == situation.home[mine], situation.migration_cost[mine], 0.0)
    mine = mine[(price <= left) & (load[mine] > 0)]
    if not len(mine):
        return -1
    if nodes.leaving[donor]:
        return int(mine[np.argmax(load[mine])])
    cap = nodes.capacity
    gap = loads[donor] / cap[donor] - loads[taker] / cap[taker]
    after = np.abs(gap - load[mine] * (1 / cap[donor] + 1 / cap[taker]))
    best = int(np.argmin(after))
    return int(mine[best]) if after[best] < gap * (1 - 1e-9) else -1


def _told(situation: Situation, node: I32, name: str, limits: Limits, seconds: float) -> Plan:
    found = describe(situation, node, name, limits, seconds=seconds, as_measured=True)
    found.check(situation, limits)
    return found
