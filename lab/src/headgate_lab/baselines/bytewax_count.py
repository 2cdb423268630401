"""Bytewax 0.21: two chained `stateful_batch` steps, one worker.

Its keys must be strings, so the driver makes them strings, inside the clock. `stateful_batch` hands
a key its values of a batch together. One worker is what it gets, whatever `slots` is: threads share
the interpreter lock, and of two processes each burnt as much CPU (14.6 s and 15.0 s for 2 M rows)
as one process alone (14.4 s; one run each, on a busy machine), so a second core would gain nothing.
"""

from __future__ import annotations

from pathlib import Path

from headgate.demo import EpochFiles
from headgate_lab.baselines.own_venv import Rival
from headgate_lab.baselines.result import BaselineResult

RIVAL = Rival("bytewax", ("bytewax==0.21.1", "pyarrow"), "bytewax_driver.py")
setup = RIVAL.setup


def run(
    epochs: EpochFiles,
    *,
    slots: int,
    work_dir: Path,
    warmup: int = 0,
    venv_dir: Path | None = None,
) -> BaselineResult:
    """Count all epochs in one flow; nothing there needs a warm-up, so all rows are timed."""
    return RIVAL.run(epochs, work_dir=work_dir, venv_dir=venv_dir, options=())
