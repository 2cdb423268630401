"""Is a plan worth its migration? Forecasts from the window, discounted by what drifts away.

A plan looks better on the window it was made from than on the rows that follow, for two reasons.
Some of the next period's pairs were never seen (*drift*): they gain nothing from the plan. And a
plan fits the chance of its window too, so seen pairs may come out less local than promised; how
much of a promise was *kept* is learnt from the plans before. Both discounts apply only to pairs
that the plan touches: what does not move does not change, so no plan means no gain.
(Future work of Caneill et al. 2016, section 6.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headgate.arrays import F64, I32, I64, U64
from headgate.planner.key_graph import FREE, KeyGraph, floors
from headgate.planner.placing import Observation, Pins, Task
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable

MOST_KEPT = 1.5
MOST_AGEING = 0.2
MEMORY = 0.7
"""Weight of what was learnt before when a new outcome comes in."""
TOLERANCE = 1.1
"""Balance counts as broken beyond this multiple of max(alpha, floor); a window is a sample."""


@dataclass(frozen=True)
class Recent:
    """The last period against the window before it, as weights on the edges of a graph.

    `known` is the last period's weight of pairs that were seen before it, `novel` that of the
    others; `outside` is the weight of pairs that the graph does not hold at all.
    """

    known: F64
    novel: F64
    outside: float = 0.0

    @classmethod
    def of(cls, graph: KeyGraph, before: KeyGraph, last: KeyGraph) -> Recent:
        """`graph` is planned from (usually both together), O(edges log edges)."""
        at, seen = edges_in(graph, last), edges_in(before, last) >= 0

        def on_edges(mine: npt.NDArray[np.bool_]) -> F64:
            mine = mine & (at >= 0)
            return np.bincount(at[mine], last.w[mine], graph.edges).astype(np.float64, copy=False)

        return cls(on_edges(seen), on_edges(~seen), float(last.w[at < 0].sum()))

    @property
    def total(self) -> float:
        return float(self.known.sum() + self.novel.sum()) + self.outside

    @property
    def drift(self) -> float:
        """Share of the last period's pair weight that the window before it did not hold."""
        return 1 - float(self.known.sum()) / self.total if self.total else 0.0


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
        """Learn from what the placement in force at a forecast had, or would have had, next.

        `predicted` is the forecast's `locality_now`. After a plan was installed the other side is
        still known: route the new period's pairs by the old tables.
        """
        ageing = self.ageing + (1 - MEMORY) * (predicted - found)
        return replace(self, ageing=min(max(ageing, 0.0), MOST_AGEING))


@dataclass(frozen=True)
class Forecast:
    """What is expected of a plan over the horizon, and the verdict, with its reason in a line."""

    locality_now: float
    locality_planned: float
    imbalance_now: tuple[float, ...]
    imbalance_planned: tuple[float, ...]
    moved_keys: int
    moved_bytes: int
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
    recent: Recent | None = None,
    calibration: Calibration | None = None,
    rows_per_move: float = 1.0,
    rows_per_byte: float = 0.0,
    state_bytes: F64 | None = None,
    alpha: float = 1.03,
    tolerance: float = TOLERANCE,
) -> Forecast:
    """Expected locality, balance and cost of replacing one placement of the graph by another.

    `horizon_rows` counts rows over keyed edges until the next plan. Moving a key costs
    `rows_per_move`, and each byte of its state (`state_bytes` per vertex) `rows_per_byte`, in rows
    that could be sent meanwhile; measure them. Without `recent` the window stands for the last
    period, and nothing is discounted. A plan is worth it if the remote rows saved exceed its cost
    and balance does not break, or if balance is broken and the plan mends it.
    """
    recent = recent or Recent(graph.w, np.zeros(graph.edges))
    moved = (current != planned) & (graph.fixed == FREE)
    now, change = _localities(graph, current, planned, moved, recent, calibration or Calibration())
    state = state_bytes if state_bytes is not None else np.zeros(graph.vertices)
    moved_bytes = float(state[moved].sum())
    gain = change * horizon_rows
    cost = float(moved.sum()) * rows_per_move + moved_bytes * rows_per_byte
    before, after = graph.imbalance(current, slots), graph.imbalance(planned, slots)
    worth, reason = _verdict(
        graph, slots, before, after, gain, cost, int(moved.sum()), alpha, tolerance
    )
    if worth is None:
        worth = gain > cost
        reason = _words(now, now + change, horizon_rows, gain, int(moved.sum()), cost)
    return Forecast(
        now,
        now + change,
        tuple(before.tolist()),
        tuple(after.tolist()),
        int(moved.sum()),
        round(moved_bytes),
        gain,
        cost,
        worth,
        reason,
    )


def edges_in(graph: KeyGraph, other: KeyGraph) -> I64:
    """For every edge of `other` its number in `graph`, -1 where `graph` does not have it."""
    vertex = np.full(other.vertices, -1, np.int64)
    for i, operator in enumerate(other.operators):
        if operator in graph.operators:
            mine = slice(other.starts[i], other.starts[i + 1])
            vertex[mine] = graph.find(graph.operators.index(operator), other.h[mine])
    u, v = vertex[other.u], vertex[other.v]
    if not graph.edges:
        return np.full(other.edges, -1, np.int64)
    size = np.int64(graph.vertices)
    have, want = graph.u * size + graph.v, u * size + v
    at = np.minimum(np.searchsorted(have, want), graph.edges - 1)
    return np.where((u >= 0) & (v >= 0) & (have[at] == want), at, -1).astype(np.int64)


def _localities(
    graph: KeyGraph,
    current: I32,
    planned: I32,
    moved: npt.NDArray[np.bool_],
    recent: Recent,
    learnt: Calibration,
) -> tuple[float, float]:
    """(expected locality if all stays, expected change under the plan).

    Only known pairs with a moved end change. Of those the plan promises a local share on the
    window, of which `kept` comes true; what they have now was measured on the last period, which
    is fair to the placement in force (it was made before), but for what it will lose by ageing.
    """
    if not recent.total:
        return graph.locality(current), 0.0
    here = current[graph.u] == current[graph.v]
    measured = float((recent.known + recent.novel)[here].sum()) / recent.total
    now = max(measured - learnt.ageing, 0.0)
    touched = moved[graph.u] | moved[graph.v]
    window = float(graph.w[touched].sum())
    if not window:
        return now, 0.0
    there = planned[graph.u] == planned[graph.v]
    promised = min(learnt.kept * float(graph.w[touched & there].sum()) / window, 1.0)
    weight = float(recent.known[touched].sum())
    had = float(recent.known[touched & here].sum())
    renewed = weight / float(recent.known.sum()) if weight else 0.0
    return now, (promised * weight - had) / recent.total + renewed * (measured - now)


def _verdict(
    graph: KeyGraph,
    slots: int,
    before: F64,
    after: F64,
    gain: float,
    cost: float,
    moved: int,
    alpha: float,
    tolerance: float,
) -> tuple[bool | None, str]:
    """The verdict where balance decides, else (None, "")."""
    if not moved:
        return False, "the plan moves nothing"
    bound = np.maximum(alpha, floors(graph, slots)) * tolerance
    over_before, over_after = before / bound, after / bound
    was, becomes = float(over_before.max()), float(over_after.max())
    if was > 1 and (becomes <= 1 or becomes - 1 <= (was - 1) / 2):
        i = int(np.argmax(over_before))
        return True, (
            f"max/mean load of {graph.operators[i]} {before[i]:.2f} -> {after[i]:.2f} "
            f"(allowed {bound[i]:.2f}); moving {moved:,} keys costs {cost:,.0f} rows, "
            f"{'saves' if gain >= 0 else 'adds'} {abs(gain):,.0f} remote rows"
        )
    if becomes > max(1.0, was):
        i = int(np.argmax(over_after))
        return False, (
            f"max/mean load of {graph.operators[i]} would go {before[i]:.2f} -> {after[i]:.2f} "
            f"(allowed {bound[i]:.2f})"
        )
    return None, ""


def _words(now: float, then: float, horizon: float, gain: float, moved: int, cost: float) -> str:
    saves = f"saves {gain:,.0f}" if gain >= 0 else f"adds {-gain:,.0f}"
    return (
        f"locality {now:.2f} -> {then:.2f} for the next {horizon:,.0f} rows {saves} remote rows; "
        f"moving {moved:,} keys costs {cost:,.0f}"
    )


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
