"""What an epoch costs when there is next to nothing in it, against a plain stateful Spark query.

Both run the same tiny micro-batches (one row each) through two chained stateful operators on the
same number of partitions; Spark's own are `transformWithStateInPandas`, once chained twice (as
headgate's flow is), and the native `groupBy().count()`, with each of its state stores, as the least
Spark can do. Native Spark runs as it comes, and with the setting that has it write its checkpoint
with less effort (headgate needs none).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from headgate.demo import Machine, write_epochs
from headgate_lab.baselines import native, spark_query, tws
from headgate_lab.baselines.result import BaselineResult
from headgate_lab.bench import contestant
from headgate_lab.bench.epoch_parts import EpochParts, row_of_keys, run_parts
from headgate_lab.record import side_by_side, work_folder

Say = Callable[[str], None]


@dataclass(frozen=True)
class FixedCostOptions:
    epochs: int = 40
    warmup: int = 20  # the JVM compiles for some ten seconds
    slots: int = 2
    rounds: int = 3
    chains: tuple[int, ...] = (1, 2, 4, 8)  # exchanges, on 2 slots
    more_slots: tuple[int, ...] = (4, 8)  # of a chain of two


QUICK = FixedCostOptions(epochs=3, warmup=1, rounds=1, chains=(1, 2), more_slots=())


def run_fixed_cost(options: FixedCostOptions, say: Say) -> dict[str, Any]:
    """Median milliseconds of a one-row epoch, per engine, and the ratios."""
    medians: dict[str, list[list[float]]] = {}
    with work_folder() as folder:
        work = Path(folder)
        row = pa.table({"k1": pa.array([1], pa.int64()), "k2": pa.array([2], pa.int64())})
        epochs = write_epochs((row for _ in range(options.epochs)), work / "in")

        def turn(name: str, run: Callable[..., BaselineResult]) -> float:
            runs = medians.setdefault(name, [])
            place = work / f"{name}-{len(runs)}"
            place.mkdir()
            result = run(epochs, slots=options.slots, work_dir=place, warmup=options.warmup)
            runs.append([1e3 * s for s in result.seconds_per_epoch])
            return median(runs[-1])

        turns = side_by_side(
            {
                "headgate": lambda: turn("headgate", contestant.run),
                "tws": lambda: turn("tws", tws.run),
                "native_rocksdb": lambda: turn("native_rocksdb", native.run),
                "native_memory": lambda: turn(
                    "native_memory", partial(native.run, store=spark_query.MEMORY)
                ),
                "native_as_it_comes": lambda: turn(
                    "native_as_it_comes", partial(native.run, tuned_files=False)
                ),
            },
            options.rounds,
            lambda n, name, ms: say(f"round {n + 1} of {options.rounds}: {name:18} {ms:8.0f} ms"),
        )
    found = turns.medians
    return {
        "empty_epoch_ms": found,
        "parts": parts_of(options, say),
        "ratios": {
            "headgate_over_tws": found["headgate"] / found["tws"],
            "headgate_over_native": found["headgate"] / found["native_as_it_comes"],
            "headgate_over_tuned_native": found["headgate"]
            / min(found["native_rocksdb"], found["native_memory"]),
        },
        "raw_ms": medians,
        "order": [list(names) for names in turns.order],
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def parts_of(options: FixedCostOptions, say: Say) -> dict[str, dict[str, Any]]:
    """Where an epoch's milliseconds go, by its exchanges and slots; medians of rounds."""
    settings = [(levels, options.slots) for levels in options.chains]
    settings += [(2, slots) for slots in options.more_slots]
    found: dict[tuple[int, int], list[EpochParts]] = {at: [] for at in settings}
    with work_folder() as folder:
        work = Path(folder)
        epochs = write_epochs((row_of_keys() for _ in range(options.epochs)), work / "in")

        def turn(at: tuple[int, int]) -> float:
            place = work / f"{at[0]}-{at[1]}-{len(found[at])}"
            parts = run_parts(epochs, place, levels=at[0], slots=at[1], warmup=options.warmup)
            found[at].append(parts)
            return parts.epoch

        side_by_side(
            {
                f"{levels} levels, {slots} slots": partial(turn, (levels, slots))
                for levels, slots in settings
            },
            options.rounds,
            lambda n, name, ms: say(f"round {n + 1} of {options.rounds}: {name:18} {ms:8.0f} ms"),
        )
    return {
        f"{levels}/{slots}": {
            "levels": levels,
            "slots": slots,
            "raw": [asdict(parts) for parts in found[levels, slots]],
            **{
                name: median(getattr(parts, name) for parts in found[levels, slots])
                for name in ("epoch", "spark", "driver", "job", "python")
            },
        }
        for levels, slots in settings
    }
