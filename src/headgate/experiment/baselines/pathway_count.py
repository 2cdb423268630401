"""Pathway 0.33: two `groupby().reduce(count())` over one input, `slots` worker threads.

Its engine is Rust, and so is the fastest way in, the CSV reader: the driver turns the Parquet into
CSV *before* the clock starts. In static mode all rows are one transaction, so each key is reported
once, not once per epoch. Both choices favour it. Rows through its Python connector, committed per
epoch, came close (100 k against 107 k rows/s, one run each on a busy machine); `table_from_pandas`
was far slower.
"""

from __future__ import annotations

from pathlib import Path

from headgate.experiment.baselines.own_venv import Rival
from headgate.experiment.baselines.result import BaselineResult
from headgate.experiment.workload import EpochFiles

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
    """Count all epochs in one run; nothing there needs a warm-up, so all rows are timed."""
    return RIVAL.run(epochs, work_dir=work_dir, venv_dir=venv_dir, options=(str(slots),))
