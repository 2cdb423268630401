"""Seals: 32 bits beside every row and value of a warm copy, to know it again by.

A seal is the upper half of a sum, modulo 2**64, of the words of a row (or of a value's bytes), each
times a factor of its own; where the row lies is one of the words. So the same words elsewhere have
another seal, and any single flipped bit changes it, for certain: the factors are chosen so, and a
test tries every bit. Damage of other kinds has one chance in 2**32 per row to pass. Against
accidents only: whoever may write the files can write seals too (see `warm_copy`).

A table has three per position. The *index seal* is of a row's identity, the *key seal* of its route
and key columns too, the *row seal* of its identity and value columns. A row that is found was asked
for by its identity, so its row seal says that it is live and holds what was written. That a row is
missing is believed when the index seals of all positions its probe passed are right: none of them
is that row, damaged, and the probe did not end too early. An empty position has the index seal 0.

A session checks each row once, at its first lookup (or all of them, before a scan or a rebuild),
and then takes its memory to hold still. Seals of all rows cost more than the scan itself: columns
that were compared in a scan get a digest as a whole when the session ends, and the next one checks
that as it begins. A table that lives in one process only has no seals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from headgate.arrays import I64, U32, U64
from headgate.state.layout import Array, Mask, Positions, Values
from headgate.state.memory import MappedMemory, Memory
from headgate.state.rows import RowIds

if TYPE_CHECKING:
    from headgate.state.table import HashTable

_HALF = np.uint64(32)
_CHUNK_ROWS = 1 << 15  # sealed at a time, so that intermediate sums stay small
_LONG_VALUE_BYTES = 256  # longer ones are hashed one by one
EMPTY, REMOVED = 0, 2
_EMPTY_SEAL, _REMOVED_SEAL = np.uint32(0), np.uint32(0xFFFFFFFF)
_SEAL = np.dtype(np.uint32)
CHECK = "check"
_NONE: Mapping[str, Values] = {}


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


class Seals:
    """The seals of one table; none if it is private, or rebuilt as one."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        self._on = self._keys_suspect = self._rows_suspect = False
        self._keep(np.zeros((0, 2), np.uint64), np.zeros(0, _SEAL))
        self._scanned: set[str] = set()
        self._key_names = table.layout.key_names
        self._row_names = [name for name in table.columns if name not in self._key_names]

    @property
    def rows_suspect(self) -> bool:
        """May a row differ from what was written, for all this session knows?"""
        return self._rows_suspect

    def build(
        self, memory: Memory, words: U64, ids: RowIds, pos: Positions, cells: Mapping[str, Values]
    ) -> None:
        self._on, self._keys_suspect, self._rows_suspect = memory.sealed, False, False
        if self._on:
            self._keep(words, memory.install("seal", np.zeros(len(words), _SEAL)))
            self.write(ids, pos, cells)

    def describe(self) -> dict[str, str]:
        """Digests of the columns that are scanned, as they are now."""
        return {name: self._table.digest(name) for name in sorted(self._scanned)}

    def attach(self, memory: MappedMemory, words: U64, digests: dict[str, str]) -> None:
        """Seals of an earlier session: nothing is believed yet but what has a digest."""
        if not self._on or len(self._key) != len(words):
            self._keep(words, memory.attach("seal", _SEAL, (len(words),)))
        self._on = self._keys_suspect = self._rows_suspect = True
        self._scanned = set(digests)
        if self.describe() != digests:
            raise WarmCopyDamaged

    def make_private(self, words: U64) -> None:
        if self._on:
            self._keep(words, self._key.copy())

    def write(self, ids: RowIds, pos: Positions, cells: Mapping[str, Values]) -> None:
        """Seal rows of which these cells were written; the others must have been checked."""
        if not self._on:
            return
        groups: list[Sequence[Values]] = []
        seals: list[U32] = []
        if any(name in cells for name in self._key_names):
            groups += [(), self._key_columns(ids.route, pos, cells)]
            seals += [self._index, self._key]
        only_keys = cells and all(name in self._key_names for name in cells)
        if not only_keys or not self._row_names:
            groups.append(self._row_columns(pos, cells))
            seals.append(self._row)
        made = row_seals(ids.h, ids.check, pos, *groups)
        for kept, new in zip(seals, made, strict=True):
            kept[pos] = new

    def remove(self, pos: Positions) -> None:
        if self._on:
            self._index[pos] = self._row[pos] = _REMOVED_SEAL

    def check_found(
        self, ids: RowIds, pos: Positions, found: Mask, cells: Mapping[str, Values]
    ) -> None:
        """Rows that were found, with the value cells gathered from there."""
        if self._rows_suspect and found.any():
            [row] = row_seals(ids.h, ids.check, pos, self._row_columns(pos, cells))
            _refuse((row != self._row[pos]) & found)

    def check_passed(self, first: Positions, last: Positions) -> None:
        """The positions from where probes began to where they ended in vain, at an empty one."""
        if self._keys_suspect:
            self.check_free(last)
            counts = last - first
            ends = np.cumsum(counts)
            pos = np.arange(ends[-1] if len(ends) else 0)
            pos += np.repeat(last - ends, counts)
            check, words = self._table.check.take(pos), self._words.take(pos, axis=0)
            [index] = row_seals(words[:, 0], check, pos, ())
            index[check == REMOVED] = _REMOVED_SEAL
            _refuse(index != words.view(_SEAL)[:, 2])

    def check_free(self, pos: Positions) -> None:
        """Positions that say they are empty."""
        if self._keys_suspect:
            _refuse(self._index[pos] != _EMPTY_SEAL)

    def check_keys(self, pos: Positions) -> None:
        """Identity, route and key columns of some rows; of those not live, that they are not."""
        self._check(pos, keys=True)

    def check_rows(self, pos: Positions) -> None:
        """As `check_keys`, and the value columns too."""
        self._check(pos, keys=True, rows=True)

    def check_scanned(self, names: set[str]) -> None:
        """Which rows are live, and these columns of all of them."""
        if not names <= self._scanned:
            self.check_all(rows=not names.issubset(self._key_names))
            self._scanned |= {*names, CHECK}

    def check_all(self, rows: bool) -> None:
        """All keys, and if asked all value columns; what was checked is suspect no more."""
        size = len(self._table.h) if self._keys_suspect or (rows and self._rows_suspect) else 0
        for start in range(0, size, _CHUNK_ROWS):
            self._check(np.arange(start, min(size, start + _CHUNK_ROWS)), keys=True, rows=rows)
        self._keys_suspect = False
        self._rows_suspect &= not rows

    def _check(self, pos: Positions, keys: bool, rows: bool = False) -> None:
        keys, rows = keys and self._keys_suspect, rows and self._rows_suspect
        if not keys and not rows:
            return
        table = self._table
        check = table.check[pos]
        live = np.flatnonzero((check != EMPTY) & (check != REMOVED))
        if keys:
            index = self._index[pos]
            _refuse((check == EMPTY) & (index != _EMPTY_SEAL))
            _refuse((check == REMOVED) & (index != _REMOVED_SEAL))
        pos, check = pos[live], check[live]
        groups: list[Sequence[Values]] = []
        seals: list[U32] = []
        if keys:
            groups.append(self._key_columns(table.route[pos], pos))
            seals.append(self._key)
        if rows:
            groups.append(self._row_columns(pos))
            seals.append(self._row)
        for kept, right in zip(seals, row_seals(table.h[pos], check, pos, *groups), strict=True):
            _refuse(kept[pos] != right)

    def _key_columns(
        self, route: U64, pos: Positions, cells: Mapping[str, Values] = _NONE
    ) -> list[Values]:
        columns = [cells.get(n) or self._table.columns[n].cells(pos) for n in self._key_names]
        return [Values(route), *columns] if self._table.layout.has_route else columns

    def _row_columns(self, pos: Positions, cells: Mapping[str, Values] = _NONE) -> list[Values]:
        return [cells.get(n) or self._table.columns[n].cells(pos) for n in self._row_names]

    def _keep(self, words: U64, key: U32) -> None:
        """Index and row seal are the second word beside each `h`, which is read just before."""
        self._words, self._key = words, key
        self._index, self._row = words.view(_SEAL)[:, 2], words.view(_SEAL)[:, 3]


def _refuse(wrong: Mask) -> None:
    if wrong.any():
        raise WarmCopyDamaged
