"""Undo in memory: rows as they were before each change since a mark.

Rows are noted by identity, not by position, so an undo is right even if the table was rebuilt in
between. Marks nest; rolling back keeps the mark, as a savepoint in SQL does. Without a mark
nothing is noted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.state.column import Positions
from headgate.state.layout import Mask, Values
from headgate.state.rows import RowIds
from headgate.state.table import HashTable


@dataclass(frozen=True)
class Before:
    """Rows that were there, with all their columns, and rows that were not."""

    there: RowIds
    columns: dict[str, Values]
    absent: RowIds


class UndoLog:
    """What to put back, newest last, and where each mark stands."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        self._log: list[Before] = []
        self._marks: list[tuple[int, int]] = []

    def mark(self, touched: int) -> None:
        """Remember this moment, and how many changes the session had noted by then."""
        self._marks.append((len(self._log), touched))

    def note(self, ids: RowIds, pos: Positions, found: Mask) -> None:
        """Keep these rows as they are, if anybody may want them back."""
        if self._marks:
            there = np.flatnonzero(found)
            columns = self._table.gather(pos[there])
            self._log.append(Before(ids.take(there), columns, ids.take(np.flatnonzero(~found))))

    def rollback(self) -> int:
        """Put everything back as it was at the last mark; returns the session's count then."""
        assert self._marks, "rollback() without mark()"
        start, touched = self._marks[-1]
        for before in reversed(self._log[start:]):
            pos, found = self._table.find(before.absent.h, before.absent.check)
            self._table.remove(pos[found])
            pos, found, _ = self._table.look_up(before.there)
            pos = self._table.ensure(before.there, pos, found)
            self._table.scatter(before.there, pos, before.columns)
        del self._log[start:]
        return touched

    def release(self) -> None:
        """Forget the last mark and keep what was done since."""
        self._marks.pop()
        if not self._marks:
            self._log.clear()
