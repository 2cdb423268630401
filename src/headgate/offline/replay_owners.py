"""A recorded stream, who owns which of its keys during a replay, and where its rows go.

The rules are those of the runtime. A key with an entry goes to its owner. A key without one goes to
its hash slot; or, *born local*, it is processed where its row already is: in the slot of the key
before it, and if the row's first key is the new one, in the slot of the row's next key that has an
owner. Partial states then go to the hash slot, one *merge row* per key and slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.arrays import F64, I32, I64, U64
from headgate.errors import HeadgateError, SchemaMismatch, UnknownColumn
from headgate.planner.incremental import SeenKeys, SeenPairs
from headgate.planner.key_graph import KeyGraph
from headgate.routing.chooser import Chooser
from headgate.routing.hashing import hash_columns, is_hashable
from headgate.routing.route import Route, Shares
from headgate.routing.space_saving import PAIR_BYTES, PairSketch
from headgate.routing.table import hash_table

STATISTICS_BYTES = 1 << 20  # what a manager gives each slot by default
SKETCH_PAIRS = STATISTICS_BYTES // PAIR_BYTES
"""Pairs that one slot counts between two plans."""
NO_ENTRY = -1  # the key is hashed, or born local


@dataclass(frozen=True)
class KeyColumn:
    """One key of the rows: `h` are its distinct hashes, sorted; `number[row]` points into them."""

    name: str
    h: U64
    number: I32


@dataclass(frozen=True)
class Trace:
    """Rows as they arrived; one key column per keyed operator, in the order of the flow."""

    keys: tuple[KeyColumn, ...]

    @property
    def rows(self) -> int:
        return len(self.keys[0].number)

    @classmethod
    def of(cls, columns: dict[str, pa.Array]) -> Trace:
        """A trace of Arrow arrays of one length, by name; null is a key of its own."""
        keys = []
        for name, column in columns.items():
            if not is_hashable(column.type):
                raise SchemaMismatch(
                    f"column {name!r} of type {column.type} cannot be a key", column=name
                )
            h, number = np.unique(hash_columns([column], len(column)), return_inverse=True)
            keys.append(KeyColumn(name, h, number.astype(np.int32)))
        return cls(tuple(keys))


def read_trace(path: Path, keys: Sequence[str], time: str | None = None) -> Trace:
    """The key columns of a Parquet file; with `time` the rows are sorted by it, ties in file order.

    Memory: 12 bytes per row and key besides the columns themselves.
    """
    if len(keys) < 2:
        raise HeadgateError("replay needs at least two keys: give --key A --key B")
    if len(set(keys)) < len(keys):
        raise HeadgateError(f"a key is named twice in {', '.join(keys)}")
    if not path.exists():
        raise HeadgateError(f"there is no file {path}", path=str(path))
    try:
        there = pq.read_schema(path).names
        wanted = [*keys, *([time] if time and time not in keys else [])]
        for name in wanted:
            if name not in there:
                raise UnknownColumn(
                    f"{path.name} has no column {name!r}; it has {', '.join(there)}", column=name
                )
        table = pq.read_table(path, columns=wanted)
    except pa.ArrowException as problem:
        raise HeadgateError(f"{path} cannot be read as Parquet: {problem}") from problem
    if time:  # equal ranks, and a stable sort of them, keep equal times in file order
        rank = pc.rank(table[time].combine_chunks(), tiebreaker="dense")
        table = table.take(np.argsort(rank.to_numpy(zero_copy_only=False), kind="stable"))
    return Trace.of({name: table[name].combine_chunks() for name in keys})


@dataclass(frozen=True)
class Epoch:
    """Rows by key column: numbers of their keys, and the slots in which they were processed."""

    number: tuple[I64, ...]
    slot: tuple[I32, ...]

    @property
    def local_pairs(self) -> int:
        return sum(int(np.count_nonzero(a == b)) for a, b in pairwise(self.slot))

    def slot_rows(self, slots: int) -> F64:
        return np.array([np.bincount(s, minlength=slots) for s in self.slot], np.float64)


class Owners:
    """Entries per key column (-1: none), and which keys have been seen."""

    def __init__(self, trace: Trace, slots: int, *, born_local: bool) -> None:
        self.trace, self.slots, self.born_local = trace, slots, born_local
        table = hash_table(slots)
        self.home = [table.route(column.h).astype(np.int32) for column in trace.keys]
        self.entry = [np.full(len(column.h), NO_ENTRY, np.int32) for column in trace.keys]
        self.seen = [np.zeros(len(column.h), np.bool_) for column in trace.keys]

    @property
    def ties(self) -> list[tuple[int, int]]:
        """Key columns whose keys a plan may keep together: each with the next."""
        return [(k, k + 1) for k in range(len(self.trace.keys) - 1)]

    def route(self, first: int, end: int) -> Epoch:
        """Where the rows of an epoch are processed. O(rows)."""
        numbers = self._numbers(first, end)
        if not self.born_local:
            return Epoch(numbers, tuple(self.owner(k, n) for k, n in enumerate(numbers)))
        entry = [entry[n] for entry, n in zip(self.entry, numbers, strict=True)]
        start = entry[0]
        for later in entry[1:]:
            start = np.where(start < 0, later, start)
        slots = [np.where(start < 0, self.home[0][numbers[0]], start)]
        for of_key in entry[1:]:
            slots.append(np.where(of_key < 0, slots[-1], of_key))
        return Epoch(numbers, tuple(slots))

    def merge_rows(self, epoch: Epoch) -> int:
        """Partial states that leave the slot where they arose: one per key, slot and epoch."""
        total = 0
        for k, (number, slot) in enumerate(zip(epoch.number, epoch.slot, strict=True)):
            away = self.owner(k, number) != slot
            total += len(np.unique(number[away] * self.slots + slot[away]))
        return total

    def mark_seen(self, epoch: Epoch) -> None:
        for seen, number in zip(self.seen, epoch.number, strict=True):
            seen[number] = True

    def install(self, column: int, numbers: I64, slots: I32) -> tuple[int, int]:
        """Give keys an owner (-1 takes the entry away); returns moves and adoptions.

        A key seen before whose owner changes is a move, and its hash slot counts as an owner. The
        first owner of a key never seen before this epoch is an adoption.
        """
        was, seen = self.owner(column, numbers), self.seen[column][numbers]
        self.entry[column][numbers] = slots
        moved = seen & (was != self.owner(column, numbers))
        return int(np.count_nonzero(moved)), int(np.count_nonzero(~seen))

    def owner(self, k: int, numbers: npt.NDArray[np.integer]) -> I32:
        """Of keys of a column: by their entries, or by hash."""
        entry = self.entry[k][numbers]
        found: I32 = np.where(entry < 0, self.home[k][numbers], entry).astype(np.int32)
        return found

    # --- statistics ------------------------------------------------------------------------
    def seen_keys(self, epoch: Epoch) -> list[SeenKeys]:
        """What the slots count of their keys; for newborns, who had most of their rows."""
        seen = []
        for k, column in enumerate(self.trace.keys):
            distinct, back = np.unique(epoch.number[k], return_inverse=True)
            rows = np.bincount(back, minlength=len(distinct)).astype(np.float64)
            owner, newborn = self.owner(k, distinct), np.zeros(len(distinct), np.uint8)
            if self.born_local:
                newborn = (self.entry[k][distinct] < 0).astype(np.uint8)
                cell = back * self.slots + epoch.slot[k]
                by_slot = np.bincount(cell, minlength=len(distinct) * self.slots)
                most = by_slot.reshape(-1, self.slots).argmax(axis=1).astype(np.int32)
                owner = np.where(newborn, most, owner)
            seen.append(self._heaviest(SeenKeys(column.h[distinct], rows, owner, newborn)))
        return seen

    def seen_pairs(self, epoch: Epoch) -> list[SeenPairs]:
        """What the slots count of pairs, merged: exact while no slot's sketch overflows."""
        seen = []
        for k, after in self.ties:
            a, b = self.trace.keys[k], self.trace.keys[after]
            na, nb = epoch.number[k], epoch.number[after]
            if len(na) <= SKETCH_PAIRS:
                code, rows = np.unique(na * len(b.h) + nb, return_counts=True)
                ha, hb = a.h[code // len(b.h)], b.h[code % len(b.h)]
                seen.append(SeenPairs(k, after, ha, hb, rows.astype(np.float64)))
                continue
            merged = PairSketch(SKETCH_PAIRS * self.slots)
            for slot in range(self.slots):
                mine = epoch.slot[k] == slot
                sketch = PairSketch(SKETCH_PAIRS)
                sketch.update(a.h[na[mine]], b.h[nb[mine]])
                merged.merge(sketch)
            seen.append(SeenPairs(k, after, merged.a, merged.b, merged.count - merged.error))
        return seen

    def slot_rows(self, epoch: Epoch) -> F64:
        """What each operator has to do in each slot, in rows."""
        return epoch.slot_rows(self.slots)

    def first_graph(self, epochs: Sequence[tuple[int, int]]) -> KeyGraph:
        """The key graph of the first rows, as far as bounded statistics show it."""
        return window_graph(self.trace, 0, epochs[-1][1], SKETCH_PAIRS * self.slots)

    def _numbers(self, first: int, end: int) -> tuple[I64, ...]:
        """The keys of some rows, wide enough to make codes of two of them."""
        return tuple(column.number[first:end].astype(np.int64) for column in self.trace.keys)

    def _heaviest(self, keys: SeenKeys) -> SeenKeys:
        """As many keys as the slots can count."""
        room = SKETCH_PAIRS * self.slots
        return keys if len(keys.h) <= room else keys.take(_largest(keys.rows, room))


class SplitOwners(Owners):
    """Split operators: rows go by one key, the others are held in partials where rows are.

    One key column is the *anchor*. A row goes from the source to the owner of its anchor key, and
    every operator processes it there: the anchor's on its state, the others on partial states, of
    which one *merge row* per key, slot and epoch goes to the key's owner. So no row is remote; what
    is left to plan is balance and merge rows. A flow does the same when its first operator has the
    anchor's key and those behind it have `grouping="partial"`.

    The anchor's own keys may be split as well: those frequent in an epoch go to whichever slot has
    least, by the chooser that `grouping="cut"` begins with. No plan foresees which keys are hot
    in the next 2,000 rows; a chooser need not.
    """

    def __init__(self, trace: Trace, slots: int, anchor: int) -> None:
        super().__init__(trace, slots, born_local=False)
        self.anchor = anchor

    @property
    def ties(self) -> list[tuple[int, int]]:
        return [(k, self.anchor) for k in range(len(self.trace.keys)) if k != self.anchor]

    def route(self, first: int, end: int) -> Epoch:
        numbers = self._numbers(first, end)
        number = numbers[self.anchor]
        chooser = Chooser(Route(hash_table(self.slots), Shares()), 0)
        h = self.trace.keys[self.anchor].h[number]
        slot = chooser.choose(h, self.owner(self.anchor, number))
        return Epoch(numbers, (slot,) * len(numbers))

    def partials(self, k: int, epoch: Epoch) -> tuple[I64, I32, I64]:
        """Keys of a column, the slots that have some of their rows, and which each row is."""
        cell, of_row = np.unique(epoch.number[k] * self.slots + epoch.slot[k], return_inverse=True)
        return cell // self.slots, (cell % self.slots).astype(np.int32), of_row

    def seen_keys(self, epoch: Epoch) -> list[SeenKeys]:
        """The anchor's keys with all their rows, the others with their partials."""
        seen = super().seen_keys(epoch)
        for k, _ in self.ties:
            number, count = np.unique(self.partials(k, epoch)[0], return_counts=True)
            h, rows = self.trace.keys[k].h[number], count.astype(np.float64)
            keys = SeenKeys(h, rows, self.owner(k, number), np.zeros(len(number), np.uint8))
            seen[k] = self._heaviest(keys)
        return seen

    def seen_pairs(self, epoch: Epoch) -> list[SeenPairs]:
        """Each row ties its anchor key to its other keys by its share of a merge row.

        That is 1/n, where n rows of the other key were in the slot. Keys that are in every slot
        anyway pull no one; a key with one row pulls as much as in a replay without splitting.
        """
        anchor = self.trace.keys[self.anchor]
        seen = []
        for k, _ in self.ties:
            h = self.trace.keys[k].h
            of_row = self.partials(k, epoch)[2]
            share = 1.0 / np.bincount(of_row)[of_row]
            both = epoch.number[k] * len(anchor.h) + epoch.number[self.anchor]
            code, back = np.unique(both, return_inverse=True)
            weight: F64 = np.bincount(back, share).astype(np.float64)
            kept = _largest(weight, SKETCH_PAIRS * self.slots)
            code, weight = code[kept], weight[kept]
            a, b = h[code // len(anchor.h)], anchor.h[code % len(anchor.h)]
            seen.append(SeenPairs(k, self.anchor, a, b, weight))
        return seen

    def slot_rows(self, epoch: Epoch) -> F64:
        """Rows of the anchor, and partials that the owners of other keys get."""
        rows = epoch.slot_rows(self.slots)
        for k, _ in self.ties:
            rows[k] = np.bincount(self.owner(k, self.partials(k, epoch)[0]), minlength=self.slots)
        return rows

    def first_graph(self, epochs: Sequence[tuple[int, int]]) -> KeyGraph:
        """From shares of merge rows, as they are while rows are spread by hash."""
        names = [column.name for column in self.trace.keys]
        pairs: list[SeenPairs] = []
        keys: list[list[SeenKeys]] = [[] for _ in names]
        for rows in epochs:
            epoch = self.route(*rows)
            pairs += self.seen_pairs(epoch)
            for k, seen in enumerate(self.seen_keys(epoch)):
                keys[k].append(seen)
        loads = {
            k: (np.concatenate([s.h for s in seen]), np.concatenate([s.rows for s in seen]))
            for k, seen in enumerate(keys)
        }
        return KeyGraph.build(names, [(t.source, t.target, t.a, t.b, t.rows) for t in pairs], loads)


def window_graph(trace: Trace, first: int, end: int, pairs_max: int | None = None) -> KeyGraph:
    """The key graph of some rows: exact, or by a sketch of `pairs_max` pairs an edge."""
    names = [column.name for column in trace.keys]
    pairs = []
    for k in range(len(names) - 1):
        a, b = trace.keys[k], trace.keys[k + 1]
        ha, hb = a.h[a.number[first:end]], b.h[b.number[first:end]]
        if pairs_max is None:
            pairs.append((k, k + 1, ha, hb, np.ones(len(ha))))
        else:
            sketch = PairSketch(pairs_max)
            sketch.update(ha, hb)
            pairs.append((k, k + 1, sketch.a, sketch.b, sketch.count - sketch.error))
    return KeyGraph.build(names, pairs)


def _largest(weight: F64, room: int) -> I64:
    """Where the largest are, in the order they have; all if there is room."""
    return np.sort(np.argsort(-weight, kind="stable")[:room])
