"""How long does a plan of an allocation take, and how far is it from the proven bound?

1,000 units on 20 nodes and 100,000 units on 200 nodes, loads gamma distributed, at random homes,
with a budget that pays for a tenth of the units, without traffic and with a chain of three
operators whose first two pair up. Then all units on node 0, as after scaling out, without traffic
and with any budget. Kernels are compiled (or loaded) by a small plan first; that is printed apart.
The bound is that of measured loads; with traffic there is none but 0.

    python benchmarks/bench_allocation.py [--repeat 3] [--scale 1.0]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import Limits, make_allocator


def cluster(units: int, nodes: int, seed: int, *, talks: bool, crowded: bool = False) -> Situation:
    """Units at random homes, or all on node 0.

    Traffic: unit i to i + n, that to four of the last; n = units / 3.
    """
    rng = np.random.default_rng(seed)
    load = rng.gamma(2.0, 1.0, units)
    home = rng.integers(0, 1 if crowded else nodes, units).astype(np.int32)
    operator = np.minimum(np.arange(units) // max(units // 3, 1), 2).astype(np.int32)
    traffic = Traffic.none()
    if talks:
        n = units // 3
        first = np.arange(n)
        spread = (np.repeat(first, 4) * 7 + np.tile([0, 1, 5, 11], n)) % n
        traffic = Traffic(
            np.concatenate([first, n + np.repeat(first, 4)]),
            np.concatenate([n + first, 2 * n + spread]),
            np.concatenate([np.full(n, 1.0), np.full(4 * n, 0.1)]),
            0.5,
        )
        load = load + traffic.remote_load * traffic.remote(home)
    state = np.ones(units)
    return Situation(
        Units(("a", "b", "c"), operator, load, state), Nodes.alike(nodes), home, traffic
    )


def measure(
    name: str,
    units: int,
    nodes: int,
    seconds: float,
    repeat: int,
    *,
    talks: bool,
    crowded: bool = False,
) -> dict[str, Any]:
    lines: list[dict[str, float]] = []
    for seed in range(repeat):
        situation = cluster(units, nodes, seed, talks=talks, crowded=crowded)
        budget = np.inf if crowded else 0.1 * units
        limits = Limits(budget, 5.0 if talks else 0.5, seconds)
        wall, cpu = time.perf_counter(), time.process_time()
        plan = make_allocator(name).plan(situation, limits)
        lines.append(
            {
                "wall_s": round(time.perf_counter() - wall, 3),
                "cpu_s": round(time.process_time() - cpu, 3),
                "distance_before_pct": round(load_distance(situation, situation.home), 3),
                "distance_pct": round(load_distance(situation, plan.node), 3),
                "bound_pct": round(plan.bound_pct, 3),
                "collocation_before": round(situation.traffic.collocation(situation.home), 3),
                "collocation": round(plan.collocation, 3),
                "migrations": plan.migrations,
            }
        )
    start = "one node" if crowded else "random"
    return {
        "planner": name,
        "units": units,
        "nodes": nodes,
        "traffic": talks,
        "start": start,
        "runs": lines,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--scale", type=float, default=1.0)
    chosen = options.parse_args()
    start = time.perf_counter()
    for name in ("milp", "headgate"):
        measure(name, 30, 3, 0.1, 1, talks=True)
        measure(name, 30, 3, 0.1, 1, talks=False)
    print(json.dumps({"first plans, kernels loaded or compiled, s": time.perf_counter() - start}))
    for units, nodes, seconds in ((1_000, 20, 0.5), (100_000, 200, 10.0)):
        for name in ("milp", "headgate"):
            size = int(units * chosen.scale)
            for talks, crowded in ((False, False), (True, False), (False, True)):
                if talks and name == "milp":
                    continue
                found = measure(
                    name, size, nodes, seconds, chosen.repeat, talks=talks, crowded=crowded
                )
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
