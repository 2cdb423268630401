"""Two chained counts: headgate against plain PySpark, native Spark, Flink, Bytewax and Pathway.

Every contestant counts the same files, in small epochs and in large ones, and is checked against
one batch group-by (Flink, whose sink throws rows away, is not). Contestants take turns in
alternating order; a figure is the median of its rounds, and the raw rounds are kept. The fast Spark
contestants get `warmup` epochs before the clock runs, since the JVM is still compiling for some ten
seconds; the slow ones (whose one epoch is tens of seconds, or whose time is not the JVM's) get one
or none. `split` has both counts split, as Spark's own group-by has; `keyed` is the same flow
without, where every row goes to the slot of its key. DuckDB and NumPy are limits: no stream.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.demo import EpochFiles, Machine, write_epochs
from headgate_lab.baselines import (
    bytewax_count,
    duckdb_limit,
    flink_sql,
    native,
    numpy_limit,
    pathway_count,
    spark_query,
    tws,
)
from headgate_lab.baselines.result import (
    BaselineResult,
    RivalUnavailable,
    counts_table,
    oracle,
    timed_rows,
)
from headgate_lab.bench import contestant
from headgate_lab.record import side_by_side, work_folder
from headgate_lab.streams import correlated_pairs

Say = Callable[[str], None]
Run = Callable[..., BaselineResult | float]  # a number is seconds for a row, of unknown counts
KEYS = ("k1", "k2")
LARGE = "_large"


@dataclass(frozen=True)
class ChainOptions:
    """Sizes of the comparison; the defaults are the ones whose figures the docs quote."""

    rows_per_epoch: int = 500_000
    large_rows_per_epoch: int = 3_000_000
    epochs: int = 26
    warmup: int = 18
    slow_epochs: int = 2
    large_epochs: int = 9
    large_warmup: int = 4
    slots: int = 2
    rounds: int = 3
    seed: int = 7
    rivals: tuple[str, ...] = (
        "native_rocksdb",
        "native_memory",
        "flink",
        "tws",
        "bytewax",
        "pathway",
        "pathway_csv",
        "duckdb",
        "numpy",
    )
    once: tuple[str, ...] = ("tws_large",)  # minutes for an epoch: one round of it


QUICK = ChainOptions(
    rows_per_epoch=5_000,
    large_rows_per_epoch=10_000,
    epochs=2,
    warmup=1,
    slow_epochs=2,
    large_epochs=2,
    large_warmup=1,
    rounds=1,
    rivals=("native_rocksdb", "native_memory", "duckdb", "numpy"),
)


@dataclass(frozen=True)
class Entry:
    """A contestant: itself, the files it counts, and how many epochs of them warm it up."""

    run: Run
    files: str
    warmup: int


def run_chain(options: ChainOptions, say: Say) -> dict[str, Any]:
    """The figures of `headgate-lab bench chain`; rows per second and ratios."""
    with work_folder() as folder:
        work = Path(folder)
        sizes = {
            "fast": (options.rows_per_epoch, options.epochs),
            "slow": (options.rows_per_epoch, options.slow_epochs),
            "fast_large": (options.large_rows_per_epoch, options.large_epochs),
            "slow_large": (options.large_rows_per_epoch, 1),
        }
        files = {name: _epochs(work / name, options, *size) for name, size in sizes.items()}
        expected = {name: oracle(epochs) for name, epochs in files.items()}
        absent: dict[str, str] = {}
        entries = _entries(options, absent, say)
        number = iter(range(1_000_000))

        def timed(name: str) -> float:
            place = work / f"run-{next(number)}"
            place.mkdir()
            entry = entries[name]
            epochs = files[entry.files]
            result = entry.run(epochs, slots=options.slots, work_dir=place, warmup=entry.warmup)
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(result, float):
                return result
            if not result.agrees_with(expected[entry.files]):
                raise RuntimeError(f"{name} counted wrongly; its time means nothing")
            return result.seconds / result.rows

        def tell(turn: int, name: str, cost: float) -> None:
            say(f"round {turn + 1} of {options.rounds}: {name:20} {1 / cost:12,.0f} rows/s")

        often = {name: partial(timed, name) for name in entries if name not in options.once}
        turns = side_by_side(often, options.rounds, tell)
        raw = dict(turns.raw)
        for name in (name for name in entries if name in options.once):
            raw[name] = (timed(name),)
            tell(0, name, raw[name][0])
    return {
        **figures({name: 1 / median(costs) for name, costs in raw.items()}),
        "seconds_per_row_raw": {name: list(costs) for name, costs in raw.items()},
        "order": [list(names) for names in turns.order],
        "absent": absent,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _entries(options: ChainOptions, absent: dict[str, str], say: Say) -> dict[str, Entry]:
    """All contestants that can run here, with small epochs and with large ones."""
    fast: dict[str, Run] = {
        "split": contestant.run,
        "keyed": partial(contestant.run, split=False),
        "native_rocksdb": partial(native.run, store=spark_query.ROCKSDB),
        "native_memory": partial(native.run, store=spark_query.MEMORY),
        "flink": _flink,
        "duckdb": _duckdb,
        "numpy": numpy_limit.run,
    }
    slow: dict[str, Run] = {
        "tws": tws.run,
        "bytewax": bytewax_count.run,
        "pathway": pathway_count.run,
        "pathway_csv": pathway_count.run_csv,
    }
    setups = {
        "flink": flink_sql.RIVAL.setup,
        "bytewax": bytewax_count.setup,
        "pathway": pathway_count.setup,
        "pathway_csv": pathway_count.setup,
    }
    for name in options.rivals:
        try:
            if name in setups:
                say(f"setting up {name} in a venv of its own")
                setups[name]()
        except RivalUnavailable as problem:
            absent[name] = str(problem)
            say(f"{name} left out: {problem}")
    entries = {}
    for name, run in {**fast, **slow}.items():
        if name in ("split", "keyed", *options.rivals) and name not in absent:
            warmups = options.warmup, options.large_warmup
            if name in slow:
                warmups = (1, 0) if name == "tws" else (0, 0)
            speed = "slow" if name in slow else "fast"
            entries[name] = Entry(run, speed, warmups[0])
            entries[name + LARGE] = Entry(run, speed + LARGE, warmups[1])
    return entries


def _flink(epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int) -> float:
    """It has no epochs; its first file counts as start-up."""
    return flink_sql.seconds_per_row(epochs, flink_sql.COUNTS, slots=slots, work_dir=work_dir)


def _duckdb(epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int) -> BaselineResult:
    seconds, tables = duckdb_limit.aggregate(epochs, KEYS, "count(*)", slots=slots)
    k1, k2 = (
        counts_table(tables[key]["key"].to_numpy(), tables[key]["total"].to_numpy()) for key in KEYS
    )
    return BaselineResult("duckdb", timed_rows(epochs, warmup), seconds[warmup:], k1, k2)


def _epochs(folder: Path, options: ChainOptions, rows: int, epochs: int) -> EpochFiles:
    tables = (correlated_pairs(rows, seed=options.seed, epoch=epoch) for epoch in range(epochs))
    return write_epochs(tables, folder, files_per_epoch=options.slots)


def figures(rates: Mapping[str, float]) -> dict[str, Any]:
    """Rows per second of all, and how many times as fast as each of the others ours are.

    `native` is the better of Spark's two state stores.
    """
    ratios = {}
    for size in ("", LARGE):
        stores = [f"native_{store}{size}" for store in ("rocksdb", "memory")]
        others = {name: rates[name] for name in rates if name.endswith(LARGE) == bool(size)}
        native_rates = [others[name] for name in stores if name in others]
        if native_rates:
            others[f"native{size}"] = max(native_rates)
        for ours in ("split", "keyed"):
            for name, rate in others.items():
                if name not in (f"{ours}{size}", *stores):
                    ratios[f"{ours}_over_{name}"] = rates[f"{ours}{size}"] / rate
        if f"numpy{size}" in others:
            ratios[f"numpy{size}_over_split"] = others[f"numpy{size}"] / rates[f"split{size}"]
    return {**{f"{name}_rows_per_s": rate for name, rate in rates.items()}, "ratios": ratios}
