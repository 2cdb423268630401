"""What fewer statistics would have cost: locality against the number of pairs that are known.

The curve is Figure 12 of Caneill et al. 2016. A bounded statistic keeps the heaviest pairs; the
curve says how many of them are worth their memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import Quality, partition
from headgate.planner.tables import CAP, to_tables
from headgate.routing.table import RoutingTable, hash_table

Tables = dict[str, RoutingTable]


def hash_tables(operators: Sequence[str], slots: int) -> Tables:
    """Empty tables, to compare with."""
    return {name: hash_table(slots) for name in operators}


def steps_to(edges: int, *, first: int = 10, per_decade: int = 2) -> list[int]:
    """Numbers of edges to try: evenly spaced on a logarithmic axis, the last is all of them.

    Examples:
        >>> steps_to(2_000)
        [10, 32, 100, 316, 1000, 2000]
    """
    decades = np.log10(max(edges, 1) / first)
    powers = np.arange(0, max(decades, 0), 1 / per_decade)
    steps = np.unique(np.rint(first * 10**powers).astype(int))
    return [int(k) for k in steps if k < 0.75 * edges] + [edges]


def tables_from_top(
    graph: KeyGraph,
    k: int,
    slots: int,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    quality: Quality = "metis",
    tries: int | None = None,
    cap: int = CAP,
) -> Tables:
    """The tables of a planner that knows only the k heaviest pairs."""
    known = graph.top_edges(k)
    plan = partition(known, slots, alpha=alpha, seed=seed, quality=quality, tries=tries)
    return to_tables(known, plan, slots, cap=cap)
