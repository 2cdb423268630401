"""Key hashes that are the same in every process, on every machine and in every version.

A key's hash `h` decides its bucket, its slot and its position in a table. For a single column of
one word (integers, times, floats) it is a bijection of the value, so equal `h` means equal key. For
all others two keys may have the same `h`, and an attacker can construct such keys: what tells them
apart is their `check` (`routing/identity.py`).

Text is hashed eight bytes at a time; values longer than 256 bytes go through xxh3 one by one. The
loops over rows are compiled (`routing/kernels.py`), or NumPy's, over all rows at once, where those
were not built: the numbers are the same. The constants are pinned by golden vectors in the tests:
changing any of them orphans every checkpoint and every routing table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headgate.arrays import I64, U8, U64, Bools
from headgate.errors import SchemaMismatch
from headgate.routing import kernels

LONG_VALUE_BYTES = 256
BLOCK_ROWS_COMPILED = 1 << 16  # one pass over the rows: only the result is kept in the cache
BLOCK_ROWS = 1 << 14  # what is computed on the way to a hash stays in the processor's cache
_THREE = np.uint64(3)
_M1 = np.uint64(0x9E3779B97F4A7C15)
_M2 = np.uint64(0xC2B2AE3D27D4EB4F)
_M3 = np.uint64(0xBF58476D1CE4E5B9)
_M4 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x5851F42D4C957F2D)
_BYTE_SHIFT = np.uint64(29)
_BUCKET_BITS = np.uint64(10)  # as many as choose one of the usual number of buckets
_REST = np.uint64((1 << 48) - 1)  # what near columns leave: no bucket looks at it


def mix(values: U64) -> U64:
    """A bijection of 64-bit numbers in which every output bit depends on every input bit."""
    x = values ^ (values >> np.uint64(30))
    x *= _M3
    x ^= x >> np.uint64(27)
    x *= _M4
    x ^= x >> np.uint64(31)
    return x


def hash_columns(columns: Sequence[pa.Array], rows: int, near: Sequence[int] = ()) -> U64:
    """The hash `h` of the key made of `columns`, for all rows at once.

    No columns at all is the one key of a global operator. With `near`, the places of some of the
    columns, these alone decide the top bits, and so the bucket.
    """
    h = np.zeros(rows, np.uint64)
    for part, block in blocks(columns, rows) if columns else ():
        if len(block) == 1 and is_integer_like(block[0].type):
            h[part] = _mixed(words_of(block[0]))
            if block[0].null_count:
                h[part][null_mask(block[0])] = _NULL
        else:
            hashed = np.full(len(block[0]), _M1)
            for column in block:
                numbers = numbers_of(column, _hash_values, _NULL)
                if kernels.compiled is None:
                    hashed = mix((hashed * _M2) ^ numbers)
                else:
                    kernels.fold(kernels.compiled, hashed, numbers)
            h[part] = hashed
    if near:
        assert len(near) < len(columns), "a key of one word is known by its hash alone"
        h &= _REST
        h |= near_hash([columns[place] for place in near], rows) & ~_REST
    return h


def near_hash(columns: Sequence[pa.Array], rows: int) -> U64:
    """What decides the bucket of keys that agree in these columns.

    That of a whole number n below 1024 is n, so that few numbers in a row, as those of shards and
    partitions, come to all slots alike. Beyond, numbers n to n + 1023 have buckets of their own, in
    an order that depends on n.
    """
    column = plain(columns[0])
    if len(columns) > 1 or not is_integer_like(column.type):
        return hash_columns(columns, rows)
    words = words_of(column)
    bucket = (words ^ mix(words >> _BUCKET_BITS)) & ((np.uint64(1) << _BUCKET_BITS) - np.uint64(1))
    h: U64 = (bucket << (np.uint64(64) - _BUCKET_BITS)) | (mix(words + _M1) >> _BUCKET_BITS)
    if column.null_count:
        h[null_mask(column)] = _NULL
    return h


def _mixed(words: U64) -> U64:
    if kernels.compiled is None:
        return mix(words + _M1)
    return kernels.mix_words(kernels.compiled, words)


def _hash_values(column: pa.Array) -> U64:
    if is_one_word(column.type):
        return _mixed(words_of(column))
    if kernels.compiled is not None:
        numbers, long_values = kernels.hash_bytes(kernels.compiled, byte_column(column))
        for row, value in ByteValues.of(column).long_values() if long_values else ():
            numbers[row] = mix(np.array([xxhash.xxh3_64_intdigest(value, seed=1)], np.uint64))[0]
        return numbers
    values = ByteValues.of(column)
    hashed = values.lengths.astype(np.uint64) * _M1 + _M4
    longest_first, order, at_least = values.longest_first((values.lengths + 7) >> 3)
    lanes = hashed[order]
    for number, (rows, whole) in enumerate(pairwise([*at_least[1:], 0])):
        lane = lanes[:rows]
        lane ^= longest_first.word(number, rows, whole)
        lane *= _M2
        lane ^= lane >> _BYTE_SHIFT
    hashed[order] = lanes
    for row, value in values.long_values():
        hashed[row] = xxhash.xxh3_64_intdigest(value, seed=1)
    return mix(hashed)


def blocks(columns: Sequence[pa.Array], rows: int) -> Iterator[tuple[slice, list[pa.Array]]]:
    """The columns in stretches of rows; a dictionary, which is hashed as a whole, in one."""
    columns = [plain(column) for column in columns]
    step = BLOCK_ROWS if kernels.compiled is None else BLOCK_ROWS_COMPILED
    if any(pa.types.is_dictionary(column.type) for column in columns):
        step = max(1, rows)
    for start in range(0, rows, step):
        yield slice(start, start + step), [column.slice(start, step) for column in columns]


def bucket_of(h: U64, buckets: int) -> I64:
    """The top bits of the hash; `buckets` is a power of two and never changes in a flow."""
    if buckets == 1:
        return np.zeros(len(h), np.int64)
    return (h >> np.uint64(64 - (buckets.bit_length() - 1))).astype(np.int64)


def find_sorted(known: U64, h: U64) -> I64:
    """The place of each hash among `known`, which are sorted and distinct; -1 where it is not."""
    if not len(known):
        return np.full(len(h), -1, np.int64)
    at = np.searchsorted(known, h)
    at[at == len(known)] = 0
    return np.where(known[at] == h, at, -1)


def group_rows(h: U64, marks: Sequence[U64] = ()) -> tuple[I64, I64]:
    """Number the distinct keys in order of appearance: group per row, row per group.

    Rows are of one key if `h` and all marks (`Identity.marks`) agree. Without the compiled loop, it
    takes a few NumPy passes: 7 ms for 500,000 rows of 20,000 keys, 12 ms for `pandas.factorize`.

    There every round writes row numbers into a table at a place taken from the hash, backwards, so
    that the first row stays; a row whose place holds an equal key has found its group, and the few
    whose place holds another key go to the next round, which spreads them differently. A round
    settles at least one key, and in practice all but a few per cent. The low bits pick the place:
    the high ones pick the bucket, and a slot sees only some of the buckets.
    """
    if kernels.compiled is not None:
        return kernels.group_rows(kernels.compiled, h, marks)
    rows = len(h)
    row_numbers = np.arange(rows)
    table = np.empty(1 << max(4, rows.bit_length()), np.int64)
    place = (h & np.uint64(len(table) - 1)).view(np.int64)
    table[place[::-1]] = row_numbers[::-1]
    found = table[place]
    settled = h[found] == h
    for mark in marks:
        settled &= mark[found] == mark
    left = np.flatnonzero(~settled)
    turn = 0
    while len(left):
        turn += 1
        mask = np.uint64((1 << max(4, len(left).bit_length())) - 1)
        mixed = mix(h[left] + np.uint64(turn))
        for mark in marks:
            mixed = mix(mixed + mark[left])
        place = (mixed & mask).view(np.int64)
        table[place[::-1]] = left[::-1]
        winner = table[place]
        settled = h[winner] == h[left]
        for mark in marks:
            settled &= mark[winner] == mark[left]
        found[left[settled]] = winner[settled]
        left = left[~settled]
    first = np.flatnonzero(found == row_numbers)
    group = np.empty(rows, np.int64)
    group[first] = np.arange(len(first))
    return group[found], first


# --- key columns as 64-bit words, whatever Arrow layout they come in ---------------------------
# A value of a *one-word* type (integers, booleans, times, floats) is one word; equal values have
# equal words. Text, binary and decimals are bytes, read eight at a time over many rows at once.


def is_integer_like(kind: pa.DataType) -> bool:
    temporal = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or temporal)


def is_one_word(kind: pa.DataType) -> bool:
    return is_integer_like(kind) or pa.types.is_floating(kind)


def is_hashable(kind: pa.DataType) -> bool:
    """Can a column of this type be (part of) a key?"""
    if pa.types.is_dictionary(kind):
        return is_hashable(kind.value_type)
    fixed = pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind)
    return bool(is_one_word(kind) or fixed or _offset_type(kind) is not None)


def _offset_type(kind: pa.DataType) -> type[np.signedinteger[Any]] | None:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.int32
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return np.int64
    return None


def plain(column: pa.Array) -> pa.Array:
    """Dictionary codes of one-word values decoded: they hash as plain ones do."""
    kind = column.type
    if pa.types.is_dictionary(kind) and is_one_word(kind.value_type):
        return column.dictionary_decode()
    return column


def null_mask(column: pa.Array) -> Bools:
    mask: Bools = pc.is_null(column).to_numpy(zero_copy_only=False)
    return mask


def numbers_of(column: pa.Array, of: Callable[[pa.Array], U64], null: np.uint64) -> U64:
    """A number per value: `of` the values, each entry of a dictionary once; `null` for a null."""
    numbers: U64
    if pa.types.is_dictionary(column.type):
        values = numbers_of(column.dictionary, of, null)
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = (values if len(values) else np.zeros(1, np.uint64))[codes]
    else:
        numbers = of(column)
    if column.null_count:
        numbers[null_mask(column)] = null
    return numbers


def words_of(column: pa.Array) -> U64:
    """One-word values as words of the caller's own; null rows hold anything."""
    kind = column.type
    if column.null_count:
        data = [None, column.buffers()[1]]
        column = pa.Array.from_buffers(kind, len(column), data, offset=column.offset)
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


def byte_column(column: pa.Array) -> kernels.ByteColumn:
    """Values that are bytes, as the compiled loops take them; a null has any."""
    kind, rows = column.type, len(column)
    *_, places, content = column.buffers()
    data = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        data = data[column.offset * kind.byte_width :]
        return kernels.ByteColumn(data, None, kind.byte_width, rows)
    offset_type = _offset_type(kind)
    if offset_type is None:
        raise _no_key(kind)
    if not rows:
        return kernels.ByteColumn(data, np.zeros(1, np.int32), 0, 0)
    offsets = np.frombuffer(places, offset_type)[column.offset :][: rows + 1]
    return kernels.ByteColumn(data, offsets, 0, rows)


def _no_key(kind: pa.DataType) -> SchemaMismatch:
    return SchemaMismatch(f"a column of type {kind} cannot be part of a key", type=str(kind))


class ByteValues:
    """Values that are bytes, not copied; a null has none.

    `long_values` (more than `LONG_VALUE_BYTES`) are for the caller to take one by one; as words
    they have none.
    """

    def __init__(self, data: U8, starts: I64, lengths: I64) -> None:
        self._data, self._starts, self.lengths = data, starts, lengths

    @classmethod
    def of(cls, column: pa.Array) -> ByteValues:
        kind, rows = column.type, len(column)
        data_buffer = column.buffers()[-1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
            starts = (np.arange(rows, dtype=np.int64) + column.offset) * kind.byte_width
            return cls(data, starts, np.full(rows, kind.byte_width, np.int64))
        offset_type = _offset_type(kind)
        if offset_type is None:
            raise _no_key(kind)
        if not rows:
            return cls(data, np.empty(0, np.int64), np.empty(0, np.int64))
        offsets = np.frombuffer(column.buffers()[1], offset_type)[column.offset :][: rows + 1]
        offsets = offsets.astype(np.int64)
        lengths = np.diff(offsets)
        if column.null_count:
            lengths = np.where(null_mask(column), 0, lengths)
        first = int(offsets[0])
        return cls(data[first:], offsets[:-1] - first, lengths)

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
