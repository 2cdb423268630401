"""Planners that start from scratch each period, at work: the paper's online and offline ones.

Pairs are counted from one plan to the next in bounded sketches, then forgotten, so that a plan
follows recent data only (Caneill et al. 2016, section 3.2). A fresh plan is installed if the
estimator says that it pays.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from headgate.planner.baseline import BASELINES
from headgate.planner.estimator import Calibration, Recent, forecast
from headgate.planner.key_graph import I32, KeyGraph
from headgate.planner.observation import Observation
from headgate.planner.placing import Pins, Proposal, Task
from headgate.planner.tables import placement
from headgate.routing.table import RoutingTable
from headgate.sketch.space_saving import PairSketch

PAIRS_MAX = 1 << 20


class RefitPlacing:
    """One of the baseline planners, fed by the manager."""

    def __init__(self, name: str, task: Task) -> None:
        self._plan, self._task = BASELINES[name], task
        self._pairs = {edge: PairSketch(PAIRS_MAX) for edge in task.edges}
        self._loads = {operator: PairSketch(PAIRS_MAX) for operator in task.operators}
        self._before: KeyGraph | None = None
        self._calibration = Calibration()
        self._promised: float | None = None
        self._staying: float | None = None
        self._plans_made = 0

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        for edge, pairs in seen.pairs.items():
            if edge in self._pairs:
                self._pairs[edge].update(pairs.a, pairs.b, pairs.rows)
        for operator, loads in seen.loads.items():
            nothing = np.zeros(len(loads.h), np.uint64)
            self._loads[operator].update(loads.h, nothing, loads.rows)

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        started = time.perf_counter()
        task = self._task
        graph = self._graph()
        if not graph.vertices:
            return None
        current = placement(graph, tables)
        planned = self._plan(
            graph, current, task.slots, plans_made=self._plans_made, seed=task.seed
        )
        if planned is None:
            return None
        recent = None if self._before is None else Recent.of(graph, self._before, graph)
        self._calibrate(graph, current, recent)
        judged = forecast(
            graph,
            current,
            planned,
            task.slots,
            horizon_rows=graph.weight,
            recent=recent,
            calibration=self._calibration,
            alpha=task.alpha,
        )
        self._before = graph
        for sketch in (*self._pairs.values(), *self._loads.values()):
            sketch.reset()
        if not judged.worth:
            self._staying = judged.locality_now
            return Proposal({}, f"nothing moved: {judged.reason}", judged.locality_now)
        self._plans_made += 1
        self._promised = graph.locality(planned)
        pins = {}
        for index, operator in enumerate(task.operators):
            mine = slice(graph.starts[index], graph.starts[index + 1])
            new = ~tables[operator].is_pinned(graph.h[mine]) | (planned[mine] != current[mine])
            pins[operator] = Pins.hottest_first(
                graph.h[mine][new], planned[mine][new], graph.load[mine][new]
            )
        imbalance = dict(zip(task.operators, judged.imbalance_planned, strict=True))
        seconds = time.perf_counter() - started
        return Proposal(pins, judged.reason, judged.locality_planned, imbalance, seconds)

    def why(self, operator: str, pins: Pins, i: int) -> str:
        return "its part of the new plan lives there"

    def _calibrate(self, graph: KeyGraph, current: I32, recent: Recent | None) -> None:
        """How much of the last plan's promise was kept on pairs that it knew? And if it stayed?"""
        if self._staying is not None:
            found = graph.locality(current)
            self._calibration = self._calibration.after_staying(self._staying, found)
            self._staying = None
        if self._promised is None or recent is None or not recent.known.sum():
            return
        stayed = current[graph.u] == current[graph.v]
        found = float(recent.known[stayed].sum() / recent.known.sum())
        self._calibration = self._calibration.after(self._promised, found)
        self._promised = None

    def _graph(self) -> KeyGraph:
        index = {name: i for i, name in enumerate(self._task.operators)}
        sketches = [(index[a], index[b], s) for (a, b), s in self._pairs.items()]
        loads = {index[op]: (s.a, s.count) for op, s in self._loads.items()}
        return KeyGraph.from_sketches(self._task.operators, sketches, loads)
