"""Two chained counts: headgate against plain PySpark, native Spark, Bytewax, Pathway and NumPy.

Every contestant counts the same files and is checked against one batch group-by. Contestants take
turns in alternating order; a figure is the median of its rounds, and the raw rounds are kept.
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

from headgate.experiment.baselines import (
    bytewax_count,
    native,
    numpy_limit,
    pathway_count,
    tws,
)
from headgate.experiment.baselines.result import BaselineResult, RivalUnavailable, oracle
from headgate.experiment.bench import contestant
from headgate.experiment.record import Machine, side_by_side
from headgate.experiment.workload import EpochFiles, correlated_pairs, write_epochs

Say = Callable[[str], None]


@dataclass(frozen=True)
class ChainOptions:
    """Sizes of the comparison; the defaults are the ones whose figures the docs quote."""

    rows_per_epoch: int = 500_000
    large_rows_per_epoch: int = 3_000_000
    epochs: int = 3
    slots: int = 2
    rounds: int = 3
    seed: int = 7
    rivals: tuple[str, ...] = ("tws", "native", "bytewax", "pathway")


QUICK = ChainOptions(
    rows_per_epoch=5_000, large_rows_per_epoch=10_000, epochs=2, rounds=1, rivals=("native",)
)


def run_chain(options: ChainOptions, say: Say) -> dict[str, Any]:
    """The figures of `headgate bench chain`; rows per second and ratios."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        work = Path(folder)
        small = _epochs(work / "small", options, options.rows_per_epoch)
        large = _epochs(work / "large", options, options.large_rows_per_epoch)
        entries: dict[str, Callable[[Path], BaselineResult]] = {
            "headgate": lambda at: contestant.run(small, slots=options.slots, work_dir=at),
            "numpy": lambda at: numpy_limit.run(small, slots=options.slots, work_dir=at),
            "headgate_large": lambda at: contestant.run(large, slots=options.slots, work_dir=at),
            "numpy_large": lambda at: numpy_limit.run(large, slots=options.slots, work_dir=at),
        }
        absent: dict[str, str] = {}
        for rival in options.rivals:
            _enter(rival, entries, absent, small, options, say)
        expected = {"large": oracle(large), "small": oracle(small)}
        number = iter(range(1_000_000))

        def timed(name: str) -> float:
            place = work / f"run-{next(number)}"
            place.mkdir()
            result = entries[name](place)
            if not result.agrees_with(expected["large" if name.endswith("_large") else "small"]):
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
    entries: dict[str, Callable[[Path], BaselineResult]],
    absent: dict[str, str],
    epochs: EpochFiles,
    options: ChainOptions,
    say: Say,
) -> None:
    if rival in ("tws", "native"):
        module = tws if rival == "tws" else native
        entries[rival] = lambda at: module.run(epochs, slots=options.slots, work_dir=at)
        return
    own = bytewax_count if rival == "bytewax" else pathway_count
    try:
        say(f"setting up {rival} in a venv of its own")
        own.setup()
    except RivalUnavailable as problem:
        absent[rival] = str(problem)
        say(f"{rival} left out: {problem}")
        return
    entries[rival] = lambda at: own.run(epochs, slots=options.slots, work_dir=at)


def _epochs(folder: Path, options: ChainOptions, rows: int) -> EpochFiles:
    tables = (
        correlated_pairs(rows, seed=options.seed, epoch=epoch) for epoch in range(options.epochs)
    )
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
    if python_rivals:
        ratios["headgate_over_better_of_bytewax_and_pathway"] = ours / max(python_rivals)
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
