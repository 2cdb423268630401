"""What an allocation is worth to the integrated planner, and which of two is strictly better."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64, I32
from headgate.planner.allocation.model import Balance, Situation, Traffic, load_distance
from headgate.planner.allocation.plan import Limits
from headgate.planner.allocation.splitting import price_pct

NOTICED_PCT = 0.05
"""A load distance above the limit is only worth a plan if it falls by this much."""


@dataclass(frozen=True)
class Worth:
    """What an allocation is worth, each part better if smaller; compared in this order.

    `left_behind` are units on nodes that leave, those without load too, and `left_load` is theirs.
    `excess` is the load distance above the limit. The price of pieces is in the same percent, and
    the two are added up.
    """

    left_behind: int
    left_load: float
    excess: float
    pieces: float
    traffic: float

    def beats(self, other: Worth, least_traffic: float) -> bool:
        """Strictly better, by more than a rounding error or a whim."""
        if self.left_behind != other.left_behind:
            return self.left_behind < other.left_behind
        if abs(self.left_load - other.left_load) > 1e-9:
            return self.left_load < other.left_load
        mine, its = self.excess + self.pieces, other.excess + other.pieces
        if abs(mine - its) > NOTICED_PCT:
            return mine < its
        if mine > its + 1e-9:
            return False
        return self.traffic < other.traffic - least_traffic


def worth_of(situation: Situation, node: I32, balance: Balance, limits: Limits) -> Worth:
    """Loads are evened in total, or within every operator."""
    behind = situation.nodes.leaving[node]
    return Worth(
        int(behind.sum()),
        float(situation.unit_loads(node)[behind].sum()) if behind.any() else 0.0,
        max(0.0, load_distance(situation, node, balance=balance) - limits.distance_max_pct),
        price_pct(situation),
        worth_of_a_row(situation) * far_rows(situation, node),
    )


def worth_of_a_row(situation: Situation) -> float:
    """Load that a row saves by staying on its node; if not told, half of all load over all rows."""
    if situation.cut is not None:
        situation = situation.cut.whole
    if situation.traffic.remote_load or not situation.traffic.total:
        return 2.0 * situation.traffic.remote_load
    return 0.5 * float(situation.units.load.sum()) / situation.traffic.total


def far_rows(situation: Situation, node: I32, traffic: Traffic | None = None) -> float:
    """Rows that leave their node, of this traffic or all; those to near nodes count in part."""
    t, near = traffic or situation.traffic, nearness(situation)
    if not t.total:
        return 0.0
    if len(near):
        from headgate.planner.adjacency import weight_apart  # late, see there

        return float(weight_apart(node, t.sender, t.receiver, t.rate, near))
    return (1.0 - t.collocation(node)) * t.total


def nearness(situation: Situation) -> F64:
    """1 on the same node down to 0 for the furthest class; empty if nothing is known."""
    distances = situation.nodes.distances
    if distances is None:
        return np.empty((0, 0))
    cost = distances.cost
    return np.ascontiguousarray(1.0 - cost / max(float(cost.max()), 1e-300))


def node_load(situation: Situation) -> float:
    """What a node has if loads are even."""
    return max(float(situation.units.load.sum()) / situation.nodes.staying_capacity, 1e-12)
