"""How even can a placement be at all? A key cannot be cut, so some imbalance is forced.

A bound alpha on max/mean load cannot hold where one key is heavier than its share. The floor says
what no placement can beat, so that a planner is held to max(alpha, floor) and a report shows
whether an imbalance is a fault of the plan or of the data.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from headgate.arrays import F64, I32
from headgate.planner.key_graph import FREE, KeyGraph


def floors(graph: KeyGraph, slots: int) -> F64:
    """Lower bound of max/mean load for each operator, over all placements that honour `fixed`."""
    return np.array(
        [
            floor_of(graph.load[a:b], slots, graph.fixed[a:b])
            for a, b in pairwise(graph.starts.tolist())
        ]
    )


def floor_of(load: F64, slots: int, fixed: I32 | None = None) -> float:
    """Lower bound of max/mean slot load for keys of these loads.

    The largest of: 1; what fixed keys put on one slot; and, for every k, the pigeonhole bound: of
    the k * slots + 1 heaviest keys some slot gets k + 1, at best the lightest of them. k = 0 is the
    heaviest key alone. O(keys log keys).
    """
    mean = float(load.sum()) / slots
    if mean <= 0:
        return 1.0
    heaviest = np.sort(load)[::-1]
    last = np.arange(0, len(load), slots)  # the (k * slots + 1)-th heaviest, for k = 0, 1, ...
    below = np.concatenate([[0.0], np.cumsum(heaviest)])
    forced = float((below[last + 1] - below[last - last // slots]).max())
    if fixed is not None and (bound := fixed != FREE).any():
        forced = max(forced, float(np.bincount(fixed[bound], load[bound]).max()))
    return max(1.0, forced / mean)
