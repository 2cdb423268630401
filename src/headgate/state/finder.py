"""Where the keys of a batch are, remembered between a read and the write that follows it.

A position stays right for a row that was found until the table is rebuilt; for one that was not,
it stays a right place to go on probing from. So after a change a lookup is repeated, but from
where it ended; only after a rebuild does it start from home again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.state.column import Positions
from headgate.state.layout import Mask, Values
from headgate.state.rows import RowIds
from headgate.state.schema import KeyBatch
from headgate.state.table import HashTable

_KEPT_MAX = 16


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
