"""The integrated planner: collocation, balance and migration cost in one search from where we are.

Units may be pinned keys and buckets alike. Unlike the paper's program the planner foresees that
units cost less next to their partners, so that what it evens are the loads to come. It searches
(see `annealing`) from the placement at hand and from the greedy's, and keeps the best outcome by
`Worth`. Units that may be cut are planned piece by piece: each piece is a unit like any other (see
`cutting`), and what whole units leave too uneven is cut (see `splitting`).

Invariant: under constant loads a plan that changes anything is better than staying in a strict
order (load left on leaving nodes, load distance above the limit and the price of pieces, traffic),
and each difference counts only above a threshold. So repeated planning never comes back to an
allocation it has left, and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import I32
from headgate.planner.adjacency import strongest, weight_toward
from headgate.planner.allocation.annealing import Field, Rules, anneal
from headgate.planner.allocation.cutting import cut_lines
from headgate.planner.allocation.greedy import Blocks, greedy
from headgate.planner.allocation.milp import MilpSettings, solve
from headgate.planner.allocation.model import (
    Balance,
    Situation,
    balance_classes,
    class_loads,
    lower_bound,
)
from headgate.planner.allocation.plan import Limits, Plan, describe
from headgate.planner.allocation.splitting import Splitter
from headgate.planner.allocation.worth import (
    Worth,
    nearness,
    node_load,
    worth_of,
    worth_of_a_row,
)

Clock = Callable[[], float]
HOT, LUKEWARM, COLD = 0.03, 0.004, 0.0002
"""Heats of a search, in shares of a node's mean load."""
NO_LOAD = 1e-9
"""Share of a node's mean load that is a rounding error."""
PROGRAM_SHARE, PROGRAM_UNITS = 0.7, 5_000
"""Share of the time, and most units, for the paper's program; only without traffic."""
SEARCH_SHARE, FIRST_SHARE, PROBE_STEPS = 0.7, 0.6, 200
"""Share of the time for all searches, of what is left for the next, and steps to tell the pace."""


@dataclass(frozen=True)
class IntegratedSettings:
    """What a plan weighs.

    Args:
        balance: "total" evens the load of all units, "operator" that of every operator.
        margin: The planner aims at this share of the load distance allowed.
        least_gain_pct: Traffic is only worth a plan if it saves this share of a node's load.
        strictness: What unevenness costs against saved load; the next is tried while a search does
            not keep the limit.
        move_price_pct: What a move of mean cost must bring, in percent of a unit's mean load.
        steps_per_unit: Steps of one search, per unit; between `steps_min` and `steps_max`.
        rounds: Heats of a search; the deadline is looked at between them.
        seed: Of the random steps.
    """

    balance: Balance = "total"
    margin: float = 0.9
    least_gain_pct: float = 0.1
    strictness: tuple[float, ...] = (4.0, 12.0)
    move_price_pct: float = 30.0
    steps_per_unit: int = 1_000
    steps_min: int = 20_000
    steps_max: int = 1_000_000
    rounds: int = 24
    seed: int = 1


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
        deadline = began + SEARCH_SHARE * limits.seconds
        whole, lines = situation, tuple[str, ...]()
        notes: tuple[str, ...]
        if situation.cut is None:
            node, notes = self._search(situation, limits, deadline)
        else:
            whole, before, notes = situation.cut.whole, situation.cut.extras, ()
            situation, node = self._split(situation, limits, began, deadline)
            lines = cut_lines(before, situation, node)
        free = bool(situation.traffic.remote_load or situation.cut)
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=0.0 if free else None,
            first=lines,
            balance=self.settings.balance,
            notes=notes,
            seconds=self._clock() - began,
        )
        if situation.cut is not None:
            found = replace(found, node=node[: len(whole.home)], extras=situation.cut.extras)
        found.check(whole, limits)
        return found

    def _split(
        self, situation: Situation, limits: Limits, began: float, deadline: float
    ) -> tuple[Situation, I32]:
        """Whole units and the pieces there are take half of the time, new pieces the rest."""
        least = self.settings.least_gain_pct / 100.0 * node_load(situation)

        def worth(at: tuple[Situation, I32]) -> Worth:
            return self._worth(*at, limits)

        splitter = Splitter(
            lambda now, until: self._search(now, limits, until)[0],
            lambda now, node: self._worth(now, node, limits).excess,
            lambda one, other: worth(other).beats(worth(one), least),
            limits,
            self._clock,
        )
        return splitter.run(situation, (began + deadline) / 2, deadline)

    def _search(
        self, situation: Situation, limits: Limits, deadline: float
    ) -> tuple[I32, tuple[str, ...]]:
        home = situation.home.astype(np.int32)
        talks = bool((situation.cut.whole if situation.cut else situation).traffic.total)
        best, worth = home, self._worth(situation, home, limits)
        plain = greedy(situation, limits.migration_cost_max)
        if not len(home) or not situation.units.load.any():
            return plain, ()  # at most a node that leaves is emptied
        least = self.settings.least_gain_pct / 100.0 * node_load(situation)
        if not talks and worth.excess <= 0 and not worth.left_behind:
            return best, ("within the limit already",)
        price = self._move_price(situation)
        if not talks:  # what the paper's program can do, it does best
            plain = self._program(situation, limits, plain, deadline)
        chosen = "stay"
        for name, start, strictness in self._starts(home, plain, talks):
            now, node = self._clock(), start
            if strictness and now >= deadline:
                break
            if strictness:
                until = now + (deadline - now) * FIRST_SHARE
                node = self._anneal(situation, limits, start, strictness, until)
                node = _with_idle(situation, node, plain, limits.migration_cost_max)
            found = self._worth(situation, node, limits)
            if found.beats(worth, least + price * situation.cost_of(node)):
                best, worth, chosen = node, found, name
                if (strictness or not talks) and found.excess <= 0 and not found.left_behind:
                    break
        return best, (chosen,)

    def _starts(self, home: I32, plain: I32, talks: bool) -> list[tuple[str, I32, float]]:
        """Searches in the order in which they are tried, until one keeps the limit."""
        both = [
            (f"search from {name}, strictness {strictness:g}", start, strictness)
            for name, start in (("home", home), ("greedy", plain))
            for strictness in self.settings.strictness
        ]
        return [("greedy" if talks else "program", plain, 0.0), *(both if talks else both[::-1])]

    def _program(self, situation: Situation, limits: Limits, plain: I32, deadline: float) -> I32:
        """The greedy's allocation, bettered by the program of `milp` in a share of the time."""
        now, budget = self._clock(), limits.migration_cost_max
        seconds = PROGRAM_SHARE * (deadline - now)
        if len(plain) > PROGRAM_UNITS or now >= deadline or self._fits(situation, plain, limits):
            return plain
        goal = MilpSettings(good_enough_pct=limits.distance_max_pct)
        bound = lower_bound(situation, budget)
        blocks = Blocks.of(situation)
        return solve(blocks, budget, bound, now + seconds, goal, self._clock)[0]

    def _fits(self, situation: Situation, node: I32, limits: Limits) -> bool:
        worth = self._worth(situation, node, limits)
        return worth.excess <= 0 and not worth.left_behind

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
        own, field = self.settings, self._field(situation, start)
        rules = self._rules(situation, limits, strictness)
        steps = int(np.clip(own.steps_per_unit * len(start), own.steps_min, own.steps_max))
        state = np.array([own.seed * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
        best, worth = start, self._worth(situation, start, limits)
        heats = [HOT, *np.geomspace(HOT, COLD, own.rounds), 0.0]
        full, each, before = steps // own.rounds, PROBE_STEPS, self._clock()
        for left, heat in zip(range(len(heats) - 1, -1, -1), heats, strict=True):
            if before >= deadline:
                break
            anneal(field, rules, state, each, heat * node_load(situation))
            now = self._clock()
            each = _as_many(full, each, now - before, (deadline - now) / max(left, 1))
            before = now
            if heat < LUKEWARM:
                found = self._worth(situation, field.at, limits)
                if found.beats(worth, 0.0):
                    best, worth = field.at.copy(), found
        return best

    def _rules(self, situation: Situation, limits: Limits, strictness: float) -> Rules:
        return Rules(
            float(limits.migration_cost_max),
            situation.traffic.remote_load,
            worth_of_a_row(situation),
            strictness,
            self.settings.margin * limits.distance_max_pct / 100.0,
            self._move_price(situation),
            NO_LOAD * node_load(situation),
            situation.nodes.staying_capacity,
        )

    def _move_price(self, situation: Situation) -> float:
        """What a move must bring, in load, per cost."""
        mean = max(float(situation.migration_cost.mean()), 1e-300)
        return self.settings.move_price_pct / 100.0 * float(situation.units.load.mean()) / mean

    def _worth(self, situation: Situation, node: I32, limits: Limits) -> Worth:
        return worth_of(situation, node, self.settings.balance, limits)

    def _field(self, situation: Situation, start: I32) -> Field:
        """An allocation as the search sees it."""
        nodes, traffic, units = situation.nodes, situation.traffic, len(situation.units)
        kinds = balance_classes(situation, self.settings.balance)
        edges = situation.adjacency
        partner, bond, rows = strongest(edges)
        toward = weight_toward(edges, start, len(nodes))
        near = nearness(situation)
        moved = np.flatnonzero(start != situation.home)
        away, place = np.zeros(units, np.int64), np.zeros(units, np.int64)
        away[: len(moved)], place[moved] = moved, np.arange(len(moved))
        return Field(
            *edges,
            partner,
            bond,
            situation.base_load + traffic.remote_load * rows,
            kinds,
            toward,
            toward @ near if len(near) else toward,
            near,
            start.astype(np.int32),
            situation.home.astype(np.int32),
            situation.migration_cost,
            class_loads(situation, start, self.settings.balance),
            nodes.capacity,
            nodes.leaving,
            away,
            place,
            np.array([situation.cost_of(start), float(len(moved))]),
        )


def _as_many(most: int, made: int, seconds: float, share: float) -> int:
    """Steps for the next share of the time, if some were made in these seconds."""
    if seconds <= 0:
        return most
    return min(max(int(made * share / seconds), 1), most)


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
