"""Replay: a planner against a recorded stream, without Spark, measured on rows it has not seen.

The first `window` rows are for fitting only. Then come periods of `period` rows, cut into epochs of
`epoch` rows (the last of a period may be shorter); rows after the last full period are not used. A
plan made after an epoch or period holds from the next row on, so every figure is about rows
*after* the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.errors import HeadgateError
from headgate.offline.replay_owners import Owners
from headgate.offline.replay_planners import Change, ReplayOptions, make_planner, timed
from headgate.offline.replay_split import SplitIncremental, SplitOwners, choose_anchor
from headgate.offline.replay_trace import Trace

F64 = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called after every period with periods done and periods in all."""


@dataclass
class PeriodRecord:
    """What one period showed. Lists have one entry per key column."""

    period: int
    first_row: int
    locality: float
    imbalance: list[float]
    imbalance_epoch: list[float]
    imbalance_floor: list[float]
    moves: int
    adoptions: int
    merge_rows: int
    plan_seconds: float


def replay(
    trace: Trace, options: ReplayOptions, progress: Progress | None = None
) -> dict[str, Any]:
    """Run one planner over a trace; the result is what `--json` writes."""
    periods = _refuse(trace, options)
    owners, planner = _players(trace, options)
    for column, seen in zip(trace.keys, owners.seen, strict=True):
        seen[column.number[: options.window]] = True
    started = [entry.copy() for entry in owners.entry]
    changes, fit_seconds = timed(lambda: planner.begin(owners))
    for entry, before in zip(owners.entry, started, strict=True):
        entry[:] = before
    initial_moves = _install(owners, changes)[0]
    records: list[PeriodRecord] = []
    slowest = 0.0
    for n in range(periods):
        first = options.window + n * options.period
        record, longest = _run_period(owners, planner, options, n, first)
        records.append(record)
        slowest = max(slowest, longest)
        if progress is not None:
            progress(n + 1, periods)
    found = _summary(trace, options, records, initial_moves, fit_seconds, slowest)
    if isinstance(owners, SplitOwners):
        found["anchor"] = trace.keys[owners.anchor].name
    return found


def _players(trace: Trace, options: ReplayOptions) -> tuple[Owners, Any]:
    if options.split:
        anchor = choose_anchor(trace, options)
        planner = SplitIncremental(options, len(trace.keys), anchor)
        return SplitOwners(trace, options.slots, anchor), planner
    born_local = options.planner == "headgate" and not options.strict
    owners = Owners(
        trace, options.slots, born_local=born_local, first_by_hash=options.first_by_hash
    )
    return owners, make_planner(options, len(trace.keys))


def _run_period(
    owners: Owners, planner: Any, options: ReplayOptions, n: int, first: int
) -> tuple[PeriodRecord, float]:
    columns, slots = len(owners.trace.keys), options.slots
    moves = adoptions = merge_rows = local = 0
    times = []
    if n:
        changes, seconds = timed(lambda: planner.period(owners, first))
        times.append(seconds)
        moves += _install(owners, changes)[0]
    total = np.zeros((columns, slots))
    per_epoch = []
    for start in range(first, first + options.period, options.epoch):
        epoch = owners.route(start, min(start + options.epoch, first + options.period))
        local += epoch.local_pairs
        loads = epoch.slot_rows(slots)
        total += loads
        per_epoch.append(_imbalance(loads))
        merge_rows += owners.merge_rows(epoch)
        owners.mark_seen(epoch, born=False)
        changes, seconds = timed(lambda now=epoch: planner.epoch(owners, now))  # type: ignore[misc]
        times.append(seconds)
        moved, adopted = _install(owners, changes)
        moves, adoptions = moves + moved, adoptions + adopted
        owners.mark_seen(epoch, born=True)
    record = PeriodRecord(
        period=n,
        first_row=first,
        locality=local / (options.period * (columns - 1)),
        imbalance=_imbalance(total).tolist(),
        imbalance_epoch=np.mean(per_epoch, axis=0).tolist(),
        imbalance_floor=_floor(owners.trace, first, first + options.period, slots),
        moves=moves,
        adoptions=adoptions,
        merge_rows=merge_rows,
        plan_seconds=sum(times),
    )
    return record, max(times)


def _install(owners: Owners, changes: Any) -> tuple[int, int]:
    moves = adoptions = 0
    change: Change
    for change in changes:
        moved, adopted = owners.install(*change)
        moves, adoptions = moves + moved, adoptions + adopted
    return moves, adoptions


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


def _summary(
    trace: Trace,
    options: ReplayOptions,
    records: list[PeriodRecord],
    initial_moves: int,
    fit_seconds: float,
    slowest: float,
) -> dict[str, Any]:
    periods = len(records)
    measured = periods * options.period
    unused = trace.rows - options.window - measured

    merge_rows = sum(record.merge_rows for record in records) / measured

    def mean(name: str) -> Any:
        return np.mean([getattr(record, name) for record in records], axis=0).tolist()

    return {
        "planner": options.planner,
        "keys": [column.name for column in trace.keys],
        "distinct_keys": [len(column.h) for column in trace.keys],
        "rows": trace.rows,
        "rows_measured": measured,
        "rows_unused": unused,
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
        "plan_seconds": sum(r.plan_seconds for r in records),
        "initial_moves": initial_moves,
        "initial_plan_seconds": fit_seconds,
        "settings": asdict(options),
        "per_period": [asdict(record) for record in records],
    }
