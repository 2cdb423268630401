"""How often two scalers change a flow on the same trace, and what their users notice.

A trace is a rate per interval: a day's wave, noise, bursts and a step, all seeded. The flow keeps a
backlog: what it cannot process waits. A scaler sees the rate that came and what a row costs, both
with an error of measurement, and its changes take effect after a delay of one interval. Fewer
reconfigurations alone are worth nothing, so overload and instances paid for are counted as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.arrays import F64
from headgate.planner.tuning.rescaler import Load, RescaleOptions, Rescaler, Wanted
from headgate_lab.planner.tuning.ds2 import RULE, Ds2, Ds2Options


class Scaler(Protocol):
    """What both scalers are."""

    instances: int

    def observe(self, load: Load) -> Wanted | None: ...


@dataclass(frozen=True)
class TraceOptions:
    """A trace; `intervals_per_day` of them make one wave."""

    intervals: int = 2_880
    intervals_per_day: int = 1_440
    mean_demand: float = 6.0
    wave: float = 0.5
    noise: float = 0.06
    bursts: int = 8
    burst_factor: float = 1.8
    burst_intervals: int = 12
    measurement_error: float = 0.03
    seed: int = 7


QUICK = TraceOptions(intervals=720, intervals_per_day=360, bursts=3)
ROW_S = 1e-5
OTHERS: dict[str, dict[str, Any]] = {
    "another seed": {"seed": 11},
    "calm": {"noise": 0.02, "bursts": 0},
    "rough": {"noise": 0.15},
    "a third of the instances": {"mean_demand": 2.0},
    "seven times the instances": {"mean_demand": 40.0},
    "long bursts": {"bursts": 20, "burst_intervals": 60},
}
REAL = {  # file, and seconds of an interval
    "Wikipedia edits by the minute": ("wikipedia_edits_2015_09_12.parquet", 60),
    "US flights by five minutes": ("us_flights_2008_jan_apr.parquet", 300),
    "posts of Congress by the hour": ("congress_posts_text_2020_sample.parquet", 3_600),
}
SCALERS: dict[str, Callable[[int], Scaler]] = {
    "headgate": Rescaler,
    "ds2": Ds2,
    "ds2_factor": lambda start: Ds2(start, Ds2Options(factor=0.25)),
    "ds2_activation_5": lambda start: Ds2(start, Ds2Options(factor=0.25, activation=5)),
    "ds2_median_5": lambda start: Ds2(
        start, Ds2Options(factor=0.25, activation=5, takes_median=True)
    ),
    "ds2_rule": lambda start: Ds2(start, RULE),
}
MOVE_COSTS = (20.0, 60.0, 120.0, 200.0, 300.0, 500.0)
SEEDS = range(101, 107)
CHOSEN_ON: dict[str, dict[str, Any]] = {
    "as the trace above": {},
    "calm": {"noise": 0.02, "bursts": 0},
    "a third of the instances": {"mean_demand": 2.0},
    "a third of the instances, calm": {"mean_demand": 2.0, "noise": 0.02, "bursts": 0},
}


@dataclass(frozen=True)
class Followed:
    """What one scaler did on a trace."""

    reconfigurations: int
    overloaded_share: float
    backlog_max_intervals: float
    instances_mean: float


def demand_trace(options: TraceOptions) -> F64:
    """Demand per interval, in instances that are never idle."""
    rng = np.random.default_rng(options.seed)
    at = np.arange(options.intervals)
    wave = 1 + options.wave * np.sin(2 * np.pi * at / options.intervals_per_day - np.pi / 2)
    demand = options.mean_demand * wave * np.exp(rng.normal(0, options.noise, options.intervals))
    for start in rng.integers(0, options.intervals, options.bursts):
        demand[start : start + options.burst_intervals] *= options.burst_factor
    return np.asarray(demand, np.float64)


def follow(demand: F64, scaler: Scaler, options: TraceOptions) -> Followed:
    """Let a scaler drive the flow over a trace."""
    rng = np.random.default_rng(options.seed + 1)
    errors = np.exp(rng.normal(0, options.measurement_error, len(demand)))
    running = scaler.instances
    changes, overloaded, backlog, backlog_max, paid = 0, 0, 0.0, 0.0, 0
    for wanted, error in zip(demand.tolist(), errors.tolist(), strict=True):
        paid += running
        backlog = max(0.0, backlog + wanted - running)
        overloaded += wanted > running
        backlog_max = max(backlog_max, backlog / running)
        coming = scaler.instances
        decision = scaler.observe(Load(wanted / ROW_S, ROW_S * error))
        changes += decision is not None
        running = coming
    count = len(demand)
    return Followed(changes, overloaded / count, backlog_max, paid / count)


def real_traces(folder: Path, intervals: int = 4_000, mean_demand: float = 6.0) -> dict[str, F64]:
    """Rates as they were, scaled to a mean demand: none of them had a say in any default."""
    found = {}
    for name, (file, seconds) in REAL.items():
        path = folder / file
        if not path.is_file():
            continue
        times = pq.read_table(path, columns=["ts"]).column("ts").cast(pa.timestamp("us"))
        at = times.cast(pa.int64()).to_numpy() // (seconds * 1_000_000)
        rows = np.bincount(at - at.min())[:intervals].astype(np.float64)
        found[name] = rows * mean_demand / rows.mean()
    return found


def run_rescaling(options: TraceOptions, folder: Path | None = None) -> dict[str, Any]:
    """All scalers over one trace and over traces of other kinds, and how a default was chosen.

    `choice` is what the price of a move was chosen on. Nothing was chosen on any other trace.
    """
    found = compare(demand_trace(options), options)
    others = {
        name: compare(demand_trace(replace(options, **change)), options)
        for name, change in OTHERS.items()
    }
    real = {} if folder is None else real_traces(folder)
    others |= {name: compare(demand, options) for name, demand in real.items()}
    return found | {"others": others, "choice": choice(options), "options": asdict(options)}


def compare(demand: F64, options: TraceOptions) -> dict[str, Any]:
    """What each scaler does on one trace."""
    found = {name: follow(demand, make(_first(demand)), options) for name, make in SCALERS.items()}
    ours = found["headgate"].reconfigurations
    return {
        "scalers": {name: asdict(told) for name, told in found.items()},
        "reconfigurations_over_ds2": {
            name: ours / max(1, told.reconfigurations)
            for name, told in found.items()
            if name != "headgate"
        },
    }


def choice(options: TraceOptions) -> dict[str, dict[str, dict[str, float]]]:
    """Every price of a move that was tried, and DS2, on the traces that the choice was made on."""
    tried = {f"headgate, {cost:.0f}": _priced(cost) for cost in MOVE_COSTS}
    return {
        name: {
            scaler: _mean([_on(replace(options, seed=seed, **change), make) for seed in SEEDS])
            for scaler, make in {**tried, **SCALERS}.items()
            if scaler != "headgate"
        }
        for name, change in CHOSEN_ON.items()
    }


def _on(options: TraceOptions, make: Callable[[int], Scaler]) -> Followed:
    demand = demand_trace(options)
    return follow(demand, make(_first(demand)), options)


def _priced(cost: float) -> Callable[[int], Scaler]:
    return lambda start: Rescaler(start, RescaleOptions(move_cost=cost))


def _mean(found: list[Followed]) -> dict[str, float]:
    return {
        field.name: float(np.mean([getattr(one, field.name) for one in found]))
        for field in fields(Followed)
    }


def _first(demand: F64) -> int:
    return max(1, int(np.ceil(demand[0])))
