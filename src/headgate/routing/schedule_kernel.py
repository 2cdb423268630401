"""The scheduler's loop as machine code; its own module, so that who never needs it loads no numba.

Same targets as `schedule._loop`, bit by bit: same order of additions and comparisons.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def assign(times, group, busy, first):  # type: ignore[no-untyped-def]
    """Each tuple to the instance that is done with it first; `busy` grows with it."""
    k = len(busy)
    targets = np.empty(len(group), np.int32)
    for i in range(len(group)):
        g = group[i]
        best = first
        least = busy[first] + times[g, first]
        for j in range(first + 1, first + k):
            op = j if j < k else j - k
            end = busy[op] + times[g, op]
            if end < least:
                least = end
                best = op
        busy[best] = least
        targets[i] = best
    return targets
