"""Which slots have work in which level of an epoch; the others get no task there.

A row is emitted in some level and slot, passes on in memory where its next operator has an
instance in the same slot, or arrives one level later in any slot that has one. Following that from
the sources on gives, for every operator, the places where it may have something to do, and the
level in which it has all of its epoch. No place is left out, and one that is named may turn out to
be without work.

An operator that has begun in a slot is there in every level up to its last: what it carries over,
rows that wait for their order, and the names of its new state files travel with the slot's own
record. Levels at the end in which nobody has work are left out altogether: rows that are folded
where they are (`Here`), or that have one slot to go to, need fewer than the flow was compiled for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from headgate.arrays import Bools
from headgate.routing.route import TO_OWNER, Dispatch, Here, HereUnlessPinned, Route, ToOwner
from headgate.slot.program import Program, takes_all_at_once
from headgate.topology.graph import Edge, Node


@dataclass(frozen=True)
class Levels:
    """An epoch's levels: the slots that get a task in each, and where stateful operators end."""

    at_work: tuple[tuple[int, ...], ...]
    ends: Mapping[str, int]


def levels_of(
    program: Program, routes: Mapping[str, Route], slots: int, moved: Collection[str] = ()
) -> Levels:
    """What tasks an epoch needs; cost: operators x levels x slots.

    State of the operators in `moved` changes owner in the first level.
    """
    places = _Places(program, routes, slots)
    at_work = np.zeros((program.levels + 1, slots), np.bool_)
    for node in program.order:
        at_work |= places.of(node, moves=node.name in moved)
    found = [tuple(np.flatnonzero(level).tolist()) for level in at_work[1:]]
    while len(found) > 1 and not found[-1]:
        found.pop()
    # Somebody has to pass the records on where nobody has work.
    return Levels(tuple(level or (0,) for level in found), places.ends)


class _Places:
    """Where rows may be emitted, by operator: levels x slots; source tasks are row 0, column 0."""

    def __init__(self, program: Program, routes: Mapping[str, Route], slots: int) -> None:
        self._program, self._routes = program, routes
        self._shape = program.levels + 1, slots
        self._emits: dict[int, Bools] = {}
        self.ends: dict[str, int] = {}

    def of(self, node: Node, *, moves: bool) -> Bools:
        """Where an operator may have work; its producers were asked for before."""
        arrives = np.zeros(self._shape, np.bool_)
        if node.kind == "source":
            arrives[0, 0] = True
            self._emits[node.id] = arrives
            return arrives
        route = self._routes.get(node.name)
        mine = np.ones(self._shape[1], np.bool_)
        if route is not None and route.slots:
            mine[:] = False
            mine[list(route.slots)] = True
        away = np.zeros(self._shape[0], np.bool_)  # levels in which rows may be folded away
        dispatch = TO_OWNER if route is None else route.dispatch
        for edge in self._program.graph.inputs(node.id):
            here, later = self._arrivals(edge, dispatch, mine)
            arrives |= here | later
            away |= _folded_away(edge, dispatch, here, later)
        works = self._emits[node.id] = arrives
        if node.kind == "stateful":
            works, self._emits[node.id] = self._stateful(node, dispatch, arrives, away, mine, moves)
        return works

    def _arrivals(self, edge: Edge, dispatch: Dispatch, mine: Bools) -> tuple[Bools, Bools]:
        """Where rows of an edge are processed: in the task that has them, and a level later."""
        sent, arrives = self._emits[edge.producer], np.zeros(self._shape, np.bool_)
        if isinstance(dispatch, Here) or not edge.exchanges:
            return sent, arrives
        stays = sent & mine
        stays[0] = False
        leaves = np.any(sent, axis=1)
        consumer = self._program.graph.nodes[edge.consumer]
        if edge.grouping.kind == "cost" or takes_all_at_once(consumer):
            stays[:] = False  # rows are scheduled first, or wait: all are sent
        elif mine.sum() == 1:
            leaves &= np.any(
                sent & ~stays, axis=1
            )  # from elsewhere; there is no other slot to go to
        arrives[1:][leaves[:-1]] |= mine
        return stays, arrives

    def _stateful(
        self, node: Node, dispatch: Dispatch, arrives: Bools, away: Bools, mine: Bools, moves: bool
    ) -> tuple[Bools, Bools]:
        """Where it works, and where it emits."""
        works = arrives.copy()
        works[1:][away[:-1]] |= mine  # partials arrive one level later
        end = max(1, int(np.nonzero(works)[0].max(initial=0)))
        if takes_all_at_once(node):
            end = self._program.depth[node.id]
        assert end <= self._program.end_level(node, dispatch), (node.name, end)
        self.ends[node.name] = end
        begun = np.logical_or.accumulate(works[1 : end + 1] & mine, axis=0)
        works[1 : end + 1] |= begun | (mine & moves)
        works[end] |= mine
        emits = np.zeros(self._shape, np.bool_) if takes_all_at_once(node) else arrives.copy()
        if isinstance(dispatch, ToOwner) or node.spec.emits_at_end:
            emits[end] |= mine
        return works, emits


def _folded_away(edge: Edge, dispatch: Dispatch, here: Bools, later: Bools) -> Bools:
    """The levels in which rows of an edge may be folded by who does not own their key."""
    match dispatch:
        case ToOwner():
            return np.zeros(len(here), np.bool_)
        case HereUnlessPinned(stops):
            found: Bools = np.any(here, axis=1)
            found[1] |= edge.id in stops and later[1].any()  # a source has looked ahead
            return found
    both: Bools = np.any(here | later, axis=1)
    return both
