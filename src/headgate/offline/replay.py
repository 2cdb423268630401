"""Replay: a planner against a recorded stream, without Spark, measured on rows it has not seen.

The first `window` rows are for fitting only. Then come periods of `period` rows, cut into epochs of
`epoch` rows (the last of a period may be shorter); rows after the last full period are not used. A
plan made after an epoch or period holds from the next row on, so every figure is about rows
*after* the plan.
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
    Change,
    Planner,
    ReplayOptions,
    choose_anchor,
    cut,
    make_planner,
)

Progress = Callable[[int, int], None]
"""Called after every period with periods done and periods in all."""


def replay(
    trace: Trace, options: ReplayOptions, progress: Progress | None = None
) -> dict[str, Any]:
    """Run one planner over a trace; the result is what `--json` writes."""
    periods = _refuse(trace, options)
    planner = make_planner(options, len(trace.keys))
    if options.split:
        owners: Owners = SplitOwners(trace, options.slots, choose_anchor(trace, options))
    else:
        born_local = options.planner == "headgate" and not options.strict
        owners = Owners(
            trace, options.slots, born_local=born_local, first_by_hash=options.first_by_hash
        )
    for column, seen in zip(trace.keys, owners.seen, strict=True):
        seen[column.number[: options.window]] = True
    changes, fit_seconds = _timed(lambda: planner.begin(owners))
    for entry in owners.entry:
        entry[:] = -1  # a planner may have installed its plan to look at it
    initial_moves = _install(owners, changes)[0]
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
    times = []
    if n:
        changes, seconds = _timed(lambda: planner.period(owners, first))
        times.append(seconds)
        moves += _install(owners, changes)[0]
    total = np.zeros((columns, slots))
    per_epoch = []
    for rows in cut(first, end, options.epoch):
        epoch = owners.route(*rows)
        local += epoch.local_pairs
        loads = epoch.slot_rows(slots)
        total += loads
        per_epoch.append(_imbalance(loads))
        merge_rows += owners.merge_rows(epoch)
        owners.mark_seen(epoch, born=False)
        changes, seconds = _timed(lambda now=epoch: planner.epoch(owners, now))  # type: ignore[misc]
        times.append(seconds)
        moved, adopted = _install(owners, changes)
        moves, adoptions = moves + moved, adoptions + adopted
        owners.mark_seen(epoch, born=True)
    record = {
        "period": n,
        "first_row": first,
        "locality": local / (options.period * (columns - 1)),
        "imbalance": _imbalance(total).tolist(),
        "imbalance_epoch": np.mean(per_epoch, axis=0).tolist(),
        "imbalance_floor": _floor(owners.trace, first, end, slots),
        "moves": moves,
        "adoptions": adoptions,
        "merge_rows": merge_rows,
        "plan_seconds": sum(times),
    }
    return record, max(times)


def _install(owners: Owners, changes: Iterable[Change]) -> tuple[int, int]:
    """Moves and adoptions, in all."""
    counts = [owners.install(*change) for change in changes]
    return sum(moved for moved, _ in counts), sum(adopted for _, adopted in counts)


def _timed(plan: Callable[[], list[Change]]) -> tuple[list[Change], float]:
    started = time.perf_counter()
    return plan(), time.perf_counter() - started


def _imbalance(loads: F64) -> F64:
    """Max/mean of every row."""
    return np.asarray(loads.max(axis=1) / loads.mean(axis=1))


def _floor(trace: Trace, first: int, end: int, slots: int) -> list[float]:
    """What the heaviest key alone forces, if it stays in one slot for the whole period."""
    heaviest = [np.bincount(column.number[first:end]).max() for column in trace.keys]
    return [max(1.0, slots * float(rows) / (end - first)) for rows in heaviest]


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
