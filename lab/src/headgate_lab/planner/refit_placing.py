"""Planners that start from scratch each period, at work: the paper's online and offline ones.

Pairs are counted from one plan to the next, then forgotten, so that a plan follows recent data only
(Caneill et al. 2016, section 3.2). A fresh plan is installed if the estimator says that it pays.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from headgate.arrays import F64, U64
from headgate.planner.key_graph import placement
from headgate.planner.placing import Observation, Pins, Proposal, Task
from headgate.routing.table import RoutingTable
from headgate_lab.planner.baseline import BASELINES, plan_hash
from headgate_lab.planner.estimator import RecentPairs


class RefitPlacing:
    """One of the baseline planners, fed by the manager."""

    def __init__(self, name: str, task: Task) -> None:
        self._plan, self._task = BASELINES[name], task
        self._recent = RecentPairs(task)
        self._plans_made = 0

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        self._recent.count(seen)

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        if self._plan is plan_hash:
            return None  # who only measures need not plan
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
            plans_made=self._plans_made,
            seed=task.seed,
            allowed=task.allowed,
        )
        if planned is None:
            return None
        judged = self._recent.judge(graph, current, planned)
        self._recent.forget()
        if not judged.worth:
            return Proposal({}, f"nothing moved: {judged.reason}", judged.locality_now)
        self._plans_made += 1
        return Proposal(
            self._recent.pins(graph, current, planned, tables),
            judged.reason,
            judged.locality_planned,
            dict(zip(task.operators, judged.imbalance_planned, strict=True)),
            time.perf_counter() - started,
        )

    def rows_lately(self, operator: str, h: U64) -> F64:
        return self._recent.rows_before(operator, h)

    def why(self, operator: str, pins: Pins, i: int) -> str:
        return "its part of the new plan lives there"
