"""What a session remembers beside the table: where keys are, what it changed, how to undo it.

A position stays right for a row that was found until the table is rebuilt; for one that was not,
it stays a right place to go on probing from. So after a change the `Finder` repeats a lookup from
where it ended; only after a rebuild does it start from home again.

The log notes rows by identity, so it stays right if the table is rebuilt in between. A delta holds
what the rows are at the end, so it does not matter in how many steps, or in which order, they got
there. Marks nest; rolling back keeps the mark, as a savepoint in SQL does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.state.layout import KeyBatch, Mask, Positions, RowLayout, Values
from headgate.state.rows import RowIds, sorted_order
from headgate.state.seals import REMOVED
from headgate.state.state_file import FileRows
from headgate.state.table import HashTable

_KEPT_MAX = 16  # batches whose positions are remembered


@dataclass(frozen=True)
class Found:
    """Position of each key, whether its row is there, and its value cells if just gathered."""

    keys: KeyBatch
    pos: Positions
    found: Mask
    version: int
    changes: int
    cells: dict[str, Values] | None = None


class Finder:
    """Looks up key batches in one table, and knows the last few again by identity."""

    def __init__(self, table: HashTable, identity: Any = None) -> None:
        self._table, self._identity = table, identity
        self._known: dict[int, Found] = {}
        self._changes = 0

    def find(self, keys: KeyBatch) -> Found:
        known = self._known.get(id(keys))
        if known is None or known.keys is not keys or known.version != self._table.version:
            if not self._table.layout.has_route and keys.route is not keys.h:
                assert np.array_equal(keys.route, keys.h), "without sub-keys h must be the route"
            return self._look_up(keys, None)
        return known if known.changes == self._changes else self._look_up(keys, known.pos)

    def written(self, keys: KeyBatch, pos: Positions) -> None:
        """All rows of this batch are there now."""
        self._keep(keys, pos, np.ones(len(pos), np.bool_))

    def changed(self) -> None:
        """Rows came or went: what is remembered must be looked at again."""
        self._changes += 1

    def forget(self) -> None:
        self._known.clear()

    def _look_up(self, keys: KeyBatch, start: Positions | None) -> Found:
        ids = RowIds(keys.route, keys.h, keys.check(self._identity))
        pos, found, cells = self._table.look_up(ids, start)
        return replace(self._keep(keys, pos, found), cells=cells)

    def _keep(self, keys: KeyBatch, pos: Positions, found: Mask) -> Found:
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        known = Found(keys, pos, found, self._table.version, self._changes)
        self._known[id(keys)] = known
        return known


@dataclass(frozen=True)
class Before:
    """Rows as they were: those that were there, with all their columns, and those that were not."""

    there: RowIds
    columns: dict[str, Values]
    absent: RowIds


@dataclass(frozen=True)
class Change:
    """Rows that were written or removed, where they are, and what is at hand of their columns.

    `written`: what the first change of a session wrote; None if it removed rows.
    """

    ids: RowIds
    pos: Positions
    version: int
    keys: KeyBatch | None
    before: Before | None
    written: Mapping[str, Values] | None


class ChangeLog:
    """All changes of a session so far, for its delta, and the marks to which it can return."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        self._changes: list[Change] = []
        self._marks: list[int] = []
        self._positions_hold = True

    def __len__(self) -> int:
        return len(self._changes)

    def before(self, ids: RowIds, pos: Positions, found: Mask) -> Before | None:
        """These rows as they are, if a mark may want them back."""
        if not self._marks:
            return None
        there = np.flatnonzero(found)
        columns = self._table.gather(pos[there])
        return Before(ids.take(there), columns, ids.take(np.flatnonzero(~found)))

    def put(
        self,
        ids: RowIds,
        pos: Positions,
        keys: KeyBatch | None,
        before: Before | None,
        written: Mapping[str, Values],
    ) -> None:
        """Rows to which these columns were written, which are copied: callers may change theirs."""
        first = None if self._changes else {name: v.own() for name, v in written.items()}
        self._changes.append(Change(ids, pos, self._table.version, keys, before, first))

    def removed(self, ids: RowIds, pos: Positions, before: Before | None) -> None:
        self._changes.append(Change(ids, pos, self._table.version, None, before, None))

    def forget(self) -> None:
        self._changes.clear()
        self._positions_hold = True

    def mark(self) -> None:
        self._marks.append(len(self._changes))

    def release(self) -> None:
        """Forget the last mark and keep what was done since."""
        self._marks.pop()

    def rollback(self) -> None:
        """Put everything back as it was at the last mark, which stays."""
        assert self._marks, "rollback() without mark()"
        start = self._marks[-1]
        for change in reversed(self._changes[start:]):
            before = change.before
            assert before is not None, "changes after a mark keep what was there"
            pos, found = self._table.find(before.absent.h, before.absent.check)
            self._table.remove(pos[found])
            pos, found, _ = self._table.look_up(before.there)
            pos = self._table.ensure(before.there, pos, found)
            self._table.scatter(before.there, pos, before.columns)
        del self._changes[start:]
        self._positions_hold = False

    def delta(self) -> FileRows:
        """The rows, in file order, which of them are gone, and their columns as they are now."""
        ids = RowIds.concat([change.ids for change in self._changes])
        order, first = sorted_order(ids)
        if not first.all():
            order = order[np.append(first[1:], True)]  # where a row was in the end
        ids = ids.take(order)
        columns, gone = self._at_hand(order)
        rest = [name for name in self._table.columns if name not in columns]
        if not rest and gone is not None:
            return FileRows(ids, gone, columns)
        version = self._table.version
        if self._positions_hold and all(change.version == version for change in self._changes):
            pos = np.concatenate([change.pos for change in self._changes])[order]
            gone = self._table.check[pos] == REMOVED
        else:
            pos, found = self._table.find(ids.h, ids.check)
            gone = ~found
        held = self._table.gather(pos, rest, gone if gone.any() else None)
        return FileRows(ids, gone, {**columns, **held})

    def _at_hand(self, order: Positions) -> tuple[dict[str, Values], Mask | None]:
        """Columns, and which rows are gone, that need not be gathered: of a session's one change.

        Gathering again what was just written took a quarter of an epoch's commit.
        """
        [change, *more] = self._changes
        if more:
            return {}, None
        columns = {} if change.keys is None else key_values(self._table.layout, change.keys, order)
        if change.written is None:
            return columns, None
        columns |= {name: v.take(order).without_mask() for name, v in change.written.items()}
        return columns, np.zeros(len(order), np.bool_)


def key_values(layout: RowLayout, keys: KeyBatch, index: Positions) -> dict[str, Values]:
    """Key and sub-key columns of some keys of a batch."""
    batch = keys.columns
    if not np.array_equal(index, np.arange(batch.num_rows)):  # else there is nothing to copy
        batch = batch.take(pa.array(index))
    return {
        name: layout.columns[name].store(batch.column(number), len(index))
        for number, name in enumerate(layout.key_names)
    }
