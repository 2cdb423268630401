"""What managing costs: counting pairs in every epoch, and epochs that move state.

The same two chained counts three times, side by side: without a manager; with one that counts and
moves nothing; and with one that moves a share of all keys every few epochs, to random slots, so
that an epoch that migrates can be held against the epochs around it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headgate.control.manager import Manager
from headgate.control.planning import Decides, Decision, Observed
from headgate.experiment.baselines import spark_query
from headgate.experiment.bench.contestant import epoch_seconds
from headgate.experiment.record import Machine, side_by_side
from headgate.experiment.workload import EpochFiles, correlated_pairs, write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.routing.table import RoutingTable

Say = Callable[[str], None]


@dataclass(frozen=True)
class ManageOptions:
    """Sizes; the defaults are those of the figures in the docs."""

    rows_per_epoch: int = 500_000
    epochs: int = 14
    warmup: int = 5
    slots: int = 2
    rounds: int = 3
    move_every: int = 3
    moved_keys: int = 2_000
    seed: int = 7


QUICK = ManageOptions(rows_per_epoch=5_000, epochs=5, warmup=1, rounds=1, moved_keys=200)


@dataclass
class Stirring:
    """Moves so many known keys of every operator to random slots, every few epochs."""

    options: ManageOptions
    statistics_bytes: int = 1 << 20
    born_local: frozenset[str] = frozenset()
    moved_with: list[int] = field(default_factory=list)

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        epoch = int(observed[-1].record["epoch"]) + 1  # the earliest that can run with it
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
        return Decision(changed, {"why": "stirring"})


def run_manage(options: ManageOptions, say: Say) -> dict[str, Any]:
    """Rows per second with and without counting, and how long epochs take that move state."""
    moving: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        work = Path(folder)
        tables = (
            correlated_pairs(options.rows_per_epoch, seed=options.seed, epoch=epoch)
            for epoch in range(options.epochs)
        )
        files = write_epochs(tables, work / "in", files_per_epoch=options.slots)
        number = iter(range(1_000_000))

        def timed(manager: Manager | Decides | None) -> float:
            place = work / f"run-{next(number)}"
            seconds, records = _run(files, options, place, manager)
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(manager, Stirring):
                moving.append(_migrating(seconds, records, options.warmup))
            return median(seconds[options.warmup :]) / options.rows_per_epoch

        turns = side_by_side(
            {
                "plain": lambda: timed(None),
                "counting": lambda: timed(Manager("hash", born_local=False)),
                "moving": lambda: timed(Stirring(options)),
            },
            options.rounds,
            lambda turn, name, cost: say(
                f"round {turn + 1} of {options.rounds}: {name:9} {1 / cost:12,.0f} rows/s"
            ),
        )
    found = turns.medians
    return {
        "rows_per_s": {name: 1 / cost for name, cost in found.items()},
        "counting_over_plain": found["plain"] / found["counting"],
        "migrating_epoch_over_median": median(m["ratio"] for m in moving),
        "migrating": moving,
        "seconds_per_row_raw": {name: list(costs) for name, costs in turns.raw.items()},
        "order": [list(names) for names in turns.order],
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _run(
    files: EpochFiles, options: ManageOptions, place: Path, manager: Manager | Decides | None
) -> tuple[tuple[float, ...], list[dict[str, Any]]]:
    spark = spark_query.session(options.slots)
    flow = Flow("managed")
    pairs = flow.source(spark_query.source(spark, files))
    first = pairs.key_by("k1").process(Count(emit="rows"), name="by_k1")
    first.key_by("k2").process(Count(), name="by_k2")
    query = flow.start(
        spark,
        slots=options.slots,
        checkpoint=str(place),
        trigger={"availableNow": True},
        manager=manager,
    )
    query.awaitTermination()
    records = [r for r in query.journal() if r["kind"] == "epoch"]
    return epoch_seconds(query, len(files)), records


def _migrating(
    seconds: Sequence[float], records: Sequence[Mapping[str, Any]], warmup: int
) -> dict[str, Any]:
    """The epochs that moved state against the median of all, warm-up left out."""
    moved = [sum(record["moved_rows"].values()) for record in records]
    timed = list(zip(seconds, moved, strict=True))[warmup:]
    with_moves = [s for s, keys in timed if keys]
    usual = median(s for s, _ in timed)
    return {
        "ratio": median(with_moves) / usual if with_moves else float("nan"),
        "moved_rows": [keys for _, keys in timed if keys],
        "seconds": [s for s, _ in timed],
        "seconds_with_moves": with_moves,
    }
