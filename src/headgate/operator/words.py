"""Arrow columns as 64-bit numbers, and back.

Operators compute in NumPy on two types only: float64 for floating columns, int64 for all other
fixed-width ones (dates and times as their raw integers, decimals as unscaled integers). Nothing
is lost on the way: every supported type fits, and the others are refused when the flow is declared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.routing.hashing import I64

Words = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
DECIMAL_DIGITS = 18  # what fits a signed 64-bit word
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)


def has_words(kind: pa.DataType) -> bool:
    """Can a column of this type be computed with as 64-bit numbers?"""
    types = pa.types
    if types.is_decimal128(kind):
        return int(kind.precision) <= DECIMAL_DIGITS
    if types.is_temporal(kind):
        return not types.is_interval(kind)
    return bool(
        types.is_floating(kind)
        or types.is_boolean(kind)
        or (types.is_integer(kind) and not types.is_uint64(kind))
    )


def to_words(column: pa.Array) -> tuple[Words, Mask | None]:
    """The numbers of a column and which of them are there (None: all); zero under a null."""
    kind = column.type
    valid: Mask | None = None
    if column.null_count:
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(kind):
        words: Words = np.zeros(len(column), np.int64)
        if len(column):
            raw = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
            words = raw[column.offset : column.offset + len(column), 0].copy()
    elif pa.types.is_boolean(kind):
        words = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        raw_type = kind
        if pa.types.is_temporal(kind):
            raw_type = pa.int32() if kind.bit_width == 32 else pa.int64()
            column = column.view(raw_type)
        if valid is not None:
            column = pc.fill_null(column, pa.scalar(0, raw_type))
        words = widen(column.to_numpy(zero_copy_only=False))
    if valid is not None and pa.types.is_decimal(kind):
        words[~valid] = 0
    return words, valid


def widen(numbers: Words) -> Words:
    """Any NumPy column as int64 or float64 (a copy only where the type differs)."""
    return numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64, copy=False)


def kept_words(kept: Any) -> Words:
    """A state column, as the session returns it, as 64-bit numbers."""
    return to_words(kept)[0] if isinstance(kept, pa.Array) else widen(kept)


def from_words(words: Words, valid: Mask | None, kind: pa.DataType) -> pa.Array:
    """An Arrow column of type `kind`, null where not `valid`."""
    if valid is not None:
        valid = None if valid.all() else valid
    if pa.types.is_decimal(kind):
        body = np.empty((len(words), 2), np.int64)
        body[:, 0] = words
        body[:, 1] = words >> 63
        bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(kind, len(words), [bits, pa.py_buffer(body)])
    mask = None if valid is None else ~valid
    if pa.types.is_boolean(kind):
        return pa.array(words != 0, mask=mask)
    if pa.types.is_temporal(kind):
        raw = words.astype(np.int32 if kind.bit_width == 32 else np.int64, copy=False)
        return pa.array(raw, mask=mask).view(kind)
    return pa.array(words.astype(kind.to_pandas_dtype(), copy=False), mask=mask)


def sortable(words: Words) -> I64:
    """Numbers of the same order as int64; NaN is the largest, as in Spark."""
    if words.dtype != np.float64:
        return words
    numbers = np.where(np.isnan(words), np.nan, words + 0.0)  # one NaN, and -0.0 is 0.0
    bits = numbers.view(np.int64)
    result: I64 = bits ^ ((bits >> 63) & _MAGNITUDE)
    return result


def from_sortable(ordered: I64, floating: bool) -> Words:
    """The inverse of `sortable`."""
    if not floating:
        return ordered
    return (ordered ^ ((ordered >> 63) & _MAGNITUDE)).view(np.float64)
