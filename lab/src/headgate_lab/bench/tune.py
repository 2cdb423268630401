"""The four configurations of Sax et al. 2013 (figure 3) on Spark, a grid search, and the cluster
of the paper, simulated.

- `optimized`: slots, instances, batch rows and rows per epoch as the optimizer says, which knows
  what a short probe of engine and flow measured;
- `not_optimized`: one slot, every row a batch tuple of its own;
- `no_batching`: the optimizer's slots and instances, every row a tuple of its own;
- `only_batching`: one slot, the optimizer's batches.

Without batching epochs hold fewer rows (`single_rows`), or one would take minutes; `fixed_share`
says how much of them is the fixed cost of an epoch. What is kinder than in the paper: an operator
still sees all rows that have arrived at once, however they travelled.

No epoch may have more than `GROWTH` times the rows of the largest probe, the bound that `headgate
tune` keeps too. The grid is fixed before anything is measured, and reaches up to that bound. Every
cell has the same number of instances of all operators and is run once. The best of many noisy
numbers is too good, so the best cell then takes part in the rounds with the four, and that is what
the optimizer is compared with. If the best cell is what the optimizer chose, the two ought to be
equal, and what they differ by is noise: `same_setting`.

Latency is measured row by row, while rows come evenly (`flow_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.control.tuner import GROWTH
from headgate.demo import Machine
from headgate.planner.tuning.epochs import EpochModel
from headgate.planner.tuning.tuned import tune_epochs
from headgate.runtime.auto import ProbeSizes
from headgate_lab.baselines import spark_query
from headgate_lab.bench.choosing import Chosen, choose, expect, parallelism_of
from headgate_lab.bench.flow_runs import Ground, Latencies, Setting, Timed
from headgate_lab.bench.optimize_time import optimize_times
from headgate_lab.bench.probing import Say, find_out, timed
from headgate_lab.bench.tune_flows import PAPER_FLOWS, BenchFlow, flow_named
from headgate_lab.record import side_by_side, work_folder

CORES = 2
CONFIGURATIONS = ("optimized", "not_optimized", "no_batching", "only_batching")
BEST = "grid_best"
NAMES = PAPER_FLOWS


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
    rounds: int = 3
    grid_slots: tuple[int, ...] = (1, 2, 4)
    grid_batch: tuple[int | None, ...] = (1_000, None)
    grid_rows: tuple[int, ...] = (800_000, 3_200_000)
    grid_epochs: int = 2
    latency_epochs: int = 4
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
    """Rows per second and latency by configuration, the grid's best, and what was decided why."""
    flow = flow_named(options.flow, options.seed)
    with work_folder() as folder:
        ground = Ground(spark_query.session(CORES), Path(folder), CORES)
        probed = find_out(ground, flow, options.probe_rows, options.probe_sizes, say)
        _, optimize_s = timed(lambda: tune_epochs(probed.model, rows_max=options.rows_max))
        chosen, known = choose(ground, flow, probed, options.probe_rows, rows_max=options.rows_max)
        for line in chosen.tuned.why:
            say(line)
        settings = four_settings(chosen.setting, options.single_rows)
        grid = _grid(ground, flow, known.model, options, say)
        settings |= {BEST: _best_of(grid)}
        kept: dict[str, list[Timed]] = {name: [] for name in settings}

        def once(name: str) -> float:
            taken = ground.run_once(
                flow, settings[name], epochs=options.epochs, warmup=options.warmup
            )
            kept[name].append(taken)
            return taken.epoch_s / taken.rows

        turns = side_by_side(
            {name: partial(once, name) for name in settings},
            options.rounds,
            lambda n, name, cost: say(f"round {n + 1}: {name:14} {1 / cost:10,.0f} rows/s"),
            rotate=True,
        )
        latencies = _latencies(ground, flow, settings, kept, options, say)
    rates = {name: _rate(runs) for name, runs in kept.items()}
    best = rates.pop(BEST)
    expected = {name: expect(known.model, setting) for name, setting in settings.items()}
    return {
        "flow": options.flow,
        "rows_per_s": rates,
        "latency_ms": {name: latencies[name]["mean_ms"] for name in CONFIGURATIONS},
        "latency_p95_ms": {name: told["p95_ms"] for name, told in latencies.items()},
        "grid_best_rows_per_s": best,
        "uniform_best_rows_per_s": best,
        "same_setting": is_same(settings["optimized"], settings[BEST]),
        "parallelism": parallelism_of(flow, chosen.setting),
        "optimize_seconds": optimize_s,
        "optimize_seconds_by_operators": optimize_times(),
        "ratios": ratios(rates, best),
        "predicted_rows_per_s": {name: told.rows_per_s for name, told in expected.items()},
        "predicted_latency_p95_ms": {name: e.latency_p95_ms for name, e in expected.items()},
        "fixed_share": _fixed_share(kept, chosen),
        "messages_per_row": {n: _messages_per_row(kept[n][-1]) for n in settings},
        "grid": grid,
        "settings": {name: asdict(setting) for name, setting in settings.items()},
        "tuned": asdict(chosen.tuned),
        "calibration": asdict(known.calibration),
        "calibrate_seconds": known.calibrate_s,
        "probe_seconds": known.probe_s,
        "seconds_per_row_raw": {name: list(costs) for name, costs in turns.raw.items()},
        "epoch_seconds_raw": {n: [list(t.seconds) for t in runs] for n, runs in kept.items()},
        "latency_raw": {name: told["raw"] for name, told in latencies.items()},
        "order": [list(names) for names in turns.order],
        "simulated": _simulated(options),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _latencies(
    ground: Ground,
    flow: BenchFlow,
    settings: Mapping[str, Setting],
    kept: Mapping[str, list[Timed]],
    options: TuneOptions,
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Each setting with rows that come evenly, a little slower than it can take them."""
    found = {}
    for name, setting in settings.items():
        epoch_s = setting.rows_per_epoch / _rate(kept[name])
        latency: Latencies = ground.run_steadily(
            flow, setting, epoch_s, epochs=options.latency_epochs, warmup=options.warmup
        )
        found[name] = latency.told()
        say(f"latency: {name:14} p95 {found[name]['p95_ms']:10,.0f} ms")
    return found


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
        "no_batching": replace(tuned, batch=1, rows_per_epoch=single_rows),
        "only_batching": Setting(1, tuned.batch, tuned.rows_per_epoch),
    }


# --- inside -----------------------------------------------------------------------------------
def _best_of(grid: list[dict[str, Any]]) -> Setting:
    """The fastest cell."""
    best = max(grid, key=lambda cell: float(cell["rows_per_s"]))
    return Setting(best["slots"], best["batch"], best["rows_per_epoch"])


def is_same(optimized: Setting, best: Setting) -> bool:
    """Is the grid's best what the optimizer chose, whatever batches it took?"""
    uniform = all(count == optimized.slots for count in optimized.parallelism.values())
    chosen = (optimized.slots, optimized.rows_per_epoch)
    return uniform and best.batch is None and chosen == (best.slots, best.rows_per_epoch)


def _grid(
    ground: Ground,
    flow: BenchFlow,
    model: EpochModel,
    options: TuneOptions,
    say: Say,
) -> list[dict[str, Any]]:
    """Every combination, once."""
    found = []
    for slots in options.grid_slots:
        for batch in options.grid_batch:
            for rows in options.grid_rows:
                setting = Setting(slots, batch, rows)
                taken = ground.run_once(flow, setting, epochs=options.grid_epochs, warmup=1)
                expected = expect(model, setting).rows_per_s
                told = {"rows_per_s": taken.rows_per_s, "predicted": expected}
                found.append(asdict(setting) | told)
                say(
                    f"grid: {setting} {taken.rows_per_s:,.0f} rows/s, "
                    f"predicted {told['predicted']:,.0f}"
                )
    return found


def _simulated(options: TuneOptions) -> dict[str, Any]:
    from headgate_lab.papers.paper_flows import run_storm

    return run_storm(options.flow, messages=options.simulated_messages)


def _fixed_share(kept: Mapping[str, list[Timed]], chosen: Chosen) -> dict[str, float]:
    """The predicted fixed cost of an epoch, as a share of the measured one."""
    fixed = chosen.tuned.prediction.fixed_s
    return {n: min(1.0, fixed / median(t.epoch_s for t in runs)) for n, runs in kept.items()}


def _messages_per_row(taken: Timed) -> float:
    told = [epoch for epoch in taken.epochs if epoch.rows]
    return sum(epoch.messages for epoch in told) / sum(epoch.rows for epoch in told)
