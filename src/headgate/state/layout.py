"""What one operator keeps per key, how each column is kept in memory, and how it becomes Arrow.

Routing and migration know only the *key*: its hash is `route`. A state row is found by the hash
of key **and** sub-key, so an operator may hold many rows per key (items of a window, say) and
they all move together. Four ways of keeping a column, chosen by Arrow type alone:

    number   ints, floats, bool, dates, times, timestamps, durations: a NumPy array. Temporal
             types are their raw integers, in the unit of the type.
    row      fixed_size_list of numbers: a 2-D NumPy array
    opaque   decimals, fixed_size_binary: fixed-width bytes, seen outside as an Arrow array
    heap     strings, binary, lists of numbers: bytes in a heap, seen outside as an Arrow array

A value under a null is always zero, and a key has one spelling, so equal content always has equal
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import U64
from headgate.errors import SchemaMismatch
from headgate.topology.keys import Key

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]
Kind = Literal["number", "row", "opaque", "heap"]
TOUCHED = "_touched_ms"
KEY_PARTS = ("key.", "sub.")


@dataclass(frozen=True)
class Stored:
    """A value column that files know otherwise, since the flow changed (`commit/evolution.py`).

    `name` is what they call it. `absent`: those written before it was added lack it; rows in them
    hold `default`, in the text that casts to its type (None: null, or zero if it cannot be null).
    """

    column: str
    name: str
    absent: bool = False
    default: str | None = None


@dataclass(frozen=True)
class StateSchema:
    """Arrow fields of a state row; two schemas are alike when `describe()` is equal.

    Files may be older than the schema: key and sub-key columns are found in them by their place,
    value columns by name, or as `stored` says; types are made those of the schema. `retired` are
    names in files that no column may take again: their values were given up. `near` are the places
    of the key columns that say where it lives (`topology/keys.py`).
    """

    key: pa.Schema
    values: pa.Schema
    sub: pa.Schema = field(default_factory=lambda: pa.schema([]))
    stored: tuple[Stored, ...] = ()
    retired: tuple[str, ...] = ()
    near: tuple[int, ...] = ()

    @property
    def keyed_by(self) -> Key:
        """The key's columns, as rows of this state are hashed by them."""
        return Key(self.key.names, self.near)

    @property
    def row_key(self) -> pa.Schema:
        return pa.schema(list(self.key) + list(self.sub))

    @property
    def shown(self) -> pa.Schema:
        """Key, sub-key and value columns as readers outside the flow get them, all names apart."""
        fields = [*self.row_key, *self.values]
        names = shown_names(self.row_key.names, self.values.names)
        return pa.schema([f.with_name(name) for f, name in zip(fields, names, strict=True)])

    def describe(self) -> dict[str, Any]:
        """JSON form, kept in the checkpoint and compared when a flow resumes."""
        told: dict[str, Any] = {
            part: [[f.name, str(f.type)] for f in getattr(self, part)]
            for part in ("key", "sub", "values")
        }
        if self.stored:
            told["stored"] = [[s.column, s.name, s.absent, s.default] for s in self.stored]
        if self.retired:
            told["retired"] = list(self.retired)
        if self.near:
            told["near"] = list(self.near)
        return told


def shown_names(key: Sequence[str], values: Sequence[str]) -> list[str]:
    """Names of a state row's columns; a value that is called like a key becomes `value.NAME`.

    Examples:
        >>> shown_names(["count"], ["count", "sum"])
        ['count', 'value.count', 'sum']
    """
    names = list(key)
    for name in values:
        while name in names:
            name = f"value.{name}"
        names.append(name)
    return names


class KeyBatch(Protocol):
    """Distinct state-row keys, hashed; what operators look up and write by.

    `check` tells them from other keys of equal `h`, in the way that `identity` says (None: in that
    of the batch); it is never 0 and never 2: the table marks empty rows and tombstones with those.
    """

    @property
    def route(self) -> U64: ...
    @property
    def h(self) -> U64: ...
    def check(self, identity: Any = None) -> U64: ...
    @property
    def columns(self) -> pa.RecordBatch:
        """Key and sub-key columns (`StateSchema.row_key`), a row per distinct key."""


def one_spelling(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Key values as the state keeps them: -0.0 becomes 0.0, every NaN the same one."""
    if keys.dtype.kind != "f":
        return keys
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
        spelled = keys + np.zeros(1, keys.dtype)
    spelled[np.isnan(spelled)] = np.nan
    return spelled


@dataclass(frozen=True)
class Values:
    """Values of one column for some rows; `valid` is None when none is null.

    Heap columns keep a LargeBinaryArray, which carries its own nulls.
    """

    data: Any
    valid: Mask | None = None

    def take(self, index: Any) -> Values:
        """Some rows, by number or mask; those of a slice are not copied."""
        if isinstance(self.data, pa.Array) and not isinstance(index, slice):
            rows = pa.array(index)
            return Values(self.data.filter(rows) if index.dtype == bool else self.data.take(rows))
        return Values(self.data[index], None if self.valid is None else self.valid[index])

    def own(self) -> Values:
        """A copy of what its giver may change; Arrow arrays nobody can."""
        if isinstance(self.data, pa.Array):
            return self
        return Values(self.data.copy(), None if self.valid is None else self.valid.copy())

    def without_mask(self) -> Values:
        """The same values, without a mask that says that none is null."""
        return self if self.valid is None or not self.valid.all() else Values(self.data)

    def spread(self, index: Array, count: int) -> Values:
        """The values, which are in NumPy, at some of `count` places; zeros elsewhere."""
        data = np.zeros((count, *self.data.shape[1:]), self.data.dtype)
        data[index] = self.data
        if self.valid is None:
            return Values(data)
        valid = np.ones(count, np.bool_)
        valid[index] = self.valid
        return Values(data, valid)

    @classmethod
    def concat(cls, parts: list[Values]) -> Values:
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0].data, pa.Array):
            return cls(pa.concat_arrays([part.data for part in parts]))
        data = np.concatenate([part.data for part in parts])
        if all(part.valid is None for part in parts):
            return cls(data)
        masks = [np.ones(len(p.data), np.bool_) if p.valid is None else p.valid for p in parts]
        return cls(data, np.concatenate(masks))


@dataclass(frozen=True)
class ColumnLayout:
    """One column: its name in files, its Arrow type and the way it is kept."""

    name: str
    label: str
    type: pa.DataType
    nullable: bool
    kind: Kind
    dtype: np.dtype[Any]
    width: int = 1
    stored: Stored | None = None

    @property
    def in_files(self) -> str:
        """What files call it."""
        return self.name if self.stored is None else f"value.{self.stored.name}"

    def before(self, rows: int) -> Values:
        """What rows hold that were written before there was this column."""
        assert self.stored is not None
        if self.stored.default is None:
            nulls = pa.nulls(rows, self.type)
            return self.store(nulls, rows) if self.nullable else self.blank(rows)
        value = pa.scalar(self.stored.default, pa.string()).cast(self.type)
        return self.store(pa.repeat(value, rows), rows)

    def blank(self, rows: int) -> Values:
        """What a column holds before anything is written: zero, and null in a heap column."""
        if self.kind == "heap":
            return Values(pa.nulls(rows, pa.large_binary()))
        return Values(np.zeros(self.shape(rows), self.dtype))

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows, self.width) if self.kind == "row" else (rows,)

    def store(self, given: Any, rows: int) -> Values:
        """Take a column as users or files give it (NumPy or Arrow) into its kept form."""
        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        try:
            values = self._from_arrow(given) if isinstance(given, pa.Array) else self._given(given)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaMismatch(
                f"state column {self.label!r} holds {self.type}, and what was written does not "
                f"fit: {error}. Cast it, or declare another type",
                column=self.label,
                type=str(self.type),
            ) from error
        if len(values.data) != rows:
            raise SchemaMismatch(
                f"state column {self.label!r} was given {len(values.data)} values for {rows} "
                "keys; give one value per key",
                column=self.label,
                rows=rows,
            )
        if self.kind == "number" and self.name.startswith(KEY_PARTS):
            return Values(one_spelling(values.data), values.valid)
        return values

    def arrow(self, values: Values) -> pa.Array:
        if self.kind == "heap":
            return _from_heap(values.data, self.type)
        data, valid = values.data, values.valid
        if pa.types.is_boolean(self.type):
            return pa.array(data, mask=None if valid is None else ~valid)
        rows = len(data)
        bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if self.kind == "row":
            flat = np.ascontiguousarray(data).reshape(-1)
            if pa.types.is_boolean(self.type.value_type):
                child = pa.array(flat)
            else:
                child = pa.Array.from_buffers(
                    self.type.value_type, len(flat), [None, pa.py_buffer(flat)]
                )
            return pa.Array.from_buffers(self.type, rows, [bits], children=[child])
        body = pa.py_buffer(np.ascontiguousarray(data).view(np.uint8) if rows else b"")
        return pa.Array.from_buffers(self.type, rows, [bits, body])

    def seen(self, values: Values) -> Any:
        """What users get: NumPy for numbers and rows, Arrow for the rest."""
        return values.data if self.kind in ("number", "row") else self.arrow(values)

    def _given(self, given: Any) -> Values:
        if self.kind in ("heap", "opaque"):
            return self._from_arrow(pa.array(given, type=self.type))
        data = np.asarray(given)
        if data.dtype.kind in "mM":
            unit = "D" if pa.types.is_date32(self.type) else getattr(self.type, "unit", "ms")
            data = data.astype(f"{data.dtype.kind}8[{unit}]").view(np.int64)
        if data.dtype != self.dtype:
            data = data.astype(self.dtype, casting="same_kind")
        if data.shape != self.shape(len(data)):
            raise ValueError(f"shape {data.shape} instead of {self.shape(len(data))}")
        return Values(data)

    def _from_arrow(self, given: pa.Array) -> Values:
        if given.type != self.type:
            given = given.cast(self.type)
        if self.kind == "heap":
            return Values(_to_heap(given))
        valid = None
        if given.null_count:
            if not self.nullable:
                raise ValueError("a null in a column declared not nullable")
            valid = pc.is_valid(given).to_numpy(zero_copy_only=False)
        rows = len(given)
        if self.kind == "row":
            child = given.values.slice(given.offset * self.width, rows * self.width)
            if child.null_count and given.flatten().null_count:
                raise ValueError("nulls inside a fixed_size_list cannot be kept")
            data = _raw(child, self.dtype).reshape(rows, self.width)
        else:
            data = _raw(given, self.dtype)
        if valid is not None:
            data = data.copy()
            data[~valid] = np.zeros(1, self.dtype)[0]
        return Values(data, valid)


@dataclass(frozen=True)
class RowLayout:
    """All columns of a state row, in file order: key, sub-key, values, then the TTL clock."""

    schema: StateSchema
    ttl: bool = False

    @cached_property
    def columns(self) -> dict[str, ColumnLayout]:
        parts = (("key", self.schema.key), ("sub", self.schema.sub), ("value", self.schema.values))
        all_columns = [layout_of(f"{part}.{f.name}", f) for part, fields in parts for f in fields]
        stored = {f"value.{known.column}": known for known in self.schema.stored}
        all_columns = [replace(c, stored=stored.get(c.name)) for c in all_columns]
        if self.ttl:
            all_columns.append(layout_of(TOUCHED, pa.field(TOUCHED, pa.int64(), nullable=False)))
        return {column.name: column for column in all_columns}

    @cached_property
    def key_names(self) -> list[str]:
        return [name for name in self.columns if name.startswith(KEY_PARTS)]

    @cached_property
    def value_names(self) -> list[str]:
        return [name for name in self.columns if name.startswith("value.")]

    def found_in(self, names: Sequence[str]) -> dict[str, str]:
        """Which column of a file holds which of these; those that the file lacks are not there."""
        found = {name: c.in_files for name, c in self.columns.items() if c.in_files in names}
        for part in KEY_PARTS:  # by their place: they may have been called otherwise
            mine = [name for name in self.columns if name.startswith(part)]
            theirs = [name for name in names if name.startswith(part)]
            found |= dict(zip(mine, theirs, strict=False)) if len(mine) == len(theirs) else {}
        return found

    @cached_property
    def has_route(self) -> bool:
        """Without sub-keys a row's own hash is its route, which is then kept once."""
        return len(self.schema.sub) > 0

    @cached_property
    def narrow(self) -> bool:
        """A single integer key is its hash, so its check is the constant 1 and needs one byte."""
        fields = list(self.schema.row_key)
        return len(fields) == 1 and pa.types.is_integer(fields[0].type)

    def blank(self, rows: int) -> dict[str, Values]:
        """Columns of rows to which nothing was written."""
        return {name: column.blank(rows) for name, column in self.columns.items()}

    def find(self, label: str) -> ColumnLayout:
        for part in ("value", "sub", "key"):
            column = self.columns.get(f"{part}.{label}")
            if column is not None:
                return column
        raise SchemaMismatch(
            f"the state has no column {label!r}; it has "
            f"{', '.join(repr(column.label) for column in self.columns.values())}",
            column=label,
        )


def layout_of(name: str, field: pa.Field) -> ColumnLayout:
    """Choose how a column is kept, or refuse the type by name."""
    kept, types = field.type, pa.types

    def of(kind: Kind, dtype: Any, width: int = 1) -> ColumnLayout:
        told = (name, field.name, kept, field.nullable)
        return ColumnLayout(*told, kind, np.dtype(dtype), width)

    number = _number(kept)
    if number is not None:
        return of("number", number)
    if types.is_decimal(kept) or types.is_fixed_size_binary(kept):
        return of("opaque", f"V{max(1, kept.bit_width // 8)}")
    if types.is_string(kept) or types.is_binary(kept):
        return of("heap", np.int64)
    if types.is_large_string(kept) or types.is_large_binary(kept):
        return of("heap", np.int64)
    if types.is_fixed_size_list(kept) or _is_list(kept):
        item = _number(kept.value_type)
        if item is not None and types.is_fixed_size_list(kept):
            return of("row", item, int(kept.list_size))
        if item is not None and item != np.bool_:
            return of("heap", np.int64)
    raise SchemaMismatch(
        f"state column {field.name!r} has type {kept}, which the state cannot hold; use numbers, "
        "strings, binary, lists of numbers or fixed_size_list of numbers",
        column=field.name,
        type=str(kept),
    )


def _number(kept: pa.DataType) -> np.dtype[Any] | None:
    types = pa.types
    if types.is_boolean(kept):
        return np.dtype(np.bool_)
    if types.is_integer(kept) or types.is_floating(kept):
        dtype: np.dtype[Any] = np.dtype(kept.to_pandas_dtype())
        return dtype
    if types.is_temporal(kept) and not types.is_interval(kept):
        return np.dtype(np.int32 if kept.bit_width == 32 else np.int64)
    return None


def _is_list(kept: pa.DataType) -> bool:
    return bool(pa.types.is_list(kept) or pa.types.is_large_list(kept))


def _raw(given: pa.Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:  # bits in Arrow
        return np.asarray(pc.fill_null(given, False).to_numpy(zero_copy_only=False))
    body = given.buffers()[1]
    if body is None or not len(given):
        return np.zeros(0, dtype)
    start = given.offset * dtype.itemsize
    return np.frombuffer(body, dtype, count=len(given), offset=start)


def _to_heap(given: pa.Array) -> pa.Array:
    if not _is_list(given.type):
        return given.cast(pa.large_binary())
    item = given.type.value_type.bit_width // 8
    child = given.values
    if child.null_count:
        raise ValueError("nulls inside a list cannot be kept")
    valid = pc.is_valid(given).to_numpy(zero_copy_only=False)
    bounds = np.asarray(given.offsets.to_numpy()).astype(np.int64) * item
    body = child.buffers()[1].slice(child.offset * item) if len(child) else pa.py_buffer(b"")
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.large_binary(), len(given), [bits, pa.py_buffer(bounds), body])


def _from_heap(data: pa.Array, kept: pa.DataType) -> pa.Array:
    if not _is_list(kept):
        return data.cast(kept)
    item = kept.value_type.bit_width // 8
    if not len(data):
        return pa.array([], type=kept)
    _, raw_bounds, body = data.buffers()
    bounds = np.frombuffer(raw_bounds, np.int64, len(data) + 1, data.offset * 8) // item
    child_rows = int(bounds[-1])
    child = pa.Array.from_buffers(kept.value_type, child_rows, [None, body or pa.py_buffer(b"")])
    offset_type = np.int64 if pa.types.is_large_list(kept) else np.int32
    valid = pc.is_valid(data).to_numpy(zero_copy_only=False)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        kept, len(data), [bits, pa.py_buffer(bounds.astype(offset_type))], children=[child]
    )
