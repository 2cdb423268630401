"""The incremental planner at work: a few keys at a time, and now and then a fresh look.

Greedy moves of single keys do not find their way out of every corner: when large keys should change
places, their partners hold them. So every few epochs the recent pairs are partitioned from scratch,
parts renamed so that most keys stay; the estimator says whether that pays, and if so it is
installed. The first plan is such a fresh look too. What the planner expects of itself is measured
on the pairs it remembers, which flatters it; the difference to what came true is learnt and taken
off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from headgate.arrays import F64, U64
from headgate.planner.distance import Distances
from headgate.planner.estimator import RecentPairs
from headgate.planner.incremental import IncrementalPlanner, KeyMoves, Reason, SeenKeys, SeenPairs
from headgate.planner.key_graph import placement
from headgate.planner.partition import partition, relabel
from headgate.planner.placing import Observation, Pins, Proposal, Task
from headgate.routing.table import RoutingTable

LEARNING = 0.3  # weight of the latest epoch in how much the planner flatters itself
LOOKS = 2  # fresh looks per memory: what they plan from has half faded by the next
SHARE_MAX = 0.05  # of the time, for fresh looks
ROWS_PER_MOVE = 2.0  # a key that moves is read, sent and written: more work than a row


class IncrementalPlacing:
    """Feeds an `IncrementalPlanner` with observations and turns its moves into pins."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index = {name: i for i, name in enumerate(task.operators)}
        self._recent = RecentPairs(task)
        self._look_every = max(1, round(task.memory_epochs / LOOKS))
        self._look_in = 0
        self._last_ms: int | None = None
        self._planner: IncrementalPlanner | None = None
        self._distances: Distances | None = None
        self._expected: float | None = None
        self._flattery = 0.0
        self._moves: dict[str, KeyMoves] = {}

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        planner = self._planner_for(seen)
        keys = [self._seen_keys(name, seen, tables[name]) for name in self._task.operators]
        pairs = [
            SeenPairs(self._index[a], self._index[b], *found)
            for (a, b), found in seen.pairs.items()
        ]
        none = np.zeros(self._task.slots)
        slot_rows = np.stack([seen.slot_rows.get(name, none) for name in self._task.operators])
        planner.observe(keys, pairs, slot_rows)
        self._recent.count(seen, fade=0.5 ** (seen.epochs / self._look_every))
        if self._expected is not None and seen.locality is not None:
            self._flattery += LEARNING * (self._expected - seen.locality - self._flattery)

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        started = time.perf_counter()
        assert self._planner is not None, "observe comes before propose"
        self._look_in -= seen.epochs
        epoch_seconds = self._epoch_seconds(seen)
        if self._look_in <= 0:
            fresh = self._fresh_look(tables, started)
            spent = time.perf_counter() - started
            self._look_in = max(self._look_every, round(spent / (SHARE_MAX * epoch_seconds)))
            if fresh is not None:
                return fresh
        planned = self._planner.plan(self._task.moves_max)
        self._planner.released()  # who has no entry left to give up is asked when room is short
        self._moves = {self._task.operators[m.operator]: m for m in planned}
        pins = {name: Pins(m.h, m.target, m.rows) for name, m in self._moves.items() if len(m)}
        self._expected = self._planner.expected_locality
        if not pins:
            return None
        return Proposal(
            pins,
            _in_words(planned),
            self._expected - self._flattery,
            dict(zip(self._task.operators, self._planner.expected_imbalance.tolist(), strict=True)),
            time.perf_counter() - started,
        )

    def rows_lately(self, operator: str, h: U64) -> F64:
        if self._planner is None:
            return np.zeros(len(h))
        return self._planner.rows_lately(self._index[operator], h)

    def why(self, operator: str, pins: Pins, i: int) -> str:
        moves = self._moves.get(operator)
        if moves is None or self._planner is None:
            return "its part of the plan from scratch lives there"
        at = np.flatnonzero(moves.h == pins.h[i])
        return self._planner.explain(moves, int(at[0])) if len(at) else "planned before"

    # --- inside ----------------------------------------------------------------------------
    def _epoch_seconds(self, seen: Observation) -> float:
        """How long an epoch takes at present; endless while that is not known."""
        last, self._last_ms = self._last_ms, seen.now_ms
        if last is None or seen.now_ms <= last:
            return float("inf")
        return (seen.now_ms - last) / 1e3 / seen.epochs

    def _planner_for(self, seen: Observation) -> IncrementalPlanner:
        if self._planner is None:
            task = self._task
            if len(set(seen.hosts)) > 1 and len(seen.hosts) == task.slots:
                self._distances = Distances.of(seen.hosts, task.racks or None)
            rows = max(1.0, seen.rows / seen.epochs)
            self._planner = IncrementalPlanner(
                len(task.operators),
                [(self._index[a], self._index[b]) for a, b in task.edges],
                task.slots,
                horizon_rows=rows * task.memory_epochs,
                alpha=task.alpha,
                seed=task.seed,
                keys_max=max(8, task.pins_max),
                nearness=None if self._distances is None else self._distances.nearness,
            )
        return self._planner

    def _seen_keys(self, name: str, seen: Observation, table: RoutingTable) -> SeenKeys:
        loads = seen.loads.get(name)
        if loads is None:
            none, slot = np.empty(0), np.empty(0, np.int32)
            return SeenKeys(none.astype(np.uint64), none, slot, slot.astype(np.uint8))
        owner, newborn = table.route(loads.h), np.zeros(len(loads.h), np.uint8)
        if name in self._task.born_local:
            newborn = (~table.is_pinned(loads.h)).astype(np.uint8)
            owner = np.where(newborn == 1, loads.slot, owner)
        return SeenKeys(loads.h, loads.rows, owner.astype(np.int32), newborn)

    def _fresh_look(self, tables: Mapping[str, RoutingTable], started: float) -> Proposal | None:
        """A plan from scratch, if the estimator finds that it pays; the first one always does."""
        task, first = self._task, self._recent.never_judged
        graph = self._recent.graph()
        if not graph.edges or graph.vertices < 2 * task.slots:
            return None
        current = placement(graph, tables)
        plan = partition(
            graph, task.slots, alpha=task.alpha, seed=task.seed, distances=self._distances
        )
        planned = plan.slot
        if self._distances is None:
            planned = relabel(graph, planned, current, task.slots)
        judged = self._recent.judge(graph, current, planned, ROWS_PER_MOVE)
        if not judged.worth and not first:
            return None
        assert self._planner is not None
        self._planner.plan()  # what it thought so far is overtaken
        self._moves, self._expected = {}, None
        return Proposal(
            self._recent.pins(graph, current, planned, tables),
            f"plan from scratch: {judged.reason}",
            judged.locality_planned,
            dict(zip(task.operators, judged.imbalance_planned, strict=True)),
            time.perf_counter() - started,
        )


def _in_words(planned: list[KeyMoves]) -> str:
    counts = dict.fromkeys(Reason, 0)
    for moves in planned:
        for reason in Reason:
            counts[reason] += int((moves.reason == reason).sum())
    parts = [
        (counts[Reason.PARTNERS], "to the slot of their partners"),
        (counts[Reason.LOAD], "out of full slots"),
    ]
    told = [f"{count:,} {where}" for count, where in parts if count]
    said = f"keys move: {', '.join(told)}" if told else "no key moves"
    born = counts[Reason.ADOPTED]
    return said + (f"; {born:,} new keys stay where they were born" if born else "")
