"""Treaps against sorted lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation.ordered import (
    NONE,
    Ordered,
    first_above,
    last_up_to,
    nearest,
    put,
    take,
)


def empty(load, price):
    units = len(load)
    turns = np.arange(units, dtype=np.int64)
    return Ordered.of(np.array(load, float), np.array(price, float), turns)


def depth(ordered, root):
    deepest, open_ = 0, [(root, 1)]
    while open_:
        unit, at = open_.pop()
        if unit >= 0:
            deepest = max(deepest, at)
            open_ += [(ordered.left[unit], at + 1), (ordered.right[unit], at + 1)]
    return deepest


@settings(max_examples=40, deadline=None)
@given(
    units=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=30),
    picks=st.lists(st.integers(0, 29), max_size=60),
    load=st.floats(0, 10),
    budget=st.integers(-1, 3),
)
def test_it_finds_what_a_list_finds(units, picks, load, budget):
    """Picked units go in, and out when they are picked again."""
    ordered, root, inside = empty(*zip(*units, strict=True)), np.int64(NONE), set()
    for unit in (pick % len(units) for pick in picks):
        root = (take if unit in inside else put)(ordered, root, unit)
        inside ^= {unit}
    pays = [u for u in inside if units[u][1] <= budget]
    under = [(units[u][0], -u) for u in pays if units[u][0] <= load]
    over = [units[u][0] for u in pays if units[u][0] > load]
    near = [(abs(units[u][0] - load), u) for u in pays if units[u][0] < 2 * load]

    assert last_up_to(ordered, root, load, budget) == (-max(under)[1] if under else NONE)
    found = first_above(ordered, root, load, budget)
    assert (units[found][0] if found >= 0 else None) == min(over, default=None)
    assert nearest(ordered, root, load, 2 * load, budget) == (min(near)[1] if near else NONE)


def test_it_stays_shallow_in_whatever_order_units_come():
    """A search looks at a path or two, so its steps are counted by the depth."""
    n = 10_000
    ordered, root = empty(np.arange(n), np.ones(n)), np.int64(NONE)
    for unit in range(n):
        root = put(ordered, root, unit)
    assert depth(ordered, root) < 50
    for unit in range(0, n, 2):
        root = take(ordered, root, unit)
    assert depth(ordered, root) < 50
