"""The greedy against the same rule written slowly: look at every unit of the fullest node."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation.greedy import (
    NONE,
    Ordered,
    first_above,
    greedy,
    last_up_to,
    nearest,
    put,
    take,
)
from headgate.planner.allocation.model import Nodes, Situation, Units, load_distance
from unit.planner.allocation.clusters import situations


def evened(situation, node, budget):
    """From the fullest node that can give to the emptiest, the unit nearest to half the gap."""
    node, home, cost = node.copy(), situation.home, situation.migration_cost
    load, capacity, leaving = (
        situation.units.load,
        situation.nodes.capacity,
        situation.nodes.leaving,
    )
    left = budget - float(cost[node != home].sum())
    loads = np.bincount(node, load, len(capacity)).astype(float)
    lists = [[] for _ in capacity]
    for u in np.argsort(-load, kind="stable"):
        lists[node[u]].append(int(u))
    stuck = set()
    for _ in range(4 * len(node) + 16):
        level = loads / capacity
        givers = [i for i in range(len(capacity)) if i not in stuck and not leaving[i]]
        if not givers:
            break
        h = max(givers, key=lambda i: (level[i], -i))
        t = min((i for i in range(len(capacity)) if not leaving[i]), key=lambda i: (level[i], i))
        ideal = (level[h] - level[t]) / (1 / capacity[h] + 1 / capacity[t])
        price = {u: cost[u] if home[u] == h else -cost[u] if home[u] == t else 0 for u in lists[h]}
        fits = [u for u in lists[h] if 0 < load[u] < 2 * ideal * (1 - 1e-9) and price[u] <= left]
        if not fits:
            stuck.add(h)
            continue
        best = min(fits, key=lambda u: abs(load[u] - ideal))
        left -= price[best]
        lists[h].remove(best)
        lists[t].insert(0, best)
        loads[h] -= load[best]
        loads[t] += load[best]
        node[best] = t
        stuck = set()
    return node


@settings(max_examples=80, deadline=None)
@given(
    situation=situations(units_max=60, nodes_max=6, leaving=False),
    share=st.floats(0, 1) | st.just(np.inf),
    crowded=st.booleans(),
)
def test_it_moves_what_looking_at_every_unit_moves(situation, share, crowded):
    if crowded:
        home = np.zeros_like(situation.home)
        situation = Situation(situation.units, situation.nodes, home)
    budget = share * situation.migration_cost.sum() if share < np.inf else np.inf
    assert greedy(situation, budget).tolist() == evened(situation, situation.home, budget).tolist()


def test_all_units_on_one_node_are_evened():
    """As after scaling out. A walk along the units of that node a step would take minutes."""
    n = 100_000
    load = np.random.default_rng(0).gamma(2.0, 1.0, n)
    units = Units(("a",), np.zeros(n, np.int32), load, np.ones(n))
    situation = Situation(units, Nodes.alike(200), np.zeros(n, np.int32))
    assert load_distance(situation, greedy(situation)) < 0.1


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
