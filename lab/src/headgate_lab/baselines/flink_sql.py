"""Flink SQL 2.3: an aggregate by each of two keys in one job, mini-batches, state on the heap.

It runs in a virtual environment of its own and reads CSV, which is made before the clock runs. Its
time is that of a job over all files without that of a job over the first: start-up, deployment and
class loading are in both.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from headgate.demo import EpochFiles
from headgate_lab.baselines.own_venv import Rival

RIVAL = Rival("flink", ("apache-flink==2.3.0",), "flink_driver.py")


@dataclass(frozen=True)
class Job:
    """What Flink aggregates, in its SQL: columns with their types, an aggregate by each key."""

    columns: dict[str, str]
    keys: tuple[str, ...]
    aggregate: str


SUMS = Job(
    {"user": "STRING", "page": "STRING", "amount": "BIGINT"}, ("user", "page"), "SUM(amount)"
)
COUNTS = Job({"k1": "BIGINT", "k2": "BIGINT"}, ("k1", "k2"), "COUNT(*)")


def seconds_per_row(epochs: EpochFiles, job: Job, *, slots: int, work_dir: Path) -> float:
    """Seconds for a row after start-up; writes the rows as CSV first."""
    for name, chosen in (("first", range(1)), ("all", range(len(epochs)))):
        (work_dir / name).mkdir(parents=True)
        for epoch in chosen:
            table: pa.Table = epochs.read(epoch, list(job.columns))
            path = str(work_dir / name / f"{epoch:06d}.csv")
            csv.write_csv(table, path, csv.WriteOptions(include_header=False, quoting_style="none"))
    python = RIVAL.default_venv / "bin" / "python"
    driver = Path(__file__).parent / "driver" / RIVAL.driver
    done = subprocess.run(
        [str(python), str(driver), str(work_dir), str(slots), json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"flink failed:\n{done.stderr[-2000:]}")
    first_ms, all_ms = map(int, done.stdout.strip().splitlines()[-1].split())
    rows = sum(epochs.rows(epoch) for epoch in range(1, len(epochs)))
    return max(1, all_ms - first_ms) / 1000 / rows
