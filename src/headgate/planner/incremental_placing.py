"""The incremental planner at work: a few keys at a time, and now and then a fresh look.

Greedy moves of single keys do not find their way out of every corner: when large keys should change
places, their partners hold them. So every few epochs the pairs it remembers are partitioned from
scratch, parts renamed so that most keys stay; if that pays, it is installed. The first plan is such
a fresh look too, and one that knows twice as many keys as the plan before is installed whatever it
costs: most keys came after that plan, and found their place beside what little it knew. That
happens ever more rarely. What the planner expects of itself is measured on the pairs it remembers,
which flatters it; the difference to what came true is learnt and taken off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headgate.arrays import F64, I32, U64
from headgate.planner.distance import Distances
from headgate.planner.incremental import IncrementalPlanner, KeyMoves, Reason, SeenKeys, SeenPairs
from headgate.planner.key_graph import KeyGraph, floors, placement
from headgate.planner.partition import partition, relabel, spared
from headgate.planner.placing import Observation, Pins, Proposal, Task
from headgate.routing.table import RoutingTable

LEARNING = 0.3  # weight of the latest epoch in how much the planner flatters itself
LOOKS = 2  # fresh looks per memory: what they plan from has half faded by the next
SHARE_MAX = 0.05  # of the time, for fresh looks
ROWS_PER_MOVE = 2.0  # a key that moves is read, sent and written: more work than a row
KEPT = 0.5  # of a promised gain comes true: the plan fits the chance of what it was made from
BROKEN = 1.1  # balance counts as broken beyond so many bounds: what is remembered is only a sample


class IncrementalPlacing:
    """Feeds an `IncrementalPlanner` with observations and turns its moves into pins."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index = {name: i for i, name in enumerate(task.operators)}
        self._look_every = max(1, round(task.memory_epochs / LOOKS))
        self._look_in = 0
        self._keys_planned = 0
        self._last_ms: int | None = None
        self._planner: IncrementalPlanner | None = None
        self._hosts: tuple[str, ...] = ()
        self._distances: Distances | None = None
        self._expected: float | None = None
        self._flattery = 0.0
        self._waited = 0.0
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
        if self._expected is not None and seen.locality is not None:
            self._flattery += LEARNING * (self._expected - seen.locality - self._flattery)

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        started = time.perf_counter()
        assert self._planner is not None, "observe comes before propose"
        self._look_in -= seen.epochs
        epoch_seconds = self._epoch_seconds(seen)
        if self._look_in <= 0:
            fresh = self._fresh_look(seen, tables, started)
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
            return "a new plan puts it there, with the keys it shares rows with"
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
            rows = max(1.0, seen.rows / seen.epochs)
            self._planner = IncrementalPlanner(
                len(task.operators),
                task.slots,
                horizon_rows=rows * task.memory_epochs,
                alpha=task.alpha,
                seed=task.seed,
                keys_max=max(8, task.pins_max),
                allowed=task.allowed,
            )
        self._measure_distances(self._planner, seen.hosts)
        return self._planner

    def _measure_distances(self, planner: IncrementalPlanner, hosts: tuple[str, ...]) -> None:
        """Slots may come to other hosts at any time; the plans that follow heed it."""
        task = self._task
        if hosts == self._hosts or len(hosts) != task.slots:
            return
        several = len(set(hosts)) > 1
        self._hosts, self._look_in = hosts, 0
        self._distances = (
            Distances.of(hosts, task.racks or None, task.distance_costs) if several else None
        )
        planner.use_nearness(None if self._distances is None else self._distances.nearness)

    def _seen_keys(self, name: str, seen: Observation, table: RoutingTable) -> SeenKeys:
        loads = seen.loads.get(name)
        if loads is None:
            none, slot = np.empty(0), np.empty(0, np.int32)
            return SeenKeys(none.astype(np.uint64), none, slot, slot.astype(np.uint8))
        owner, newborn = table.route(loads.h), np.zeros(len(loads.h), np.uint8)
        if name in self._task.born_local:
            newborn = (~table.is_pinned(loads.h)).astype(np.uint8)
            born_at_home = newborn == 1
            if self._task.allowed is not None:
                born_at_home &= self._task.allowed[self._index[name], loads.slot]
            owner = np.where(born_at_home, loads.slot, owner)
        return SeenKeys(loads.h, loads.rows, owner.astype(np.int32), newborn)

    def _fresh_look(
        self, seen: Observation, tables: Mapping[str, RoutingTable], started: float
    ) -> Proposal | None:
        """A plan from scratch, if it pays until the next one, or if it knows twice the keys."""
        task = self._task
        assert self._planner is not None
        graph = self._planner.graph(task.operators)
        if not graph.edges or graph.vertices < 2 * task.slots:
            return None
        current = placement(graph, tables)
        planned = partition(
            graph,
            task.slots,
            alpha=task.alpha,
            seed=task.seed,
            distances=self._distances,
            allowed=task.allowed,
        ).slot
        if self._distances is None:
            planned = relabel(graph, planned, current, task.slots, task.allowed)
        planned = spared(
            graph,
            planned,
            current,
            task.slots,
            alpha=task.alpha,
            distances=self._distances,
            allowed=task.allowed,
        )
        rows = self._look_every / seen.epochs * sum(p.rows.sum() for p in seen.pairs.values())
        tolerated = 1.0 + self._planner.tolerance
        pays, why, self._waited = _pays(
            graph, current, planned, task, tolerated, float(rows), self._waited, self._distances
        )
        if not pays and graph.vertices < 2 * self._keys_planned:
            return None
        self._waited, self._keys_planned = 0.0, graph.vertices
        self._planner.plan()  # what it thought so far is overtaken
        self._moves, self._expected = {}, None
        imbalance = graph.imbalance(planned, task.slots, task.allowed).tolist()
        return Proposal(
            _pins(graph, current, planned, tables),
            f"plan from scratch: {why}",
            graph.locality(planned) - self._flattery,
            dict(zip(task.operators, imbalance, strict=True)),
            time.perf_counter() - started,
        )


class _Verdict(NamedTuple):
    """Is a plan worth its moves, why, and what broken balance has cost so far, in rows."""

    pays: bool
    why: str
    waited: float


def _pays(
    graph: KeyGraph,
    current: I32,
    planned: I32,
    task: Task,
    tolerated: F64,
    rows: float,
    waited: float,
    distances: Distances | None = None,
) -> _Verdict:
    """Is a plan worth its moves over the next rows?

    It is if what it saves exceeds what its moves cost, and balance does not break. It saves remote
    rows, and of those that stay remote what they travel less far; and where balance is broken, what
    the busiest slot has more than its share. How long that will go on nobody knows: as long again
    as it has, so a plan waits until what waiting has cost is what its moves cost.
    """
    moves = int((current != planned).sum())
    if not moves:
        return _Verdict(False, "the plan moves nothing", waited)
    now, then = (
        graph.locality(x) if distances is None else distances.worth(graph.u, graph.v, graph.w, x)
        for x in (current, planned)
    )
    then = now + KEPT * (then - now)
    gain, cost = (then - now) * rows, moves * ROWS_PER_MOVE
    saves = f"{'saves' if gain >= 0 else 'adds'} {abs(gain):,.0f} remote rows"
    before, after = (graph.imbalance(x, task.slots, task.allowed) for x in (current, planned))
    bound = np.maximum(tolerated, floors(graph, task.slots, task.allowed)) * BROKEN
    was, becomes = float((before / bound).max()), float((after / bound).max())
    mends = was > 1 and becomes - 1 <= max(0.0, (was - 1) / 2)
    waited = waited + float(before.max() - after.max()) * rows if mends else 0.0
    if not mends and becomes <= max(1.0, was):
        return _Verdict(
            gain > cost,
            f"locality {now:.2f} -> {then:.2f} for the next {rows:,.0f} rows {saves}; "
            f"moving {moves:,} keys costs {cost:,.0f}",
            waited,
        )
    i = int(np.argmax((before if mends else after) / bound))
    return _Verdict(
        mends and gain + waited > cost,
        f"max/mean load of {graph.operators[i]} {before[i]:.2f} -> {after[i]:.2f} (allowed "
        f"{bound[i]:.2f}), which has cost {waited:,.0f} rows; moving {moves:,} keys costs "
        f"{cost:,.0f} rows, {saves}",
        waited,
    )


def _pins(
    graph: KeyGraph, current: I32, planned: I32, tables: Mapping[str, RoutingTable]
) -> dict[str, Pins]:
    """The entries that a plan needs: keys that move, and keys that have no entry yet."""
    made = {}
    for i, name in enumerate(graph.operators):
        mine = slice(graph.starts[i], graph.starts[i + 1])
        h, slot = graph.h[mine], planned[mine]
        new = ~tables[name].is_pinned(h) | (current[mine] != slot)
        made[name] = Pins.hottest_first(h[new], slot[new], graph.load[mine][new])
    return made


def _in_words(planned: list[KeyMoves]) -> str:
    counts = dict.fromkeys(Reason, 0)
    for moves in planned:
        for reason in Reason:
            counts[reason] += int((moves.reason == reason).sum())
    parts = [
        (counts[Reason.PARTNERS], "to the slot of their partners"),
        (counts[Reason.LOAD], "out of full slots"),
    ]
    where_to = [f"{count:,} {where}" for count, where in parts if count]
    line = f"keys move: {', '.join(where_to)}" if where_to else "no key moves"
    born = counts[Reason.ADOPTED]
    return line + (f"; {born:,} new keys stay where they were born" if born else "")


def compile_kernels(operators: int = 2) -> None:
    """Run every kernel of keys once on little; at once where they are compiled already.

    Numba compiles a function at its first call and keeps the result beside the source. On a new
    machine that takes some twenty seconds, in which a planner would miss epochs to plan for.
    """
    everywhere = np.ones((operators, 2), np.bool_)
    tiny = IncrementalPlanner(
        operators, 2, horizon_rows=1, keys_max=1_500, pairs_max=1_500, allowed=everywhere
    )
    for first in (0, 1_400):
        key, one = np.arange(first, first + 1_400, dtype=np.uint64), np.ones(1_400)
        seen = SeenKeys(key, one, (key % 2).astype(np.int32), np.ones(len(key), np.uint8))
        tiny.observe([seen] * operators, [SeenPairs(0, 1, key, key, one)], np.ones((operators, 2)))
        tiny.plan()
    graph = tiny.graph([str(i) for i in range(operators)])
    placed = partition(graph, 3).slot
    spared(graph, placed, np.zeros(len(placed), np.int32), 3)
