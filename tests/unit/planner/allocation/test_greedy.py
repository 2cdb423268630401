"""The greedy against the same rule written slowly: look at every unit of the fullest node."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.planner.allocation.greedy import greedy
from headgate.planner.allocation.model import Nodes, Situation, Units, load_distance
from unit.planner.allocation.clusters import situations


def evened(situation, budget):
    """From the fullest node that can give to the emptiest, the unit nearest to half the gap."""
    node, home, cost = situation.home.copy(), situation.home, situation.migration_cost
    load, capacity = situation.units.load, situation.nodes.capacity
    loads = np.bincount(node, load, len(capacity)).astype(float)
    done = set()
    while len(done) < len(capacity):
        level = loads / capacity
        h = max((i for i in range(len(capacity)) if i not in done), key=lambda i: (level[i], -i))
        t = min(range(len(capacity)), key=lambda i: (level[i], i))
        ideal = (level[h] - level[t]) / (1 / capacity[h] + 1 / capacity[t])
        fits = np.flatnonzero((node == h) & (home == h) & (cost <= budget) & (load > 0))
        fits = fits[(load[fits] <= ideal) | (load[fits] < 2 * ideal * (1 - 1e-9))]
        if not len(fits) or ideal <= 0:
            done.add(h)
            continue
        best = min(fits, key=lambda u: (abs(load[u] - ideal), load[u] > ideal))
        equals = fits[load[fits] == load[best]]
        best = equals[-1] if load[best] <= ideal else equals[0]
        budget -= cost[best]
        loads[h] -= load[best]
        loads[t] += load[best]
        node[best] = t
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
    assert greedy(situation, budget).tolist() == evened(situation, budget).tolist()


def test_all_units_on_one_node_are_evened():
    """As after scaling out. A walk along the units of that node a step would take minutes."""
    n = 100_000
    load = np.random.default_rng(0).gamma(2.0, 1.0, n)
    units = Units(("a",), np.zeros(n, np.int32), load, np.ones(n))
    situation = Situation(units, Nodes.alike(200), np.zeros(n, np.int32))
    assert load_distance(situation, greedy(situation)) < 0.1
