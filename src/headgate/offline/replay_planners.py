"""The planners of `headgate replay`, behind one door.

Before the first row that counts, a planner sees the first window. Then it is asked at the start of
every period (planners that start from scratch) and at the end of every epoch (the incremental one)
for entries to change. `oracle` alone is shown the period to come: it is a bound, not a planner.

Those to compare with register from `headgate-lab` (`headgate.planner.registry`). Headgate's first
plan and the oracle use the partitioner of `headgate analyze`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from headgate.arrays import I32, I64
from headgate.errors import HeadgateError
from headgate.offline.replay_owners import (
    NO_ENTRY,
    SKETCH_PAIRS,
    Epoch,
    Owners,
    SplitOwners,
    Trace,
    window_graph,
)
from headgate.planner.compiling import compile_kernels
from headgate.planner.incremental import IncrementalPlanner, IncrementalSettings
from headgate.planner.key_graph import KeyGraph, imbalance_of
from headgate.planner.partition import partition
from headgate.planner.registry import load, registered, why_unknown
from headgate.routing.table import hash_table

FIRST_PLAN_TRIES = 16
"""Seeds of the first plan. Its outline stays for the whole run, so it is worth half a second."""
TRIAL_TRIES = 2
"""Seeds of the plans that are made to choose an anchor."""


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
        changes = []
        for k, numbers, slots in _by_column(owners.trace, graph, self._plan(graph, o)):
            entry = np.full(len(owners.entry[k]), NO_ENTRY, np.int32)
            entry[numbers] = slots
            changed = np.flatnonzero(entry != owners.entry[k])
            changes.append(Change(k, changed, entry[changed]))
        return changes


class Incremental:
    """Headgate's own planner, fed as the manager feeds it on Spark: by bounded statistics."""

    planner: IncrementalPlanner

    def __init__(self, options: ReplayOptions, columns: int) -> None:
        self._options, self._columns = options, columns

    def begin(self, owners: Owners) -> list[Change]:
        """One plan from scratch; then the window is shown to the planner, epoch by epoch."""
        o = self._options
        self.planner = IncrementalPlanner(
            self._columns,
            owners.ties,
            o.slots,
            horizon_rows=o.period,
            alpha=o.alpha,
            settings=o.settings,
            seed=o.seed,
            keys_max=o.keys_max,
            pairs_max=SKETCH_PAIRS * o.slots,
        )
        epochs = cut(0, o.window, o.epoch)
        changes = first_plan(owners, epochs, o, FIRST_PLAN_TRIES)
        for rows in epochs:
            self._observe(owners, owners.route(*rows))
        return changes

    def period(self, owners: Owners, first: int) -> list[Change]:
        return []

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        """What the planner wants changed now, and the entries of keys that it forgot."""
        self._observe(owners, epoch)
        changes = []
        for moves in self.planner.plan():
            h = owners.trace.keys[moves.operator].h
            changes.append(Change(moves.operator, np.searchsorted(h, moves.h), moves.target))
        for k, gone in enumerate(self.planner.released()):
            numbers = np.searchsorted(owners.trace.keys[k].h, gone)
            changes.append(Change(k, numbers, np.full(len(gone), NO_ENTRY, np.int32)))
        return changes

    def _observe(self, owners: Owners, epoch: Epoch) -> None:
        self.planner.observe(
            owners.seen_keys(epoch), owners.seen_pairs(epoch), owners.slot_rows(epoch)
        )


def first_plan(
    owners: Owners, epochs: list[tuple[int, int]], options: ReplayOptions, tries: int
) -> list[Change]:
    """Plan from scratch on these rows, and install it."""
    graph = owners.first_graph(epochs)
    plan = partition(graph, options.slots, alpha=options.alpha, seed=options.seed, tries=tries)
    changes = _by_column(owners.trace, graph, plan.slot)
    for change in changes:
        owners.install(*change)
    return changes


def choose_anchor(trace: Trace, options: ReplayOptions) -> int:
    """The key to route by: planned on one half of the first window, the cheapest on the other.

    The price of an anchor is its merge rows per row, plus how much fuller than the mean its
    fullest slot is: both are work, in rows per row.
    """
    half = max(1, options.window // 2)
    prices = []
    for anchor in range(len(trace.keys)):
        owners = SplitOwners(trace, options.slots, anchor)
        first_plan(owners, cut(0, half, options.epoch), options, TRIAL_TRIES)
        epochs = [owners.route(*rows) for rows in cut(half, options.window, options.epoch)]
        merges = sum(owners.merge_rows(epoch) for epoch in epochs)
        rows = sum((epoch.slot_rows(options.slots) for epoch in epochs), np.zeros(1))
        full = imbalance_of(np.atleast_2d(rows))[-1]
        prices.append(merges / max(1, options.window - half) + float(full) - 1)
    return int(np.argmin(prices))


def cut(first: int, end: int, step: int) -> list[tuple[int, int]]:
    """Rows as epochs; the last may be shorter."""
    return [(start, min(start + step, end)) for start in range(first, end, step)]


def hash_slots(graph: KeyGraph, options: ReplayOptions) -> I32:
    return hash_table(options.slots).route(graph.h).astype(np.int32)


def _best(graph: KeyGraph, options: ReplayOptions) -> I32:
    return partition(graph, options.slots, alpha=options.alpha, seed=options.seed).slot


PLANNERS: dict[str, Callable[[ReplayOptions, int], Planner]] = {
    "hash": lambda options, _: FromScratch(options, hash_slots, once=True),
    "headgate": Incremental,
    "oracle": lambda options, _: FromScratch(options, _best, ahead=True),
}


def make_planner(options: ReplayOptions, columns: int) -> Planner:
    """The planner of that name, for so many key columns; compiled, as replay times it."""
    name = options.planner
    if name == "headgate":
        compile_kernels(columns)
    if name in PLANNERS:
        return PLANNERS[name](options, columns)
    if name not in registered("replay"):
        raise HeadgateError(why_unknown(name, PLANNERS, "replay"), planner=name)
    planner: Planner = load("replay", name)(options, columns)
    return planner


def _by_column(trace: Trace, graph: KeyGraph, slot: I32) -> list[Change]:
    """A plan of a graph's vertices as owners of the keys of each column."""
    changes = []
    for k, column in enumerate(trace.keys):
        mine = slice(graph.starts[k], graph.starts[k + 1])
        changes.append(Change(k, np.searchsorted(column.h, graph.h[mine]), slot[mine]))
    return changes
