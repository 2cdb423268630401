"""Some rows in one state row: a value per column that holds those of all the rows, in their order.

What a window holds of a key is then one state row, whatever the number of rows in it, and panes,
sessions and partials are merged as those of any other operator. A value is the lengths of its
elements, 32 bits each (-1: null), then their bytes; all values of a column are taken apart and put
together at once. The type of a column is part of the name of its state column and, in Arrow's
form, of its field: so a state of another type is not taken for this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import SchemaMismatch
from headgate.operator.rows import Partials
from headgate.state.layout import ColumnLayout, Values, layout_of
from headgate.state.rows import Held, StateRows

COUNT = "@held"  # state column: how many rows there are
_TYPE = b"headgate.type"
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packing:
    """The columns of the rows."""

    fields: tuple[pa.Field, ...]

    @classmethod
    def of(cls, fields: Sequence[pa.Field], operator: str) -> Packing:
        """Raises if the state cannot hold one of them."""
        for field in fields:
            try:
                layout_of(field.name, field)
            except SchemaMismatch as refused:
                raise SchemaMismatch(
                    f"{operator}: {refused}", column=field.name, operator=operator
                ) from None
        return cls(tuple(field.with_nullable(True) for field in fields))

    @classmethod
    def in_state(cls, values: pa.Schema) -> Packing:
        """The columns that such a state holds."""
        packed = [field for field in values if _TYPE in (field.metadata or {})]
        return cls(tuple(_read(field.metadata[_TYPE]) for field in packed))

    @property
    def state_fields(self) -> list[pa.Field]:
        kept = [
            pa.field(name, pa.large_binary(), metadata={_TYPE: _written(field)})
            for name, field in zip(self._names, self.fields, strict=True)
        ]
        return [pa.field(COUNT, pa.int64(), nullable=False), *kept]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.fields)

    def rows(self, held: Held | StateRows | Partials) -> tuple[pa.RecordBatch, I64]:
        """All rows of all state rows, one after the other, and how many are of each."""
        if isinstance(held, Partials):
            arrays, counts = held.column, held.column(COUNT).to_numpy()
        else:
            arrays, counts = held.arrow, held[COUNT]
        columns = [
            column.arrow(_taken_apart(arrays(name), counts, column))
            for name, column in zip(self._names, self._layouts, strict=True)
        ]
        if not columns:
            empty = pa.table({}).to_batches() or [pa.RecordBatch.from_arrays([], names=[])]
            return empty[0], np.asarray(counts)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), np.asarray(counts)

    def values(self, rows: pa.RecordBatch, counts: I64) -> Mapping[str, Any]:
        """What the state holds of rows, so many of which belong to each state row in turn."""
        values: dict[str, Any] = {COUNT: counts}
        for name, column, array in zip(self._names, self._layouts, rows.columns, strict=True):
            values[name] = _put_together(column.store(array, len(array)), counts)
        return values

    @property
    def _names(self) -> list[str]:
        return [f"{field.name} {field.type}" for field in self.fields]

    @cached_property
    def _layouts(self) -> list[ColumnLayout]:
        return [layout_of(field.name, field) for field in self.fields]


def _put_together(values: Values, counts: I64) -> pa.Array:
    lengths, body = _bytes_of(values)
    upto = np.append(0, np.cumsum(np.maximum(lengths, 0), dtype=np.int64))
    ends = np.cumsum(counts)
    bodies = upto[ends] - upto[ends - counts]
    heads = 4 * counts
    data = np.empty(int(heads.sum() + bodies.sum()), np.uint8)
    is_head = _alternating(heads, bodies)
    data[is_head] = lengths.astype("<i4").view(np.uint8)
    data[~is_head] = body
    offsets = np.append(0, np.cumsum(heads + bodies))
    return _binary(offsets, data, None)


def _taken_apart(packed: pa.Array, counts: I64, column: ColumnLayout) -> Values:
    offsets, data = _parts(packed.cast(pa.large_binary()))
    is_head = _alternating(4 * counts, np.diff(offsets) - 4 * counts)
    lengths = data[is_head].view("<i4").astype(np.int64)
    body, valid = data[~is_head], lengths >= 0
    some = None if valid.all() else valid
    if column.kind == "heap":
        ends = np.append(0, np.cumsum(np.maximum(lengths, 0)))
        return Values(_binary(ends, body, some))
    width = column.dtype.itemsize * column.width
    raw = np.zeros((len(lengths), width), np.uint8)
    raw[valid] = body.reshape(-1, width)
    return Values(raw.reshape(-1).view(column.dtype).reshape(column.shape(len(lengths))), some)


def _bytes_of(values: Values) -> tuple[I64, Bytes]:
    """The length of each value (-1: null), and the bytes of all."""
    if isinstance(values.data, pa.Array):
        offsets, data = _parts(values.data)
        lengths = np.diff(offsets)
        if values.data.null_count:
            lengths[np.asarray(values.data.is_null())] = -1
        return lengths, data
    count = len(values.data)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    raw = np.ascontiguousarray(values.data).view(np.uint8).reshape(count, -1)
    lengths = np.full(count, raw.shape[1], np.int64)
    if values.valid is not None:
        lengths[~values.valid], raw = -1, raw[values.valid]
    return lengths, raw.reshape(-1)


def _alternating(heads: I64, bodies: I64) -> Bools:
    """Which bytes are of heads, where heads and bodies of such lengths take turns."""
    lengths = np.stack([heads, bodies], axis=1).reshape(-1)
    return np.repeat(np.tile([True, False], len(heads)), lengths)


def _parts(binary: pa.Array) -> tuple[I64, Bytes]:
    """Offsets and bytes of a large binary array; nulls have none."""
    binary = binary.fill_null(b"") if binary.null_count else binary
    if not len(binary):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, ends, data = binary.buffers()
    offsets = np.frombuffer(ends, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    if data is None:
        return offsets - offsets[0], np.zeros(0, np.uint8)
    body = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], body


def _binary(offsets: I64, data: Bytes, valid: Bools | None) -> pa.Array:
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _written(field: pa.Field) -> bytes:
    return bytes(pa.schema([field.remove_metadata()]).serialize())


def _read(written: bytes) -> pa.Field:
    return pa.ipc.read_schema(pa.py_buffer(written)).field(0)
