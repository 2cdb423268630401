"""Replay: a planner against a recorded stream, without Spark, measured on rows it has not seen.

The first `window` rows are for fitting only. Then come periods of `period` rows, cut into epochs of
`epoch` rows (the last of a period may be shorter); rows after the last full period are not used. A
plan made after an epoch or period holds from the next row on, so every figure is about rows
*after* the plan. `oracle` alone sees the period to come: it is a bound, not a planner.

Planners to compare with register from `headgate-lab` (`headgate.planner.registry`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headgate.arrays import F64, I32, I64
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
from headgate.planner.incremental import IncrementalPlanner, IncrementalSettings
from headgate.planner.incremental_placing import compile_kernels
from headgate.planner.key_graph import KeyGraph, imbalance_of
from headgate.planner.partition import partition
from headgate.planner.registry import load, registered, why_unknown

FIRST_PLAN_TRIES = 16
"""Seeds of the first plan. Its outline stays for the whole run, so it is worth half a second."""
TRIAL_TRIES = 2
"""Seeds of the plans that are made to choose an anchor."""

Progress = Callable[[int, int], None]
"""Called after every period with periods done and periods in all."""


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
    keys_max: int = 262_144
    settings: IncrementalSettings = field(default_factory=IncrementalSettings)


# --- planners ---------------------------------------------------------------------------------
class Change(NamedTuple):
    """New owners of keys (by number) of one key column; -1 takes an entry away."""

    column: int
    numbers: I64
    slots: I32


class Planner:
    """Says which entries to change: for the first window, before each period, after each epoch."""

    def __init__(self, options: ReplayOptions) -> None:
        self.options = options

    def begin(self, owners: Owners) -> list[Change]:
        """The plan of the first window."""
        raise NotImplementedError

    def period(self, owners: Owners, first: int) -> list[Change]:
        """Called before row `first`, where a period begins; not for the first one."""
        return []

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        """Called after every epoch that counts."""
        return []


class Hashed(Planner):
    """Plain hash grouping: no key has an entry."""

    def begin(self, owners: Owners) -> list[Change]:
        return []


class FromScratch(Planner):
    """Plans a whole window at once; keys outside it lose their entry.

    `once`: the first window is the last. `ahead`: the window is the period to come.
    """

    def __init__(
        self,
        options: ReplayOptions,
        plan: Callable[[KeyGraph, ReplayOptions], I32],
        *,
        once: bool = False,
        ahead: bool = False,
    ) -> None:
        super().__init__(options)
        self._plan, self._once, self._ahead = plan, once, ahead

    def begin(self, owners: Owners) -> list[Change]:
        return self._fit(owners, self.options.window)

    def period(self, owners: Owners, first: int) -> list[Change]:
        return [] if self._once else self._fit(owners, first)

    def _fit(self, owners: Owners, first: int) -> list[Change]:
        o = self.options
        rows = (first, first + o.period) if self._ahead else (first - o.window, first)
        graph = window_graph(owners.trace, *rows)
        changes = []
        for k, numbers, slots in _by_column(owners.trace, graph, self._plan(graph, o)):
            entry = np.full(len(owners.entry[k]), NO_ENTRY, np.int32)
            entry[numbers] = slots
            changed = np.flatnonzero(entry != owners.entry[k])
            changes.append(Change(k, changed, entry[changed]))
        return changes


class Incremental(Planner):
    """Headgate's own planner, fed as the manager feeds it on Spark: with bounded statistics."""

    planner: IncrementalPlanner

    def begin(self, owners: Owners) -> list[Change]:
        """One plan from scratch; then the planner observes the window, epoch by epoch."""
        o = self.options
        self.planner = IncrementalPlanner(
            len(owners.trace.keys),
            o.slots,
            horizon_rows=o.period,
            alpha=o.alpha,
            settings=o.settings,
            seed=o.seed,
            keys_max=o.keys_max,
            pairs_max=SKETCH_PAIRS * o.slots,
        )
        epochs = _cut(0, o.window, o.epoch)
        changes = first_plan(owners, epochs, o, FIRST_PLAN_TRIES)
        for rows in epochs:
            self._observe(owners, owners.route(*rows))
        return changes

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        """What the planner wants changed now, and the entries of keys that it forgot."""
        self._observe(owners, epoch)
        keys, changes = owners.trace.keys, []
        for moves in self.planner.plan():
            numbers = np.searchsorted(keys[moves.operator].h, moves.h)
            changes.append(Change(moves.operator, numbers, moves.target))
        for k, gone in enumerate(self.planner.released()):
            no_entry = np.full(len(gone), NO_ENTRY, np.int32)
            changes.append(Change(k, np.searchsorted(keys[k].h, gone), no_entry))
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
    _install(owners, changes)
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
        first_plan(owners, _cut(0, half, options.epoch), options, TRIAL_TRIES)
        epochs = [owners.route(*rows) for rows in _cut(half, options.window, options.epoch)]
        merges = sum(owners.merge_rows(epoch) for epoch in epochs)
        rows = sum((epoch.slot_rows(options.slots) for epoch in epochs), np.zeros(1))
        full = imbalance_of(np.atleast_2d(rows))[-1]
        prices.append(merges / max(1, options.window - half) + float(full) - 1)
    return int(np.argmin(prices))


def _best(graph: KeyGraph, options: ReplayOptions) -> I32:
    return partition(graph, options.slots, alpha=options.alpha, seed=options.seed).slot


PLANNERS: dict[str, Callable[[ReplayOptions], Planner]] = {
    "hash": Hashed,
    "headgate": Incremental,
    "oracle": lambda options: FromScratch(options, _best, ahead=True),
}


def make_planner(options: ReplayOptions) -> Planner:
    name = options.planner
    if name in PLANNERS:
        return PLANNERS[name](options)
    if name not in registered("replay"):
        raise HeadgateError(why_unknown(name, PLANNERS, "replay"), planner=name)
    planner: Planner = load("replay", name)(options)
    return planner


# --- the run ----------------------------------------------------------------------------------
def replay(
    trace: Trace, options: ReplayOptions, progress: Progress | None = None
) -> dict[str, Any]:
    """Run one planner over a trace; the result is what `--json` writes."""
    periods = _refuse(trace, options)
    planner = make_planner(options)
    if options.planner == "headgate":
        compile_kernels(len(trace.keys))  # plans are timed
    if options.split:
        owners: Owners = SplitOwners(trace, options.slots, choose_anchor(trace, options))
    else:
        born_local = options.planner == "headgate" and not options.strict
        owners = Owners(trace, options.slots, born_local=born_local)
    for column, seen in zip(trace.keys, owners.seen, strict=True):
        seen[column.number[: options.window]] = True
    begun = time.perf_counter()
    changes = planner.begin(owners)
    fit_seconds = time.perf_counter() - begun
    for entry in owners.entry:
        entry[:] = NO_ENTRY  # a planner may have installed its plan to look at it
    initial_moves, _ = _install(owners, changes)
    records = []
    slowest = 0.0
    for n in range(periods):
        record, longest = _run_period(owners, planner, options, n)
        records.append(record)
        slowest = max(slowest, longest)
        if progress is not None:
            progress(n + 1, periods)
    measured = periods * options.period
    merge_rows = sum(record["merge_rows"] for record in records) / measured

    def mean(name: str) -> Any:
        return np.mean([record[name] for record in records], axis=0).tolist()

    found = {
        "planner": options.planner,
        "keys": [column.name for column in trace.keys],
        "distinct_keys": [len(column.h) for column in trace.keys],
        "rows": trace.rows,
        "rows_measured": measured,
        "rows_unused": trace.rows - options.window - measured,
        "periods": periods,
        "locality": mean("locality"),
        "imbalance": mean("imbalance"),
        "imbalance_epoch": mean("imbalance_epoch"),
        "imbalance_floor": mean("imbalance_floor"),
        "moves_per_period": mean("moves"),
        "adoptions_per_period": mean("adoptions"),
        "merge_rows_per_row": merge_rows,
        "remote_plus_merge_per_row": (1 - mean("locality")) * (len(trace.keys) - 1) + merge_rows,
        "plan_seconds_max": slowest,
        "plan_seconds": sum(record["plan_seconds"] for record in records),
        "initial_moves": initial_moves,
        "initial_plan_seconds": fit_seconds,
        "settings": asdict(options) | {"settings": options.settings._asdict()},
        "per_period": records,
    }
    if isinstance(owners, SplitOwners):
        found["anchor"] = trace.keys[owners.anchor].name
    return found


def _run_period(
    owners: Owners, planner: Planner, options: ReplayOptions, n: int
) -> tuple[dict[str, Any], float]:
    """What one period showed, lists with one entry per key column; and the longest plan's time."""
    columns, slots = len(owners.trace.keys), options.slots
    first = options.window + n * options.period
    end = first + options.period
    moves = adoptions = merge_rows = local = 0
    plan_seconds = []
    total, per_epoch = np.zeros((columns, slots)), []
    if n:
        begun = time.perf_counter()
        changes = planner.period(owners, first)
        plan_seconds.append(time.perf_counter() - begun)
        moves, _ = _install(owners, changes)
    for rows in _cut(first, end, options.epoch):
        epoch = owners.route(*rows)
        local += epoch.local_pairs
        loads = epoch.slot_rows(slots)
        total += loads
        per_epoch.append(_imbalance(loads))
        merge_rows += owners.merge_rows(epoch)
        if not owners.born_local:  # a key born local has no owner in its first epoch
            owners.mark_seen(epoch)
        begun = time.perf_counter()
        changes = planner.epoch(owners, epoch)
        plan_seconds.append(time.perf_counter() - begun)
        moved, adopted = _install(owners, changes)
        moves, adoptions = moves + moved, adoptions + adopted
        owners.mark_seen(epoch)
    # What the heaviest key alone forces, if it stays in one slot for the whole period.
    heaviest = [np.bincount(column.number[first:end]).max() for column in owners.trace.keys]
    record = {
        "period": n,
        "first_row": first,
        "locality": local / (options.period * (columns - 1)),
        "imbalance": _imbalance(total).tolist(),
        "imbalance_epoch": np.mean(per_epoch, axis=0).tolist(),
        "imbalance_floor": [max(1.0, slots * float(rows) / (end - first)) for rows in heaviest],
        "moves": moves,
        "adoptions": adoptions,
        "merge_rows": merge_rows,
        "plan_seconds": sum(plan_seconds),
    }
    return record, max(plan_seconds)


def _install(owners: Owners, changes: Iterable[Change]) -> tuple[int, int]:
    """Moves and adoptions, in all."""
    counts = [owners.install(*change) for change in changes]
    return sum(moved for moved, _ in counts), sum(adopted for _, adopted in counts)


def _by_column(trace: Trace, graph: KeyGraph, slot: I32) -> list[Change]:
    """A plan of a graph's vertices as owners of the keys of each column."""
    changes = []
    for k, column in enumerate(trace.keys):
        mine = slice(graph.starts[k], graph.starts[k + 1])
        changes.append(Change(k, np.searchsorted(column.h, graph.h[mine]), slot[mine]))
    return changes


def _cut(first: int, end: int, step: int) -> list[tuple[int, int]]:
    """Rows as epochs; the last may be shorter."""
    return [(start, min(start + step, end)) for start in range(first, end, step)]


def _imbalance(loads: F64) -> F64:
    """Max/mean of every row."""
    return np.asarray(loads.max(axis=1) / loads.mean(axis=1))


def _refuse(trace: Trace, options: ReplayOptions) -> int:
    """How many full periods there are; an error if there is none, or a number makes no sense."""
    for name in ("slots", "window", "period", "epoch"):
        if getattr(options, name) < 1:
            raise HeadgateError(f"{name} is {getattr(options, name)}; it must be at least 1")
    if not (options.alpha >= 1 and math.isfinite(options.alpha)):
        raise HeadgateError(f"alpha is {options.alpha}; max/mean load is never below 1")
    if options.split and (options.planner != "headgate" or options.strict):
        raise HeadgateError("--split is for --planner headgate, and not with --strict")
    periods = (trace.rows - options.window) // options.period
    if periods < 1:
        raise HeadgateError(
            f"the file has {trace.rows:,} rows, too few for a window of {options.window:,} and one "
            f"period of {options.period:,}; give smaller ones",
            rows=trace.rows,
        )
    return periods
