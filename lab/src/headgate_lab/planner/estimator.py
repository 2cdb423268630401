"""Recent pairs of a flow, and whether a plan for them is worth its migration.

A plan looks better on the window it was made from than on the rows that follow, for two reasons.
Some of the next period's pairs were never seen (*drift*): they gain nothing from the plan. And a
plan fits the chance of its window too, so seen pairs may come out less local than promised; how
much of a promise was *kept* is learnt from the plans before. Both discounts apply only to pairs
that the plan touches: what does not move does not change, so no plan means no gain.
(Future work of Caneill et al. 2016, section 6.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import F64, I32, I64, U64, Bools
from headgate.planner.key_graph import FREE, KeyGraph, floors
from headgate.planner.placing import Observation, Task
from headgate.routing.space_saving import PairSketch

PAIRS_MAX = 1 << 16  # pairs an edge, and keys an operator: 2 MB a sketch, at 32 bytes an entry
MEMORY = 0.7  # weight of what was learnt before when a new outcome comes in
MOST_KEPT = 1.5  # one lucky period must not promise twice as much for the next
MOST_AGEING = 0.2  # share of locality; likewise for one bad period
TOLERANCE = 1.1  # balance counts as broken beyond so many bounds: a window is only a sample


@dataclass(frozen=True)
class Calibration:
    """What was learnt from the plans before.

    `kept`: how much of the locality promised on seen pairs came true in the period after a plan.
    `ageing`: what a placement loses in locality from one period to the next if it stays.
    """

    kept: float = 1.0
    ageing: float = 0.0

    def after(self, promised: float, found: float) -> Calibration:
        """Learn from a plan's first period: locality on its window, and then on known pairs."""
        if promised <= 0:
            return self
        outcome = min(found / promised, MOST_KEPT)
        return replace(self, kept=MEMORY * self.kept + (1 - MEMORY) * outcome)

    def after_staying(self, predicted: float, found: float) -> Calibration:
        """Learn from a placement that stayed: the forecast's `locality_now`, and what it had."""
        ageing = self.ageing + (1 - MEMORY) * (predicted - found)
        return replace(self, ageing=min(max(ageing, 0.0), MOST_AGEING))


@dataclass(frozen=True)
class Forecast:
    """What is expected of a plan over the horizon, and the verdict, with its reason in a line."""

    locality_now: float
    locality_planned: float
    imbalance_planned: tuple[float, ...]
    moved_keys: int
    gain_rows: float
    cost_rows: float
    worth: bool
    reason: str


def forecast(
    graph: KeyGraph,
    current: I32,
    planned: I32,
    slots: int,
    *,
    horizon_rows: float,
    known: F64 | None = None,
    calibration: Calibration | None = None,
    rows_per_move: float = 1.0,
    alpha: float = 1.03,
    allowed: Bools | None = None,
) -> Forecast:
    """Expected locality, balance and cost of replacing one placement of the graph by another.

    `known` is the part of each pair's weight that the window before had, too; without it, all.
    `horizon_rows` counts rows over keyed edges until the next plan. Moving a key costs
    `rows_per_move`, in rows that could be sent meanwhile. A plan is worth it if the remote rows
    saved exceed its cost and balance does not break, or if balance is broken and the plan mends it.
    `allowed` ([operator, slot]) says who has an instance where, if not all everywhere.
    """
    known = graph.w if known is None else known
    moved = (current != planned) & (graph.fixed == FREE)
    now, change = _localities(graph, current, planned, moved, known, calibration or Calibration())
    keys, gain = int(moved.sum()), change * horizon_rows
    cost = keys * rows_per_move
    before, after = (graph.imbalance(x, slots, allowed) for x in (current, planned))
    verdict = _by_balance(graph, floors(graph, slots, allowed), before, after, alpha)
    saves = f"{'saves' if gain >= 0 else 'adds'} {abs(gain):,.0f} remote rows"
    if not keys:
        worth, reason = False, "the plan moves nothing"
    elif verdict is None:
        worth = gain > cost
        reason = (
            f"locality {now:.2f} -> {now + change:.2f} for the next {horizon_rows:,.0f} rows "
            f"{saves}; moving {keys:,} keys costs {cost:,.0f}"
        )
    else:
        worth, reason = verdict
        if worth:
            reason += f"; moving {keys:,} keys costs {cost:,.0f} rows, {saves}"
    return Forecast(now, now + change, tuple(after.tolist()), keys, gain, cost, worth, reason)


def find(graph: KeyGraph, operator: int, h: U64) -> I64:
    """Vertex number of each key of an operator, -1 for a key that is not in the graph."""
    first, end = graph.starts[operator], graph.starts[operator + 1]
    mine = graph.h[first:end]
    if not len(mine):
        return np.full(len(h), -1, np.int64)
    at = np.minimum(np.searchsorted(mine, h), len(mine) - 1)
    return np.where(mine[at] == h, at + first, -1).astype(np.int64)


def edges_in(graph: KeyGraph, other: KeyGraph) -> I64:
    """For every edge of `other` its number in `graph`, -1 where `graph` does not have it."""
    vertex = np.full(other.vertices, -1, np.int64)
    for i, operator in enumerate(other.operators):
        if operator in graph.operators:
            mine = slice(other.starts[i], other.starts[i + 1])
            vertex[mine] = find(graph, graph.operators.index(operator), other.h[mine])
    u, v = vertex[other.u], vertex[other.v]
    if not graph.edges:
        return np.full(other.edges, -1, np.int64)
    size = np.int64(graph.vertices)
    have, want = graph.u * size + graph.v, u * size + v
    at = np.minimum(np.searchsorted(have, want), graph.edges - 1)
    return np.where((u >= 0) & (v >= 0) & (have[at] == want), at, -1).astype(np.int64)


def _localities(
    graph: KeyGraph, current: I32, planned: I32, moved: Bools, known: F64, learnt: Calibration
) -> tuple[float, float]:
    """(expected locality if all stays, expected change under the plan).

    Only known pairs with a moved end change. Of those the plan promises a local share on the
    window, of which `kept` comes true; what they have now was measured, which is fair to the
    placement in force (it was made before), but for what it will lose by ageing.
    """
    measured = graph.locality(current)
    if not graph.weight:
        return measured, 0.0
    now = max(measured - learnt.ageing, 0.0)
    touched = moved[graph.u] | moved[graph.v]
    window = float(graph.w[touched].sum())
    if not window:
        return now, 0.0
    here, there = current[graph.u] == current[graph.v], planned[graph.u] == planned[graph.v]
    promised = min(learnt.kept * float(graph.w[touched & there].sum()) / window, 1.0)
    weight = float(known[touched].sum())
    had = float(known[touched & here].sum())
    renewed = weight / float(known.sum()) if weight else 0.0
    return now, (promised * weight - had) / graph.weight + renewed * (measured - now)


def _by_balance(
    graph: KeyGraph, floor: F64, before: F64, after: F64, alpha: float
) -> tuple[bool, str] | None:
    """The verdict and its reason where balance decides."""
    bound = np.maximum(alpha, floor) * TOLERANCE
    was, becomes = float((before / bound).max(initial=0.0)), float((after / bound).max(initial=0.0))
    mends = was > 1 and (becomes <= 1 or becomes - 1 <= (was - 1) / 2)
    if not mends and becomes <= max(1.0, was):
        return None
    i = int(np.argmax((before if mends else after) / bound))
    return mends, (
        f"max/mean load of {graph.operators[i]} {'' if mends else 'would go '}{before[i]:.2f} -> "
        f"{after[i]:.2f} (allowed {bound[i]:.2f})"
    )


class RecentPairs:
    """Counts recent pairs in bounded sketches, and judges plans made from them.

    The estimator is calibrated with what became of the plan before.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index = {name: i for i, name in enumerate(task.operators)}
        self._pairs = {edge: PairSketch(PAIRS_MAX) for edge in task.edges}
        self._loads = {operator: PairSketch(PAIRS_MAX) for operator in task.operators}
        self._before: KeyGraph | None = None
        self._calibration = Calibration()
        self._promised: float | None = None
        self._staying: float | None = None

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
        """The graph of what was counted.

        A pair weighs what is certain of it, count - error: an entry that has just taken the place
        of another inherits its count, and would else look like a strong tie.
        """
        pairs = [
            (self._index[a], self._index[b], s.a, s.b, s.count - s.error)
            for (a, b), s in self._pairs.items()
        ]
        loads = {self._index[op]: (s.a, s.count) for op, s in self._loads.items()}
        return KeyGraph.build(self._task.operators, pairs, loads)

    def judge(
        self, graph: KeyGraph, current: I32, planned: I32, rows_per_move: float = 1.0
    ) -> Forecast:
        """Is this plan worth it? Call it once per plan: it also learns from the one before."""
        known = None
        if self._before is not None:
            known = np.where(edges_in(self._before, graph) >= 0, graph.w, 0.0)
        self._calibrate(graph, current, known)
        self._before = graph
        judged = forecast(
            graph,
            current,
            planned,
            self._task.slots,
            horizon_rows=graph.weight,
            known=known,
            calibration=self._calibration,
            rows_per_move=rows_per_move,
            alpha=self._task.alpha,
            allowed=self._task.allowed,
        )
        if judged.worth:
            self._promised = graph.locality(planned)
        else:
            self._staying = judged.locality_now
        return judged

    def rows_before(self, operator: str, h: U64) -> F64:
        """Rows of these keys in the graph that was judged last; 0 for others."""
        if self._before is None:
            return np.zeros(len(h))
        at = find(self._before, self._index[operator], h)
        return np.where(at >= 0, self._before.load[at], 0.0)

    def _calibrate(self, graph: KeyGraph, current: I32, known: F64 | None) -> None:
        """What the last plan kept of its promise on pairs it knew, or what staying brought."""
        if self._staying is not None:
            found = graph.locality(current)
            self._calibration = self._calibration.after_staying(self._staying, found)
        if self._promised is not None and known is not None and known.sum():
            stayed = current[graph.u] == current[graph.v]
            found = float(known[stayed].sum() / known.sum())
            self._calibration = self._calibration.after(self._promised, found)
        self._promised = self._staying = None
