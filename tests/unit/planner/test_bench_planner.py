"""The benchmark runs, tiny, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_planner.py"


def test_it_measures_a_small_graph() -> None:
    bench = runpy.run_path(str(BENCH))
    line = bench["measure"]("small", bench["grouped_pairs"](0, 6, 20, 2_000, 0.3), 1, "metis")
    assert len(line["wall_s"]) == 1
    assert max(line["imbalance"][0]) <= 1.03 + 1e-6
