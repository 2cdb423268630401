"""How long does a plan take, and what does each step of it give?

Cuts into 6 parts: a sparse graph of 1 M pairs (400,000 keys), a dense one (40,000 keys), a graph of
10,000 keys, and, where the pair data is found (HEADGATE_DATA, or ../shared/data beside the
repository), all pairs of the congress set and one window of it. Kernels are compiled (or
loaded) by a small plan first; that time is printed apart. Prints JSON with every raw number.

    python benchmarks/bench_planner.py [--repeat 3] [--quality metis] [--scale 1.0]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from headgate.planner.first_cut import Quality, metis_parts
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import describe, partition
from headgate.routing.hashing import hash_columns

DATA = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
CONGRESS = DATA / "congress_state_hashtag_2017_2023.parquet"


def grouped_pairs(seed: int, groups: int, keys_each: int, rows: int, mixing: float) -> KeyGraph:
    """Two operators whose keys come in groups; a share `mixing` of the rows crosses groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, rows)
    skewed = (rng.pareto(1.2, rows) * keys_each / 8).astype(np.int64)
    a = group * keys_each + np.minimum(skewed, keys_each - 1)
    crossing = rng.random(rows) < mixing
    b = np.where(crossing, rng.integers(0, groups, rows), group) * keys_each
    return counted(a, b + rng.integers(0, keys_each, rows))


def counted(a: Any, b: Any) -> KeyGraph:
    ka, ia = np.unique(a, return_inverse=True)
    kb, ib = np.unique(b, return_inverse=True)
    pair, count = np.unique(ia * len(kb) + ib, return_counts=True)
    ha, hb = ka[pair // len(kb)].astype(np.uint64), kb[pair % len(kb)].astype(np.uint64)
    return KeyGraph.build(["a", "b"], [(0, 1, ha, hb, count.astype(np.float64))])


def congress(rows: slice) -> KeyGraph:
    table = pq.read_table(CONGRESS, columns=["state", "hashtag"])[rows]
    a, b = (hash_columns([c.combine_chunks()], len(c)) for c in table.columns)
    return counted(a, b)


def measure(name: str, graph: KeyGraph, repeat: int, quality: Quality) -> dict[str, Any]:
    walls, cpus, plans = [], [], []
    for seed in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        plans.append(partition(graph, 6, seed=seed, quality=quality))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    rough = describe(graph, metis_parts(graph, 6, alpha=1.03, seed=0), 6)
    return {
        "graph": name,
        "keys": graph.vertices,
        "pairs": graph.edges,
        "wall_s": [round(x, 3) for x in walls],
        "cpu_s": [round(x, 3) for x in cpus],
        "locality": [round(p.locality, 4) for p in plans],
        "imbalance": [p.imbalance.round(4).tolist() for p in plans],
        "floor": plans[0].floor.round(4).tolist(),
        "plain_metis": {
            "locality": round(rough.locality, 4),
            "imbalance": rough.imbalance.round(4).tolist(),
        },
    }


def graphs(scale: float) -> dict[str, Any]:
    rows = int(1_020_000 * scale)
    found = {
        "sparse, 1 M pairs": lambda: grouped_pairs(0, max(2, int(600 * scale)), 400, rows, 0.4),
        "dense, 1 M pairs": lambda: grouped_pairs(0, max(2, int(100 * scale)), 200, rows, 0.4),
        "10,000 keys": lambda: grouped_pairs(
            0, max(2, int(52 * scale)), 100, int(80_000 * scale), 0.3
        ),
    }
    if CONGRESS.exists():
        found["congress, all rows"] = lambda: congress(slice(None))
        found["congress, 60,000 rows"] = lambda: congress(slice(1_000_000, 1_060_000))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--quality", choices=["metis", "mt-kahypar"], default="metis")
    options.add_argument("--scale", type=float, default=1.0)
    chosen = options.parse_args()
    start = time.perf_counter()
    partition(grouped_pairs(0, 6, 10, 1000, 0.3), 6, quality=chosen.quality)
    print(json.dumps({"first plan, kernels loaded or compiled, s": time.perf_counter() - start}))
    for name, make in graphs(chosen.scale).items():
        print(json.dumps(measure(name, make(), chosen.repeat, chosen.quality)), flush=True)


if __name__ == "__main__":
    main()
