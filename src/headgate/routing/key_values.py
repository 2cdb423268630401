"""Key columns as 64-bit words, whatever Arrow layout they come in.

A value of a *one-word* type (integers, booleans, times, floats) is one word; equal values have
equal words. Text, binary and decimals are bytes, read eight at a time over many rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import SchemaMismatch

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

LONG_VALUE_BYTES = 256
BLOCK_ROWS = 1 << 14  # what is computed on the way to a hash stays in the processor's cache
_THREE = np.uint64(3)


def is_integer_like(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time(kind)
        or pa.types.is_duration(kind)
    )


def is_one_word(kind: pa.DataType) -> bool:
    return is_integer_like(kind) or pa.types.is_floating(kind)


def is_hashable(kind: pa.DataType) -> bool:
    """Can a column of this type be (part of) a key?"""
    return bool(
        is_one_word(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal(kind)
        or (pa.types.is_dictionary(kind) and is_hashable(kind.value_type))
    )


def plain(column: pa.Array) -> pa.Array:
    """Dictionary codes of one-word values decoded: they hash as plain ones do."""
    kind = column.type
    if pa.types.is_dictionary(kind) and is_one_word(kind.value_type):
        return column.dictionary_decode()
    return column


def codes_of(column: pa.Array) -> I64:
    """Positions in the dictionary; where there is none (a null), 0."""
    codes: I64 = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def null_mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return mask


def words_of(column: pa.Array) -> U64:
    """One-word values as words of the caller's own; null rows hold anything."""
    kind = column.type
    if column.null_count:
        column = _zero_filled(column)
    if pa.types.is_boolean(kind):
        numbers = column.cast(pa.uint8()).to_numpy()
    elif pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
            numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    elif pa.types.is_integer(kind):
        numbers = column.to_numpy()
    else:
        numbers = column.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_numpy()
    words: U64
    if numbers.dtype == np.uint64:
        words = numbers.copy()
    else:
        words = numbers.astype(np.int64).view(np.uint64)
    return words


def _zero_filled(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.fill_null(False)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.fill_null(0)
    width = pa.int64() if kind.bit_width == 64 else pa.int32()
    return column.view(width).fill_null(0).view(kind)


class ByteValues:
    """Values that are bytes, not copied; a null has none.

    `long_values` (more than `LONG_VALUE_BYTES`) are for the caller to take one by one; as words
    they have none.
    """

    def __init__(self, data: U8, starts: I64, lengths: I64) -> None:
        self._data, self._starts, self.lengths = data, starts, lengths

    @classmethod
    def of(cls, column: pa.Array) -> ByteValues:
        return cls(*_bytes_of(column))

    def __len__(self) -> int:
        return len(self.lengths)

    def long_values(self) -> Iterator[tuple[int, memoryview]]:
        for row in np.flatnonzero(self.lengths > LONG_VALUE_BYTES).tolist():
            start = int(self._starts[row])
            yield row, self._data[start : start + int(self.lengths[row])].data

    def longest_first(self, words: I64) -> tuple[ByteValues, Any, list[int]]:
        """Sorted by their number of words: the values, what brings results back into place, and
        for every number from 0 on how many values have that many words or more.
        """
        words = np.where(self.lengths <= LONG_VALUE_BYTES, words, 0)
        counts = np.bincount(words)
        at_least = np.cumsum(counts[::-1])[::-1].tolist()
        if np.count_nonzero(counts) <= 1:
            return self, slice(None), at_least
        order = np.argsort((len(counts) - words).astype(np.uint8), kind="stable")
        return ByteValues(self._data, self._starts[order], self.lengths[order]), order, at_least

    def word(self, number: int, rows: int, whole: int) -> U64:
        """Eight bytes of each of the first rows, little end first, zeros after a value's end; the
        first `whole` of them have all eight.
        """
        at = self._starts[:rows] + 8 * number
        last = len(self._windows) - 1
        words: U64
        if len(at) and int(at.max()) > last:
            near = np.minimum(at, last)
            words = self._windows[near] >> ((at - near).astype(np.uint64) << _THREE)
        else:
            words = self._windows[at]
        if whole < rows:
            spare = (8 * (number + 1) - self.lengths[whole:rows]).astype(np.uint64) << _THREE
            words[whole:] <<= spare  # by 64: 0 is left
            words[whole:] >>= spare
        return words

    @cached_property
    def _windows(self) -> U64:
        """The eight bytes that begin at each byte."""
        data = self._data
        if len(data) < 8:
            data = np.concatenate([data, np.zeros(8 - len(data), np.uint8)])
        return np.ndarray((len(data) - 7,), np.dtype("<u8"), data.data, 0, (1,))


def _bytes_of(column: pa.Array) -> tuple[U8, I64, I64]:
    """Raw bytes, start and length of every value, without copying the bytes."""
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        width = kind.byte_width
        buffer = column.buffers()[1]
        data = np.frombuffer(buffer, np.uint8) if buffer else np.empty(0, np.uint8)
        starts = (np.arange(len(column), dtype=np.int64) + column.offset) * width
        return data, starts, np.full(len(column), width, np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offset_type: npt.DTypeLike = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offset_type = np.int64
    else:
        raise SchemaMismatch(f"a column of type {kind} cannot be part of a key", type=str(kind))
    _, offset_buffer, data_buffer = column.buffers()
    if len(column) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(offset_buffer, offset_type)[column.offset :][: len(column) + 1]
    offsets = offsets.astype(np.int64)
    first = int(offsets[0])
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    if column.null_count:
        lengths = np.where(null_mask(column), 0, lengths)
    return data[first:], offsets[:-1] - first, lengths
