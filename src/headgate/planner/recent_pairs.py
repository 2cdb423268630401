"""Recent pairs of a flow, counted in bounded sketches, and what a plan for them would be worth.

Shared by all who plan from a whole window: it counts, builds the key graph, and judges a plan with
the estimator, which it calibrates with what became of the plan before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headgate.arrays import F64, I32, U64
from headgate.planner.estimator import Calibration, Forecast, Recent, forecast
from headgate.planner.key_graph import KeyGraph
from headgate.planner.observation import Observation
from headgate.planner.placing import Pins, Task
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable

PAIRS_MAX = 1 << 16


class RecentPairs:
    """At most `PAIRS_MAX` pairs an edge and keys an operator, 32 bytes each."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index = {name: i for i, name in enumerate(task.operators)}
        self._pairs = {edge: PairSketch(PAIRS_MAX) for edge in task.edges}
        self._loads = {operator: PairSketch(PAIRS_MAX) for operator in task.operators}
        self._before: KeyGraph | None = None
        self._calibration = Calibration()
        self._promised: float | None = None
        self._staying: float | None = None

    @property
    def never_judged(self) -> bool:
        return self._before is None

    def count(self, seen: Observation, fade: float = 1.0) -> None:
        """Add what was seen; what was counted before weighs `fade` of what it did."""
        if fade < 1:
            for sketch in (*self._pairs.values(), *self._loads.values()):
                sketch.decay(fade)
        for edge, pairs in seen.pairs.items():
            if edge in self._pairs:
                self._pairs[edge].update(pairs.a, pairs.b, pairs.rows)
        for operator, loads in seen.loads.items():
            nothing = np.zeros(len(loads.h), np.uint64)
            self._loads[operator].update(loads.h, nothing, loads.rows)

    def forget(self) -> None:
        for sketch in (*self._pairs.values(), *self._loads.values()):
            sketch.reset()

    def graph(self) -> KeyGraph:
        sketches = [(self._index[a], self._index[b], s) for (a, b), s in self._pairs.items()]
        loads = {self._index[op]: (s.a, s.count) for op, s in self._loads.items()}
        return KeyGraph.from_sketches(self._task.operators, sketches, loads)

    def judge(
        self, graph: KeyGraph, current: I32, planned: I32, rows_per_move: float = 1.0
    ) -> Forecast:
        """Is this plan worth it? Call it once per plan: it also learns from the one before."""
        recent = None if self._before is None else Recent.of(graph, self._before, graph)
        self._calibrate(graph, current, recent)
        self._before = graph
        judged = forecast(
            graph,
            current,
            planned,
            self._task.slots,
            horizon_rows=graph.weight,
            recent=recent,
            calibration=self._calibration,
            rows_per_move=rows_per_move,
            alpha=self._task.alpha,
        )
        if judged.worth:
            self._promised = graph.locality(planned)
        else:
            self._staying = judged.locality_now
        return judged

    def pins(
        self, graph: KeyGraph, current: I32, planned: I32, tables: Mapping[str, RoutingTable]
    ) -> dict[str, Pins]:
        """The entries that a plan needs: keys that move, and keys that have no entry yet."""
        made = {}
        for i, name in enumerate(self._task.operators):
            mine = slice(graph.starts[i], graph.starts[i + 1])
            h, slot = graph.h[mine], planned[mine]
            new = ~tables[name].is_pinned(h) | (current[mine] != slot)
            made[name] = Pins.hottest_first(h[new], slot[new], graph.load[mine][new])
        return made

    def rows_before(self, operator: str, h: U64) -> F64:
        """Rows of these keys in the graph that was judged last; 0 for others."""
        if self._before is None:
            return np.zeros(len(h))
        at = self._before.find(self._index[operator], h)
        return np.where(at >= 0, self._before.load[at], 0.0)

    def _calibrate(self, graph: KeyGraph, current: I32, recent: Recent | None) -> None:
        """What the last plan kept of its promise on pairs it knew, or what staying brought."""
        if self._staying is not None:
            found = graph.locality(current)
            self._calibration = self._calibration.after_staying(self._staying, found)
        if self._promised is not None and recent is not None and recent.known.sum():
            stayed = current[graph.u] == current[graph.v]
            found = float(recent.known[stayed].sum() / recent.known.sum())
            self._calibration = self._calibration.after(self._promised, found)
        self._promised = self._staying = None
