"""Units of each node in the order of their loads: a treap a node, for the greedy.

Every unit is in one treap at most, so arrays of one entry a unit hold all of them: its two subtrees
(-1: none), and the least price in what hangs below it. Units of the same load are in the reverse
order of their turns. Ranks are random, so a treap of n units is O(log n) deep whatever the order
they come in, and so is every function here. "The heaviest unit up to a load that the budget pays
for" needs no walk past those it does not pay for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from headgate.arrays import F64, I64

NONE = -1


class Ordered(NamedTuple):
    """All treaps. A unit may change its `price` and `turn` while it is in none."""

    load: F64
    price: F64  # what it takes to move it
    turn: I64  # of equal loads the lowest comes last, and is found first
    rank: I64  # the highest is the root
    left: I64
    right: I64
    cheapest: F64  # in the subtree

    @classmethod
    def of(cls, load: F64, price: F64, turn: I64) -> Ordered:
        """No unit is in a treap yet."""
        units = len(load)
        rank = np.random.default_rng(0).permutation(units).astype(np.int64)
        none = np.full(units, NONE, np.int64)
        return cls(load, price, turn, rank, none, none.copy(), price.copy())


@njit(cache=True)
def _comes_before(o, a, b):  # type: ignore[no-untyped-def]
    if o.load[a] != o.load[b]:
        return o.load[a] < o.load[b]
    return o.turn[a] > o.turn[b]


@njit(cache=True)
def _refresh(o, root):  # type: ignore[no-untyped-def]
    least = o.price[root]
    if o.left[root] >= 0:
        least = min(least, o.cheapest[o.left[root]])
    if o.right[root] >= 0:
        least = min(least, o.cheapest[o.right[root]])
    o.cheapest[root] = least


@njit(cache=True)
def _split(o, root, unit):  # type: ignore[no-untyped-def]
    """What comes before a unit, and the rest."""
    if root < 0:
        return root, root
    if _comes_before(o, root, unit):
        before, after = _split(o, o.right[root], unit)
        o.right[root] = before
        _refresh(o, root)
        return root, after
    before, after = _split(o, o.left[root], unit)
    o.left[root] = after
    _refresh(o, root)
    return before, root


@njit(cache=True)
def _joined(o, first, second):  # type: ignore[no-untyped-def]
    if first < 0:
        return second
    if second < 0:
        return first
    if o.rank[first] > o.rank[second]:
        o.right[first] = _joined(o, o.right[first], second)
        _refresh(o, first)
        return first
    o.left[second] = _joined(o, first, o.left[second])
    _refresh(o, second)
    return second


@njit(cache=True)
def put(o, root, unit):  # type: ignore[no-untyped-def]
    """The root of a treap with one unit more."""
    o.left[unit] = o.right[unit] = NONE
    o.cheapest[unit] = o.price[unit]
    before, after = _split(o, root, unit)
    return _joined(o, _joined(o, before, unit), after)


@njit(cache=True)
def take(o, root, unit):  # type: ignore[no-untyped-def]
    """The root of a treap without one of its units."""
    if root == unit:
        return _joined(o, o.left[unit], o.right[unit])
    if _comes_before(o, root, unit):
        o.right[root] = take(o, o.right[root], unit)
    else:
        o.left[root] = take(o, o.left[root], unit)
    _refresh(o, root)
    return root


@njit(cache=True)
def last_up_to(o, root, load, budget):  # type: ignore[no-untyped-def]
    """The heaviest unit of at most that load which the budget pays for, or -1."""
    if root < 0 or o.cheapest[root] > budget:
        return np.int64(NONE)
    if o.load[root] > load:
        return last_up_to(o, o.left[root], load, budget)
    found = last_up_to(o, o.right[root], load, budget)
    if found >= 0:
        return found
    if o.price[root] <= budget:
        return root
    return last_up_to(o, o.left[root], load, budget)


@njit(cache=True)
def first_above(o, root, load, budget):  # type: ignore[no-untyped-def]
    """A lightest unit above that load which the budget pays for, or -1."""
    if root < 0 or o.cheapest[root] > budget:
        return np.int64(NONE)
    if o.load[root] <= load:
        return first_above(o, o.right[root], load, budget)
    found = first_above(o, o.left[root], load, budget)
    if found >= 0:
        return found
    if o.price[root] <= budget:
        return root
    return first_above(o, o.right[root], load, budget)


@njit(cache=True)
def nearest(o, root, load, below, budget):  # type: ignore[no-untyped-def]
    """The unit with the load nearest to this, less than `below`, that the budget pays for, or -1.

    Of those that are equally near the one with the lowest turn.
    """
    under = last_up_to(o, root, load, budget)
    over = first_above(o, root, load, budget)
    if over < 0 or o.load[over] >= below:
        return under
    over = last_up_to(o, root, o.load[over], budget)  # of its equals
    if under < 0:
        return over
    gap = abs(o.load[over] - load) - abs(o.load[under] - load)
    return over if gap < 0 or (gap == 0 and o.turn[over] < o.turn[under]) else under
