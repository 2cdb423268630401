"""Who owns which key during a replay, where its rows go, and what an epoch showed.

The rules are those of the runtime. A key with an entry goes to its owner. A key without one goes to
its hash slot; or, *born local*, it is processed where its row already is: in the slot of the key
before it, and if the row's first key is the new one, in the slot of the row's next key that has an
owner. Partial states then go to the hash slot, one *merge row* per key and slot.

`first_by_hash` is for flows in which a source task cannot see the next key (`headgate.slot.ahead`
says which can): a new first key then goes to its hash slot, and only the others are born local.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.offline.replay_trace import I32, I64, Trace
from headgate.planner.incremental_words import SeenKeys, SeenPairs
from headgate.sketch.space_saving import PAIR_BYTES, PairSketch

F64 = npt.NDArray[np.float64]
STATISTICS_BYTES = 1 << 20
SKETCH_PAIRS = STATISTICS_BYTES // PAIR_BYTES
"""Pairs that one slot counts between two plans."""
NO_ENTRY = -1


@dataclass(frozen=True)
class Epoch:
    """Rows `first` to `end`, and the slot in which each key column's operator processed them."""

    first: int
    end: int
    slot: tuple[I32, ...]

    @property
    def local_pairs(self) -> int:
        return sum(
            int(np.count_nonzero(a == b)) for a, b in zip(self.slot, self.slot[1:], strict=False)
        )

    def slot_rows(self, slots: int) -> F64:
        return np.array([np.bincount(s, minlength=slots) for s in self.slot], np.float64)


class Owners:
    """Entries per key column (-1: none), and which keys have been seen."""

    def __init__(
        self, trace: Trace, slots: int, *, born_local: bool, first_by_hash: bool = False
    ) -> None:
        self.trace, self.slots = trace, slots
        self.born = tuple(
            born_local and not (k == 0 and first_by_hash) for k in range(len(trace.keys))
        )
        """Which key columns are born local."""
        self.home = [column.homes(slots) for column in trace.keys]
        self.entry = [np.full(len(column.h), NO_ENTRY, np.int32) for column in trace.keys]
        self.seen = [np.zeros(len(column.h), np.bool_) for column in trace.keys]

    def route(self, first: int, end: int) -> Epoch:
        """Where the rows of an epoch are processed. O(rows)."""
        numbers = [column.number[first:end] for column in self.trace.keys]
        owner = [entry[n] for entry, n in zip(self.entry, numbers, strict=True)]
        start = owner[0]
        if self.born[0]:
            for later in owner[1:]:
                start = np.where(start < 0, later, start)
        slots = [np.where(start < 0, self.home[0][numbers[0]], start)]
        for k in range(1, len(owner)):
            elsewhere = slots[-1] if self.born[k] else self.home[k][numbers[k]]
            slots.append(np.where(owner[k] < 0, elsewhere, owner[k]))
        return Epoch(first, end, tuple(slots))

    def merge_rows(self, epoch: Epoch) -> int:
        """Partial states that leave the slot where they arose: one per key, slot and epoch."""
        total = 0
        for k in np.flatnonzero(self.born):
            column, entry, home, slot = (
                self.trace.keys[k],
                self.entry[k],
                self.home[k],
                epoch.slot[k],
            )
            number = column.number[epoch.first : epoch.end]
            away = (entry[number] < 0) & (home[number] != slot)
            total += len(np.unique(number[away].astype(np.int64) * self.slots + slot[away]))
        return total

    def mark_seen(self, epoch: Epoch, *, born: bool) -> None:
        """The epoch's keys have been seen from now on: those of columns born local, or the others.

        A key born local has no owner in its first epoch; any other has its hash slot.
        """
        for column, seen, of_born in zip(self.trace.keys, self.seen, self.born, strict=True):
            if of_born == born:
                seen[column.number[epoch.first : epoch.end]] = True

    def install(self, column: int, numbers: I64, slots: I32) -> tuple[int, int]:
        """Give keys an owner (-1 takes the entry away); returns moves and adoptions.

        A key seen before whose owner changes is a move, and its hash slot counts as an owner. The
        first owner of a key never seen before this epoch is an adoption.
        """
        before, after = self.entry[column][numbers], slots
        home, seen = self.home[column][numbers], self.seen[column][numbers]
        was, now = np.where(before < 0, home, before), np.where(after < 0, home, after)
        self.entry[column][numbers] = slots
        return int(np.count_nonzero(seen & (was != now))), int(np.count_nonzero(~seen))

    # --- statistics ------------------------------------------------------------------------
    def seen_keys(self, epoch: Epoch) -> list[SeenKeys]:
        """What the slots count of their keys; for newborns, who had most of their rows."""
        told = []
        for k, column in enumerate(self.trace.keys):
            number = column.number[epoch.first : epoch.end]
            distinct, back = np.unique(number, return_inverse=True)
            rows = np.bincount(back, minlength=len(distinct)).astype(np.float64)
            owner = self.entry[k][distinct]
            newborn = owner < 0
            if self.born[k] and newborn.any():
                cell = back * self.slots + epoch.slot[k]
                by_slot = np.bincount(cell, minlength=len(distinct) * self.slots)
                most = by_slot.reshape(-1, self.slots).argmax(axis=1).astype(np.int32)
                owner = np.where(newborn, most, owner)
            else:
                owner = np.where(newborn, self.home[k][distinct], owner)
                newborn = np.zeros(len(distinct), np.bool_)
            keys = SeenKeys(column.h[distinct], rows, owner, newborn.astype(np.uint8))
            told.append(heaviest(keys, SKETCH_PAIRS * self.slots))
        return told

    def seen_pairs(self, epoch: Epoch) -> list[SeenPairs]:
        """What the slots count of pairs, merged: exact while no slot's sketch overflows."""
        told = []
        for k in range(len(self.trace.keys) - 1):
            a, b = self.trace.keys[k], self.trace.keys[k + 1]
            na, nb = a.number[epoch.first : epoch.end], b.number[epoch.first : epoch.end]
            if len(na) <= SKETCH_PAIRS:
                code, rows = np.unique(na.astype(np.int64) * len(b.h) + nb, return_counts=True)
                told.append(
                    SeenPairs(
                        k,
                        k + 1,
                        a.h[code // len(b.h)],
                        b.h[code % len(b.h)],
                        rows.astype(np.float64),
                    )
                )
                continue
            merged = PairSketch(SKETCH_PAIRS * self.slots)
            for slot in range(self.slots):
                mine = epoch.slot[k] == slot
                sketch = PairSketch(SKETCH_PAIRS)
                sketch.update(a.h[na[mine]], b.h[nb[mine]])
                merged.merge(sketch)
            certain = merged.count - merged.error
            told.append(SeenPairs(k, k + 1, merged.a, merged.b, certain))
        return told


def heaviest(keys: SeenKeys, room: int) -> SeenKeys:
    """All of them if there is room, else the keys with most rows."""
    if len(keys.h) <= room:
        return keys
    return keys.take(np.sort(np.argsort(-keys.rows, kind="stable")[:room]))
