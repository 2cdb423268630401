"""How well throughput and latency of the optimizer's choice are predicted, on flows at random.

For each flow: a short probe with an instance of everything in every slot, the optimizer's choice,
which is probed too if it has other slots or instances (as `headgate tune` does it), its prediction,
and then that choice on Spark, in epochs of up to twice the rows of probes: one after the other for
rows per second, and rows that come evenly for the p95 of their latency. An error is the share by
which the prediction is off what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from headgate.demo import Machine
from headgate.planner.tuning.cost_model import Calibration
from headgate.runtime.auto import ProbeSizes, calibrate
from headgate_lab.baselines import spark_query
from headgate_lab.bench.choosing import choose, expect, parallelism_of
from headgate_lab.bench.flow_runs import Ground
from headgate_lab.bench.probing import Say, measure, timed
from headgate_lab.bench.random_flows import Drawn, draw, flow_of
from headgate_lab.record import work_folder

GOALS = {"rows_per_s": 0.15, "latency_p95_ms": 0.25}
ROWS_MAX = 200_000  # in an epoch of a probe
PAIRS, PAIRS_MAX = 3, 12  # of a small and a large epoch


@dataclass(frozen=True)
class PredictOptions:
    """`epoch_work_s` is what the operators of a large probe's epoch have to do, all together."""

    flows: int = 20
    slots: int = 12
    epoch_work_s: float = 3.0
    growth: int = 2  # rows per epoch that may be chosen, in large epochs of the probe
    epochs: int = 8
    warmup: int = 4  # until every worker of the probe's slots has seen an epoch's rows
    latency_epochs: int = 3
    probe_sizes: ProbeSizes = field(default_factory=lambda: ProbeSizes(rounds=2))
    seed: int = 11


QUICK = PredictOptions(
    flows=2,
    slots=2,
    epoch_work_s=0.2,
    epochs=2,
    warmup=1,
    latency_epochs=1,
    probe_sizes=ProbeSizes(messages=200, mega_bytes=2, levels=2, rounds=1, warm_ups=1),
)


def run_predict(options: PredictOptions, say: Say) -> dict[str, Any]:
    """The errors of every flow, and their medians and largest."""
    flows = []
    with work_folder() as folder:
        ground = Ground(spark_query.session(options.slots), Path(folder))
        calibration, seconds = timed(lambda: calibrate(ground.spark, options.probe_sizes))
        say(f"calibrated in {seconds:.0f} s: {calibration.costs}")
        for number in range(options.flows):
            drawn = draw(number, options.seed)
            flows.append(_predict(ground, drawn, calibration, options))
            told = flows[-1]
            say(
                f"flow {number + 1}: {told['measured']['rows_per_s']:,.0f} rows/s, off by "
                f"{told['error']['rows_per_s']:.0%}; p95 {told['measured']['latency_p95_ms']:,.0f}"
                f" ms, off by {told['error']['latency_p95_ms']:.0%}"
            )
    return {
        "errors": {name: errors_of([flow["error"][name] for flow in flows]) for name in GOALS},
        "goals": GOALS,
        "flows": flows,
        "calibration": asdict(calibration),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def errors_of(errors: Sequence[float]) -> dict[str, float]:
    """What they come to."""
    ordered = sorted(errors)
    return {
        "median": median(ordered),
        "mean": sum(ordered) / len(ordered),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "max": ordered[-1],
    }


def probe_rows(drawn: Drawn, epoch_work_s: float) -> tuple[int, ...]:
    """Epochs of two sizes, the large ones with so much work. The first two warm up, and one of them
    is large: workers take long over the first large batch that they see.

    Where rows are so cheap that an epoch cannot have so much work, there are more epochs instead:
    short ones are noisy, and workers see more of them before they are warm.
    """
    large = max(40, min(ROWS_MAX, round(epoch_work_s / drawn.row_s)))
    pairs = round(PAIRS * epoch_work_s / (large * drawn.row_s))
    return large, *(large // 4, large) * min(max(PAIRS, pairs), PAIRS_MAX)


def _predict(
    ground: Ground, drawn: Drawn, calibration: Calibration, options: PredictOptions
) -> dict[str, Any]:
    flow, sizes = flow_of(drawn, options.seed), probe_rows(drawn, options.epoch_work_s)
    probed = measure(ground, flow, sizes, calibration)
    chosen, known = choose(
        *(ground, flow, probed, sizes),
        rows_max=options.growth * max(sizes),
        max_slots=options.slots,
    )
    expected = expect(known.model, chosen.setting)
    taken = ground.run_once(flow, chosen.setting, epochs=options.epochs, warmup=options.warmup)
    latency = ground.run_steadily(
        flow, chosen.setting, taken.epoch_s, epochs=options.latency_epochs, warmup=options.warmup
    ).told()
    measured = {"rows_per_s": taken.rows_per_s, "latency_p95_ms": latency["p95_ms"]}
    predicted = {"rows_per_s": expected.rows_per_s, "latency_p95_ms": expected.latency_p95_ms}
    return {
        "flow": asdict(drawn),
        "setting": asdict(chosen.setting),
        "parallelism": parallelism_of(flow, chosen.setting),
        "predicted": predicted,
        "measured": measured,
        "error": {name: abs(predicted[name] / measured[name] - 1.0) for name in GOALS},
        "probes": 1 + chosen.tries,
        "probe_rows": sizes,
        "probe_epoch_s": [epoch.engine.seconds for epoch in known.epochs],
        "epoch_seconds_raw": list(taken.seconds),
        "latency_raw": latency["raw"],
    }
