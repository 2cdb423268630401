"""Breadth-first searches from every node, counted."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def edges_seen(starts, followers, depth):  # type: ignore[no-untyped-def]
    """How many edges a search of this depth looks at, from each node."""
    nodes = len(starts) - 1
    looked = np.zeros(nodes, np.int64)
    stamp = np.full(nodes, -1, np.int64)
    queue = np.empty(nodes, np.int64)
    for root in range(nodes):
        stamp[root] = root
        queue[0] = root
        first, last = 0, 1
        for _ in range(depth):
            level_end = last
            while first < level_end:
                v = queue[first]
                first += 1
                for e in range(starts[v], starts[v + 1]):
                    looked[root] += 1
                    w = followers[e]
                    if stamp[w] != root:
                        stamp[w] = root
                        queue[last] = w
                        last += 1
    return looked
