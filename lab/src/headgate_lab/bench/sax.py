"""Tables I and II and Figures 3 to 6 of Sax et al. 2013 from measured inputs.

Tables: the paper's optimizer (Algorithm 1) is given what was measured here (`sax_inputs`); beside
it stand the paper's own numbers, and what our optimizer chose for Spark.

Figures: each flow runs over a data set of fixed size in the paper's four configurations.

- 3: seconds that took. Also the same configurations on the paper's cluster, simulated with the
  measured inputs.
- 4 and 6: rows emitted by all operators over time.
- 5: how long an operator takes for what it gets at once, which is when Storm acknowledges a tuple.
  Here that is an epoch's rows in one slot and level, whatever batches they came in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from headgate.commit.facts import EpochFacts
from headgate.control.tuner import GROWTH
from headgate.demo import Machine
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.optimizer import Tuned, optimize
from headgate.runtime.auto import ProbeSizes, calibrate
from headgate_lab.baselines import spark_query
from headgate_lab.bench.choosing import Chosen, choose, parallelism_of
from headgate_lab.bench.flow_runs import Ground, Setting, Timed
from headgate_lab.bench.probing import Known, Say, measure, timed
from headgate_lab.bench.sax_inputs import measured_inputs
from headgate_lab.bench.tune import CORES, four_settings
from headgate_lab.bench.tune_flows import PAPER_FLOWS, BenchFlow, flow_named
from headgate_lab.papers.sax_values import SHOWN_IN_FIGURE_5, TABLES, TOLD_IN_TEXT
from headgate_lab.papers.storm_cluster import simulate
from headgate_lab.planner.tuning.configurations import four_configurations
from headgate_lab.record import work_folder


@dataclass(frozen=True)
class SaxSizes:
    """Of one flow: all rows, rows per epoch without batches, and those of the probe.

    All rows are a multiple of `epoch_rows`, the largest epoch that the optimizer may choose.
    """

    rows: int
    single_rows: int
    probe_rows: tuple[int, ...]

    @property
    def epoch_rows(self) -> int:
        return GROWTH * max(self.probe_rows)


@dataclass(frozen=True)
class SaxOptions:
    sizes: dict[str, SaxSizes] = field(
        default_factory=lambda: {
            "linear-road": SaxSizes(
                2_400_000, 100_000, (25_000, 25_000, 100_000, 25_000, 100_000, 25_000, 100_000)
            ),
            "sentiment": SaxSizes(32_000, 8_000, (250, 250, 1_000, 250, 1_000)),
        }
    )
    probe_sizes: ProbeSizes = field(default_factory=lambda: ProbeSizes(rounds=2))
    simulated_messages: int = 40_000
    seed: int = 7


QUICK = SaxOptions(
    {
        "linear-road": SaxSizes(4_000, 1_000, (250, 500, 250, 500)),
        "sentiment": SaxSizes(160, 40, (20, 20, 10, 20)),
    },
    ProbeSizes(messages=200, mega_bytes=2, levels=2, rounds=1),
    2_000,
)


def run_sax(options: SaxOptions, say: Say) -> dict[str, Any]:
    """Both flows; `flows[name]` has `tables`, `figures` and the `inputs` they come from."""
    found = {}
    with work_folder() as folder:
        ground = Ground(spark_query.session(CORES), Path(folder), CORES)
        calibration, seconds = timed(lambda: calibrate(ground.spark, options.probe_sizes))
        say(f"calibrated in {seconds:.0f} s: {calibration.costs}")
        for name in PAPER_FLOWS:
            flow = flow_named(name, options.seed)
            sizes = options.sizes[name]
            known = measure(ground, flow, sizes.probe_rows, calibration)
            inputs = measured_inputs(known, flow)
            tuned = optimize(inputs, known.calibration.costs)
            chosen, _ = choose(ground, flow, known, sizes.probe_rows, rows_max=sizes.epoch_rows)
            found[name] = {
                "inputs": _told(inputs, known.calibration.costs),
                "tables": _tables(flow, tuned, chosen),
                "figures": _figures(ground, flow, sizes, chosen, say)
                | _simulated(inputs, known, tuned, options),
                "paper": _paper(name),
                "chosen": asdict(chosen.setting),
            }
    return {
        "flows": found,
        "calibration": asdict(calibration),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _told(inputs: FlowModel, costs: EngineCosts) -> dict[str, Any]:
    spout = inputs.steps[0]
    return {
        "message_us": 1e6 * costs.message_s,
        "byte_ns": 1e9 * costs.byte_s,
        "message_bytes_max": costs.message_bytes_max,
        "spout_rows_per_s": spout.source_rate,
        "spout_dop": spout.source_dop,
        "ppt_us": {step.name: 1e6 * step.ppt_s for step in inputs.steps},
        "row_bytes": {s.name: s.row_bytes for s in inputs.streams},
        "rows_per_row": {s.name: s.rows_per_row for s in inputs.streams},
    }


def _tables(flow: BenchFlow, tuned: Tuned, chosen: Chosen) -> dict[str, Any]:
    configuration = tuned.configuration
    return {
        "algorithm_1": {
            "dop": dict(configuration.dop),
            "batch_rows": dict(configuration.batch_rows),
            "why": {choice.name: choice.why for choice in tuned.choices},
            "predicted_rows_per_s": tuned.prediction.rows_per_s,
        },
        "on_spark": {
            "slots": chosen.setting.slots,
            "dop": parallelism_of(flow, chosen.setting),
            "batch_rows": chosen.setting.batch,
            "rows_per_epoch": chosen.setting.rows_per_epoch,
            "why": list(chosen.tuned.why),
        },
    }


def _paper(name: str) -> dict[str, Any]:
    return {"tables": [asdict(t) for t in TABLES[name]], "text": dict(TOLD_IN_TEXT[name])}


def _figures(
    ground: Ground, flow: BenchFlow, sizes: SaxSizes, chosen: Chosen, say: Say
) -> dict[str, Any]:
    """Every configuration over the same rows."""
    uptime: dict[str, float] = {}
    emitted: dict[str, dict[str, list[float]]] = {}
    latency: dict[str, dict[str, float]] = {}
    for name, setting in four_settings(chosen.setting, sizes.single_rows).items():
        epochs = max(1, sizes.rows // setting.rows_per_epoch)
        fitting = replace(setting, rows_per_epoch=sizes.rows // epochs)
        taken = ground.run_once(flow, fitting, epochs=epochs, warmup=0)
        uptime[name] = sum(taken.seconds)
        emitted[name] = _emitted(taken)
        latency[name] = {op: _processing_ms(op, taken) for op in SHOWN_IN_FIGURE_5[flow.name]}
        say(f"{flow.name}: {name:14} {uptime[name]:8.1f} s for {sizes.rows:,} rows, {_in(fitting)}")
    return {
        "rows": sizes.rows,
        "uptime_s": uptime,
        "emitted": emitted,
        "processing_latency_ms": latency,
    }


def _in(setting: Setting) -> str:
    return f"{setting.rows_per_epoch:,} in an epoch, {setting.slots} slots"


def _emitted(taken: Timed) -> dict[str, list[float]]:
    """Rows that all operators and sources have put out by the end of each epoch."""
    seconds, rows = [0.0], [0.0]
    with_rows = [epoch for epoch in taken.epochs if epoch.rows]
    for epoch, spent in zip(with_rows, taken.seconds, strict=True):
        seconds.append(seconds[-1] + spent)
        rows.append(rows[-1] + emitted_in(epoch))
    return {"seconds": seconds, "rows": rows}


def emitted_in(epoch: EpochFacts) -> int:
    """What was put out in an epoch is what operators and sinks have taken in."""
    into = {n: rows for n, rows in epoch.operator_rows.items() if n not in epoch.source_rows}
    return sum(into.values()) + sum(epoch.sink_rows.values())


def _processing_ms(operator: str, taken: Timed) -> float:
    """The median over epochs and slots in which it had something to do."""
    spent = [ms for e in taken.epochs for ms in e.operator_ms.get(operator, ()) if ms > 0]
    return median(spent) if spent else 0.0


def _simulated(
    inputs: FlowModel, known: Known, tuned: Tuned, options: SaxOptions
) -> dict[str, Any]:
    configurations = four_configurations(inputs, tuned.configuration)
    found = {
        name: simulate(
            inputs, known.calibration.costs, configuration, messages=options.simulated_messages
        )
        for name, configuration in configurations.items()
    }
    return {
        "simulated_rows_per_s": {name: told.rows_per_s for name, told in found.items()},
        "simulated_latency_ms": {name: 1e3 * told.latency_s for name, told in found.items()},
    }
