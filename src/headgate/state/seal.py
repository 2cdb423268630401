"""Seals: 32 bits beside every row and value of a warm copy, to know it again by.

A seal is the upper half of a sum, modulo 2**64, of the words of a row (or of a value's bytes), each
times a factor of its own; where the row lies is one of the words. So the same words elsewhere have
another seal, and any single flipped bit changes it, for certain: the factors are chosen so, and a
test tries every bit. Damage of other kinds has one chance in 2**32 per row to pass.

Against accidents only: whoever may write the files can write seals too (see `warm_copy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from headgate.state.layout import Array, Values
from headgate.state.schema import I64, U64

U32 = npt.NDArray[np.uint32]
_HALF = np.uint64(32)
_CHUNK_ROWS = 1 << 15
_LONG_VALUE_BYTES = 256


class WarmCopyDamaged(BaseException):
    """A warm copy does not hold what was written to it; the task must run again without it.

    Not an `Exception`: it passes through user code, which is not to blame and cannot help.
    """


@cache
def factors(count: int) -> U64:
    """Odd numbers with no pattern (SplitMix64), the same in every process."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


def row_seals(h: U64, check: Array, pos: Array, *groups: Sequence[Values]) -> list[U32]:
    """Seals of rows, an array for each group of columns: of identity, position and the group."""
    seals = [np.empty(len(h), np.uint32) for _ in groups]
    words = [[_words(column.data) for column in group] for group in groups]
    factor = factors(3)
    for start in range(0, len(h), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        identity = h[rows] * factor[0]
        identity += pos[rows].view(np.uint64) * factor[1]
        identity += _weighted(check[rows], factor[2:])
        for number, group in enumerate(groups):
            total = identity.copy() if group else identity
            at = 3
            for column, part in zip(group, words[number], strict=True):
                width = 1 if part.ndim == 1 else part.shape[1]
                total += _weighted(part[rows], factors(at + width + 1)[at:])
                if column.valid is not None:
                    total += ~column.valid[rows] * factors(at + width + 1)[at + width]
                at += width + 1
            seals[number][rows] = total >> _HALF
    return seals


def value_seals(bounds: I64, body: Array, ordinals: I64) -> U32:
    """The seals of values of any length: their bytes, and their places in the heap."""
    seals = np.empty(len(ordinals), np.uint32)
    for start in range(0, len(ordinals), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        ends = bounds[start : start + _CHUNK_ROWS + 1]
        part = body[int(ends[0]) : int(ends[-1])]
        seals[rows] = _sums_of_bytes(ends - ends[0], part, ordinals[rows]) >> _HALF
    return seals


def _sums_of_bytes(bounds: I64, body: Array, ordinals: I64) -> U64:
    """Eight bytes of all values at a time; the last word of a value is filled up with zeros."""
    factor = factors(2 + _LONG_VALUE_BYTES // 8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    total: U64 = ordinals.view(np.uint64) * factor[0]
    total += lengths.view(np.uint64) * factor[1]
    padded = np.zeros(len(body) + 8, np.uint8)
    padded[: len(body)] = body
    unaligned: U64 = np.ndarray((len(body) + 1,), np.dtype("<u8"), padded.data, 0, (1,))
    left = np.where(lengths <= _LONG_VALUE_BYTES, lengths, 0)
    rows: Any = slice(None)
    for number in range(_LONG_VALUE_BYTES // 8):
        longer = left[rows] > 0
        if not longer.all():
            rows = np.flatnonzero(longer) if isinstance(rows, slice) else rows[longer]
            if not len(rows):
                break
        words = unaligned[starts[rows] + 8 * number]
        spare = np.maximum(8 - left[rows], 0).view(np.uint64) << np.uint64(3)
        words = (words << spare) >> spare
        total[rows] += _weighted(words, factor[2 + number :])
        left -= 8
    long = np.flatnonzero(lengths > _LONG_VALUE_BYTES)
    values = (body[bounds[row] : bounds[row + 1]].tobytes() for row in long)
    total[long] += np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(long))
    return total


def _weighted(words: Array, factor: U64) -> U64:
    """Each word folded onto itself, so that its top bits count twice, then times its factor."""
    if words.dtype != np.uint64:
        words = words.astype(np.uint64)
    folded = words >> _HALF
    folded ^= words
    if words.ndim == 1:
        folded *= factor[0]
        return folded
    folded *= factor[: words.shape[1]]
    total: U64 = folded.sum(axis=1)
    return total


def _words(data: Array) -> Array:
    """The bytes of each row as unsigned numbers: one of its own width, or several of 64 bits."""
    if data.ndim == 1 and data.dtype.itemsize in (1, 2, 4, 8):
        return data.view(f"u{data.dtype.itemsize}")
    rows = len(data)
    width = data.nbytes // rows if rows else 8
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(rows, width)
    padded = np.zeros((rows, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = raw
    return padded.view(np.uint64)
