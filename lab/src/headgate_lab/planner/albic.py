"""ALBIC: balance by the paper's program while collocation grows by one pair a call.

Autonomic Load Balancing with Integrated Collocation (Madsen et al. 2017), steps 1 to 4. Units that
are together stay together: sets of them move as one. Each call adds the pair with the most rows
that is not collocated yet, as a constraint, and solves. If loads then differ too much, sets are cut
smaller and all is solved again, until loads are even enough, no set can be cut or time is up. Loads
are those measured: what collocation will save is not foreseen.

The published program moves what it likes beside the pair, to even loads. Where they are even enough
nothing is solved (`settled`), and pairs are added until as many units move as the paper reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.arrays import I32, I64, Bools
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.greedy import FREE
from headgate.planner.allocation.model import Reach, Situation, distance_of, load_distance
from headgate.planner.allocation.plan import ROUNDING, Extent, Limits, Plan, describe
from headgate_lab.planner.collocation import (
    clear_of_chance,
    collocated_sets,
    nodes_of_sets,
    significant,
    split_by_reach,
    split_sets,
)
from headgate_lab.planner.milp import SOLVER_SHARE, MilpSettings, Solved, solve
from headgate_lab.planner.program import Blocks

Clock = Callable[[], float]
ROOM = 0.5  # of maxLD may be used up to bring pairs together; loads vary by themselves
TRIED_MAX = 1_000  # pairs that are looked at in a call
TURN_SHARE = 0.4
"""Of the time that is left, for one turn: sets may have to be cut smaller several times."""


@dataclass(frozen=True)
class AlbicSettings:
    """Parameters of the paper; it gives names, not values.

    Args:
        score_factor: sF, a pair counts above so many times its sender's average.
        partition_load_pct: maxPL to begin with, in percent of a node's mean load.
        shrink: Factor of maxPL each time the load distance is above maxLD.
        rest_units_max: While loads are even enough, so many units move for pairs, no more: the
            number that the paper reports per period.
        seed: Of ties and of the partitioner.
    """

    score_factor: float = 1.5
    partition_load_pct: float = 50.0
    shrink: float = 0.5
    rest_units_max: int = 10
    seed: int = 0
    milp: MilpSettings = field(default_factory=MilpSettings)


class AlbicPlanner:
    """Balance and collocation, as published."""

    name = "albic"
    collocates = True

    def __init__(
        self,
        settings: AlbicSettings | None = None,
        clock: Clock = time.perf_counter,
        **own: float,
    ) -> None:
        """`own` are settings by name, as a manager has them."""
        self.settings = replace(settings or AlbicSettings(), **own)  # type: ignore[arg-type]
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        own, budget = self.settings, limits.migration_cost_max
        rng = np.random.default_rng((own.seed, situation.period))
        counts = significant(situation, own.score_factor) & clear_of_chance(situation)
        sets = collocated_sets(situation, counts)
        share = float(situation.units.load.sum()) / situation.nodes.staying_capacity
        load_max = max(own.partition_load_pct / 100.0 * share, 1e-300)
        lightest = float(situation.units.load[situation.units.load > 0].min(initial=np.inf))
        best, best_distance = situation.home.astype(np.int32), np.inf
        notes: tuple[str, ...] = ()
        extent: Extent | None = None
        deadline = began + SOLVER_SHARE * limits.seconds
        before, turn, took = -1, began, 0.0
        rests = is_even(situation, limits)
        units_max = own.rest_units_max if rests else len(situation.units)
        room = room_of(situation, limits) if rests else None
        while before < 0 or (load_max >= lightest and turn + took < deadline):
            pieces = split_sets(situation, sets, load_max, budget, own.seed)
            pieces = split_by_reach(situation, pieces)
            load_max *= own.shrink
            if (count := int(pieces.max(initial=-1)) + 1) == before:
                turn = self._clock()
                continue  # maxPL is smaller, but no set is cut by it
            before = count
            blocks, now = _blocks(situation, pieces), self._clock()
            fixed, pair = improve(situation, counts, pieces, budget, rng, units_max, room)
            together = replace(blocks, fixed=fixed)
            solved = settled(together, situation, limits) or solve(
                together,
                budget,
                0.0,
                now + (deadline - now) * TURN_SHARE,
                own.milp.within(limits),
                self._clock,
            )
            distance = blocks.distance(solved.node)
            if distance < best_distance:
                best, best_distance, notes = solved.node[pieces], distance, (*pair, *solved.notes)
                extent = solved.extent
            if distance <= limits.distance_max_pct or count == len(pieces):
                break
            turn, took = (ended := self._clock()), ended - turn  # the next may take as long
        if len(situation.moved(best)) > units_max:
            best, notes = situation.home.astype(np.int32), ("loads are even: no pair is worth it",)
        found = describe(
            situation,
            best,
            self.name,
            limits,
            bound_pct=lower_bound(situation, budget),
            notes=notes,
            extent=extent,
            as_measured=True,
            for_rows=True,
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found


def is_even(situation: Situation, limits: Limits) -> bool:
    """Are loads as even as asked for, and is no unit on a node that leaves?"""
    if situation.nodes.leaving[situation.home].any():
        return False
    distance = load_distance(situation, situation.home, as_measured=True)
    return distance <= limits.distance_max_pct


def room_of(situation: Situation, limits: Limits) -> float:
    """The load distance up to which pairs are brought together: no further off than they are."""
    allowed = ROOM * limits.distance_max_pct
    if not is_even(situation, limits):
        return allowed
    return max(allowed, load_distance(situation, situation.home, as_measured=True))


def settled(blocks: Blocks, situation: Situation, limits: Limits) -> Solved | None:
    """Only what is fixed moves, if loads are even enough then: a plan at rest moves nothing else.

    The paper solves its program in any case, which moves hundreds of units to even what is noise.
    """
    node = np.where(blocks.fixed >= 0, blocks.fixed, blocks.home).astype(np.int32)
    if situation.nodes.leaving[node].any() or blocks.cost_of(node) > limits.migration_cost_max:
        return None
    if blocks.distance(node) > room_of(situation, limits) + ROUNDING:
        return None
    return Solved(node, 0.0, None, ("loads are even enough: nothing else moves",))


def improve(
    situation: Situation,
    counts: Bools,
    pieces: I64,
    budget: float,
    rng: np.random.Generator,
    units_max: float = np.inf,
    room_pct: float | None = None,
) -> tuple[I32, tuple[str, ...]]:
    """Step 3: where blocks must be so that one more pair is together, and what to tell.

    Of the pairs that count and are apart the one with most rows is taken; if the budget cannot
    pay for it, or more than `units_max` would move, the next. Case 1, both single, and case 3,
    both in sets: the node of the two with less load. Case 2: the node of the one that is in a set.
    A pair whose other set may not go there is left out.

    With `room_pct` more pairs follow, as long as `units_max` and the budget allow, and none that
    takes loads further apart than that. No set is in two of them.
    """
    t, home, nodes = situation.traffic, situation.home, situation.nodes
    open_to = nodes_of_sets(situation, pieces)
    fixed = np.full(int(pieces.max(initial=-1)) + 1, FREE, np.int32)
    apart = np.flatnonzero(counts & (home[t.sender] != home[t.receiver]))
    size = np.bincount(pieces)
    cost = np.bincount(pieces, situation.migration_cost)
    may = (size <= units_max) & (cost <= budget)
    apart = apart[may[pieces[t.sender[apart]]] | may[pieces[t.receiver[apart]]]]
    order = apart[np.lexsort((rng.random(len(apart)), -t.rate[apart]))][:TRIED_MAX]
    load = np.bincount(pieces, situation.units.load)
    loads = situation.node_loads(home, as_measured=True)
    told: list[str] = []
    for e in order:
        a, b = int(t.sender[e]), int(t.receiver[e])
        n1, n2 = int(home[a]), int(home[b])
        if (fixed[pieces[[a, b]]] != FREE).any():
            continue
        alone = size[pieces[a]] == 1, size[pieces[b]] == 1
        if alone[0] != alone[1]:
            to = n2 if alone[0] else n1
        else:
            to = n1 if loads[n1] / nodes.capacity[n1] <= loads[n2] / nodes.capacity[n2] else n2
        moving, source = (pieces[b], n2) if to == n1 else (pieces[a], n1)
        if nodes.leaving[to] or cost[moving] > budget or size[moving] > units_max:
            continue
        if open_to is not None and not open_to[moving, to]:
            continue
        then = loads.copy()
        then[source] -= load[moving]
        then[to] += load[moving]
        if room_pct is not None and distance_of(then, nodes) > room_pct + ROUNDING:
            continue
        loads, budget, units_max = then, budget - cost[moving], units_max - size[moving]
        fixed[pieces[[a, b]]] = to
        name = situation.units.name
        told.append(f"collocates {name(a)} and {name(b)} on node {to}")
        if room_pct is None or units_max < 1:
            break
    return fixed, tuple(told)


def _blocks(situation: Situation, pieces: I64) -> Blocks:
    """Sets of units as what the program moves."""
    load = situation.units.load
    count = int(pieces.max(initial=-1)) + 1
    home = np.zeros(count, np.int32)
    home[pieces] = situation.home
    open_to, reach = nodes_of_sets(situation, pieces), None
    if open_to is not None:
        rows, group = np.unique(open_to, axis=0, return_inverse=True)
        reach = Reach(group.reshape(count).astype(np.int32), rows)
    return Blocks(
        np.bincount(pieces, load, count).astype(np.float64),
        np.bincount(pieces, situation.migration_cost, count).astype(np.float64),
        home,
        np.full(count, FREE, np.int32),
        situation.nodes,
        float(load.sum()) / situation.nodes.staying_capacity,
        reach,
    )
