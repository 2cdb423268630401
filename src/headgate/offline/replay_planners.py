"""The planners of a replay: the manager's own, at work on recorded rows.

A planner of keys is run as a flow runs it: the manager's `KeyPlacement` sees every epoch, counts as
slots count, plans when it is due, and turns plans into routing tables, within the same limits. So
equal rows get equal tables in a flow and in a replay, whoever plans. Two are no planners of a flow:
`hash` leaves all keys where they are, and `oracle` sees the period to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from headgate.arrays import I32, I64, U64
from headgate.control.placement import KeyPlacement
from headgate.control.settings import Manager, PlannerSettings
from headgate.errors import HeadgateError
from headgate.offline.replay_owners import NO_ENTRY, Epoch, Owners, Trace, window_graph
from headgate.planner.key_graph import KeyGraph
from headgate.planner.partition import partition
from headgate.planner.placing import KeyLoads, Observation, Pairs, Task
from headgate.planner.registry import registered, why_unknown
from headgate.routing.table import RoutingTable, hash_table


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay: see `headgate replay --help`."""

    planner: str
    window: int
    period: int
    slots: int = 6
    epoch: int = 500
    alpha: float = 1.03
    seed: int = 0
    strict: bool = False
    split: bool = False
    keys_max: int = 262_144

    @property
    def born_local(self) -> bool:
        """Whether keys without an owner are processed where their rows are."""
        return self.planner == "headgate" and not (self.strict or self.split)

    @property
    def period_epochs(self) -> int:
        return -(-self.period // self.epoch)

    @property
    def window_epochs(self) -> int:
        return -(-self.window // self.epoch)

    @property
    def manager(self) -> Manager:
        """The settings with which a flow would run the planner.

        Ours plans after every epoch and remembers a period; papers' planners plan once a period.
        """
        ours = self.planner == "headgate"
        return Manager(
            self.planner,
            every=1 if ours else self.period_epochs,
            warm_up_epochs=0 if ours else self.window_epochs,
            alpha=self.alpha,
            tuning=PlannerSettings(
                memory_epochs=self.period_epochs, pins_max=self.keys_max, seed=self.seed
            ),
        )


class Change(NamedTuple):
    """New owners of keys (by number) of one key column; -1 takes an entry away."""

    column: int
    numbers: I64
    slots: I32


class Planner(Protocol):
    """Says which entries to change: before each period, after each epoch, those of the first
    window included.
    """

    def period(self, owners: Owners, first: int) -> list[Change]:
        """Called before row `first`, where a period begins."""

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        """Called after every epoch."""


class Hashed:
    """Plain hash grouping: no key has an entry."""

    def period(self, owners: Owners, first: int) -> list[Change]:
        return []

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        return []


class Oracle(Hashed):
    """The best plan we can make of each period to come; keys outside it lose their entry."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options

    def period(self, owners: Owners, first: int) -> list[Change]:
        o = self._options
        graph = window_graph(owners.trace, first, first + o.period)
        plan = partition(graph, o.slots, alpha=o.alpha, seed=o.seed).slot
        changes = []
        for k, numbers, slots in by_column(owners.trace, graph, plan):
            entry = np.full(len(owners.entry[k]), NO_ENTRY, np.int32)
            entry[numbers] = slots
            changed = np.flatnonzero(entry != owners.entry[k])
            changes.append(Change(k, changed, entry[changed]))
        return changes


class Managed:
    """A planner of keys as the manager runs it: same observations, cadence, limits and tables."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._placement: KeyPlacement | None = None
        self._tables: dict[str, RoutingTable] = {}
        self._epochs = 0

    def period(self, owners: Owners, first: int) -> list[Change]:
        return []

    def epoch(self, owners: Owners, epoch: Epoch) -> list[Change]:
        names = [column.name for column in owners.trace.keys]
        placement = self._placement or self._begun(owners, names)
        changed = placement.plan(self._observed(owners, epoch, names), self._tables).tables
        changes = []
        for name, table in changed.items():
            k = names.index(name)
            changes.append(_changed(k, owners.trace.keys[k].h, self._tables[name], table))
        self._tables |= changed
        return changes

    def _begun(self, owners: Owners, names: list[str]) -> KeyPlacement:
        settings = self._options.manager
        task = Task(
            operators=tuple(names),
            edges=tuple((names[a], names[b]) for a, b in owners.ties),
            slots=owners.slots,
            alpha=settings.alpha,
            pins_max=settings.tuning.pins_max,
            moves_max=settings.moves_max,
            born_local=frozenset(names if owners.born_local else ()),
            memory_epochs=settings.tuning.memory_epochs,
            seed=settings.tuning.seed,
        )
        self._tables = {name: hash_table(owners.slots) for name in names}
        self._placement = KeyPlacement(task, settings)
        return self._placement

    def _observed(self, owners: Owners, epoch: Epoch, names: list[str]) -> Observation:
        """What the slots of a flow would have counted. Of the clock nothing is told."""
        self._epochs += 1
        keys, rows = owners.seen_keys(epoch), len(epoch.slot[0])
        pairs = owners.seen_pairs(epoch)
        return Observation(
            epoch=self._epochs,
            epochs=1,
            rows=rows,
            now_ms=0,
            pairs={(names[p.source], names[p.target]): Pairs(p.a, p.b, p.rows) for p in pairs},
            loads={n: KeyLoads(k.h, k.rows, k.slot) for n, k in zip(names, keys, strict=True)},
            slot_rows=dict(zip(names, owners.slot_rows(epoch), strict=True)),
            locality=epoch.local_pairs / max(1, rows * (len(names) - 1)),
        )


def by_column(trace: Trace, graph: KeyGraph, slot: I32) -> list[Change]:
    """A plan of a graph's vertices as owners of the keys of each column."""
    changes = []
    for k, column in enumerate(trace.keys):
        mine = slice(graph.starts[k], graph.starts[k + 1])
        changes.append(Change(k, np.searchsorted(column.h, graph.h[mine]), slot[mine]))
    return changes


def _changed(column: int, known: U64, was: RoutingTable, now: RoutingTable) -> Change:
    """Entries of a table that are new, other or gone."""
    slot, had = was.look_up(now.pinned_h)
    new = ~had | (slot != now.pinned_slots)
    gone = was.pinned_h[~now.is_pinned(was.pinned_h)]
    h = np.concatenate([now.pinned_h[new], gone])
    none = np.full(len(gone), NO_ENTRY, np.int32)
    return Change(column, np.searchsorted(known, h), np.concatenate([now.pinned_slots[new], none]))


OWN: dict[str, Callable[[ReplayOptions], Planner]] = {
    "hash": lambda options: Hashed(),
    "headgate": Managed,
    "oracle": Oracle,
}


def make_planner(options: ReplayOptions) -> Planner:
    name = options.planner
    if name in OWN:
        return OWN[name](options)
    if name not in registered("keys"):
        raise HeadgateError(why_unknown(name, OWN, "keys"), planner=name)
    return Managed(options)
