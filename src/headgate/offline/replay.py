"""Replay: a planner against a recorded stream, without Spark, measured on rows it has not seen.

The planner begins with the first row, as the manager of a flow does, and works as it does there
(`replay_planners`). Rows of the first `window` do not count. Then come periods of `period` rows,
cut into epochs of `epoch` rows (the last of a period may be shorter); rows after the last full
period are not used. What is planned after an epoch holds from the next row on, so every figure is
about rows *after* the plan. `oracle` alone sees the period to come: it is a bound, not a planner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from headgate.arrays import F64
from headgate.errors import HeadgateError
from headgate.offline.replay_owners import Owners, SplitOwners, Trace
from headgate.offline.replay_planners import (
    OWN,
    Change,
    Hashed,
    Planner,
    ReplayOptions,
    by_column,
    make_planner,
)
from headgate.planner.incremental_placing import compile_kernels
from headgate.planner.key_graph import imbalance_of
from headgate.planner.partition import partition

TRIAL_TRIES = 2
"""Seeds of the plans that are made to choose an anchor."""

Progress = Callable[[int, int], None]
"""Called after every period with periods done and periods in all."""


def choose_anchor(trace: Trace, options: ReplayOptions) -> int:
    """The key to route by: planned on one half of the first window, the cheapest on the other.

    The price of an anchor is its merge rows per row, plus how much fuller than the mean its
    fullest slot is: both are work, in rows per row.
    """
    half = max(1, options.window // 2)
    prices = []
    for anchor in range(len(trace.keys)):
        owners = SplitOwners(trace, options.slots, anchor)
        graph = owners.first_graph(_cut(0, half, options.epoch))
        tried = partition(
            graph, options.slots, alpha=options.alpha, seed=options.seed, tries=TRIAL_TRIES
        )
        _install(owners, by_column(trace, graph, tried.slot))
        epochs = [owners.route(*rows) for rows in _cut(half, options.window, options.epoch)]
        merges = sum(owners.merge_rows(epoch) for epoch in epochs)
        rows = sum((epoch.slot_rows(options.slots) for epoch in epochs), np.zeros(1))
        full = imbalance_of(np.atleast_2d(rows))[-1]
        prices.append(merges / max(1, options.window - half) + float(full) - 1)
    return int(np.argmin(prices))


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
        owners = Owners(trace, options.slots, born_local=options.born_local)
    begun = time.perf_counter()
    if not isinstance(planner, Hashed):
        for rows in _cut(0, options.window, options.epoch):
            _install(owners, planner.epoch(owners, owners.route(*rows)))
    fit_seconds = time.perf_counter() - begun
    initial_moves = 0
    for k, column in enumerate(trace.keys):
        owners.seen[k][column.number[: options.window]] = True
        known = np.flatnonzero(owners.seen[k])
        initial_moves += int(np.count_nonzero(owners.owner(k, known) != owners.home[k][known]))
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
        "settings": asdict(options),
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
    begun = time.perf_counter()
    moved, _ = _install(owners, planner.period(owners, first))
    if n:
        plan_seconds.append(time.perf_counter() - begun)
        moves = moved
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
    if options.window < options.period and options.planner not in OWN:
        raise HeadgateError(
            f"{options.planner!r} plans once a period, and a window of {options.window:,} rows is "
            f"less than a period of {options.period:,}; give a window of a period at least"
        )
    periods = (trace.rows - options.window) // options.period
    if periods < 1:
        raise HeadgateError(
            f"the file has {trace.rows:,} rows, too few for a window of {options.window:,} and one "
            f"period of {options.period:,}; give smaller ones",
            rows=trace.rows,
        )
    return periods
