"""What managing costs: counting pairs in every epoch, and epochs that move state.

Two chained counts. Epochs are compared with their neighbours in one query: the machine's speed
wanders from minute to minute. In one run each two epochs have one that counts and one that does
not, in an order drawn for them. In another, known keys are moved to random slots every few epochs,
so that an epoch that migrates can be held against the epochs around it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headgate.commit.facts import EpochFacts, PlanFacts, epochs_of
from headgate.commit.planning import Decides, Decision, Observed
from headgate.control.settings import Manager
from headgate.demo import EpochFiles, Machine, write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.routing.table import RoutingTable
from headgate_lab.baselines import spark_query
from headgate_lab.bench.contestant import epoch_seconds
from headgate_lab.record import work_folder
from headgate_lab.streams import correlated_pairs

Say = Callable[[str], None]


@dataclass(frozen=True)
class ManageOptions:
    """Sizes; the defaults are those of the figures in the docs."""

    rows_per_epoch: int = 500_000
    epochs: int = 14
    warmup: int = 5
    counting_epochs: int = 46
    slots: int = 2
    rounds: int = 3
    move_every: int = 3
    moved_keys: int = 2_000
    seed: int = 7


QUICK = ManageOptions(
    rows_per_epoch=5_000, epochs=5, warmup=1, counting_epochs=5, rounds=1, moved_keys=200
)


class Alternating:
    """Counts in one epoch of every two, and notes which: the plan asks once per epoch."""

    born_local: frozenset[str] = frozenset()

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._next: list[int] = []
        self.counted: dict[int, bool] = {}

    @property
    def statistics_bytes(self) -> int:
        if not self._next:
            self._next = self._draw.permutation([0, 1 << 20]).tolist()
        return self._next.pop()

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        for epoch in observed:
            self.counted[epoch.facts.epoch] = any(s.loads for s in epoch.statistics)
        return Decision()


@dataclass
class Stirring:
    """Moves so many known keys of every operator to random slots, every few epochs."""

    options: ManageOptions
    statistics_bytes: int = 1 << 20
    born_local: frozenset[str] = frozenset()
    moved_with: list[int] = field(default_factory=list)

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        epoch = observed[-1].facts.epoch + 1  # the earliest that can run with it
        if epoch % self.options.move_every:
            return Decision()
        draw = np.random.default_rng([self.options.seed, epoch])
        changed = {}
        for operator, table in tables.items():
            tasks = [task for epoch in observed for task in epoch.statistics]
            parts = [task.loads[operator].a for task in tasks if operator in task.loads]
            known = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)
            some = draw.permutation(known)[: self.options.moved_keys]
            slots = draw.integers(0, table.slots, len(some)).astype(np.int32)
            changed[operator] = table.pin_hashes(some, slots)
        self.moved_with.append(epoch)
        return Decision(changed, PlanFacts(why="stirring"))


def run_manage(options: ManageOptions, say: Say) -> dict[str, Any]:
    """Rows per second with and without counting, and how long epochs take that move state."""
    with work_folder() as folder:
        work = Path(folder)
        many = _input(options, options.counting_epochs, work / "many")
        few = _input(options, options.epochs, work / "few")
        counting, moving = [], []
        for turn in range(options.rounds):
            place = work / f"counting-{turn}"
            counting.append(_counting(many, options, place, seed=options.seed + turn))
            shutil.rmtree(place, ignore_errors=True)
            say(f"round {turn + 1} of {options.rounds}: counting keeps {counting[-1]['ratio']:.1%}")
            place = work / f"moving-{turn}"
            seconds, records = _run(few, options, place, Stirring(options))
            moving.append(_migrating(seconds, records, options.warmup))
            shutil.rmtree(place, ignore_errors=True)
            say(
                f"round {turn + 1} of {options.rounds}: an epoch that moves state takes "
                f"{moving[-1]['ratio']:.2f}x the median"
            )
    rate = {
        name: options.rows_per_epoch / median(s for run in counting for s in run[f"seconds_{name}"])
        for name in ("plain", "counting")
    }
    return {
        "rows_per_s": rate,
        "counting_over_plain": rate["counting"] / rate["plain"],
        "counting_over_plain_of_neighbours": median(p for run in counting for p in run["pairs"]),
        "migrating_epoch_over_median": median(m["ratio"] for m in moving),
        "counting": counting,
        "migrating": moving,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _input(options: ManageOptions, epochs: int, directory: Path) -> EpochFiles:
    tables = (
        correlated_pairs(options.rows_per_epoch, seed=options.seed, epoch=epoch)
        for epoch in range(epochs)
    )
    return write_epochs(tables, directory, files_per_epoch=options.slots)


def _counting(files: EpochFiles, options: ManageOptions, place: Path, seed: int) -> dict[str, Any]:
    """Neighbouring epochs, one of which counts: seconds of the plain one over the other's."""
    manager = Alternating(seed)
    seconds, _ = _run(files, options, place, manager)
    timed = {e: s for e, s in enumerate(seconds) if e >= options.warmup and e in manager.counted}
    pairs = []
    for first in range(options.warmup + options.warmup % 2, len(seconds) - 1, 2):
        two = {manager.counted.get(e): seconds[e] for e in (first, first + 1)}
        if True in two and False in two:
            pairs.append(two[False] / two[True])
    return {
        "ratio": median(pairs) if pairs else float("nan"),
        "pairs": pairs,
        "seconds_plain": [s for e, s in timed.items() if not manager.counted[e]],
        "seconds_counting": [s for e, s in timed.items() if manager.counted[e]],
    }


def _run(
    files: EpochFiles, options: ManageOptions, place: Path, manager: Manager | Decides | None
) -> tuple[tuple[float, ...], list[EpochFacts]]:
    spark = spark_query.session(options.slots)
    flow = Flow("managed")
    pairs = flow.source(spark_query.source(spark, files))
    first = pairs.key_by("k1", grouping="hash").process(Count(emit="rows"), name="by_k1")
    first.key_by("k2", grouping="hash").process(Count(), name="by_k2").discard()
    query = flow.start(
        spark,
        slots=options.slots,
        checkpoint=str(place),
        trigger={"availableNow": True},
        manager=manager,
    )
    query.awaitTermination()
    return epoch_seconds(query, len(files)), epochs_of(query.journal())


def _migrating(
    seconds: Sequence[float], epochs: Sequence[EpochFacts], warmup: int
) -> dict[str, Any]:
    """The epochs that moved state against the median of all, warm-up left out."""
    moved = [sum(epoch.moved_rows.values()) for epoch in epochs]
    timed = list(zip(seconds, moved, strict=True))[warmup:]
    with_moves = [s for s, keys in timed if keys]
    usual = median(s for s, _ in timed)
    return {
        "ratio": median(with_moves) / usual if with_moves else float("nan"),
        "moved_rows": [keys for _, keys in timed if keys],
        "seconds": [s for s, _ in timed],
        "seconds_with_moves": with_moves,
    }
