"""Which rows of two sides meet: by sorting and bisection, no loop over rows or keys.

Rows carry the code of their key (a small integer, the same on both sides). The right side is put in
order of code and time once; the partners of a left row are then a stretch of it.
"""

from __future__ import annotations

import numpy as np

from headgate.arrays import I64
from headgate.operator.join_state import by_code, ramps

Pairs = tuple[I64, I64]  # rows of the left, and of the right side, that meet


def equal(left: I64, right: I64, codes: int) -> Pairs:
    """Pairs of equal code, of `codes` codes; in order of the left rows."""
    if not len(left) or not len(right):
        return _NONE
    order = by_code(right)
    sizes = np.bincount(right, minlength=codes)
    starts = np.cumsum(sizes) - sizes
    return _stretches(starts[left], sizes[left], order)


def within(left: I64, low: I64, high: I64, right: I64, times: I64) -> Pairs:
    """Pairs of equal code in which the right row's time lies from `low` to `high` of the left one.

    Both ends count. `left` and `right` are codes.
    """
    if not len(left) or not len(right):
        return _NONE
    known, order, place = _in_order(right, times)
    sought = by_code(left)  # bisecting with keys in order stays in the cache
    base = left[sought] * (len(known) + 1)
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
    known, order, place = _in_order(right, times)
    sought = left * (len(known) + 1) + np.searchsorted(known, at, "right")
    stop = np.searchsorted(place, sought)
    candidate = order[np.maximum(stop - 1, 0)]
    good = (stop > 0) & (right[candidate] == left)
    found[good] = candidate[good]
    return found


def _in_order(codes: I64, times: I64) -> tuple[I64, I64, I64]:
    """The distinct times; rows by code, then time; and where each of these is, as one number."""
    order = np.argsort(times, kind="stable")  # rows mostly come in that order: one pass
    ordered = times[order]
    new = np.ones(len(times), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    rank, known = np.cumsum(new) - 1, ordered[new]
    mine = by_code(codes[order])
    order = order[mine]
    return known, order, codes[order] * (len(known) + 1) + rank[mine]


def _stretches(start: I64, count: I64, order: I64) -> Pairs:
    left = np.repeat(np.arange(len(start)), count)
    right = order[np.repeat(start, count) + ramps(count)]
    return left, right


_NONE: Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))
