"""The four configurations of Sax et al. 2013 (figure 3) on Spark, a grid search, and the cluster
of the paper, simulated.

- `optimized`: slots, batch rows and rows per epoch as the optimizer says, which knows what a short
  probe of engine and flow measured;
- `not_optimized`: one slot, every row a batch tuple of its own;
- `no_batching`: the optimizer's slots, every row a tuple of its own;
- `only_batching`: one slot, the optimizer's batches.

A slot hosts an instance of every operator, so slots are the degree of parallelism of all of them.
Without batching epochs hold fewer rows (`single_rows`), or one would take minutes; `fixed_share`
says how much of them is the fixed cost of an epoch. What is kinder than in the paper: an operator
still sees all rows that have arrived at once, however they travelled.

No epoch may have more than `GROWTH` times the rows of the largest probe, the bound that `headgate
tune` keeps too. The grid is fixed before anything is measured, and reaches up to that bound. Every
cell is run once. The best of many noisy numbers is too good, so the best cell then takes part in
the rounds with the four, and that is what the optimizer is compared with. If the best cell is what
the optimizer chose, the two ought to be equal, and what they differ by is noise: `same_setting`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.commit.facts import EpochFacts
from headgate.control.measured_flow import measure_flow
from headgate.control.tuner import GROWTH
from headgate.demo import Machine
from headgate.planner.tuning.epochs import (
    WAITS,
    EpochModel,
    EpochSettings,
    TunedEpochs,
    tune_epochs,
)
from headgate.runtime.auto import ProbeSizes, calibrate
from headgate_lab.baselines import spark_query
from headgate_lab.bench.tune_flows import (
    CORES,
    PaperFlow,
    Setting,
    Timed,
    paper_flow,
    probe_once,
    program_of,
    run_once,
)
from headgate_lab.record import side_by_side

Say = Callable[[str], None]
NAMES = ("linear-road", "sentiment")
CONFIGURATIONS = ("optimized", "not_optimized", "no_batching", "only_batching")
BEST = "grid_best"


@dataclass(frozen=True)
class TuneOptions:
    """Sizes. The grid is slots x batch rows x rows per epoch.

    The probe's epochs have two sizes, so that what an epoch costs without rows shows.
    """

    flow: str = "linear-road"
    probe_rows: tuple[int, ...] = (50_000, 50_000, 400_000, 50_000, 400_000, 50_000, 400_000)
    single_rows: int = 150_000
    epochs: int = 3
    warmup: int = 1
    rounds: int = 5
    grid_slots: tuple[int, ...] = (1, 2, 4)
    grid_batch: tuple[int | None, ...] = (1_000, None)
    grid_rows: tuple[int, ...] = (800_000, 3_200_000)
    grid_epochs: int = 2
    probe_sizes: ProbeSizes = field(default_factory=lambda: ProbeSizes(rounds=2))
    simulated_messages: int = 40_000
    seed: int = 7

    @property
    def rows_max(self) -> int:
        return GROWTH * max(self.probe_rows)


def options_for(flow: str, *, quick: bool = False) -> TuneOptions:
    """Sizes for one of the flows; texts take far longer than position reports."""
    if quick:
        return TuneOptions(
            flow,
            probe_rows=(500, 2_000, 500, 2_000) if flow == "linear-road" else (50, 100, 50, 100),
            single_rows=500 if flow == "linear-road" else 50,
            epochs=2,
            rounds=1,
            grid_slots=(2,),
            grid_batch=(None,),
            grid_rows=(1_000 if flow == "linear-road" else 100,),
            grid_epochs=2,
            probe_sizes=ProbeSizes(messages=200, mega_bytes=2, levels=2, rounds=1),
            simulated_messages=2_000,
        )
    if flow == "sentiment":
        return TuneOptions(
            flow,
            probe_rows=(500, 500, 2_000, 500, 2_000),
            single_rows=16_000,
            grid_slots=(1, 2),
            grid_batch=(100, None),
            grid_rows=(4_000, 16_000),
        )
    return TuneOptions(flow)


def run_tune(options: TuneOptions, say: Say) -> dict[str, Any]:
    """Rows per second and latency by configuration, the grid's best, and what was decided why.

    Latency is that of a row that comes at any time: half an epoch until its own begins, and that.
    """
    flow = paper_flow(options.flow, options.seed)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        work = Path(folder)
        calibration, calibrate_s = _timed(
            lambda: calibrate(spark_query.session(CORES), options.probe_sizes)
        )
        say(f"calibrated in {calibrate_s:.0f} s: {calibration.costs}")
        probe, probe_s = _timed(lambda: _probe(flow, options, work))
        measured = measure_flow(program_of(flow), probe, calibration.costs, CORES)
        tuned, optimize_s = _timed(lambda: tune_epochs(measured.model, rows_max=options.rows_max))
        settings = _settings(tuned, options)
        for line in tuned.why:
            say(line)
        grid = _grid(flow, measured.model, options, work, say)
        settings |= {BEST: _best_of(grid)}
        kept: dict[str, list[Timed]] = {name: [] for name in settings}

        def once(name: str) -> float:
            taken = run_once(
                flow, settings[name], epochs=options.epochs, warmup=options.warmup, work=work
            )
            kept[name].append(taken)
            return taken.latency_s / taken.rows

        turns = side_by_side(
            {name: partial(once, name) for name in settings},
            options.rounds,
            lambda n, name, cost: say(f"round {n + 1}: {name:14} {1 / cost:10,.0f} rows/s"),
            rotate=True,
        )
    rates = {name: _rate(runs) for name, runs in kept.items()}
    best = rates.pop(BEST)
    return {
        "flow": options.flow,
        "rows_per_s": rates,
        "latency_ms": {n: 1e3 * WAITS * kept[n][0].rows / rates[n] for n in CONFIGURATIONS},
        "grid_best_rows_per_s": best,
        "same_setting": is_same(settings["optimized"], settings[BEST]),
        "optimize_seconds": optimize_s,
        "ratios": ratios(rates, best),
        "predicted_rows_per_s": {n: _predicted(measured.model, s) for n, s in settings.items()},
        "fixed_share": _fixed_share(kept, tuned),
        "messages_per_row": {n: _messages_per_row(kept[n][-1]) for n in settings},
        "grid": grid,
        "settings": {name: asdict(setting) for name, setting in settings.items()},
        "tuned": asdict(tuned),
        "calibration": asdict(calibration),
        "calibrate_seconds": calibrate_s,
        "probe_seconds": probe_s,
        "seconds_per_row_raw": {name: list(costs) for name, costs in turns.raw.items()},
        "epoch_seconds_raw": {n: [list(t.seconds) for t in runs] for n, runs in kept.items()},
        "order": [list(names) for names in turns.order],
        "simulated": _simulated(options),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _rate(runs: list[Timed]) -> float:
    """Rows per second of the median epoch of all rounds: a run has few, and they differ much."""
    return runs[0].rows / median(second for run in runs for second in run.seconds)


def ratios(rates: Mapping[str, float], grid_best: float) -> dict[str, float]:
    """What the goals speak of."""
    ours = rates["optimized"]
    others = {f"optimized_over_{n}": ours / rates[n] for n in CONFIGURATIONS[1:]}
    return others | {"optimized_over_grid_best": ours / grid_best}


def four_settings(tuned: Setting, single_rows: int) -> dict[str, Setting]:
    """The paper's configurations, from the optimizer's."""
    return {
        "optimized": tuned,
        "not_optimized": Setting(1, 1, single_rows),
        "no_batching": Setting(tuned.slots, 1, single_rows),
        "only_batching": Setting(1, tuned.batch, tuned.rows_per_epoch),
    }


# --- inside -----------------------------------------------------------------------------------
def _probe(flow: PaperFlow, options: TuneOptions, work: Path) -> list[EpochFacts]:
    """Epochs with all cores and large batches: what the flow costs where nothing is wasted."""
    return probe_once(flow, CORES, options.probe_rows, work)


def _predicted(model: EpochModel, setting: Setting) -> float:
    """Rows per second that the optimizer's model expects of a setting."""
    batch = setting.batch
    if isinstance(batch, int):
        batch = {stream.name: batch for stream in model.flow.streams}
    settings = EpochSettings(setting.slots, setting.rows_per_epoch, batch or {})
    return model.predict(settings).rows_per_s


def _settings(tuned: TunedEpochs, options: TuneOptions) -> dict[str, Setting]:
    chosen = tuned.settings
    optimized = Setting(chosen.slots, dict(chosen.batch_rows), chosen.rows_per_epoch)
    return four_settings(optimized, options.single_rows)


def _best_of(grid: list[dict[str, Any]]) -> Setting:
    """The fastest cell."""
    best = max(grid, key=lambda cell: float(cell["rows_per_s"]))
    return Setting(best["slots"], best["batch"], best["rows_per_epoch"])


def is_same(optimized: Setting, best: Setting) -> bool:
    """Is the grid's best what the optimizer chose? Its batches are as large as they may be."""
    chosen = (optimized.slots, optimized.rows_per_epoch)
    return best.batch is None and chosen == (best.slots, best.rows_per_epoch)


def _grid(
    flow: PaperFlow,
    model: EpochModel,
    options: TuneOptions,
    work: Path,
    say: Say,
) -> list[dict[str, Any]]:
    """Every combination, once."""
    found = []
    for slots in options.grid_slots:
        for batch in options.grid_batch:
            for rows in options.grid_rows:
                setting = Setting(slots, batch, rows)
                taken = run_once(flow, setting, epochs=options.grid_epochs, warmup=1, work=work)
                told = {"rows_per_s": taken.rows_per_s, "predicted": _predicted(model, setting)}
                found.append(asdict(setting) | told)
                say(
                    f"grid: {setting} {taken.rows_per_s:,.0f} rows/s, "
                    f"predicted {told['predicted']:,.0f}"
                )
    return found


def _simulated(options: TuneOptions) -> dict[str, Any]:
    from headgate_lab.papers.paper_flows import run_storm

    return run_storm(options.flow, messages=options.simulated_messages)


def _fixed_share(kept: Mapping[str, list[Timed]], tuned: TunedEpochs) -> dict[str, float]:
    """The predicted fixed cost of an epoch, as a share of the measured one."""
    fixed = tuned.prediction.fixed_s
    return {n: min(1.0, fixed / median(t.latency_s for t in runs)) for n, runs in kept.items()}


def _messages_per_row(taken: Timed) -> float:
    told = [epoch for epoch in taken.epochs if epoch.rows]
    return sum(epoch.messages for epoch in told) / sum(epoch.rows for epoch in told)


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return run(), time.perf_counter() - started
