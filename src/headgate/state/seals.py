"""Seals: 32 bits beside every row and value of a warm copy, which show that it has not changed.

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

Sealing rows one by one costs ten times as much as a digest of the same bytes. So a table that was
just built has a digest and no seals. The next session compares the digest as it begins; the first
positions get seals, a sixteenth in each session, until all have them and a session pays for the
rows it touches only. It goes the other way when sessions ask for so many rows that a digest costs
less, or when a rebuild is near, which would have to check all seals: the last positions are
checked, a sixteenth in each session, and a digest covers them again.
In the same way columns that were compared in a scan have a digest as a whole.

A session checks each row once, at its first lookup (or all of them, before a scan or a rebuild),
and then trusts its memory. A table that lives in one process only has no seals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from headgate.arrays import I64, U32, U64
from headgate.native import Kernels
from headgate.state import kernels
from headgate.state.layout import Array, Mask, Positions, Values
from headgate.state.rows import RowIds

if TYPE_CHECKING:
    from headgate.state.table import HashTable

_HALF = np.uint64(32)
_CHUNK_ROWS = 1 << 15  # sealed at a time, so that intermediate sums stay small
_LONG_VALUE_BYTES = 256  # longer ones are hashed one by one
SESSIONS = 16  # to seal a table, so that each costs no more than digests of all of it
SEALED_AT_LEAST = 1 << 15  # in a session: a millisecond
_HELD_PER_ASKED = 8  # so many rows have a digest made and compared for what one costs with seals
EMPTY, REMOVED = 0, 2
_INDEX, _KEY, _ROW = 0, 1, 2
_EMPTY_SEAL, _REMOVED_SEAL = np.uint32(0), np.uint32(0xFFFFFFFF)
CHECK = "check"  # the array that says which rows are live
ROW_SEAL = "row seal"  # its name among what is gathered of a row
_NONE: Mapping[str, Values] = {}


class WarmCopyDamaged(BaseException):
    """A warm copy does not hold what was written to it; the task must run again without it.

    Not an `Exception`: it passes through user code, which is not to blame and cannot help.
    """


def more_sealed(count: int) -> int:
    """How many rows or values of so many a session seals that the one before has not."""
    return SEALED_AT_LEAST + count // SESSIONS


@cache
def factors(count: int) -> U64:
    """Odd numbers with no pattern (SplitMix64), the same in every process."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


def row_seals(h: U64, check: Array, pos: Array, *groups: Sequence[Values]) -> list[U32]:
    """Seals of rows, an array for each group of columns: of identity, position and the group."""
    words = [[_words(column.data) for column in group] for group in groups]
    if kernels.compiled is not None:
        compiled, each = kernels.compiled, zip(groups, words, strict=True)
        return [_sealed_by(compiled, h, check, pos, *group) for group in each]
    seals = [np.empty(len(h), np.uint32) for _ in groups]
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


def _sealed_by(
    compiled: Kernels,
    h: U64,
    check: Array,
    pos: Array,
    group: Sequence[Values],
    words: Sequence[Array],
) -> U32:
    columns = [(part, column.valid) for column, part in zip(group, words, strict=True)]
    count = 3 + sum(1 + (1 if part.ndim == 1 else part.shape[1]) for part in words)
    return kernels.seal(compiled, h, check, pos, columns, factors(count))


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
    """What the seals of values are the upper halves of; long ones are hashed one by one."""
    factor = factors(2 + _LONG_VALUE_BYTES // 8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    long = np.flatnonzero(lengths > _LONG_VALUE_BYTES)
    total: U64
    if kernels.compiled is not None:
        total = kernels.sum_values(
            kernels.compiled, bounds, body, ordinals, _LONG_VALUE_BYTES, factor
        )
    else:
        total = _sums_in_numpy(starts, lengths, body, ordinals, factor)
    values = (body[bounds[row] : bounds[row + 1]].data for row in long)
    total[long] += np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(long))
    return total


def _sums_in_numpy(starts: I64, lengths: I64, body: Array, ordinals: I64, factor: U64) -> U64:
    """Eight bytes of all values at a time; the last word of a value is filled up with zeros.

    Nothing is copied but the words: a few values may be many megabytes.
    """
    total: U64 = ordinals.view(np.uint64) * factor[0]
    total += lengths.view(np.uint64) * factor[1]
    if len(body) < 8:
        body = np.concatenate([body, np.zeros(8 - len(body), np.uint8)])
    last = len(body) - 8
    unaligned: U64 = np.ndarray((last + 1,), np.dtype("<u8"), body.data, 0, (1,))
    left = np.where(lengths <= _LONG_VALUE_BYTES, lengths, 0)
    rows: Any = slice(None)
    for number in range(_LONG_VALUE_BYTES // 8):
        longer = left[rows] > 0
        if not longer.all():
            rows = np.flatnonzero(longer) if isinstance(rows, slice) else rows[longer]
            if not len(rows):
                break
        at = starts[rows] + 8 * number
        words = unaligned[np.minimum(at, last)]
        beyond = np.flatnonzero(at > last)  # at most seven: they end where the body does
        words[beyond] >>= (at[beyond] - last).view(np.uint64) << np.uint64(3)
        spare = np.maximum(8 - left[rows], 0).view(np.uint64) << np.uint64(3)
        words = (words << spare) >> spare
        total[rows] += _weighted(words, factor[2 + number :])
        left -= 8
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
    """The seals of one table; it has none while it is private."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        self._seals: list[U32] | None = None  # an array of each kind
        self._built = False  # in this session, which costs enough without sealing
        self._sealed = 0  # the first so many positions have seals, the others a digest
        self.suspect = False  # may sealed rows differ from what was written?
        self.asked = 0  # rows whose seals this session needed, or would have
        self.scanned: set[str] = set()  # columns that were compared as a whole, and which rows live
        self._has_route, self._key_names = table.layout.has_route, table.layout.key_names
        self._row_names = [name for name in table.columns if name not in self._key_names]

    def use(self, seals: U32 | None, of_rows: U32 | None, built: bool = False) -> None:
        """Keep seals in these arrays; a table that was just built has none yet."""
        self._seals = None if seals is None or of_rows is None else [*seals, of_rows]
        self._built = built
        if built:
            self._sealed, self.suspect = 0, False

    @property
    def are_dearer(self) -> bool:
        """Would a digest of the whole table have cost this session less?"""
        return self.asked * _HELD_PER_ASKED > self._table.live

    def stamp(self, fewer: bool) -> dict[str, Any]:
        """Seal some more rows, or fewer; returns what the next session needs to check the table."""
        size, self.asked = len(self._table.h), 0
        more = more_sealed(0 if self._built else size)
        if fewer and size > SEALED_AT_LEAST:
            end = max(0, self._sealed - more)
            self._check_range(end, self._sealed)
        else:
            end = min(size, self._sealed + more)
            self._seal_range(self._sealed, end)
        self._sealed, self._built = end, False
        stamp = {"sealed": end, "scanned": sorted(self.scanned)}
        return {**stamp, "digests": self._digests()}

    def attach(self, stamp: dict[str, Any]) -> None:
        """Of what an earlier session left nothing is trusted but what matches its digest."""
        self._sealed, self.scanned = stamp["sealed"], set(stamp["scanned"])
        self.suspect, self.asked = self._sealed > 0, 0
        if self._digests() != stamp["digests"]:
            raise WarmCopyDamaged

    def write(self, ids: RowIds, pos: Positions, cells: Mapping[str, Values]) -> U32 | None:
        """Seal rows of which these cells are written; the others must have been checked.

        If all get seals of their records, these are returned, to be written with the cells.
        """
        if self._seals is None or not self._sealed:
            return None
        some = self._below(pos)
        if not isinstance(some, slice):
            ids, pos = ids.take(some), pos[some]
            cells = {name: written.take(some) for name, written in cells.items()}
        kinds = []
        if not self._key_names or any(name in cells for name in self._key_names):
            kinds += [_INDEX, _KEY]
        only_keys = cells and all(name in self._key_names for name in cells)
        if not only_keys or not self._row_names:
            kinds.append(_ROW)
        groups = [self._sealed_columns(kind, ids.route, pos, cells) for kind in kinds]
        made = dict(zip(kinds, row_seals(ids.h, ids.check, pos, *groups), strict=True))
        of_records = made.pop(_ROW, None) if isinstance(some, slice) else None
        for kind, seals in made.items():
            self._seals[kind][pos] = seals
        return of_records

    def remove(self, pos: Positions) -> None:
        if self._seals is not None and self._sealed:
            pos = pos[self._below(pos)]
            for seals in self._seals:
                seals[pos] = _REMOVED_SEAL

    def check_found(
        self, ids: RowIds, pos: Positions, found: Mask, cells: Mapping[str, Values]
    ) -> None:
        """Rows that were found, with the value cells and seals gathered from there."""
        if self._seals is not None and self.suspect and found.any():
            some = self._below(pos)
            pos = pos[some]
            columns = [cells[name].take(some) for name in self._row_names]
            [row] = row_seals(ids.h[some], ids.check[some], pos, columns)
            _refuse((row != cells[ROW_SEAL].data[some]) & found[some])

    def check_passed(self, first: Positions, last: Positions) -> None:
        """The positions from where probes began to where they ended in vain, at an empty one."""
        if self._seals is None or not self.suspect:
            return
        self.check_free(last)
        some = self._below(first)
        first, last = first[some], np.minimum(last[some], self._sealed)
        if kernels.compiled is not None:
            table, index_seals = self._table, self._seals[_INDEX]
            given = table.h, table.check, first, last, factors(3), index_seals
            if not kernels.passed(kernels.compiled, *given):
                raise WarmCopyDamaged
            return
        counts = last - first
        ends = np.cumsum(counts)
        pos = np.arange(ends[-1] if len(ends) else 0)
        pos += np.repeat(last - ends, counts)
        check = self._table.check.take(pos)
        [index] = row_seals(self._table.h.take(pos), check, pos, ())
        index[check == REMOVED] = _REMOVED_SEAL
        _refuse(index != self._seals[_INDEX][pos])

    def check_free(self, pos: Positions) -> None:
        """Positions that say they are empty."""
        if self._seals is not None and self.suspect:
            _refuse(self._seals[_INDEX][pos[self._below(pos)]] != _EMPTY_SEAL)

    def check_keys(self, pos: Positions) -> None:
        """Identity, route and key columns of some rows; of those not live, that they are not."""
        self._check(pos, _KEY)

    def check_rows(self, pos: Positions) -> None:
        """As `check_keys`, and the value columns too."""
        self._check(pos, _KEY, _ROW)

    def check_scanned(self, names: set[str]) -> None:
        """Which rows are live, and these columns of all of them."""
        if not names <= self.scanned:
            self.check_all()
            self._table.set_apart(names)
            self.scanned |= {*names, CHECK}

    def check_all(self) -> None:
        """All rows, after which none is suspect."""
        self.asked += self._table.live
        self._check_range(0, self._sealed)
        self.suspect = False

    def _check_range(self, start: int, end: int) -> None:
        for first in range(start, end if self.suspect else start, _CHUNK_ROWS):
            self.check_rows(np.arange(first, min(end, first + _CHUNK_ROWS)))

    def _seal_range(self, start: int, end: int) -> None:
        assert self._seals is not None
        for first in range(start, end, _CHUNK_ROWS):
            rows = slice(first, min(end, first + _CHUNK_ROWS))
            check = self._table.check[rows]
            for seals in self._seals:
                seals[rows] = np.where(check == REMOVED, _REMOVED_SEAL, _EMPTY_SEAL)
            pos = first + _live(check)
            for kind, made in enumerate(self._right(pos, _INDEX, _KEY, _ROW)):
                self._seals[kind][pos] = made

    def _check(self, pos: Positions, *kinds: int) -> None:
        if self._seals is None or not self.suspect:
            return
        pos = pos[self._below(pos)]
        check, index = self._table.check[pos], self._seals[_INDEX][pos]
        _refuse((check == EMPTY) & (index != _EMPTY_SEAL))
        _refuse((check == REMOVED) & (index != _REMOVED_SEAL))
        pos = pos[_live(check)]
        for kind, right in zip(kinds, self._right(pos, *kinds), strict=True):
            _refuse(right != self._seals[kind][pos])

    def _digests(self) -> dict[str, str]:
        """Of what has no seals, and of columns that are scanned as a whole."""
        size, found = len(self._table.h), {}
        for name, arrays in self._table.arrays_of_positions(self.scanned).items():
            start = 0 if name in self.scanned else self._sealed
            if start < size:
                digest = xxhash.xxh3_128()
                for array in arrays:
                    digest.update(array[start:].data)
                found[name] = digest.hexdigest()
        return found

    def _right(self, pos: Positions, *kinds: int) -> list[U32]:
        """The seals that live rows should have by what is there."""
        table = self._table
        groups = [self._sealed_columns(kind, table.route[pos], pos) for kind in kinds]
        return row_seals(table.h[pos], table.check[pos], pos, *groups)

    def _sealed_columns(
        self, kind: int, route: U64, pos: Positions, cells: Mapping[str, Values] = _NONE
    ) -> list[Values]:
        """What a seal is of, beside a row's identity."""
        if kind == _INDEX:
            return []
        names = self._key_names if kind == _KEY else self._row_names
        columns = [cells.get(name) or self._table.columns[name].cells(pos) for name in names]
        return [Values(route), *columns] if kind == _KEY and self._has_route else columns

    def _below(self, pos: Positions) -> Positions | slice:
        """Which of these positions have seals."""
        return (
            slice(None)
            if self._sealed == len(self._table.h)
            else np.flatnonzero(pos < self._sealed)
        )


def _live(check: Array) -> Positions:
    return np.flatnonzero((check != EMPTY) & (check != REMOVED))


def _refuse(wrong: Mask) -> None:
    if wrong.any():
        raise WarmCopyDamaged
