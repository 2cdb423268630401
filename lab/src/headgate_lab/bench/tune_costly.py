"""A number of instances for every operator, against the best number of slots for all.

The flow has one costly operator, which waits, two that cost a tenth of it and compute, and a tiny
global one (`costly_flow`). Twelve tasks can run at once, however many cores there are. Epochs have
the same rows in all configurations:

- `uniform_best`: the same number of instances of all operators, the best of all numbers of slots;
- `optimized`: instances as the optimizer says, which knows what a short probe measured;
- `live`: instances as a running flow has chosen them for itself, after so many epochs;
- `search_best`: the best instances found by trying, operator by operator (or all combinations).

The best of many noisy numbers is too good. So of the uniform counts and of those found by trying
the best two each take part in the rounds, and the better of them there is what the optimizer is
compared with.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.control.tuner import RETUNE_EPOCHS
from headgate.demo import Machine
from headgate.errors import EngineError
from headgate.planner.tuning.tuned import tune_epochs
from headgate.runtime.auto import ProbeSizes
from headgate_lab.baselines import spark_query
from headgate_lab.bench import costly_driver
from headgate_lab.bench.choosing import choose, expect, parallelism_of
from headgate_lab.bench.costly_flow import MOVABLE
from headgate_lab.bench.flow_runs import Ground, Setting, Timed
from headgate_lab.bench.optimize_time import optimize_times
from headgate_lab.bench.probing import Known, Say, find_out, ppt_s, timed
from headgate_lab.bench.tune_flows import BenchFlow, flow_named
from headgate_lab.cluster.namespace_cluster import NamespaceCluster, available
from headgate_lab.record import side_by_side, work_folder

FLOW = "costly"
UNIFORM, OPTIMIZED, LIVE, SEARCH = "uniform_best", "optimized", "live", "search_best"
CLUSTER_TIMEOUT_S = 3_600.0
Counts = tuple[int, ...]


@dataclass(frozen=True)
class CostlyOptions:
    """`tried` are the numbers of instances tried for each operator, in the order of `MOVABLE`."""

    slots: int = 12
    rows: int = 20_000
    probe_rows: tuple[int, ...] = (4_000, *(4_000, 20_000) * 5)
    uniform: tuple[int, ...] = tuple(range(1, 13))
    tried: tuple[Counts, ...] = ((6, 8, 10, 12), (1, 2, 3, 4, 6), (1, 2, 3, 4, 6))
    passes: int = 2
    exhaustive: bool = False
    search_epochs: int = 3
    epochs: int = 4
    warmup: int = 1
    rounds: int = 4
    finalists: int = 2
    latency_epochs: int = 4
    live_epochs: int = 2 * RETUNE_EPOCHS + 4
    probe_sizes: ProbeSizes = field(default_factory=lambda: ProbeSizes(rounds=1))
    seed: int = 7


def costly_options(*, quick: bool = False, exhaustive: bool = False) -> CostlyOptions:
    if not quick:
        return CostlyOptions(exhaustive=exhaustive)
    return CostlyOptions(
        slots=3,
        rows=400,
        probe_rows=(100, 400, 100, 400),
        uniform=(1, 3),
        tried=((2, 3), (1,), (1, 2)),
        passes=1,
        exhaustive=exhaustive,
        search_epochs=2,
        epochs=2,
        rounds=1,
        finalists=1,
        latency_epochs=1,
        live_epochs=RETUNE_EPOCHS + 2,
        probe_sizes=ProbeSizes(messages=200, mega_bytes=2, levels=2, rounds=1, warm_ups=1),
    )


def run_costly(options: CostlyOptions, say: Say) -> dict[str, Any]:
    """On this machine, with a Spark that runs as many tasks at once as there are slots."""
    with work_folder() as folder:
        ground = Ground(spark_query.session(options.slots), Path(folder))
        return compare(ground, options, say) | {"hosts": 1}


def run_costly_on_hosts(
    hosts: int, say: Say, *, quick: bool = False, exhaustive: bool = False
) -> dict[str, Any]:
    """On a cluster of network namespaces, whose hosts offer the slots between them."""
    reason = available()
    if reason is not None:
        raise EngineError(f"--hosts needs network namespaces: {reason}")
    wanted = {"quick": quick, "exhaustive": exhaustive}
    cores = -(-costly_options(**wanted).slots // hosts)
    with (
        work_folder() as folder,
        NamespaceCluster(hosts=hosts, cores_per_host=cores) as cluster,
    ):
        say(f"{hosts} hosts up, {cores} tasks at once on each")
        done = cluster.run(
            costly_driver.__file__, json.dumps(wanted), folder, timeout=CLUSTER_TIMEOUT_S
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise EngineError(f"the driver program gave no result: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found | {"hosts": hosts}


def compare(ground: Ground, options: CostlyOptions, say: Say) -> dict[str, Any]:
    """Search, choose, and run the best of each side by side."""
    flow = flow_named(FLOW, options.seed)
    probed = find_out(ground, flow, options.probe_rows, options.probe_sizes, say)
    rows_max, max_slots = options.rows, options.slots
    _, optimize_s = timed(lambda: tune_epochs(probed.model, rows_max=rows_max, max_slots=max_slots))
    chosen, known = choose(
        ground, flow, probed, options.probe_rows, rows_max=rows_max, max_slots=max_slots
    )
    for line in chosen.tuned.why:
        say(line)
    optimized = replace(chosen.setting, rows_per_epoch=options.rows)
    search = _Search(ground, flow, known, options, say)
    uniform = [search.uniform(slots) for slots in options.uniform]
    found = search.all_combinations() if options.exhaustive else search.by_coordinates()
    live, told = _live(ground, flow, options)
    say(f"live: {dict(live.parallelism)}")
    settings = {OPTIMIZED: optimized, LIVE: live}
    for name, tries in ((UNIFORM, uniform), (SEARCH, found)):
        for place, best in enumerate(sorted(tries, key=lambda t: -t.rows_per_s)):
            if place < options.finalists:
                settings[f"{name}_{place + 1}"] = best.setting
    rounds = _rounds(ground, flow, settings, options, say)
    rates = {name: _rate(runs) for name, runs in rounds.items()}
    winners = {name: _winner(name, rates) for name in (UNIFORM, OPTIMIZED, LIVE, SEARCH)}
    latencies = {}
    for name, who in winners.items():
        latencies[name] = ground.run_steadily(
            flow,
            settings[who],
            options.rows / rates[who],
            epochs=options.latency_epochs,
            warmup=options.warmup,
        ).told()
        say(f"latency: {name:14} p95 {latencies[name]['p95_ms']:,.0f} ms")
    won = {name: rates[who] for name, who in winners.items()}
    expected = {name: expect(known.model, settings[who]) for name, who in winners.items()}
    return {
        "flow": FLOW,
        "rows_per_s": won,
        "uniform_best_rows_per_s": won[UNIFORM],
        "uniform_best_slots": settings[winners[UNIFORM]].slots,
        "parallelism": parallelism_of(flow, optimized),
        "parallelism_found": parallelism_of(flow, settings[winners[SEARCH]]),
        "parallelism_live": parallelism_of(flow, live),
        "live": told,
        "ratios": ratios(won),
        "latency_ms": {name: told["mean_ms"] for name, told in latencies.items()},
        "latency_p95_ms": {name: told["p95_ms"] for name, told in latencies.items()},
        "predicted_rows_per_s": {name: e.rows_per_s for name, e in expected.items()},
        "predicted_latency_p95_ms": {name: e.latency_p95_ms for name, e in expected.items()},
        "ppt_us": {name: 1e6 * ppt_s(known.epochs, name) for name in (*MOVABLE, "total")},
        "probes": 1 + chosen.tries,
        "optimize_seconds": optimize_s,
        "optimize_seconds_by_operators": optimize_times(),
        "settings": {name: asdict(settings[who]) for name, who in winners.items()},
        "tried": {
            "uniform": [asdict(t) for t in uniform],
            "search": [asdict(t) for t in found],
        },
        "rows_per_s_by_contestant": rates,
        "epoch_seconds_raw": {n: [list(t.seconds) for t in runs] for n, runs in rounds.items()},
        "latency_raw": {name: told["raw"] for name, told in latencies.items()},
        "tuned": asdict(chosen.tuned),
        "calibration": asdict(known.calibration),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def ratios(rates: Mapping[str, float]) -> dict[str, float]:
    """What the goals speak of."""
    return {
        "optimized_over_uniform_best": rates[OPTIMIZED] / rates[UNIFORM],
        "search_best_over_uniform_best": rates[SEARCH] / rates[UNIFORM],
        "optimized_over_search_best": rates[OPTIMIZED] / rates[SEARCH],
        "live_over_uniform_best": rates[LIVE] / rates[UNIFORM],
        "live_over_search_best": rates[LIVE] / rates[SEARCH],
    }


def _live(
    ground: Ground, flow: BenchFlow, options: CostlyOptions
) -> tuple[Setting, list[dict[str, Any]]]:
    """What a running flow chose, and what its tuner said on the way."""
    query = ground.run_live(flow, options.slots, options.rows, options.live_epochs)
    counts = {op: len(slots) for op, slots in query.instances.items() if op in MOVABLE}
    told = [record for record in query.journal() if record["kind"] == "tuning"]
    return Setting(options.slots, None, options.rows, counts), told


def _winner(name: str, rates: Mapping[str, float]) -> str:
    own = [who for who in rates if who.startswith(name)]
    return max(own, key=lambda who: rates[who])


def _rate(runs: list[Timed]) -> float:
    return runs[0].rows / median(second for run in runs for second in run.seconds)


def _rounds(
    ground: Ground,
    flow: BenchFlow,
    settings: Mapping[str, Setting],
    options: CostlyOptions,
    say: Say,
) -> dict[str, list[Timed]]:
    kept: dict[str, list[Timed]] = {name: [] for name in settings}

    def once(name: str) -> float:
        kept[name].append(
            ground.run_once(flow, settings[name], epochs=options.epochs, warmup=options.warmup)
        )
        return kept[name][-1].rows_per_s

    side_by_side(
        {name: partial(once, name) for name in settings},
        options.rounds,
        lambda turn, name, rate: say(f"round {turn + 1}: {name:16} {rate:10,.0f} rows/s"),
        rotate=True,
    )
    return kept


@dataclass(frozen=True)
class Try:
    """One setting, run once."""

    setting: Setting
    rows_per_s: float
    predicted: float


class _Search:
    """Tries settings, each once."""

    def __init__(
        self, ground: Ground, flow: BenchFlow, known: Known, options: CostlyOptions, say: Say
    ) -> None:
        self._ground, self._flow, self._model = ground, flow, known.model
        self._options, self._say = options, say
        self._tried: dict[Counts, Try] = {}

    def uniform(self, slots: int) -> Try:
        return self._run(Setting(slots, None, self._options.rows))

    def with_counts(self, counts: Counts) -> Try:
        """So many instances of each operator, in the order of `MOVABLE`."""
        if counts not in self._tried:
            instances = dict(zip(MOVABLE, counts, strict=True))
            setting = Setting(self._options.slots, None, self._options.rows, instances)
            self._tried[counts] = self._run(setting)
        return self._tried[counts]

    def all_combinations(self) -> list[Try]:
        return [self.with_counts(counts) for counts in itertools.product(*self._options.tried)]

    def by_coordinates(self) -> list[Try]:
        """The best number for one operator after the other, until a pass changes nothing."""
        lines = self._options.tried
        best = tuple(line[-1] if place == 0 else line[0] for place, line in enumerate(lines))
        for _ in range(self._options.passes):
            before = best
            for place, line in enumerate(lines):
                best = self._best_on_line(best, place, line)
            if best == before:
                break
        return list(self._tried.values())

    def _best_on_line(self, at: Counts, place: int, line: Iterable[int]) -> Counts:
        points = [(*at[:place], count, *at[place + 1 :]) for count in line]
        return max(points, key=lambda counts: self.with_counts(counts).rows_per_s)

    def _run(self, setting: Setting) -> Try:
        taken = self._ground.run_once(
            self._flow, setting, epochs=self._options.search_epochs, warmup=self._options.warmup
        )
        found = Try(setting, taken.rows_per_s, expect(self._model, setting).rows_per_s)
        counts = dict(setting.parallelism) or "all alike"
        self._say(
            f"{setting.slots} slots, {counts}: {found.rows_per_s:,.0f} rows/s, "
            f"predicted {found.predicted:,.0f}"
        )
        return found
