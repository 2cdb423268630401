"""Random clusters for the tests of allocation planners, and the slow, obvious oracles."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import strategies as st

from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance


@st.composite
def situations(
    draw: st.DrawFn,
    units_max: int = 12,
    nodes_max: int = 4,
    leaving: bool = True,
    traffic: bool = True,
    alike: bool = False,
    instances: bool = False,
) -> Situation:
    """Small clusters: ties, units without load, nodes that leave, traffic of three operators.

    With `instances` operators are on some nodes only.
    """
    nodes = draw(st.integers(2, nodes_max))
    units = draw(st.integers(1, units_max))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    load = np.where(rng.random(units) < 0.1, 0.0, rng.integers(1, 30, units)).astype(float)
    goes = np.zeros(nodes, np.bool_)
    if leaving and draw(st.booleans()):
        goes[0] = True
    capacity = np.ones(nodes) if alike or rng.random() < 0.5 else rng.choice([1.0, 2.0], nodes)
    flow = Traffic.none()
    operator = np.sort(rng.integers(0, 3, units)).astype(np.int32)
    if traffic and draw(st.booleans()):
        pairs = [
            (a, b)
            for a, b in product(range(units), range(units))
            if operator[b] == operator[a] + 1 and rng.random() < 0.5
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        flow = Traffic(table[:, 0], table[:, 1], rng.integers(1, 9, len(table)).astype(float), 0.25)
    home = rng.integers(0, nodes, units).astype(np.int32)
    own = np.empty((0, 0), np.bool_)
    if instances:
        own = rng.random((3, nodes)) < 0.5
        own[np.arange(3), rng.integers(0, nodes, 3)] = True
        home = np.array([rng.choice(np.flatnonzero(own[o])) for o in operator], np.int32)
    load = load + flow.remote_load * flow.remote(home)
    return Situation(
        Units(("a", "b", "c"), operator, load, rng.integers(0, 9, units).astype(float)),
        Nodes(capacity, goes),
        home,
        flow,
        instances=own,
    )


def airline(
    seed: int, nodes: int = 20, groups: int = 5, spread: float = 0.3, remote_load: float = 0.003
) -> Situation:
    """The airline job in small: the first two operators pair up one to one, the third mixes."""
    rng = np.random.default_rng(seed)
    n = nodes * groups
    rate = rng.gamma(1 / spread**2, spread**2, n) * 1000
    mix = rng.gamma(2.0, 1.0, (n, n))
    mix *= (rate * 0.5 / mix.sum(axis=1))[:, None]
    a, b = np.divmod(np.arange(n * n), n)
    flow = Traffic(
        np.concatenate([np.arange(n), n + a]),
        np.concatenate([n + np.arange(n), 2 * n + b]),
        np.concatenate([rate, mix.ravel()]),
        remote_load,
    )
    home = np.concatenate([rng.permutation(n) % nodes for _ in range(3)]).astype(np.int32)
    base = 0.001 * np.concatenate([rate, rate, mix.sum(axis=0)])
    units = Units(
        ("delays", "by_plane", "by_route"),
        np.repeat(np.arange(3, dtype=np.int32), n),
        base + remote_load * flow.remote(home),
        rng.gamma(4.0, 250.0, 3 * n),
    )
    return Situation(units, Nodes.alike(nodes), home, flow)


def best_distance(situation: Situation, budget: float) -> float:
    """The smallest load distance there is, of loads as measured, by trying everything."""
    best = np.inf
    stays = np.flatnonzero(situation.nodes.staying)
    options = []
    for unit, home in enumerate(situation.home.tolist()):
        there = stays
        if situation.reach is not None:
            there = there[situation.reach.nodes[situation.units.operator[unit]][there]]
        options.append({home, *there.tolist()})
    for choice in product(*options):
        node = np.array(choice, np.int32)
        if situation.cost_of(node) <= budget:
            best = min(best, load_distance(situation, node, as_measured=True))
    return float(best)
