"""Which rows of two sides meet: by sorting and bisection, no loop over rows or keys.

Rows carry the code of their key (a small integer, the same on both sides). The right side is put in
order of code and time once; the partners of a left row are then a stretch of it.
"""

from __future__ import annotations

import numpy as np

from headgate.arrays import I64
from headgate.operator.join_state import ramps

Pairs = tuple[I64, I64]  # rows of the left, and of the right side, that meet


def equal(left: I64, right: I64, codes: int) -> Pairs:
    """Pairs of equal code, of `codes` codes; in order of the left rows."""
    if not len(left) or not len(right):
        return _NONE
    order = np.argsort(right, kind="stable")
    sizes = np.bincount(right, minlength=codes)
    starts = np.cumsum(sizes) - sizes
    return _stretches(starts[left], sizes[left], order)


def within(left: I64, low: I64, high: I64, right: I64, times: I64) -> Pairs:
    """Pairs of equal code in which the right row's time lies from `low` to `high` of the left one.

    Both ends count. `left` and `right` are codes.
    """
    if not len(left) or not len(right):
        return _NONE
    known, rank = np.unique(times, return_inverse=True)
    width = len(known) + 1
    place = right * width + rank
    order = np.argsort(place, kind="stable")
    place = place[order]
    # Bisecting with keys in order stays in the cache.
    sought = np.argsort(left, kind="stable")
    base = left[sought] * width
    start = np.searchsorted(place, base + np.searchsorted(known, low[sought], "left"))
    stop = np.searchsorted(place, base + np.searchsorted(known, high[sought], "right"))
    a, b = _stretches(start, np.maximum(stop - start, 0), order)
    return sought[a], b


def latest(left: I64, at: I64, right: I64, times: I64) -> I64:
    """For each left row the last right row of its code whose time is not after `at`; -1: none.

    Of equal times the row that stands last.
    """
    found = np.full(len(left), -1, np.int64)
    if not len(left) or not len(right):
        return found
    known, rank = np.unique(times, return_inverse=True)
    width = len(known) + 1
    place = right * width + rank
    order = np.argsort(place, kind="stable")
    stop = np.searchsorted(place[order], left * width + np.searchsorted(known, at, "right"))
    candidate = order[np.maximum(stop - 1, 0)]
    good = (stop > 0) & (right[candidate] == left)
    found[good] = candidate[good]
    return found


def _stretches(start: I64, count: I64, order: I64) -> Pairs:
    left = np.repeat(np.arange(len(start)), count)
    right = order[np.repeat(start, count) + ramps(count)]
    return left, right


_NONE: Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))
