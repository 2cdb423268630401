"""The benchmark runs, tiny, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

from headgate_lab.osg.reach import follower_graph

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_schedule.py"


def test_it_measures_every_step() -> None:
    bench = runpy.run_path(str(BENCH))
    steps = bench["steps"](3_000, 3, follower_graph(200, 3_000))
    found = {name: bench["measure"](work, 3_000, 1) for name, work in steps.items()}
    assert {"whole_online", "whole_longest_first", "sketch_update_by_row"} <= set(found)
    assert all(line["us_per_tuple"] >= 0 for line in found.values())
