"""The benchmark runs, tiny, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCH = Path(__file__).parents[4] / "benchmarks" / "bench_allocation.py"


def test_it_measures_small_clusters() -> None:
    bench = runpy.run_path(str(BENCH))
    for talks in (False, True):
        line = bench["measure"]("headgate", 60, 4, 0.5, 1, talks=talks)
        run = line["runs"][0]
        assert run["distance_pct"] <= run["distance_before_pct"]
        assert run["migrations"] <= 6
