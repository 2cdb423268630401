"""Rows in hand: their identity, what a lookup holds, and whole rows on their way elsewhere.

A row is `(route, h, check)`: where it is routed, where it is found, and the proof that it is the
one asked for. Files keep rows in that order, so `sorted_order` is the one definition of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.arrays import I64, U64
from headgate.state import kernels
from headgate.state.layout import TOUCHED, Array, Mask, Positions, RowLayout, Values

Order = npt.NDArray[np.intp]


@dataclass(frozen=True)
class RowIds:
    """Identity of some rows, a NumPy array per part."""

    route: U64
    h: U64
    check: U64

    def __len__(self) -> int:
        return len(self.h)

    def take(self, index: Array | slice) -> RowIds:
        h = self.h[index]
        return RowIds(h if self.route is self.h else self.route[index], h, self.check[index])

    @classmethod
    def none(cls) -> RowIds:
        empty = np.zeros(0, np.uint64)
        return cls(empty, empty, empty)

    @classmethod
    def concat(cls, parts: list[RowIds]) -> RowIds:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.none()
        h = np.concatenate([part.h for part in parts])
        same = all(part.route is part.h for part in parts)
        route = h if same else np.concatenate([part.route for part in parts])
        return cls(route, h, np.concatenate([part.check for part in parts]))


def sorted_order(ids: RowIds) -> tuple[Order, Mask]:
    """Order by (route, h, check), earlier rows first among equals, and which rows are first.

    Sorting by route alone settles most rows; only those that share one are compared further.
    """
    if kernels.compiled is not None and len(ids):
        packed, bits = _packed(ids.route)
        return kernels.order(kernels.compiled, ids.route, ids.h, ids.check, packed, bits)
    order = _route_order(ids.route)
    route = ids.route[order]
    first = np.ones(len(ids), np.bool_)
    same = route[1:] == route[:-1]
    if not same.any():
        return order, first
    tied = np.zeros(len(ids), np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    spots = np.flatnonzero(tied)
    rows = order[spots]
    run = np.concatenate([[0], np.cumsum(~same[spots[1:] - 1])]).astype(np.uint64)
    rows = rows[_order_in_runs(run, ids.h[rows], ids.check[rows])]
    h, check, route = ids.h[rows], ids.check[rows], route[spots]
    order[spots] = rows
    again = (h[1:] == h[:-1]) & (check[1:] == check[:-1]) & (route[1:] == route[:-1])
    first[spots[1:]] = ~again
    return order, first


def _order_in_runs(run: U64, h: U64, check: U64) -> Order:
    """A stable order by (run, h, check), of rows in order of run.

    The run with the top bits of h in one number settles nearly all. What that leaves in the wrong
    order is found, and then all is sorted by everything.
    """
    bits = np.uint64(max(1, int(run[-1]).bit_length()))
    order: Order = np.argsort((run << (np.uint64(64) - bits)) | (h >> bits), kind="stable")
    by_h, by_check = h[order], check[order]
    fits = by_h[1:] > by_h[:-1]
    fits |= (by_h[1:] == by_h[:-1]) & (by_check[1:] >= by_check[:-1])
    if (fits | (run[1:] > run[:-1])).all():
        return order
    return np.lexsort((check, h, run))


def distinct_order(ids: RowIds) -> Order:
    """The same order, of equal rows only the first."""
    order, first = sorted_order(ids)
    return order if first.all() else order[first]


def _route_order(route: U64) -> Order:
    """A stable argsort. Up to a million rows: sort the routes' top bits with the row in the rest.

    That sorts plain numbers, twice as fast as an argsort. Should two routes differ in the low
    bits only, the result shows it and is not used. More rows come from files, as a few sorted
    stretches, which a merging argsort likes best.
    """
    packed, bits = _packed(route) if len(route) <= 1 << 20 else (route, 0)
    if bits:
        order = (packed & np.uint64((1 << bits) - 1)).astype(np.intp)
        ordered = route[order]
        if (ordered[1:] >= ordered[:-1]).all():
            return order
    return np.argsort(route, kind="stable")


def _packed(route: U64) -> tuple[U64, int]:
    """The routes' top bits and the rows' numbers in the rest, sorted; how many bits the rest is."""
    bits = max(1, (len(route) - 1).bit_length())
    rest = np.uint64((1 << bits) - 1)
    packed = (route & ~rest) | np.arange(len(route), dtype=np.uint64)
    packed.sort()
    return packed, bits


def bucket_of(route: U64, buckets: int) -> I64:
    """The bucket of a route: its top bits; `buckets` is a power of two."""
    shift = bucket_shift(buckets)
    if shift == 64:
        return np.zeros(len(route), np.int64)
    return (route >> np.uint64(shift)).astype(np.int64)


def bucket_shift(buckets: int) -> int:
    assert buckets > 0 and buckets & (buckets - 1) == 0, f"{buckets} is not a power of two"
    return 64 - (buckets.bit_length() - 1)


def in_units(route: U64, bucket_count: int, buckets: I64, routes: U64) -> Mask:
    """Which routes lie in one of the buckets or are one of the routes."""
    hit = np.zeros(len(route), np.bool_)
    if len(buckets):
        wanted = np.zeros(bucket_count, np.bool_)
        wanted[buckets] = True
        hit |= wanted[bucket_of(route, bucket_count)]
    if len(routes):
        hit |= np.isin(route, routes)
    return hit


class Held:
    """What the state holds for a batch of keys, gathered column by column when asked for.

    It shows the state as it was at `read()`: what it has not gathered by then cannot change before
    the session has it do so. `held["count"]` is zero (Arrow columns: null) where the key is absent
    or the value null. Columns not asked for by the end of the session are gone.
    """

    def __init__(
        self, layout: RowLayout, found: Mask, gather: Callable[[str], Values] | None
    ) -> None:
        self.found = found
        self._layout, self._gather = layout, gather
        self._kept: dict[str, Values] = {}

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, name: str) -> Any:
        column = self._layout.find(name)
        return column.seen(self._values(column.name))

    @property
    def value_names(self) -> list[str]:
        return list(self._layout.schema.values.names)

    def valid(self, name: str) -> Mask:
        """Where the key is there and the value is not null."""
        values = self._values(self._layout.find(name).name)
        if isinstance(values.data, pa.Array):
            return np.asarray(values.data.is_valid().to_numpy(zero_copy_only=False))
        return self.found if values.valid is None else self.found & values.valid

    def arrow(self, name: str) -> pa.Array:
        """The column as Arrow, null where the key is absent or the value null."""
        column = self._layout.find(name)
        values = self._values(column.name)
        if isinstance(values.data, pa.Array) or (values.valid is None and self.found.all()):
            return column.arrow(values)
        return column.arrow(Values(values.data, self.valid(name)))

    def freeze(self) -> None:
        """Gather all columns, before rows go or move."""
        for name in self._layout.columns:
            self._values(name)

    def close(self) -> None:
        self._gather = None

    def _values(self, name: str) -> Values:
        if name not in self._kept:
            if self._gather is None:
                raise RuntimeError(f"{name} was not read before the state session ended")
            self._kept[name] = self._gather(name)
        return self._kept[name]


@dataclass(frozen=True)
class Places:
    """Where rows were found in a table, and in which version of it: a hint to find them again."""

    table: object
    version: int
    pos: Positions

    def take(self, index: Array) -> Places:
        return Places(self.table, self.version, self.pos[index])


@dataclass(frozen=True)
class StateRows:
    """Whole rows, copied out of a table or a file: identity, keys, values and hidden columns."""

    layout: RowLayout
    ids: RowIds
    columns: Mapping[str, Values]
    places: Places | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def route(self) -> U64:
        return self.ids.route

    @cached_property
    def keys(self) -> pa.RecordBatch:
        """Key and sub-key columns, as `StateSchema.row_key` declares them."""
        return self._batch(self.layout.schema.row_key, self.layout.key_names)

    def __getitem__(self, name: str) -> Any:
        column = self.layout.find(name)
        return column.seen(self.columns[column.name])

    def arrow(self, name: str) -> pa.Array:
        return self._arrow(self.layout.find(name).name)

    def valid(self, name: str) -> Mask:
        return np.asarray(self.arrow(name).is_valid().to_numpy(zero_copy_only=False))

    @property
    def touched_ms(self) -> I64 | None:
        values = self.columns.get(TOUCHED)
        return None if values is None else values.data

    def take(self, index: Array) -> StateRows:
        columns = {name: values.take(index) for name, values in self.columns.items()}
        places = None if self.places is None else self.places.take(index)
        return StateRows(self.layout, self.ids.take(index), columns, places)

    @classmethod
    def concat(cls, parts: list[StateRows]) -> StateRows:
        """The rows of all parts, which are of one layout, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            name: Values.concat([part.columns[name] for part in parts]) for name in parts[0].columns
        }
        return cls(parts[0].layout, RowIds.concat([part.ids for part in parts]), columns)

    def batch(self) -> pa.RecordBatch:
        """Key, sub-key and value columns in one record batch, hidden columns left out."""
        schema = pa.schema([*self.layout.schema.row_key, *self.layout.schema.values])
        return self._batch(schema, self.layout.key_names + self.layout.value_names)

    def _batch(self, schema: pa.Schema, names: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._arrow(name) for name in names], schema=schema)

    def _arrow(self, name: str) -> pa.Array:
        return self.layout.columns[name].arrow(self.columns[name])
