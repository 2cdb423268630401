"""Compile the planners' kernels before they are needed.

Numba compiles a function at its first call and keeps the result beside the source. On a new machine
that takes some twenty seconds for planners of keys, and some ten for planners of units, in which a
planner would miss the epochs it should plan for, or its deadline.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headgate.planner.distance import Distances
from headgate.planner.key_graph import KeyGraph


def compile_kernels(operators: int = 2) -> None:
    """Run every kernel once on little; at once where they are compiled already."""
    from headgate.planner.incremental import IncrementalPlanner, SeenKeys, SeenPairs
    from headgate.planner.partition import partition

    tiny = IncrementalPlanner(
        operators, [(0, 1)], 2, horizon_rows=1, keys_max=1_500, pairs_max=1_500
    )
    for first in (0, 1_400):
        key, one = np.arange(first, first + 1_400, dtype=np.uint64), np.ones(1_400)
        seen = SeenKeys(key, one, (key % 2).astype(np.int32), np.ones(len(key), np.uint8))
        tiny.observe([seen] * operators, [SeenPairs(0, 1, key, key, one)], np.ones((operators, 2)))
        tiny.plan()
    key = np.arange(60, dtype=np.uint64)
    graph = KeyGraph.build(("a", "b"), [(0, 1, key % 20, key, np.ones(60))])
    partition(graph, 3)


def compile_allocation_kernels() -> None:
    """The same for planners of units, and the solver is loaded.

    Time stands still for them: compiling takes longer than a plan may, and none is left out.
    """
    from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
    from headgate.planner.allocation.plan import Limits, make_allocator

    operator = np.repeat(np.arange(2, dtype=np.int32), 2)
    units = Units(("a", "b"), operator, np.array([3.0, 1.0, 2.0, 2.5]), np.ones(4))
    pairs = Traffic(np.arange(2), 2 + np.arange(2), np.ones(2), 0.1)
    nodes = Nodes.alike(2)
    hosts = replace(nodes, distances=Distances.of(["a", "b"]))
    for on, flow in ((nodes, pairs), (hosts, pairs), (nodes, Traffic.none())):
        tiny = Situation(units, on, np.zeros(4, np.int32), flow)
        make_allocator(clock=lambda: 0.0).plan(tiny, Limits(4.0, seconds=0.05))
