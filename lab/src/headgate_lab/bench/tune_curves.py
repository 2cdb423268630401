"""Throughput and latency against batch rows, and against rows per epoch.

One of the two moves at a time; slots, instances and the other are the optimizer's, but for the rows
per epoch of the first curve, which have to be few: with a row in every batch an epoch of the
optimizer's size would take minutes. Points take turns over rounds, in changing order. Beside what
is measured stands what the optimizer's model expects, so that one can see whether it would have
known the best point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.control.tuner import GROWTH
from headgate.demo import Machine
from headgate.planner.tuning.epochs import EpochModel
from headgate.runtime.auto import ProbeSizes
from headgate_lab.baselines import spark_query
from headgate_lab.bench.choosing import choose, expect
from headgate_lab.bench.flow_runs import Ground, Setting, Timed
from headgate_lab.bench.probing import Say, find_out
from headgate_lab.bench.tune import CORES, options_for
from headgate_lab.bench.tune_flows import BenchFlow, flow_named
from headgate_lab.record import side_by_side, work_folder

ALL_THAT_FIT = None


@dataclass(frozen=True)
class CurveOptions:
    """Points of the two curves; `batch_curve_rows` is the epoch of the first."""

    flow: str = "linear-road"
    batch_rows: tuple[int | None, ...] = (1, 10, 100, 1_000, 10_000, ALL_THAT_FIT)
    batch_curve_rows: int = 150_000
    rows_per_epoch: tuple[int, ...] = (25_000, 100_000, 400_000, 1_600_000, 3_200_000)
    epochs: int = 3
    warmup: int = 1
    rounds: int = 2
    latency_epochs: int = 3
    probe_rows: tuple[int, ...] = options_for("linear-road").probe_rows
    probe_sizes: ProbeSizes = field(default_factory=lambda: ProbeSizes(rounds=2))
    seed: int = 7

    @property
    def rows_max(self) -> int:
        return GROWTH * max(self.probe_rows)


def curves_for(flow: str, *, quick: bool = False) -> CurveOptions:
    """Points for one of the paper's flows."""
    small = options_for(flow, quick=True)
    options = CurveOptions()
    if flow == "sentiment":
        options = CurveOptions(
            flow,
            batch_rows=(1, 10, 100, 1_000, ALL_THAT_FIT),
            batch_curve_rows=8_000,
            rows_per_epoch=(250, 1_000, 4_000, 16_000),
            probe_rows=options_for(flow).probe_rows,
        )
    if not quick:
        return options
    return replace(
        options,
        batch_rows=(1, ALL_THAT_FIT),
        batch_curve_rows=small.single_rows,
        rows_per_epoch=small.probe_rows[:2],
        rounds=1,
        epochs=2,
        latency_epochs=1,
        probe_rows=small.probe_rows,
        probe_sizes=small.probe_sizes,
    )


def run_curves(options: CurveOptions, say: Say) -> dict[str, Any]:
    """A list of points for each curve, measured and expected."""
    flow = flow_named(options.flow, options.seed)
    with work_folder() as folder:
        ground = Ground(spark_query.session(CORES), Path(folder), CORES)
        probed = find_out(ground, flow, options.probe_rows, options.probe_sizes, say)
        chosen, known = choose(ground, flow, probed, options.probe_rows, rows_max=options.rows_max)
        base = chosen.setting
        few = replace(base, rows_per_epoch=options.batch_curve_rows)
        curves = {
            "batch_rows": [replace(few, batch=batch) for batch in options.batch_rows],
            "rows_per_epoch": [replace(base, rows_per_epoch=n) for n in options.rows_per_epoch],
        }
        found = {
            name: _curve(ground, flow, name, settings, known.model, options, say)
            for name, settings in curves.items()
        }
    return {
        "flow": options.flow,
        "optimized": asdict(base),
        "curves": found,
        "best": {name: _best(points) for name, points in found.items()},
        "calibration": asdict(known.calibration),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _curve(
    ground: Ground,
    flow: BenchFlow,
    name: str,
    settings: Sequence[Setting],
    model: EpochModel,
    options: CurveOptions,
    say: Say,
) -> list[dict[str, Any]]:
    kept: list[list[Timed]] = [[] for _ in settings]

    def once(place: int) -> float:
        kept[place].append(
            ground.run_once(flow, settings[place], epochs=options.epochs, warmup=options.warmup)
        )
        return kept[place][-1].rows_per_s

    side_by_side(
        {str(place): partial(once, place) for place in range(len(settings))},
        options.rounds,
        lambda turn, place, rate: say(
            f"{name}, round {turn + 1}: point {place} {rate:,.0f} rows/s"
        ),
    )
    points = []
    for setting, runs in zip(settings, kept, strict=True):
        epoch_s = median(second for run in runs for second in run.seconds)
        latency = ground.run_steadily(
            flow, setting, epoch_s, epochs=options.latency_epochs, warmup=options.warmup
        ).told()
        expected = expect(model, setting)
        points.append(
            {
                "batch_rows": setting.batch if name == "batch_rows" else None,
                "rows_per_epoch": setting.rows_per_epoch,
                "rows_per_s": setting.rows_per_epoch / epoch_s,
                "latency_p50_ms": latency["p50_ms"],
                "latency_p95_ms": latency["p95_ms"],
                "predicted_rows_per_s": expected.rows_per_s,
                "predicted_latency_p95_ms": expected.latency_p95_ms,
                "epoch_seconds_raw": [list(run.seconds) for run in runs],
                "latency_raw": latency["raw"],
            }
        )
        say(f"{name}: {setting.batch} {setting.rows_per_epoch:,} p95 {latency['p95_ms']:,.0f} ms")
    return points


def _best(points: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Which point is the fastest, by measurement and by the model."""
    places = range(len(points))
    return {
        "measured": max(places, key=lambda i: float(points[i]["rows_per_s"])),
        "predicted": max(places, key=lambda i: float(points[i]["predicted_rows_per_s"])),
    }
