"""The integrated planner: collocation, balance and migration cost in one search from where we are.

Units may be pinned keys and buckets alike. Unlike the paper's program the planner foresees that
units cost less next to their partners, so that what it evens are the loads to come. It searches
(see `annealing`) from the placement at hand and from the greedy's, and keeps the best outcome by
`Worth`.

Invariant: under constant loads a plan that changes anything is better than staying in a strict
order (load left on leaving nodes, load distance above the limit, traffic), and each difference
counts only above a threshold. So repeated planning never comes back to an allocation it has left,
and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import I32
from headgate.planner.allocation.annealing import Field, Rules, anneal
from headgate.planner.allocation.greedy import greedy
from headgate.planner.allocation.model import (
    Balance,
    Nodes,
    Situation,
    Traffic,
    Units,
    balance_classes,
    class_loads,
    class_nodes,
    class_room,
    far_rows,
    load_distance,
    nearness,
)
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate.planner.distance import Distances

Clock = Callable[[], float]


@dataclass(frozen=True)
class IntegratedSettings:
    """What a plan weighs, and how long it searches.

    Set by hand; docs/guide/allocation.md has what they come to on the paper's jobs.
    """

    balance: Balance = "total"  # evens the load of all units, or of every operator by itself
    margin: float = 0.9  # the search goes to this share of the load distance it aims at
    least_gain_pct: float = 0.1  # traffic is worth a plan if it saves this share of a node's load
    noticed_pct: float = 0.05  # a load distance above the limit must fall by so much
    strictness: tuple[float, ...] = (4.0, 12.0)  # of unevenness against saved load, tried in turn
    move_price_pct: float = 30.0  # what a mean move must bring, in percent of a unit's mean load
    steps_per_unit: int = 1_000  # of one search, between the two below
    steps_min: int = 20_000
    steps_max: int = 1_000_000
    rounds: int = 24  # heats of a search; the deadline is looked at between them
    hot: float = 0.03  # the first heat and the last, in shares of a node's mean load
    cold: float = 0.0002
    lukewarm: float = 0.004  # below it, what was found so far is worth looking at
    probe_steps: int = 200  # tell how long a step takes
    search_share: float = 0.7  # of the time, for all searches: a step may overstay
    first_share: float = 0.6  # of what is left, for the next search
    no_load: float = 1e-9  # share of a node's mean load that is a rounding error
    seed: int = 1


@dataclass(frozen=True)
class Worth:
    """What an allocation is worth, each part better if smaller; compared in this order.

    `left_behind` are units on nodes that leave, those without load too, and `left_load` is theirs.
    `excess` is the load distance above the limit.
    """

    left_behind: int
    left_load: float
    excess: float
    traffic: float

    @property
    def fits(self) -> bool:
        return self.excess <= 0 and not self.left_behind

    def beats(self, other: Worth, least_traffic: float, noticed_pct: float) -> bool:
        """Strictly better, by more than a rounding error or a whim."""
        if self.left_behind != other.left_behind:
            return self.left_behind < other.left_behind
        if abs(self.left_load - other.left_load) > 1e-9:
            return self.left_load < other.left_load
        if abs(self.excess - other.excess) > noticed_pct:
            return self.excess < other.excess
        if self.excess > other.excess + 1e-9:
            return False
        return self.traffic < other.traffic - least_traffic


class IntegratedPlanner:
    """Headgate's own planner of allocations."""

    name = "headgate"
    collocates = True

    def __init__(
        self, settings: IntegratedSettings | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self.settings = settings or IntegratedSettings()
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        """The best allocation found in time; the one at hand if none is worth its moves."""
        began = self._clock()
        deadline = began + self.settings.search_share * limits.seconds
        node = self._search(situation, limits, deadline)
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=0.0 if situation.traffic.remote_load else None,
            balance=self.settings.balance,
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found

    def _search(self, situation: Situation, limits: Limits, deadline: float) -> I32:
        own = self.settings
        home, talks = situation.home.astype(np.int32), bool(situation.traffic.total)
        best, worth = home, self._worth(situation, home, limits)
        plain = greedy(situation, limits.migration_cost_max)
        if not len(home) or not situation.units.load.any():
            return plain  # at most a node that leaves is emptied
        if not talks and worth.fits:
            return best
        least = own.least_gain_pct / 100.0 * _node_load(situation)
        price = self._move_price(situation)
        searches = [(start, s) for start in (home, plain) for s in own.strictness]
        for start, strictness in [(plain, 0.0), *(searches if talks else searches[::-1])]:
            now, node = self._clock(), start
            if strictness and now >= deadline:
                break
            if strictness:
                until = now + (deadline - now) * own.first_share
                node = self._anneal(situation, limits, start, strictness, until)
                node = _with_idle(situation, node, plain, limits.migration_cost_max)
            found = self._worth(situation, node, limits)
            if found.beats(worth, least + price * situation.cost_of(node), own.noticed_pct):
                best, worth = node, found
                if (strictness or not talks) and found.fits:
                    break
        return best

    def _anneal(
        self,
        situation: Situation,
        limits: Limits,
        start: I32,
        strictness: float,
        deadline: float,
    ) -> I32:
        """The best allocation seen in one search that cools down.

        How long a step takes depends on the traffic, a hundred times more or less. So a few are
        timed first, and every heat gets the steps that its share of the time has room for.
        """
        own, field, unit = self.settings, self._field(situation, start), _node_load(situation)
        rules = Rules(
            budget=float(limits.migration_cost_max),
            remote=situation.traffic.remote_load,
            worth=_worth_of_a_row(situation),
            strictness=strictness,
            dead=own.margin * limits.aim_pct / 100.0,
            move_price=self._move_price(situation),
            least_mean=own.no_load * unit,
            room=class_room(situation, own.balance),
        )
        steps = int(np.clip(own.steps_per_unit * len(start), own.steps_min, own.steps_max))
        state = np.array([own.seed * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
        best, worth = start, self._worth(situation, start, limits)
        heats = [own.hot, *np.geomspace(own.hot, own.cold, own.rounds), 0.0]
        full, each, before = steps // own.rounds, own.probe_steps, self._clock()
        for left, heat in zip(range(len(heats) - 1, -1, -1), heats, strict=True):
            if before >= deadline:
                break
            anneal(field, rules, state, each, heat * unit)
            now = self._clock()
            took, share = now - before, (deadline - now) / max(left, 1)
            each = full if took <= 0 else min(max(int(each * share / took), 1), full)
            before = now
            if heat < own.lukewarm:
                found = self._worth(situation, field.at, limits)
                if found.beats(worth, 0.0, own.noticed_pct):
                    best, worth = field.at.copy(), found
        return best

    def _move_price(self, situation: Situation) -> float:
        """What a move must bring, in load, per cost."""
        mean = max(float(situation.migration_cost.mean()), 1e-300)
        return self.settings.move_price_pct / 100.0 * float(situation.units.load.mean()) / mean

    def _worth(self, situation: Situation, node: I32, limits: Limits) -> Worth:
        behind = situation.nodes.leaving[node]
        distance = load_distance(situation, node, balance=self.settings.balance)
        return Worth(
            int(behind.sum()),
            float(situation.unit_loads(node)[behind].sum()) if behind.any() else 0.0,
            max(0.0, distance - limits.distance_max_pct),
            _worth_of_a_row(situation) * far_rows(situation, node),
        )

    def _field(self, situation: Situation, start: I32) -> Field:
        """An allocation as the search sees it."""
        nodes, traffic, units = situation.nodes, situation.traffic, len(situation.units)
        edges = situation.adjacency
        unit = np.repeat(np.arange(units), np.diff(edges.starts))
        rows = np.bincount(unit, edges.weight, units)
        lightest = np.lexsort((edges.weight, unit))
        partner = np.full(units, -1, np.int64)
        partner[unit[lightest]] = edges.other[lightest]  # of equal units the last is kept
        cell = unit * len(nodes) + start[edges.other]
        toward = np.bincount(cell, edges.weight, units * len(nodes)).astype(np.float64, copy=False)
        toward = toward.reshape(units, len(nodes))
        near = nearness(situation)
        moved = np.flatnonzero(start != situation.home)
        group, closed = np.zeros(units, np.int32), nodes.leaving[None].copy()
        if situation.reach is not None:
            group, closed = situation.reach.group, ~situation.reach.nodes | nodes.leaving
        away, place = np.zeros(units, np.int64), np.zeros(units, np.int64)
        away[: len(moved)], place[moved] = moved, np.arange(len(moved))
        return Field(
            *edges,
            partner=partner,
            size=situation.base_load + traffic.remote_load * rows,
            kind=balance_classes(situation, self.settings.balance),
            toward=toward,
            pull=toward @ near if len(near) else toward,
            near=near,
            at=start.astype(np.int32),
            home=situation.home.astype(np.int32),
            cost=situation.migration_cost,
            loads=class_loads(situation, start, self.settings.balance),
            capacity=nodes.capacity,
            apart=~class_nodes(situation, self.settings.balance),
            group=group,
            closed=closed,
            moved=away,
            place=place,
            account=np.array([situation.cost_of(start), float(len(moved))]),
        )


def _node_load(situation: Situation) -> float:
    """What a node has if loads are even."""
    return max(float(situation.units.load.sum()) / situation.nodes.staying_capacity, 1e-12)


def _worth_of_a_row(situation: Situation) -> float:
    """Load that a row saves by staying on its node; if not told, half of all load over all rows."""
    if situation.traffic.remote_load or not situation.traffic.total:
        return 2.0 * situation.traffic.remote_load
    return 0.5 * float(situation.units.load.sum()) / situation.traffic.total


def _with_idle(situation: Situation, node: I32, plain: I32, budget: float) -> I32:
    """Units without load and rows, which the search meets by chance and leaves anywhere.

    They stay. Those of a node that leaves go where the greedy takes them, as far as the budget
    goes: nothing else would empty that node.
    """
    t, home, leaving = situation.traffic, situation.home, situation.nodes.leaving
    idle = ~(situation.units.load > 0)
    idle[t.sender] = idle[t.receiver] = False
    found = np.where(idle, home, node).astype(np.int32)
    going = np.flatnonzero(idle & leaving[home] & ~leaving[plain])
    paid = np.cumsum(situation.migration_cost[going]) <= budget - situation.cost_of(found)
    found[going[paid]] = plain[going[paid]]
    return found


def compile_allocation_kernels() -> None:
    """Run every kernel of units once on little: on a new machine that takes some ten seconds.

    Time stands still meanwhile: compiling takes longer than a plan may, and none is left out.
    """
    operator = np.repeat(np.arange(2, dtype=np.int32), 2)
    units = Units(("a", "b"), operator, np.array([3.0, 1.0, 2.0, 2.5]), np.ones(4))
    pairs = Traffic(np.arange(2), 2 + np.arange(2), np.ones(2), 0.1)
    nodes = Nodes.alike(2)
    hosts = replace(nodes, distances=Distances.of(["a", "b"]))
    for on, flow in ((nodes, pairs), (hosts, pairs), (nodes, Traffic.none())):
        tiny = Situation(units, on, np.zeros(4, np.int32), flow)
        IntegratedPlanner(clock=lambda: 0.0).plan(tiny, Limits(4.0, seconds=0.05))
    greedy(replace(tiny, instances=np.array([[True, True], [True, False]])))
