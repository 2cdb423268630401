"""The integrated planner: collocation, balance and migration cost in one search from where we are.

Units may be pinned keys and buckets alike. A plan is made in steps, each paid from one budget:
empty the nodes that leave; bring units to their partners, best gain per cost first; even the loads
by moving atoms, so that partners stay together. How much of the budget goes into collocation is
tried out, and the best outcome is kept. Unlike the paper's program it foresees that collocated
units cost less.

Invariant: under constant loads a plan that moves anything is better than staying in a strict
order (load left on leaving nodes, load distance above the limit, traffic, distance), and each
difference counts only above a threshold. So repeated planning never comes back to an allocation it
has left, and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headgate.planner.adjacency import F64, I64, adjacency_of
from headgate.planner.allocation.atoms import atoms_of, significant, sums
from headgate.planner.allocation.integrated_kernel import SPENT, Field, drain, even, gather
from headgate.planner.allocation.measures import lower_bound
from headgate.planner.allocation.model import I32, Bools, Situation
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate.planner.allocation.reasons import reasons_for

Clock = Callable[[], float]
CELLS_MAX = 60_000_000
"""Atoms x nodes for which the traffic of every atom to every node is kept (8 bytes each)."""


@dataclass(frozen=True)
class IntegratedSettings:
    """What a plan weighs.

    Args:
        balance: "total" evens the load of all units, "operator" that of every operator.
        margin: The planner aims at this share of the load distance allowed.
        least_gain_pct: Traffic is only worth a plan if it saves this share of the load.
        score_factor: A pair stays together if it exceeds so many times its sender's average.
        atom_load_pct: An atom is at most this heavy, in percent of a node's mean load.
        shares: Shares of the budget that are tried for collocation.
        strictness: Prices of unevenness that are tried while collocating.
        steps_max: Steps of one search.
    """

    balance: Literal["total", "operator"] = "total"
    margin: float = 0.8
    least_gain_pct: float = 0.02
    score_factor: float = 1.5
    atom_load_pct: float = 40.0
    shares: tuple[float, ...] = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
    strictness: tuple[float, ...] = (1.0, 8.0)
    steps_max: int = 50_000


@dataclass(frozen=True)
class Worth:
    """What an allocation is worth, each part better if smaller; compared in this order."""

    left_behind: float
    excess: float
    traffic: float
    distance: float

    def beats(self, other: Worth, least_traffic: float) -> bool:
        """Strictly better, by more than a rounding error or a whim."""
        if abs(self.left_behind - other.left_behind) > 1e-9:
            return self.left_behind < other.left_behind
        if abs(self.excess - other.excess) > 0.05:
            return self.excess < other.excess
        if self.excess > other.excess + 1e-9:
            return False
        return self.traffic < other.traffic - least_traffic


class IntegratedPlanner:
    """Headgate's own planner of allocations."""

    name = "headgate"

    def __init__(
        self, settings: IntegratedSettings | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self.settings = settings or IntegratedSettings()
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        """The best allocation found in time; the one at hand if none is worth its moves."""
        began = self._clock()
        node = self._search(situation, limits, began + 0.8 * limits.seconds)
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=0.0 if self._price(situation)[0] else None,
            reasons=reasons_for(situation, node),
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found

    def _search(self, situation: Situation, limits: Limits, deadline: float) -> I32:
        home = situation.home.astype(np.int32)
        if not len(home):
            return home
        least = self._least_traffic(situation)
        best, best_worth = home, self._worth(situation, home, limits)
        strong = significant(situation, self.settings.score_factor)
        talks = bool(len(situation.traffic.rate))
        tried: set[bytes] = {home.tobytes()}
        for strictness in self.settings.strictness if talks else self.settings.strictness[:1]:
            for share in self.settings.shares if talks else (0.0,):
                if len(tried) > 1 and self._clock() >= deadline:
                    return best
                node = self._attempt(situation, limits, strong, share, strictness, deadline)
                if node.tobytes() in tried:
                    continue
                tried.add(node.tobytes())
                worth = self._worth(situation, node, limits)
                if worth.beats(best_worth, least):
                    best, best_worth = node, worth
        return best

    def _attempt(
        self,
        situation: Situation,
        limits: Limits,
        strong: Bools,
        share: float,
        strictness: float,
        deadline: float,
    ) -> I32:
        """Drain, gather with a share of the budget, then even; atoms are joined anew in between."""
        budget = limits.migration_cost_max
        target = self.settings.margin * limits.distance_max_pct / 100.0
        node = situation.home.astype(np.int32)
        if situation.nodes.leaving.any():
            field, atom = self._field(situation, node, strong)
            drain(field, np.argsort(-field.whole, kind="stable"), budget, strictness)
            node = field.at[atom]
        nodes = len(situation.nodes)
        scans = max(1, min(nodes - 1, 200_000 * nodes // max(len(node), 1) ** 2 + 4))
        if share > 0 and len(situation.traffic.rate):
            for _ in range(3):
                field, atom = self._field(situation, node, strong)
                spent = float(field.account[SPENT])
                upto = budget if not np.isfinite(budget) else max(spent, share * budget)
                least = self._least_traffic(situation)
                made = gather(field, upto, strictness, least, min(scans, 4), self._steps(nodes))
                node = field.at[atom]
                if not made or self._clock() >= deadline:
                    break
        for patience in (1.0, 0.0):
            field, atom = self._field(situation, node, strong)
            even(field, budget, target, patience, scans, self._steps(nodes))
            node = field.at[atom]
        single = np.zeros(len(strong), np.bool_)
        if strong.any():  # what atoms could not even, units may: they tear partners apart
            field, atom = self._field(situation, node, single)
            even(field, budget, limits.distance_max_pct / 100.0, 1.0, scans, self._steps(nodes))
            node = field.at[atom]
        return node

    def _steps(self, nodes: int) -> int:
        return max(self.settings.steps_max // max(nodes // 20, 1), 100)

    def _price(self, situation: Situation) -> tuple[float, float]:
        """Load that a row saves at both ends together, and what it is worth to the planner."""
        saved = 2.0 * situation.traffic.remote_load
        if saved or not situation.traffic.total:
            return saved, saved
        return 0.0, 0.5 * float(situation.units.load.sum()) / situation.traffic.total

    def _least_traffic(self, situation: Situation) -> float:
        share = self.settings.least_gain_pct / 100.0
        return share * max(float(situation.units.load.sum()), 1e-12) / max(len(situation.nodes), 1)

    def _worth(self, situation: Situation, node: I32, limits: Limits) -> Worth:
        nodes, units = situation.nodes, situation.units
        load = situation.unit_loads(node)
        kinds = self._classes(situation)
        worst = 0.0
        for k in range(int(kinds.max(initial=0)) + 1):
            mine = kinds == k
            loads = np.bincount(node[mine], load[mine], len(nodes))
            mean = loads.sum() / nodes.staying_capacity
            if mean > 0:
                off = np.abs(loads / nodes.capacity - mean)[nodes.staying].max() / mean
                worst = max(worst, 100.0 * float(off))
        behind = nodes.leaving[node]
        t = situation.traffic
        near = _nearness(situation)
        if len(near):
            local = float((t.rate * near[node[t.sender], node[t.receiver]]).sum())
        else:
            local = t.collocation(node) * t.total
        return Worth(
            float(load[behind].sum()) + 1e-6 * float(behind.sum()) * max(units.load.mean(), 1e-9),
            max(0.0, worst - limits.distance_max_pct),
            -self._price(situation)[1] * local,
            worst,
        )

    def _classes(self, situation: Situation) -> I32:
        if self.settings.balance == "operator":
            return situation.units.operator
        return np.zeros(len(situation.units), np.int32)

    def _field(self, situation: Situation, node: I32, strong: Bools) -> tuple[Field, I64]:
        """The allocation as the kernels see it, and the atom of every unit."""
        nodes, traffic = situation.nodes, situation.traffic
        load_max = self.settings.atom_load_pct / 100.0 * float(situation.units.load.sum())
        load_max /= nodes.staying_capacity
        mc = situation.migration_cost
        cost_max = max(0.25 * float(mc.sum()), float(mc.max(initial=0.0)))
        atom = atoms_of(situation, node, strong, load_max=load_max, cost_max=cost_max)
        count = int(atom.max(initial=-1)) + 1
        kinds = self._classes(situation)
        classes = int(kinds.max(initial=0)) + 1
        u, v = atom[traffic.sender], atom[traffic.receiver]
        apart = u != v
        edges = adjacency_of(count, u[apart], v[apart], traffic.rate[apart])
        crossing = sums(traffic.sender[apart], traffic.rate[apart], len(node))
        crossing = crossing + sums(traffic.receiver[apart], traffic.rate[apart], len(node))
        full = situation.base_load + traffic.remote_load * crossing
        size = sums(atom * classes + kinds, full, count * classes).reshape(count, classes)
        at = np.zeros(count, np.int32)
        at[atom] = node
        toward = np.zeros((count, len(nodes)))
        np.add.at(toward, (u[apart], node[traffic.receiver[apart]]), traffic.rate[apart])
        np.add.at(toward, (v[apart], node[traffic.sender[apart]]), traffic.rate[apart])
        near = _nearness(situation)
        order = np.argsort(atom, kind="stable")
        first, after, before = _lists(at, len(nodes))
        load = situation.unit_loads(node)
        loads = sums(kinds * np.int64(len(nodes)) + node, load, classes * len(nodes))
        field = Field(
            *edges,
            size,
            size.sum(axis=1),
            toward,
            toward @ near if len(near) else toward,
            near,
            at,
            loads.reshape(classes, len(nodes)),
            nodes.capacity,
            nodes.leaving,
            np.searchsorted(atom[order], np.arange(count + 1)).astype(np.int64),
            order.astype(np.int64),
            situation.home.astype(np.int32),
            mc,
            first,
            after,
            before,
            np.array([situation.cost_of(node)]),
            traffic.remote_load,
            self._price(situation)[1],
        )
        return field, atom


def _nearness(situation: Situation) -> F64:
    """1 on the same node down to 0 for the furthest class; empty if nothing is known."""
    distances = situation.nodes.distances
    if distances is None:
        return np.empty((0, 0))
    cost = distances.cost
    return np.ascontiguousarray(1.0 - cost / max(float(cost.max()), 1e-300))


def _lists(at: I32, nodes: int) -> tuple[I64, I64, I64]:
    """Linked lists of the atoms of every node."""
    order = np.argsort(at, kind="stable").astype(np.int64)
    same = at[order][1:] == at[order][:-1]
    after = np.full(len(at), -1, np.int64)
    before = np.full(len(at), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    before[order[1:][same]] = order[:-1][same]
    first = np.full(nodes, -1, np.int64)
    heads = order[np.concatenate([[True], ~same])] if len(order) else order
    first[at[heads]] = heads
    return first, after, before


__all__ = ["IntegratedPlanner", "IntegratedSettings", "Worth", "lower_bound"]
