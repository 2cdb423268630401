"""Pathway 0.33: two `groupby().reduce(count())` over one input, `slots` worker threads.

Two ways in, both measured. `run` is the job of all other contestants: the same Parquet files, read
inside the clock, one transaction per epoch, through Pathway's Python connector. Its Rust reader of
Parquet (Delta tables) and its durable state need a licence key, so neither is used. `run_csv` shows
what its engine does when rows come in for free: the files are turned into CSV *before* the clock
starts, its Rust reader takes them, and all rows are one transaction, so each key is reported once.
Neither chains the counts, and neither keeps its state: that favours it.
"""

from __future__ import annotations

from pathlib import Path

from headgate.demo import EpochFiles
from headgate_lab.baselines.own_venv import Rival
from headgate_lab.baselines.result import BaselineResult

RIVAL = Rival("pathway", ("pathway==0.33.0", "protobuf", "pyarrow"), "pathway_driver.py")
setup = RIVAL.setup


def run(
    epochs: EpochFiles,
    *,
    slots: int,
    work_dir: Path,
    warmup: int = 0,
    venv_dir: Path | None = None,
) -> BaselineResult:
    """Count epoch by epoch in one run; nothing there needs a warm-up, so all rows are timed."""
    return _run(epochs, slots, "connector", work_dir, venv_dir)


def run_csv(
    epochs: EpochFiles,
    *,
    slots: int,
    work_dir: Path,
    warmup: int = 0,
    venv_dir: Path | None = None,
) -> BaselineResult:
    """Count all rows as one transaction, from CSV files that are there before the clock starts."""
    return _run(epochs, slots, "csv", work_dir, venv_dir)


def _run(
    epochs: EpochFiles, slots: int, way: str, work_dir: Path, venv_dir: Path | None
) -> BaselineResult:
    options = (str(slots), way, str(epochs.files_per_epoch))
    return RIVAL.run(epochs, work_dir=work_dir, venv_dir=venv_dir, options=options)
