"""The rows a session changed, and the delta they make.

Only identities are noted, not values: a delta holds what the rows are at the end, so it does not
matter in how many steps, or in which order, they got there. Rows are sorted once, which also
finds those noted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.state.column import Positions
from headgate.state.layout import Mask, RowLayout, Values
from headgate.state.rows import RowIds, sorted_order
from headgate.state.schema import KeyBatch
from headgate.state.table import HashTable


@dataclass(frozen=True)
class Touched:
    """Rows of one change, where they were then, and their key columns if at hand."""

    ids: RowIds
    pos: Positions
    version: int
    keys: KeyBatch | None


class TouchedLog:
    """All changes of a session so far."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        self._log: list[Touched] = []
        self._positions_hold = True

    def __len__(self) -> int:
        return len(self._log)

    def put(self, ids: RowIds, pos: Positions, keys: KeyBatch | None) -> None:
        self._log.append(Touched(ids, pos, self._table.version, keys))

    def removed(self, ids: RowIds, pos: Positions) -> None:
        self._log.append(Touched(ids, pos, self._table.version, None))
        self._positions_hold = False

    def cut(self, count: int) -> None:
        """Back to the first `count` changes: the others were undone."""
        del self._log[count:]
        self._positions_hold = False

    def delta(self) -> tuple[RowIds, Mask, dict[str, Values]]:
        """The rows, in file order, which of them are gone, and their columns as they are now."""
        ids = RowIds.concat([touched.ids for touched in self._log])
        order, first = sorted_order(ids)
        if not first.all():
            order = order[first]
        ids = ids.take(order)
        version = self._table.version
        if self._positions_hold and all(touched.version == version for touched in self._log):
            pos = np.concatenate([touched.pos for touched in self._log])[order]
            found = np.ones(len(ids), np.bool_)
        else:
            pos, found = self._table.find(ids.h, ids.check)
        keys = self._log[0].keys if len(self._log) == 1 else None
        columns = {} if keys is None else key_values(self._table.layout, keys, order)
        rest = [name for name in self._table.columns if name not in columns]
        gone = ~found
        held = self._table.gather(pos, rest, gone if gone.any() else None)
        return ids, gone, {**columns, **held}


def key_values(layout: RowLayout, keys: KeyBatch, index: Positions) -> dict[str, Values]:
    """Key and sub-key columns of some keys of a batch."""
    batch = keys.columns
    if not np.array_equal(index, np.arange(batch.num_rows)):  # else there is nothing to copy
        batch = batch.take(pa.array(index))
    return {
        name: layout.columns[name].store(batch.column(number), len(index))
        for number, name in enumerate(layout.key_names)
    }
