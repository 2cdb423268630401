"""The benchmark runs, tiny, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_state.py"


def test_the_benchmark_runs() -> None:
    measure = runpy.run_path(str(BENCH))["measure"]
    for strings in (False, True):
        result = measure(small=1000, large=3000, touched=200, epochs=2, strings=strings)
        assert len(result["raw_cpu_ms"]["large"]) == 2
        assert result["ratio"] > 0
