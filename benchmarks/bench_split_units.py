"""What do split units do for a skewed load, and what do they cost?

Keys of one operator whose rows follow a Zipf law, each a unit, at random homes; a key may be cut,
and a piece sends its owner one merge row an epoch. A budget pays for moving a tenth of the units.
The same planner plans twice: with whole units only, and with cuts. Then it goes on planning under
constant loads until nothing changes.

    python benchmarks/bench_split_units.py [--keys 1000] [--nodes 16] [--seeds 3] > FILE
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

from headgate.planner.allocation.allocator import make_allocator
from headgate.planner.allocation.cutting import after, cut_up
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.planner.allocation.plan import Limits, Plan

ZIPF = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
ROWS, EPOCHS, REMOTE = 1_000_000, 10, 0.5
"""Rows and epochs of a period; what a row costs at each end if it crosses, a processed one is 1."""
LIMIT_PCT, SECONDS, ROUNDS = 5.0, 1.0, 20


def skewed(keys: int, nodes: int, zipf: float, seed: int) -> Situation:
    rng = np.random.default_rng([seed, int(100 * zipf)])
    share = np.arange(1, keys + 1) ** -zipf
    load = rng.permutation(ROWS * share / share.sum())
    nothing = Traffic.none()
    return Situation(
        Units(("count",), np.zeros(keys, np.int32), load, np.ones(keys)),
        Nodes.alike(nodes),
        rng.integers(0, nodes, keys).astype(np.int32),
        Traffic(nothing.sender, nothing.receiver, nothing.rate, REMOTE),
    )


def measure(keys: int, nodes: int, zipf: float, seed: int) -> dict[str, Any]:
    whole = skewed(keys, nodes, zipf, seed)
    limits = Limits(0.1 * keys, LIMIT_PCT, SECONDS)
    planner = make_allocator("headgate")
    plain = planner.plan(whole, limits)
    situation = cut_up(whole, np.ones(keys, np.bool_), np.full(keys, float(EPOCHS)), {})
    began = time.perf_counter()
    first = plan = planner.plan(situation, limits)
    seconds = time.perf_counter() - began
    rounds = 0
    while rounds < ROUNDS and _changes(situation, plan):
        situation = after(situation, plan.node, plan.extras)
        plan = planner.plan(situation, limits)
        rounds += 1
    return {
        "heaviest_key_of_mean": float(whole.units.load.max()) * nodes / ROWS,
        "whole_distance_pct": plain.distance_pct,
        "whole_moves": plain.migrations,
        "split_distance_pct": first.distance_pct,
        "split_moves": first.migrations,
        "units_cut": len(first.extras),
        "pieces": first.pieces,
        "merge_rows_pct": 100.0 * first.pieces * EPOCHS / ROWS,
        "seconds": seconds,
        "rounds_to_rest": rounds,
    }


def _changes(situation: Situation, plan: Plan) -> bool:
    assert situation.cut is not None
    return bool(plan.migrations) or plan.extras != situation.cut.extras


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--keys", type=int, default=1_000)
    options.add_argument("--nodes", type=int, default=16)
    options.add_argument("--seeds", type=int, default=3)
    chosen = options.parse_args()
    measure(40, 3, 1.5, 0)  # kernels are compiled, or loaded
    found: dict[str, Any] = {}
    for zipf in ZIPF:
        runs = [measure(chosen.keys, chosen.nodes, zipf, seed) for seed in range(chosen.seeds)]
        found[str(zipf)] = {name: round(median(r[name] for r in runs), 4) for name in runs[0]}
    settings = {**vars(chosen), "limit_pct": LIMIT_PCT, "rows": ROWS, "epochs": EPOCHS}
    print(json.dumps({"options": settings, "by_zipf": found}, indent=1))


if __name__ == "__main__":
    main()
