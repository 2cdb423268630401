"""Replay with split operators: rows go by one key, the others are held in partials where rows are.

One key column is the *anchor*. A row goes from the source to the owner of its anchor key, and every
operator processes it there: the anchor's on its state, the others on partial states, of which one
*merge row* per key, slot and epoch goes to the key's owner. So no row is remote; what is left to
plan is balance and merge rows. A flow does the same when its first operator has the anchor's key
and those behind it are declared `split=True`.

The anchor's own keys may be split as well: those frequent in an epoch go to whichever slot has
least, by the chooser that `grouping="split"` begins with, and what they come to elsewhere is merge
rows too. No plan foresees which keys are hot in the next 2,000 rows; a chooser need not.

A merge row is shared by all rows of its key in its slot. The planner is told so: a row ties its
anchor key to its other key by 1/n, where n rows of that key were in the slot. Keys that are in
every slot anyway pull no one; a key with one row pulls as much as in a replay without splitting.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headgate.offline.replay_owners import SKETCH_PAIRS, Epoch, Owners, heaviest
from headgate.offline.replay_planners import (
    FIRST_PLAN_TRIES,
    Change,
    ReplayOptions,
    own_planner,
    planned,
)
from headgate.offline.replay_trace import I32, I64, Trace
from headgate.planner.incremental_words import SeenKeys, SeenPairs
from headgate.planner.key_graph import KeyGraph, imbalance_of
from headgate.planner.partition import partition
from headgate.routing.hashing import U64
from headgate.routing.route import Route, Shares
from headgate.routing.table import hash_table
from headgate.slot.chooser import make_chooser

F64 = npt.NDArray[np.float64]
TRIAL_TRIES = 2
"""Seeds of the plans that are made to choose an anchor."""


class SplitOwners(Owners):
    """Rows are where the anchor's key lives; keys of the other columns own only merged state."""

    def __init__(self, trace: Trace, slots: int, anchor: int) -> None:
        super().__init__(trace, slots, born_local=False)
        self.anchor = anchor

    @property
    def others(self) -> list[int]:
        return [k for k in range(len(self.trace.keys)) if k != self.anchor]

    def route(self, first: int, end: int) -> Epoch:
        anchor = self.trace.keys[self.anchor]
        number = anchor.number[first:end]
        chooser = make_chooser(Route(hash_table(self.slots), Shares()), 0)
        slot = chooser.choose(anchor.h[number], self.owner(self.anchor, number))
        return Epoch(first, end, (slot,) * len(self.trace.keys))

    def owner(self, k: int, numbers: npt.NDArray[np.integer]) -> I32:
        entry = self.entry[k][numbers]
        found: I32 = np.where(entry < 0, self.home[k][numbers], entry).astype(np.int32)
        return found

    def partials(self, k: int, epoch: Epoch) -> tuple[I64, I32, I64]:
        """Keys of a column, the slots that have some of their rows, and which each row is."""
        number = self.trace.keys[k].number[epoch.first : epoch.end].astype(np.int64)
        cell, of_row = np.unique(number * self.slots + epoch.slot[k], return_inverse=True)
        return cell // self.slots, (cell % self.slots).astype(np.int32), of_row

    def merge_rows(self, epoch: Epoch) -> int:
        """Partial states that leave their slot: one per key, slot and epoch."""
        total = 0
        for k in range(len(self.trace.keys)):
            number, slot, _ = self.partials(k, epoch)
            total += int(np.count_nonzero(self.owner(k, number) != slot))
        return total

    # --- statistics ------------------------------------------------------------------------
    def seen_keys(self, epoch: Epoch) -> list[SeenKeys]:
        """The anchor's keys with all their rows, the others with their partials."""
        told = super().seen_keys(epoch)
        for k in self.others:
            number, count = np.unique(self.partials(k, epoch)[0], return_counts=True)
            keys = SeenKeys(
                self.trace.keys[k].h[number],
                count.astype(np.float64),
                self.owner(k, number),
                np.zeros(len(number), np.uint8),
            )
            told[k] = heaviest(keys, SKETCH_PAIRS * self.slots)
        return told

    def seen_pairs(self, epoch: Epoch) -> list[SeenPairs]:
        """Each row ties its anchor key to its other keys by its share of a merge row."""
        anchor = self.trace.keys[self.anchor]
        to = anchor.number[epoch.first : epoch.end]
        told = []
        for k in self.others:
            column = self.trace.keys[k]
            _, _, of_row = self.partials(k, epoch)
            share = 1.0 / np.bincount(of_row)[of_row]
            number = column.number[epoch.first : epoch.end].astype(np.int64)
            told.append(_pairs(k, self.anchor, column.h, anchor.h, number, to, share, self.slots))
        return told

    def slot_rows(self, epoch: Epoch) -> F64:
        """Rows of the anchor, and partials that the owners of other keys get."""
        rows = epoch.slot_rows(self.slots)
        for k in self.others:
            rows[k] = np.bincount(self.owner(k, self.partials(k, epoch)[0]), minlength=self.slots)
        return rows


class SplitIncremental:
    """Headgate's planner on what is left to plan: one load, and shares of merge rows."""

    def __init__(self, options: ReplayOptions, columns: int, anchor: int) -> None:
        self._options = options
        edges = [(k, anchor) for k in range(columns) if k != anchor]
        self.planner = own_planner(options, columns, edges)

    def begin(self, owners: SplitOwners) -> list[Change]:
        o = self._options
        epochs = _cut(0, o.window, o.epoch)
        changes = first_plan(owners, epochs, o, FIRST_PLAN_TRIES)
        for first, end in epochs:
            self._observe(owners, owners.route(first, end))
        return changes

    def period(self, owners: SplitOwners, first: int) -> list[Change]:
        return []

    def epoch(self, owners: SplitOwners, epoch: Epoch) -> list[Change]:
        self._observe(owners, epoch)
        return planned(owners, self.planner)

    def _observe(self, owners: SplitOwners, epoch: Epoch) -> None:
        self.planner.observe(
            owners.seen_keys(epoch), owners.seen_pairs(epoch), owners.slot_rows(epoch)
        )


def choose_anchor(trace: Trace, options: ReplayOptions) -> int:
    """The key to route by: planned on one half of the first window, the cheapest on the other.

    The price of an anchor is its merge rows per row, plus how much fuller than the mean its
    fullest slot is: both are work, in rows per row.
    """
    half = max(1, options.window // 2)
    fitted = _cut(0, half, options.epoch)
    prices = []
    for anchor in range(len(trace.keys)):
        owners = SplitOwners(trace, options.slots, anchor)
        first_plan(owners, fitted, options, TRIAL_TRIES)
        epochs = [owners.route(*rows) for rows in _cut(half, options.window, options.epoch)]
        merges = sum(owners.merge_rows(epoch) for epoch in epochs)
        rows = sum((epoch.slot_rows(options.slots) for epoch in epochs), np.zeros(1))
        full = imbalance_of(np.atleast_2d(rows))[-1]
        prices.append(merges / max(1, options.window - half) + float(full) - 1)
    return int(np.argmin(prices))


def first_plan(
    owners: SplitOwners, epochs: Iterable[tuple[int, int]], options: ReplayOptions, tries: int
) -> list[Change]:
    """Plan from scratch on these rows and install it: shares are those of rows spread by hash."""
    names = [column.name for column in owners.trace.keys]
    pairs: list[SeenPairs] = []
    keys: list[list[SeenKeys]] = [[] for _ in names]
    for rows in epochs:
        epoch = owners.route(*rows)
        pairs += owners.seen_pairs(epoch)
        for k, seen in enumerate(owners.seen_keys(epoch)):
            keys[k].append(seen)
    loads = {
        k: (np.concatenate([s.h for s in seen]), np.concatenate([s.rows for s in seen]))
        for k, seen in enumerate(keys)
    }
    graph = KeyGraph.build(names, [(t.source, t.target, t.a, t.b, t.rows) for t in pairs], loads)
    plan = partition(graph, options.slots, alpha=options.alpha, seed=options.seed, tries=tries)
    changes = []
    for k, column in enumerate(owners.trace.keys):
        mine = slice(graph.starts[k], graph.starts[k + 1])
        numbers = np.searchsorted(column.h, graph.h[mine])
        owners.install(k, numbers, plan.slot[mine])
        changes.append(Change(k, numbers, plan.slot[mine]))
    return changes


def _cut(first: int, end: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, end)) for start in range(first, end, step)]


def _pairs(
    k: int, anchor: int, ha: U64, hb: U64, a: I64, b: I32, share: F64, slots: int
) -> SeenPairs:
    """The shares added up per pair; at most what the slots' sketches hold, the heaviest."""
    code, back = np.unique(a * len(hb) + b, return_inverse=True)
    weight: F64 = np.bincount(back, share).astype(np.float64)
    room = SKETCH_PAIRS * slots
    if len(code) > room:
        kept = np.sort(np.argsort(-weight, kind="stable")[:room])
        code, weight = code[kept], weight[kept]
    return SeenPairs(k, anchor, ha[code // len(hb)], hb[code % len(hb)], weight)
