"""What a bench finds out of an engine and of a flow before it tunes: calibration and probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headgate.commit.facts import EpochFacts
from headgate.control.epoch_lines import line_of
from headgate.control.measured_flow import Measured, measure_flow
from headgate.planner.tuning.cost_model import Calibration
from headgate.planner.tuning.epochs import EpochModel
from headgate.runtime.auto import ProbeSizes, calibrate
from headgate_lab.bench.flow_runs import Ground, Setting
from headgate_lab.bench.tune_flows import BenchFlow

Say = Callable[[str], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """What calibration and probe found out of engine and flow, and what they took."""

    calibration: Calibration
    measured: Measured
    epochs: list[EpochFacts]
    calibrate_s: float
    probe_s: float

    @property
    def model(self) -> EpochModel:
        return self.measured.model


def find_out(
    ground: Ground, flow: BenchFlow, probe_rows: tuple[int, ...], sizes: ProbeSizes, say: Say
) -> Known:
    """Calibrate the engine, then run the flow for a few epochs with large batches on all cores.

    The settings that come of it are compared with others on an engine that has run for long. So the
    flow runs as long unmeasured before: engines that are cold take half as long again.
    """
    calibration, calibrate_s = timed(lambda: calibrate(ground.spark, sizes))
    say(f"calibrated in {calibrate_s:.0f} s: {calibration.costs}")
    ground.probe(flow, Setting(ground.cores, None, 0), probe_rows)
    return measure(ground, flow, probe_rows, calibration, calibrate_s)


def measure(
    ground: Ground,
    flow: BenchFlow,
    probe_rows: tuple[int, ...],
    calibration: Calibration,
    calibrate_s: float = 0.0,
) -> Known:
    """What a few epochs say of a flow on an engine that is known."""
    setting = Setting(ground.cores, None, 0)
    return _probe(ground, flow, setting, probe_rows, calibration, calibrate_s)


def again(
    ground: Ground, flow: BenchFlow, known: Known, setting: Setting, probe_rows: tuple[int, ...]
) -> Known:
    """What epochs of other slots and instances say; the calibration stays."""
    found = _probe(ground, flow, setting, probe_rows, known.calibration, known.calibrate_s)
    return replace(found, probe_s=known.probe_s + found.probe_s)


def _probe(
    ground: Ground,
    flow: BenchFlow,
    setting: Setting,
    probe_rows: tuple[int, ...],
    calibration: Calibration,
    calibrate_s: float,
) -> Known:
    epochs, probe_s = timed(lambda: ground.probe(flow, setting, probe_rows))
    measured = measure_flow(flow.program, epochs, calibration.costs, ground.cores)
    return Known(calibration, measured, epochs, calibrate_s, probe_s)


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What comes out, and the seconds it took."""
    started = time.perf_counter()
    return run(), time.perf_counter() - started


def ppt_s(epochs: Sequence[EpochFacts], name: str) -> float:
    """An operator's time per row that it takes in, without what it takes however few there are."""
    seen = [epoch for epoch in epochs if epoch.rows]
    rows_in = sum(epoch.operator_rows.get(name, 0) for epoch in seen)
    if not rows_in:
        return 0.0
    sizes, spent = [e.rows for e in seen], [sum(e.operator_ms.get(name, ())) / 1e3 for e in seen]
    by_line = line_of(sizes, spent).row_s * sum(sizes)
    return (by_line or sum(spent)) / rows_in
