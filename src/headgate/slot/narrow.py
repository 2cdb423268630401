"""Whole numbers travel in as many bytes as they need.

On its way a batch is copied some ten times and compressed once, in Python and in the JVM, and each
pays by the byte. Most 64-bit columns (ids, counts, times of one epoch) hold values that lie close
together: they are sent as the distance from their least one, in 1, 2 or 4 bytes. What is done to a
batch follows from its values alone, so every attempt of a task sends the same bytes. *Widths* say
how to read them: a byte per column, then the least value of each column that was narrowed; none if
all columns are as they were.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

ROWS_MIN = 1_000  # a batch of fewer is not worth the calls
_NARROW = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}
_AS_IT_IS = 0


def narrowed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bytes]:
    """The batch as it travels, and its widths."""
    if batch.num_rows < ROWS_MIN:
        return batch, b""
    columns, widths, bases = [], bytearray(), []
    for column in batch.columns:
        width = _AS_IT_IS
        if _is_whole(column.type):
            whole = column.view(pa.int64())
            least, most = pc.min_max(whole).as_py().values()
            width, base = _width(least, most)
            if width:
                column = (whole if not base else pc.subtract(whole, base)).cast(
                    _NARROW[width], safe=False
                )
                bases.append(base)
        columns.append(column)
        widths.append(width)
    if not any(widths):
        return batch, b""
    made = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    return made, bytes(widths) + struct.pack(f"<{len(bases)}q", *bases)


def read(payload: pa.Buffer, schema: pa.Schema, widths: bytes) -> pa.RecordBatch:
    """The batch of this schema that was narrowed so, from what was made of it."""
    if not widths:
        return pa.ipc.read_record_batch(payload, schema)
    codes = widths[: len(schema)]
    sent = pa.ipc.read_record_batch(payload, _schema_sent(schema, codes))
    bases = iter(struct.unpack(f"<{(len(widths) - len(codes)) // 8}q", widths[len(codes) :]))
    columns = []
    for column, field, width in zip(sent.columns, schema, codes, strict=True):
        if width:
            base, column = next(bases), column.cast(pa.int64())
            column = (column if not base else pc.add(column, base)).view(field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_whole(kind: pa.DataType) -> bool:
    """Is it a number of 64 bits underneath that may lie close to its neighbours?"""
    return bool(
        pa.types.is_int64(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_date64(kind)
    )


def _width(least: int | None, most: int | None) -> tuple[int, int]:
    """Bytes for each of the values, and what to take off them first; 0 bytes: as they are."""
    if least is None or most is None:
        return 1, 0  # nulls only
    for width in _NARROW:
        most_of_width = (1 << 8 * width) - 1
        if least >= 0 and most <= most_of_width:
            return width, 0  # nothing to take off, which is a pass over them less
        if most - least <= most_of_width:
            return width, least
    return _AS_IT_IS, 0


@lru_cache(maxsize=1024)
def _schema_sent(schema: pa.Schema, codes: bytes) -> pa.Schema:
    fields = zip(schema, codes, strict=True)
    return pa.schema([f.with_type(_NARROW[w]) if w else f for f, w in fields])
