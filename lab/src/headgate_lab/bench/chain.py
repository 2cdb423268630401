"""Two chained counts: headgate against plain PySpark, native Spark, Bytewax, Pathway and NumPy.

Every contestant counts the same files and is checked against one batch group-by. Contestants take
turns in alternating order; a figure is the median of its rounds, and the raw rounds are kept. The
fast Spark contestants get `warmup` epochs before the clock runs, since the JVM is still compiling
for some ten seconds; the slow ones (whose one epoch is tens of seconds, or whose time is not the
JVM's) get one or none. `headgate` has both counts split, as Spark's own group-by has;
`headgate_keyed` is the same flow without, where every row goes to the slot of its key.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgate.demo import EpochFiles, Machine, write_epochs
from headgate_lab.baselines import (
    bytewax_count,
    native,
    numpy_limit,
    pathway_count,
    tws,
)
from headgate_lab.baselines.result import BaselineResult, RivalUnavailable, oracle
from headgate_lab.bench import contestant
from headgate_lab.record import side_by_side
from headgate_lab.streams import correlated_pairs

Say = Callable[[str], None]


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
    rivals: tuple[str, ...] = ("tws", "native", "bytewax", "pathway", "pathway_csv")


@dataclass(frozen=True)
class Entry:
    """A contestant: which files it counts, how many epochs of them warm it up, and itself."""

    files: str
    warmup: int
    run: Callable[..., BaselineResult]


OWN_VENV = {
    "bytewax": (bytewax_count.setup, bytewax_count.run),
    "pathway": (pathway_count.setup, pathway_count.run),
    "pathway_csv": (pathway_count.setup, pathway_count.run_csv),
}
QUICK = ChainOptions(
    rows_per_epoch=5_000,
    large_rows_per_epoch=10_000,
    epochs=2,
    warmup=1,
    slow_epochs=2,
    large_epochs=2,
    large_warmup=1,
    rounds=1,
    rivals=("native",),
)


def run_chain(options: ChainOptions, say: Say) -> dict[str, Any]:
    """The figures of `headgate-lab bench chain`; rows per second and ratios."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        work = Path(folder)
        rows = options.rows_per_epoch
        files = {
            "fast": _epochs(work / "fast", options, rows, options.epochs),
            "slow": _epochs(work / "slow", options, rows, options.slow_epochs),
            "large": _epochs(
                work / "large", options, options.large_rows_per_epoch, options.large_epochs
            ),
        }
        entries: dict[str, Entry] = {
            "headgate": Entry("fast", options.warmup, contestant.run),
            "headgate_keyed": Entry("fast", options.warmup, partial(contestant.run, split=False)),
            "numpy": Entry("fast", options.warmup, numpy_limit.run),
            "headgate_large": Entry("large", options.large_warmup, contestant.run),
            "numpy_large": Entry("large", options.large_warmup, numpy_limit.run),
        }
        absent: dict[str, str] = {}
        for rival in options.rivals:
            _enter(rival, entries, absent, options, say)
        expected = {name: oracle(epochs) for name, epochs in files.items()}
        number = iter(range(1_000_000))

        def timed(name: str) -> float:
            place = work / f"run-{next(number)}"
            place.mkdir()
            entry = entries[name]
            result = entry.run(
                files[entry.files], slots=options.slots, work_dir=place, warmup=entry.warmup
            )
            if not result.agrees_with(expected[entry.files]):
                raise RuntimeError(f"{name} counted wrongly; its time means nothing")
            shutil.rmtree(place, ignore_errors=True)
            return result.seconds / result.rows

        turns = side_by_side(
            {name: partial(timed, name) for name in entries},
            options.rounds,
            lambda turn, name, cost: say(
                f"round {turn + 1} of {options.rounds}: {name:15} {1 / cost:12,.0f} rows/s"
            ),
        )
    return _figures(turns.raw, turns.order, absent, options)


def _enter(
    rival: str,
    entries: dict[str, Entry],
    absent: dict[str, str],
    options: ChainOptions,
    say: Say,
) -> None:
    if rival == "native":
        entries[rival] = Entry("fast", options.warmup, native.run)
        return
    if rival == "tws":
        entries[rival] = Entry("slow", 1, tws.run)
        return
    setup, run = OWN_VENV[rival]
    try:
        say(f"setting up {rival} in a venv of its own")
        setup()
    except RivalUnavailable as problem:
        absent[rival] = str(problem)
        say(f"{rival} left out: {problem}")
        return
    entries[rival] = Entry("slow", 0, run)


def _epochs(folder: Path, options: ChainOptions, rows: int, epochs: int) -> EpochFiles:
    tables = (correlated_pairs(rows, seed=options.seed, epoch=epoch) for epoch in range(epochs))
    return write_epochs(tables, folder, files_per_epoch=options.slots)


def _figures(
    raw: dict[str, tuple[float, ...]],
    order: tuple[tuple[str, ...], ...],
    absent: dict[str, str],
    options: ChainOptions,
) -> dict[str, Any]:
    rates = {name: 1 / median(costs) for name, costs in raw.items()}
    figures: dict[str, Any] = {f"{name}_rows_per_s": rate for name, rate in rates.items()}
    python_rivals = [rates[name] for name in ("bytewax", "pathway") if name in rates]
    ours = rates["headgate"]
    ratios = {
        f"headgate_over_{name}": ours / rates[name] for name in ("tws", "native") if name in rates
    }
    ratios["headgate_over_headgate_keyed"] = ours / rates["headgate_keyed"]
    if python_rivals:
        ratios["headgate_over_better_of_bytewax_and_pathway"] = ours / max(python_rivals)
    if "pathway_csv" in rates:
        ratios["headgate_over_pathway_csv"] = ours / rates["pathway_csv"]
        ratios["headgate_large_over_pathway_csv"] = rates["headgate_large"] / rates["pathway_csv"]
    ratios["numpy_over_headgate"] = rates["numpy"] / ours
    ratios["numpy_over_headgate_large"] = rates["numpy_large"] / rates["headgate_large"]
    return {
        **figures,
        "ratios": ratios,
        "seconds_per_row_raw": {name: list(costs) for name, costs in raw.items()},
        "order": [list(names) for names in order],
        "absent": absent,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }
