"""The benchmark runs, tiny, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.journal import Journal

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_start.py"


def test_the_benchmark_runs(tmp_path: Path) -> None:
    bench = runpy.run_path(str(BENCH))
    bench["make"](str(tmp_path), 700)

    told = bench["start"](str(tmp_path))

    journal = Checkpoint(str(tmp_path)).journal
    assert len(journal.list()) > 1
    epochs = [r["epoch"] for r in Journal(journal).read() if r["kind"] == "epoch"]
    assert epochs == list(range(-700, 2))
    assert told["seconds"] > 0 and told["peak_mb"] > 0
