"""Planners that start from scratch each period, at work: the paper's online and offline ones.

Pairs are counted from one plan to the next, then forgotten, so that a plan follows recent data only
(Caneill et al. 2016, section 3.2). A plan replaces the tables: keys that are not in it lose their
entry and follow their hash. "online-estimated" installs a plan only if an estimate says that it
pays, which the paper leaves for later (section 6); the others install every plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from headgate.arrays import F64, I32, U64
from headgate.planner.key_graph import KeyGraph, placement
from headgate.planner.placing import NO_ENTRY, Observation, Pins, Proposal, Task
from headgate.routing.table import RoutingTable
from headgate_lab.planner.baseline import BASELINES
from headgate_lab.planner.estimator import RecentPairs

ESTIMATED = "-estimated"


class RefitPlacing:
    """One of the baseline planners, fed by the manager."""

    def __init__(self, name: str, task: Task) -> None:
        self._plan, self._task = BASELINES[name.removesuffix(ESTIMATED)], task
        self._is_gated = name.endswith(ESTIMATED)
        self._recent = RecentPairs(task)
        self._plans_made = 0

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        self._recent.count(seen)

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        started = time.perf_counter()
        task = self._task
        graph = self._recent.graph()
        if not graph.vertices:
            return None
        current = placement(graph, tables)
        planned = self._plan(
            graph,
            current,
            task.slots,
            alpha=task.alpha,
            plans_made=self._plans_made,
            seed=task.seed,
            allowed=task.allowed,
        )
        if planned is None:
            return None
        now, locality = graph.locality(current), graph.locality(planned)
        reason = f"from scratch on {graph.weight:,.0f} pairs: locality {now:.2f} -> {locality:.2f}"
        judged = self._recent.judge(graph, current, planned)
        self._recent.forget()
        if self._is_gated:
            reason, locality = judged.reason, judged.locality_planned
            if not judged.worth:
                return Proposal({}, f"nothing moved: {reason}", judged.locality_now)
        self._plans_made += 1
        imbalance = dict(zip(task.operators, judged.imbalance_planned, strict=True))
        pins = self._entries(graph, planned, tables)
        return Proposal(pins, reason, locality, imbalance, time.perf_counter() - started)

    def _entries(
        self, graph: KeyGraph, planned: I32, tables: Mapping[str, RoutingTable]
    ) -> dict[str, Pins]:
        """What turns the tables into the plan: entries that are new or other, and those to go."""
        made = {}
        for i, name in enumerate(self._task.operators):
            mine, table = slice(graph.starts[i], graph.starts[i + 1]), tables[name]
            h, slot = graph.h[mine], planned[mine]
            had, pinned = table.look_up(h)
            new = ~pinned | (had != slot)
            gone = np.setdiff1d(table.pinned_h, h, assume_unique=True)
            made[name] = Pins.hottest_first(
                np.concatenate([h[new], gone]),
                np.concatenate([slot[new], np.full(len(gone), NO_ENTRY, np.int32)]),
                np.concatenate([graph.load[mine][new], np.zeros(len(gone))]),
            )
        return made

    def rows_lately(self, operator: str, h: U64) -> F64:
        return self._recent.rows_before(operator, h)

    def why(self, operator: str, pins: Pins, i: int) -> str:
        return "its part of the new plan lives there"
