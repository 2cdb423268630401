"""The benchmarks run, tiny, so that they cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


def test_it_measures_small_clusters() -> None:
    bench = runpy.run_path(str(BENCHMARKS / "bench_allocation.py"))
    for talks in (False, True):
        line = bench["measure"]("headgate", 60, 4, 0.5, 1, talks=talks)
        run = line["runs"][0]
        assert run["distance_pct"] <= run["distance_before_pct"]
        assert run["migrations"] <= 6
    line = bench["measure"]("milp", 60, 4, 0.5, 1, talks=False, crowded=True)
    assert line["runs"][0]["migrations"] > 6
