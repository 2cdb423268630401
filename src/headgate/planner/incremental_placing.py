"""The incremental planner at work: a few keys at a time, and now and then a fresh look.

Greedy moves of single keys do not find their way out of every corner: when large keys should change
places, their partners hold them. So every few epochs the pairs it remembers are partitioned from
scratch, parts renamed so that most keys stay; if that pays, it is installed. The first plan is such
a fresh look too. What it draws in outline stays, and what was learnt since can hardly mend it; so a
plan is *outgrown* once twice as much is known. One that knows twice as many keys (of those that it
did not forget) is installed whatever it costs, if it is better at all: most keys came after the
plan before, and found their place beside what little it knew. One that knows twice as many rows is,
if it is more than chance (`fresh_look`). Both happen ever more rarely, and such a plan is the best
of many. What the planner expects of itself is measured on the pairs it remembers, which flatters
it; the difference to what came true is learnt and taken off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from headgate.arrays import F64, I32, U64
from headgate.planner.distance import Distances
from headgate.planner.fresh_look import pays, worth, worth_for_others
from headgate.planner.incremental import IncrementalPlanner, KeyMoves, Reason, SeenKeys, SeenPairs
from headgate.planner.key_graph import KeyGraph, placement
from headgate.planner.partition import partition, relabel, spared
from headgate.planner.placing import Observation, Pins, Proposal, Task
from headgate.routing.table import RoutingTable

LEARNING = 0.3  # weight of the latest epoch in how much the planner flatters itself
LOOKS = 2  # fresh looks per memory: what they plan from has half faded by the next
SHARE_MAX = 0.05  # of the time, for fresh looks
# Seeds of a plan whose outline stays. Each takes 0.05 s for 100,000 pairs of 8,000 keys in 4 slots,
# 0.3 s for those of 70,000 keys in 16; planning runs beside the epochs.
OUTLINE_TRIES = 16


class IncrementalPlacing:
    """Feeds an `IncrementalPlanner` with observations and turns its moves into pins."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index = {name: i for i, name in enumerate(task.operators)}
        self._look_every = max(1, round(task.memory_epochs / LOOKS))
        self._look_in = 0
        self._keys_weighed = self._rows_weighed = 0.0
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
        """A plan from scratch, if it pays until the next one, or if the last one is outgrown."""
        task = self._task
        assert self._planner is not None
        graph = self._planner.graph(task.operators)
        if not graph.edges or graph.vertices < 2 * task.slots:
            return None
        current = placement(graph, tables)
        keys = int((graph.load >= self._planner.settings.least_rows).sum())  # others are left alone
        new_keys = keys >= 2 * self._keys_weighed
        new_rows = graph.weight >= 2 * self._rows_weighed
        tries = OUTLINE_TRIES if new_keys or new_rows else None
        planned = self._from_scratch(graph, current, tries)
        rows = self._look_every / seen.epochs * sum(p.rows.sum() for p in seen.pairs.values())
        tolerated = 1.0 + self._planner.tolerance
        verdict = pays(
            graph, current, planned, task, tolerated, float(rows), self._waited, self._distances
        )
        self._waited = verdict.waited
        was, becomes = (worth(graph, x, self._distances) for x in (current, planned))
        is_due = verdict.pays or (new_keys and becomes > was)
        if is_due or new_rows:
            self._rows_weighed = graph.weight
        if is_due or new_keys:
            self._keys_weighed = keys
        if not is_due and not (new_rows and self._holds_for_others(graph, current, planned)):
            return None
        self._waited, self._keys_weighed = 0.0, keys
        self._planner.plan()  # what it thought so far is overtaken
        self._moves, self._expected = {}, None
        imbalance = graph.imbalance(planned, task.slots, task.allowed).tolist()
        return Proposal(
            _pins(graph, current, planned, tables),
            f"plan from scratch: {verdict.why}",
            graph.locality(planned) - self._flattery,
            dict(zip(task.operators, imbalance, strict=True)),
            time.perf_counter() - started,
        )

    def _from_scratch(self, graph: KeyGraph, current: I32, tries: int | None) -> I32:
        """A plan that leaves alone what it need not move."""
        task = self._task
        planned = self._partition(graph, tries)
        if self._distances is None:
            planned = relabel(graph, planned, current, task.slots, task.allowed)
        return spared(
            graph,
            planned,
            current,
            task.slots,
            alpha=task.alpha,
            distances=self._distances,
            allowed=task.allowed,
        )

    def _partition(self, graph: KeyGraph, tries: int | None) -> I32:
        task = self._task
        return partition(
            graph,
            task.slots,
            alpha=task.alpha,
            seed=task.seed,
            distances=self._distances,
            tries=tries,
            allowed=task.allowed,
        ).slot

    def _holds_for_others(self, graph: KeyGraph, current: I32, planned: I32) -> bool:
        """Are rows that the plan was not made from more local with it than those it knows now?"""
        if np.array_equal(current, planned):
            return False
        return worth_for_others(
            graph,
            planned,
            lambda half: self._partition(half, OUTLINE_TRIES),
            self._task.seed,
            self._distances,
        ) > worth(graph, current, self._distances)


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
