"""Which instance takes which tuple, if the execution time of every tuple is known or estimated.

`greedy` is the online scheduler of Rivetti et al. 2016: tuple after tuple, each to the instance
that would be done with it first. `longest_first` knows the whole batch and places what takes long
first, so that short tuples fill the gaps. Both are pure: equal input, equal targets. Instances may
differ (a slow host): an estimate is a row of k times, one per instance.

Cost: one scan over the instances per tuple, about 3 ns each; large batches go through numba, small
ones through the same loop in Python, because loading numba takes longer than they do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

SMALL_ROWS = 2_000


def greedy(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """Targets of tuples in the order they come; `busy` is each instance's time so far, and grows.

    `times[group[i], j]` is what tuple i takes in instance j. Of equals the first one wins, counted
    from `first`, so that several schedulers do not all begin with the same instance.
    """
    return _assign(times, group, busy, first)


def longest_first(times: F64, group: I64, busy: F64, first: int = 0) -> I32:
    """As `greedy`, but tuples that take long are placed first; equals in the order they come."""
    heaviest = times.min(axis=1)
    order = np.argsort(-heaviest[group], kind="stable")
    targets = np.empty(len(group), np.int32)
    targets[order] = _assign(times, group[order], busy, first)
    return targets


def round_robin(start: int, rows: int, slots: int) -> I32:
    """One after the other, from instance `start % slots` on."""
    return ((start + np.arange(rows)) % slots).astype(np.int32)


def _assign(times: F64, group: I64, busy: F64, first: int) -> I32:
    if times.shape[1] != len(busy):
        raise ValueError(f"times of {times.shape[1]} instances, but {len(busy)} are there")
    work = _loop if len(group) <= SMALL_ROWS else _compiled()
    targets: I32 = work(np.ascontiguousarray(times), group, busy, first % len(busy))
    return targets


def _loop(times: F64, group: I64, busy: F64, first: int) -> I32:
    k = len(busy)
    turn = [(first + j) % k for j in range(k)]
    done, costs = busy.tolist(), times.tolist()
    targets = np.empty(len(group), np.int32)
    for i, g in enumerate(group.tolist()):
        cost = costs[g]
        best = min(turn, key=lambda j: done[j] + cost[j])
        done[best] += cost[best]
        targets[i] = best
    busy[:] = done
    return targets


@cache
def _compiled() -> Any:
    """The same loop as machine code; loaded when the first large batch comes."""
    from headgate.routing.schedule_kernel import assign

    return assign
