"""Key hashes that are the same in every process, on every machine and in every version.

A key's hash `h` decides its bucket, its slot and its position in a table. For a single column of
one word (integers, times, floats) it is a bijection of the value, so equal `h` means equal key. For
all others two keys may have the same `h`, and who knows how can make such keys: what tells them
apart is their `check` (`routing/identity.py`).

Text is hashed eight bytes at a time over all rows at once (no loop over rows); values longer than
256 bytes go through xxh3 one by one. The constants are pinned by golden vectors in the tests:
changing any of them orphans every checkpoint and every routing table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headgate.routing.key_values import (
    BLOCK_ROWS,
    ByteValues,
    codes_of,
    is_integer_like,
    is_one_word,
    null_mask,
    plain,
    words_of,
)

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_M1 = np.uint64(0x9E3779B97F4A7C15)
_M2 = np.uint64(0xC2B2AE3D27D4EB4F)
_M3 = np.uint64(0xBF58476D1CE4E5B9)
_M4 = np.uint64(0x94D049BB133111EB)
_NULL_A = np.uint64(0x5851F42D4C957F2D)
_NULL_B = np.uint64(0x14057B7EF767814F)


def mix(values: U64) -> U64:
    """A bijection of 64-bit numbers in which every output bit depends on every input bit."""
    x = values ^ (values >> np.uint64(30))
    x *= _M3
    x ^= x >> np.uint64(27)
    x *= _M4
    x ^= x >> np.uint64(31)
    return x


def hash_columns(columns: Sequence[pa.Array], rows: int) -> U64:
    """The hash `h` of the key made of `columns`, for all rows at once.

    No columns at all is the one key of a global operator.
    """
    if not columns:
        return np.zeros(rows, np.uint64)
    h = np.empty(rows, np.uint64)
    for part, block in blocks(columns, rows):
        if len(block) == 1 and is_integer_like(block[0].type):
            h[part] = mix(words_of(block[0]) + _M1)
            if block[0].null_count:
                h[part][null_mask(block[0])] = _NULL_A
        else:
            h[part] = PLACES.hash(block)
    return h


def blocks(columns: Sequence[pa.Array], rows: int) -> Iterator[tuple[slice, list[pa.Array]]]:
    """The columns in stretches of rows; a dictionary, which is hashed as a whole, in one."""
    columns = [plain(column) for column in columns]
    step = BLOCK_ROWS
    if any(pa.types.is_dictionary(column.type) for column in columns):
        step = max(1, rows)
    for start in range(0, rows, step):
        yield slice(start, start + step), [column.slice(start, step) for column in columns]


def bucket_of(h: U64, buckets: int) -> I64:
    """The top bits of the hash; `buckets` is a power of two and never changes in a flow."""
    if buckets == 1:
        return np.zeros(len(h), np.int64)
    return (h >> np.uint64(64 - (buckets.bit_length() - 1))).astype(np.int64)


class Lane(NamedTuple):
    """A hash of rows that anybody can compute, and its constants."""

    first: np.uint64
    step: np.uint64
    null: np.uint64
    word_times: np.uint64
    word_plus: np.uint64
    length_times: np.uint64
    length_plus: np.uint64
    byte_times: np.uint64
    byte_shift: np.uint64
    seed: int

    def hash(self, columns: Sequence[pa.Array]) -> U64:
        """One number per row of these columns; there is at least one."""
        hashed = np.full(len(columns[0]), self.first)
        for column in columns:
            hashed = mix((hashed * self.step) ^ self._column(column))
        return hashed

    def _column(self, column: pa.Array) -> U64:
        if pa.types.is_dictionary(column.type):
            values = self._column(column.dictionary)
            hashed = (values if len(values) else np.zeros(1, np.uint64))[codes_of(column)]
        elif is_one_word(column.type):
            hashed = mix(words_of(column) * self.word_times + self.word_plus)
        else:
            hashed = mix(self._bytes(ByteValues.of(column)))
        if column.null_count:
            hashed[null_mask(column)] = self.null
        return hashed

    def _bytes(self, values: ByteValues) -> U64:
        hashed = values.lengths.astype(np.uint64) * self.length_times + self.length_plus
        longest_first, order, at_least = values.longest_first((values.lengths + 7) >> 3)
        lanes = hashed[order]
        for number, (rows, whole) in enumerate(pairwise([*at_least[1:], 0])):
            lane = lanes[:rows]
            lane ^= longest_first.word(number, rows, whole)
            lane *= self.byte_times
            lane ^= lane >> self.byte_shift
        hashed[order] = lanes
        for row, value in values.long_values():
            hashed[row] = xxhash.xxh3_64_intdigest(value, seed=self.seed)
        return hashed


_ONE = np.uint64(1)
PLACES = Lane(_M1, _M2, _NULL_A, _ONE, _M1, _M1, _M4, _M2, np.uint64(29), 1)
SECOND = Lane(_M2, _M1, _NULL_B, _M2, _NULL_B, _M4, _M2, _M3, np.uint64(32), 2)
