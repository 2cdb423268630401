"""Why a unit moves, in one line: its node leaves, its partners are there, or loads are uneven."""

from __future__ import annotations

import numpy as np

from headgate.planner.allocation.measures import mean_load
from headgate.planner.allocation.model import I32, Situation

TOLD_MAX = 1_000


def reasons_for(situation: Situation, node: I32) -> tuple[str, ...]:
    """A line for each unit that moves, at most TOLD_MAX of them, and one that counts the rest."""
    moved = situation.moved(node)
    if not len(moved):
        return ()
    told = moved[:TOLD_MAX]
    position = np.full(len(node), -1)
    position[told] = np.arange(len(told))
    t = situation.traffic
    here, there = np.zeros(len(told)), np.zeros(len(told))
    for own, other in ((t.sender, t.receiver), (t.receiver, t.sender)):
        mine = np.flatnonzero(position[own] >= 0)
        u, p, rate = own[mine], other[mine], t.rate[mine]
        np.add.at(here, position[u], np.where(situation.home[p] == situation.home[u], rate, 0.0))
        np.add.at(there, position[u], np.where(node[p] == node[u], rate, 0.0))
    loads = situation.node_loads(situation.home)
    level = 100.0 * (
        loads / situation.nodes.capacity / max(mean_load(loads, situation.nodes), 1e-300)
    )
    lines = []
    for i, u in enumerate(told):
        source, target = int(situation.home[u]), int(node[u])
        if situation.nodes.leaving[source]:
            why = f"node {source} is to be removed"
        elif there[i] > here[i] * 1.05:
            why = f"{there[i]:,.0f} rows of it stay on its node, {here[i]:,.0f} before"
        else:
            why = (
                f"evens loads: node {source} has {level[source]:.1f} % of the mean, "
                f"node {target} {level[target]:.1f} %"
            )
        lines.append(f"{situation.units.name(int(u))}: node {source} -> {target}, {why}")
    if len(moved) > len(told):
        lines.append(f"and {len(moved) - len(told):,} more")
    return tuple(lines)
