"""What scheduling a tuple by its cost takes, and what a sketch takes to learn of one.

Goal: at most one microsecond each at 1 M tuples per epoch. Every step of a cost-aware shuffle is
timed alone and together: hash the attribute, group equal values, estimate, assign (online, and
longest first), and in the slots the update of the sketches. Tuples are tweet authors of a skewed
stream. Prints JSON with every raw number; CPU time, since other work on the machine is not ours.

    python benchmarks/bench_schedule.py [--rows 1000000] [--slots 10] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import group_rows, hash_columns
from headgate.slot.cost_shuffle import greedy, longest_first
from headgate_lab.osg.reach import FollowerGraph, follower_graph

WINDOW_ROWS = 16_384  # as slot.cost_routing cuts them


def learnt(graph: FollowerGraph, cost_ms: Any, slots: int) -> CostModel:
    """A model as after some epochs: every slot has measured its share."""
    sketches = []
    for slot in range(slots):
        author = graph.authors(20_000, seed=slot)
        sketch = CostSketch(SketchShape.within())
        h = hash_columns([pa.array(author, pa.int64())], len(author))
        sketch.update(h, cost_ms[author])
        sketches.append(sketch)
    return CostModel.of(sketches)


def steps(rows: int, slots: int, graph: FollowerGraph) -> dict[str, Callable[[], Any]]:
    cost_ms = graph.cost_ms(2)
    author = graph.authors(rows, seed=99)
    column = pa.array(author, pa.int64())
    hashes = hash_columns([column], rows)
    group, first = group_rows(hashes)
    model = learnt(graph, cost_ms, slots)
    times_ms = model.times_ms(hashes[first])
    spent_ms = cost_ms[author]
    count = np.bincount(group, minlength=len(first)).astype(np.float64)

    def in_windows(way: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            busy = np.zeros(slots)
            for start in range(0, rows, WINDOW_ROWS):
                some = column.slice(start, WINDOW_ROWS)
                found = hash_columns([some], len(some))
                numbered, firsts = group_rows(found)
                way(model.times_ms(found[firsts]), numbered, busy, 0)

        return run

    return {
        "hash": lambda: hash_columns([column], rows),
        "group": lambda: group_rows(hashes),
        "estimate": lambda: model.times_ms(hashes[first]),
        "assign_online": lambda: greedy(times_ms, group, np.zeros(slots)),
        "assign_longest_first": lambda: longest_first(times_ms, group, np.zeros(slots)),
        "whole_online": in_windows(greedy),
        "whole_longest_first": in_windows(longest_first),
        "sketch_update_by_row": lambda: CostSketch(model.shape).update(hashes, spent_ms),
        "sketch_update_by_value": lambda: CostSketch(model.shape).update(
            hashes[first], np.bincount(group, spent_ms), count
        ),
    }


def measure(work: Callable[[], Any], rows: int, repeat: int) -> dict[str, Any]:
    work()  # compiles, or loads what was compiled
    cpu = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        cpu.append((time.process_time() - start) / rows * 1e6)
    return {"us_per_tuple": round(float(np.median(cpu)), 4), "raw": [round(x, 4) for x in cpu]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--slots", type=int, default=10)
    options.add_argument("--repeat", type=int, default=5)
    chosen = options.parse_args()
    found = {
        name: measure(work, chosen.rows, chosen.repeat)
        for name, work in steps(chosen.rows, chosen.slots, follower_graph()).items()
    }
    print(json.dumps({"rows": chosen.rows, "slots": chosen.slots, "steps": found}, indent=2))


if __name__ == "__main__":
    main()
