"""A state that starts empty, belongs to one task and is never committed.

Its first write is only kept aside. A task that processes all its rows in one call, and most do,
reads it back from there, in file order; the hash table, which costs more than the rest, is built
when a second call comes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.chain import Chain
from headgate.state.layout import RowLayout, Values
from headgate.state.memory import PrivateMemory
from headgate.state.rows import Held, RowIds, StateRows, sorted_order
from headgate.state.schema import I64, U64, KeyBatch, StateSchema
from headgate.state.session import StateSession
from headgate.state.storage import Storage
from headgate.state.table import HashTable
from headgate.state.task import Task
from headgate.state.touched import key_values

_NOWHERE = Storage.at("")  # never written to


class PrivateSession(StateSession):
    """As any session, without TTL: what starts from nothing cannot have expired."""

    def __init__(self, schema: StateSchema, identity: Any = None) -> None:
        layout = RowLayout(schema)
        blank = {name: column.blank(0) for name, column in layout.columns.items()}
        table = HashTable.build(layout, PrivateMemory(), RowIds.none(), blank)
        task = Task(_NOWHERE, layout, "", 0, 0, 0, 0, None, 1, compact_after=0, identity=identity)
        super().__init__(task, table, None, ())
        self._first: tuple[KeyBatch, dict[str, Values]] | None = None

    @property
    def rows(self) -> int:
        return super().rows if self._first is None else len(self._first[0].h)

    @property
    def bytes(self) -> int:
        if self._first is None:
            return super().bytes
        keys, given = self._first
        return int(keys.columns.nbytes) + sum(int(values.data.nbytes) for values in given.values())

    def read(self, keys: KeyBatch) -> Held:
        self._build()
        return super().read(keys)

    def remove(self, keys: KeyBatch) -> None:
        self._build()
        super().remove(keys)

    def select(self, column: str, below: int | float) -> StateRows:
        self._build()
        return super().select(column, below)

    def remove_rows(self, rows: StateRows) -> None:
        self._build()
        super().remove_rows(rows)

    def absorb(self, rows: StateRows) -> None:
        self._build()
        super().absorb(rows)

    def drop_units(self, buckets: I64, routes: U64, keep_routes: U64) -> int:
        self._build()
        return super().drop_units(buckets, routes, keep_routes)

    def mark(self) -> None:
        self._build()
        super().mark()

    def rollback(self) -> None:
        self._first = None  # written after the mark, which built the table
        super().rollback()

    def all(self) -> StateRows:
        if self._first is None:
            return super().all()
        keys, given = self._first
        ids = self._ids(keys)
        order, _ = sorted_order(ids)
        columns = key_values(self._layout, keys, order)
        for name, column in self._layout.columns.items():
            if name in given:
                columns[name] = given[name].take(order)
            elif name not in columns:
                columns[name] = column.blank(len(order))
        return StateRows(self._layout, ids.take(order), columns)

    def commit(self) -> Chain:
        raise AssertionError("a private state belongs to no slot: there is nothing to commit")

    def _write(self, keys: KeyBatch, given: dict[str, Values]) -> None:
        if self._first is None and not super().rows:
            self._first = keys, {name: _own(values) for name, values in given.items()}
            return
        self._build()
        super()._write(keys, given)

    def _build(self) -> None:
        """What was kept aside goes into the table."""
        if self._first is not None:
            first, self._first = self._first, None
            super()._write(*first)


def _own(values: Values) -> Values:
    """A copy of what the caller may change; Arrow arrays nobody can."""
    if not isinstance(values.data, np.ndarray):
        return values
    return Values(values.data.copy(), None if values.valid is None else values.valid.copy())
