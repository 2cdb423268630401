"""Zipf keys over 16 slots: how even groupings for hot keys make the load, and what they pay.

Rows go through the code that a flow runs: routing tables, choosers that start from nothing in every
source task, and, for `dkg` and `cut`, the decisions of `HotKeys` on bounded counts of the epochs
before. Only operators and state are left out. That this changes nothing is checked: some epochs run
through the engine as well, and loads per slot must be the same, row for row, and so must results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I32, I64, U64
from headgate.commit.facts import EpochFacts
from headgate.commit.planning import Observed
from headgate.control.hot_keys import HotKeys
from headgate.control.loop import STATISTICS_BYTES
from headgate.control.policy import View
from headgate.demo import Machine
from headgate.flow import Flow
from headgate.operator.aggregates import Count
from headgate.routing.chooser import Chooser
from headgate.routing.hashing import hash_columns
from headgate.routing.route import TO_OWNER, Route
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.compile import compile_flow
from headgate.slot.statistics import TaskStatistics
from headgate.testing import ListSource, LocalRun, run
from headgate.topology.graph import KeyGrouping

Say = Callable[[str], None]
GROUPINGS: tuple[KeyGrouping, ...] = ("hash", "pkg", "d_choices", "w_choices", "dkg", "cut")
OPERATOR = "count"


@dataclass(frozen=True)
class SkewOptions:
    """Sizes. The first `learning` epochs are not measured; `engine_*` is the run beside it."""

    zipf: tuple[float, ...] = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
    slots: int = 16
    keys: int = 100_000
    rows_per_epoch: int = 250_000
    epochs: int = 10
    learning: int = 2
    source_tasks: int = 4
    seed: int = 0
    engine_zipf: float = 2.0
    engine_rows: int = 20_000
    engine_epochs: int = 4


QUICK = SkewOptions(
    zipf=(1.0, 2.0), keys=5_000, rows_per_epoch=20_000, epochs=4, engine_rows=4_000, engine_epochs=3
)


@dataclass
class EpochFigures:
    """One epoch: rows that each slot processed, and the partials that its keys' owners merged."""

    loads: I64
    merged: I64
    keys: int
    pieces: int
    route_seconds: float

    @property
    def imbalance(self) -> float:
        return float(self.loads.max() / self.loads.mean())

    @property
    def imbalance_with_merges(self) -> float:
        total = self.loads + self.merged
        return float(total.max() / total.mean())


@dataclass
class GroupedStream:
    """A stream of keys under one grouping: epochs in, figures out. It learns on the way."""

    grouping: KeyGrouping
    slots: int
    epoch: int = 0

    def __post_init__(self) -> None:
        program = compile_flow(counting(self.grouping, []).graph())
        may = program.dispatches[OPERATOR]
        self._hot = HotKeys(program, self.slots) if may.be_evened else None
        self.route = Route(hash_table(self.slots), may.usual)

    @property
    def table(self) -> RoutingTable:
        return self.route.table

    def run(self, tasks: Sequence[U64]) -> EpochFigures:
        """One epoch: the key hashes of the rows of each source task, in order."""
        started = time.perf_counter()
        targets = [self._route(number, h) for number, h in enumerate(tasks)]
        seconds = time.perf_counter() - started
        h, target = np.concatenate(tasks), np.concatenate(targets)
        keys, number = np.unique(h, return_inverse=True)
        piece, rows = np.unique(number * self.slots + target, return_counts=True)
        key, slot = keys[piece // self.slots], piece % self.slots
        owner = self.table.route(key)
        figures = EpochFigures(
            loads=np.bincount(target, minlength=self.slots),
            merged=np.bincount(owner[owner != slot], minlength=self.slots),
            keys=len(keys),
            pieces=len(piece),
            route_seconds=seconds,
        )
        if self._hot is not None:
            self._learn(self._hot, key, slot, rows, figures.loads)
        self.epoch += 1
        return figures

    # --- inside ----------------------------------------------------------------------------
    def _route(self, task: int, h: U64) -> I32:
        owner = self.table.route(h)
        if self.route.dispatch == TO_OWNER:
            return owner
        return Chooser(self.route, task).choose(h, owner)

    def _learn(self, hot: HotKeys, key: U64, slot: I64, rows: I64, loads: I64) -> None:
        """What the slots counted, each in its bounded memory, for the epochs to come."""
        told = []
        for s in range(self.slots):
            mine = slot == s
            sketch = PairSketch.within(STATISTICS_BYTES)
            sketch.update(key[mine], np.zeros(np.count_nonzero(mine), np.uint64), rows[mine])
            told.append(TaskStatistics(s, loads={OPERATOR: sketch}))
        by_slot = tuple(loads.tolist())
        facts = EpochFacts(self.epoch, rows=int(rows.sum()), loads={OPERATOR: by_slot})
        observed = [Observed(facts, told)]
        decision = hot.propose(observed, View({OPERATOR: self.table}, self.slots))
        self.route = Route(
            decision.tables.get(OPERATOR, self.table),
            (decision.dispatch or {}).get(OPERATOR, self.route.dispatch),
        )


def counting(grouping: KeyGrouping, epochs: Sequence[pa.Table]) -> Flow:
    """The flow that is measured: one count, keyed with this grouping."""
    flow = Flow("skew")
    rows = flow.source(ListSource("k bigint", epochs))
    rows.key_by("k", grouping=grouping).process(Count(), name=OPERATOR).to_memory("out")
    return flow


def run_skew(options: SkewOptions, say: Say) -> dict[str, Any]:
    """The figures, and the check of the code they were made with."""
    return {
        **sweep(options, say),
        "engine": check_engine(options, say),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def sweep(options: SkewOptions, say: Say) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by grouping and exponent, means over the epochs measured.

    `imbalance` is max/mean of the rows that slots processed in an epoch; `merge_rows` are partials
    that owners merged in an epoch; `state_replication` is in how many slots a key was processed.
    `imbalance_of_new_keys` is that of one more epoch, in which all keys are others, equally skewed.
    """
    told: dict[str, dict[str, dict[str, float]]] = {name: {} for name in _FIGURES}
    unlearnt: dict[str, dict[str, float]] = {}
    changed: dict[str, dict[str, float]] = {}
    for grouping in GROUPINGS:
        line = {}
        for zipf in options.zipf:
            stream = GroupedStream(grouping, options.slots)
            epochs = [stream.run(_tasks(options, zipf, e)) for e in range(options.epochs)]
            for name, figure in _FIGURES.items():
                found = figure(epochs[options.learning :], options.rows_per_epoch)
                told[name].setdefault(grouping, {})[f"{zipf:g}"] = found
            unlearnt.setdefault(grouping, {})[f"{zipf:g}"] = epochs[0].imbalance
            others = stream.run(_tasks(options, zipf, options.epochs, first_key=options.keys))
            changed.setdefault(grouping, {})[f"{zipf:g}"] = others.imbalance
            line[f"{zipf:g}"] = told["imbalance"][grouping][f"{zipf:g}"]
        say(f"{grouping}: " + ", ".join(f"{x:.3f} at {zipf}" for zipf, x in line.items()))
    return {**told, "imbalance_first_epoch": unlearnt, "imbalance_of_new_keys": changed}


def check_engine(options: SkewOptions, say: Say) -> dict[str, Any]:
    """The same groupings through the engine: equal loads per slot, and results as with hash."""
    drawn = [
        draw_keys(options, options.engine_zipf, epoch, options.engine_rows)
        for epoch in range(options.engine_epochs)
    ]
    tables = [pa.table({"k": keys}) for keys in drawn]
    told: dict[str, Any] = {"zipf": options.engine_zipf, "loads_equal": {}, "results_equal": {}}
    told["imbalance_last_epoch"] = {}
    expected: list[Any] | None = None
    for grouping in GROUPINGS:
        done = run(
            counting(grouping, tables), slots=options.slots, partitions=options.source_tasks,
            check_purity=False,
        )  # fmt: skip
        stream = GroupedStream(grouping, options.slots)
        alone = [stream.run(_cut(keys, options.source_tasks)) for keys in drawn]
        loads = [record["loads"][OPERATOR] for record in done.records]
        results = _results(done)
        expected = results if expected is None else expected
        told["loads_equal"][grouping] = loads == [epoch.loads.tolist() for epoch in alone]
        told["results_equal"][grouping] = results == expected
        told["imbalance_last_epoch"][grouping] = alone[-1].imbalance
        say(
            f"{grouping} through the engine: loads equal {told['loads_equal'][grouping]}, "
            f"results equal {told['results_equal'][grouping]}"
        )
    return told


def draw_keys(options: SkewOptions, zipf: float, epoch: int, rows: int) -> I64:
    """Keys of an epoch's rows: key number r has weight 1 / r^zipf."""
    weights = 1 / np.arange(1, options.keys + 1) ** zipf
    draw = np.random.default_rng([options.seed, epoch, round(1000 * zipf)])
    drawn = np.searchsorted(np.cumsum(weights), draw.random(rows) * weights.sum(), side="right")
    return np.asarray(np.minimum(drawn, options.keys - 1), np.int64)


# --- inside ---------------------------------------------------------------------------------
def _tasks(options: SkewOptions, zipf: float, epoch: int, first_key: int = 0) -> list[U64]:
    keys = first_key + draw_keys(options, zipf, epoch, options.rows_per_epoch)
    return _cut(keys, options.source_tasks)


def _cut(keys: I64, tasks: int) -> list[U64]:
    """Hashes of the rows of each source task: consecutive pieces, as a list source deals them."""
    h = hash_columns([pa.array(keys)], len(keys))
    step = max(1, -(-len(keys) // tasks))
    return [h[task * step : (task + 1) * step] for task in range(tasks)]


def _results(done: LocalRun) -> list[Any]:
    rows = [(epoch, row["k"], row["count"]) for epoch, row in done.outputs["out"]]
    return sorted(rows)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


_FIGURES: dict[str, Callable[[Sequence[EpochFigures], int], float]] = {
    "imbalance": lambda epochs, _: _mean([e.imbalance for e in epochs]),
    "imbalance_worst_epoch": lambda epochs, _: max(e.imbalance for e in epochs),
    "imbalance_with_merges": lambda epochs, _: _mean([e.imbalance_with_merges for e in epochs]),
    "state_replication": lambda epochs, _: _mean([e.pieces / e.keys for e in epochs]),
    "merge_rows": lambda epochs, _: _mean([float(e.merged.sum()) for e in epochs]),
    "merge_rows_per_row": lambda epochs, rows: _mean([e.merged.sum() / rows for e in epochs]),
    "route_ns_per_row": lambda epochs, rows: 1e9 * min(e.route_seconds for e in epochs) / rows,
}
