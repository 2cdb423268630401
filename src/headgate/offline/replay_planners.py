"""The planners of `headgate replay`, behind one door.

Before the first row that counts, a planner sees the first window. Then it is asked at the start of
every period (planners that start from scratch) and at the end of every epoch (the incremental one)
for entries to change. `oracle` alone is shown the period to come: it is a bound, not a planner.

Those to compare with register from `headgate-lab` (`headgate.planner.registry`). Headgate's first
plan and the oracle use the partitioner of `headgate analyze`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from headgate.errors import HeadgateError
from headgate.offline.replay_owners import SKETCH_PAIRS, Epoch, Owners
from headgate.offline.replay_trace import I32, I64, Trace
from headgate.planner.compiling import compile_kernels
from headgate.planner.incremental import IncrementalPlanner
from headgate.planner.incremental_words import IncrementalSettings
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition
from headgate.planner.registry import load, registered, why_unknown
from headgate.routing.table import hash_table
from headgate.sketch.space_saving import PairSketch

FIRST_PLAN_TRIES = 16
"""Seeds of the first plan. Its outline stays for the whole run, so it is worth half a second."""


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay: see `headgate replay --help`."""

    planner: str
    window: int
    period: int
    slots: int = 6
    epoch: int = 500
    alpha: float = 1.03
    seed: int = 0
    strict: bool = False
    split: bool = False
    first_by_hash: bool = False
    keys_max: int = 262_144
    settings: IncrementalSettings = field(default_factory=IncrementalSettings)


class Change(NamedTuple):
    """New owners of keys (by number) of one key column; -1 takes an entry away."""

    column: int
    numbers: I64
    slots: I32


class Planner(Protocol):
    """What a replay asks of a planner."""

    def begin(self, owners: Owners) -> list[Change]:
        """The plan of the first window."""

    def period(self, owners: Owners, first: int) -> list[Change]:
        """Asked before row `first`, where a period begins; not for the first one."""

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        """Asked after every epoch that counts."""


class FromScratch:
    """Plans a whole window at once; keys outside it lose their entry."""

    def __init__(
        self, options: ReplayOptions, plan: Callable[[KeyGraph, ReplayOptions], I32], **how: bool
    ) -> None:
        self._options, self._plan = options, plan
        self._once, self._ahead = how.get("once", False), how.get("ahead", False)

    def begin(self, owners: Owners) -> list[Change]:
        return self._fit(owners, self._options.window)

    def period(self, owners: Owners, first: int) -> list[Change]:
        return [] if self._once else self._fit(owners, first)

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        return []

    def _fit(self, owners: Owners, first: int) -> list[Change]:
        o = self._options
        rows = (first, first + o.period) if self._ahead else (first - o.window, first)
        graph = window_graph(owners.trace, *rows)
        slot = self._plan(graph, o)
        changes = []
        for k, column in enumerate(owners.trace.keys):
            entry = np.full(len(column.h), -1, np.int32)
            mine = slice(graph.starts[k], graph.starts[k + 1])
            entry[np.searchsorted(column.h, graph.h[mine])] = slot[mine]
            numbers = np.flatnonzero(entry != owners.entry[k])
            changes.append(Change(k, numbers, entry[numbers]))
        return changes


def own_planner(
    options: ReplayOptions, columns: int, edges: list[tuple[int, int]]
) -> IncrementalPlanner:
    """Headgate's planner for keys of so many columns, of which these are tied; ready to run."""
    planner = IncrementalPlanner(
        columns,
        edges,
        options.slots,
        horizon_rows=options.period,
        alpha=options.alpha,
        settings=options.settings,
        seed=options.seed,
        keys_max=options.keys_max,
        pairs_max=SKETCH_PAIRS * options.slots,
    )
    compile_kernels(columns)
    return planner


class Incremental:
    """Headgate's own planner, fed as the manager feeds it on Spark: by bounded statistics."""

    def __init__(self, options: ReplayOptions, columns: int) -> None:
        self._options = options
        self.planner = own_planner(options, columns, [(k, k + 1) for k in range(columns - 1)])

    def begin(self, owners: Owners) -> list[Change]:
        """One plan from scratch; then the window is shown to the planner, epoch by epoch."""
        o = self._options
        graph = window_graph(owners.trace, 0, o.window, pairs_max=SKETCH_PAIRS * o.slots)
        slot = partition(graph, o.slots, alpha=o.alpha, seed=o.seed, tries=FIRST_PLAN_TRIES).slot
        changes = []
        for k, column in enumerate(owners.trace.keys):
            mine = slice(graph.starts[k], graph.starts[k + 1])
            numbers = np.searchsorted(column.h, graph.h[mine])
            changes.append(Change(k, numbers, slot[mine]))
            owners.install(k, numbers, slot[mine])
        for first in range(0, o.window, o.epoch):
            self._observe(owners, owners.route(first, min(first + o.epoch, o.window)))
        return changes

    def period(self, owners: Owners, first: int) -> list[Change]:
        return []

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        self._observe(owners, epoch)
        return planned(owners, self.planner)

    def _observe(self, owners: Owners, epoch: Epoch) -> None:
        self.planner.observe(
            owners.seen_keys(epoch),
            owners.seen_pairs(epoch),
            epoch.slot_rows(self._options.slots),
        )


def planned(owners: Owners, planner: IncrementalPlanner) -> list[Change]:
    """What the planner wants changed now, and the entries of keys that it forgot."""
    changes = []
    for moves in planner.plan():
        h = owners.trace.keys[moves.operator].h
        changes.append(Change(moves.operator, np.searchsorted(h, moves.h), moves.target))
    for k, gone in enumerate(planner.released()):
        numbers = np.searchsorted(owners.trace.keys[k].h, gone)
        changes.append(Change(k, numbers, np.full(len(gone), -1, np.int32)))
    return changes


def _best(graph: KeyGraph, options: ReplayOptions) -> I32:
    return partition(graph, options.slots, alpha=options.alpha, seed=options.seed).slot


def hash_slots(graph: KeyGraph, options: ReplayOptions) -> I32:
    return hash_table(options.slots).route(graph.h).astype(np.int32)


PLANNERS: dict[str, Callable[[ReplayOptions, int], Planner]] = {
    "hash": lambda options, _: FromScratch(options, hash_slots, once=True),
    "headgate": Incremental,
    "oracle": lambda options, _: FromScratch(options, _best, ahead=True),
}


def make_planner(options: ReplayOptions, columns: int) -> Planner:
    """The planner of that name, for so many key columns."""
    name = options.planner
    if name in PLANNERS:
        return PLANNERS[name](options, columns)
    if name not in registered("replay"):
        raise HeadgateError(why_unknown(name, PLANNERS, "replay"), planner=name)
    planner: Planner = load("replay", name)(options, columns)
    return planner


def window_graph(trace: Trace, first: int, end: int, pairs_max: int | None = None) -> KeyGraph:
    """The key graph of some rows: exact, or by a sketch of `pairs_max` pairs an edge."""
    names = [column.name for column in trace.keys]
    pairs = []
    for k in range(len(names) - 1):
        a, b = trace.keys[k], trace.keys[k + 1]
        ha, hb = a.h[a.number[first:end]], b.h[b.number[first:end]]
        if pairs_max is None:
            pairs.append((k, k + 1, ha, hb, np.ones(len(ha))))
        else:
            sketch = PairSketch(pairs_max)
            sketch.update(ha, hb)
            pairs.append((k, k + 1, sketch.a, sketch.b, sketch.count - sketch.error))
    return KeyGraph.build(names, pairs)


def timed(changes: Callable[[], Sequence[Change]]) -> tuple[Sequence[Change], float]:
    started = time.perf_counter()
    return changes(), time.perf_counter() - started
