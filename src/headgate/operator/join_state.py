"""The rows that a join holds: a ring of rows per key and side, found without looking at others.

The operator's own table has a row per key (and window): where each side's ring begins and how many
rows it has. The rows themselves lie in a table per side, under their key and a running number. So
all rows of some keys are found by as many lookups, and what a batch costs follows its rows and
what they meet, not what is held. A ring has no holes: when rows leave, those before them move up
into their places, which are few where rows leave about in the order they came.

Which rows leave is one column, `@until`: the time after which nobody can want them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, U64, Bools
from headgate.operator.panes import groups_of
from headgate.operator.rows import Groups
from headgate.routing.hashing import mix
from headgate.routing.identity import Identity, hash_words
from headgate.state.layout import StateSchema
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession

PARTS = ("left", "right")  # the tables of the two sides
SEQ, UNTIL, TIME, MATCHED, GONE = "@seq", "@until", "@time", "@matched", "@gone"
_INT = pa.int64()
INDEX = pa.schema(
    [
        pa.field(f"{part}_{what}", _INT, nullable=False)
        for part in PARTS
        for what in ("first", "count")
    ]
)
_PLACES = [f"{part}_{what}" for what in ("first", "count") for part in PARTS]


def side_schema(index: StateSchema, columns: Mapping[str, pa.DataType], *own: str) -> StateSchema:
    """A table of one side: `own` are the columns of the join's own that it keeps."""
    kinds = {UNTIL: _INT, TIME: _INT, MATCHED: pa.bool_(), GONE: pa.bool_()}
    values = [pa.field(name, kinds[name], nullable=False) for name in own]
    values += [pa.field(name, kind) for name, kind in columns.items()]
    sub = pa.schema([*index.sub, pa.field(SEQ, _INT, nullable=False)])
    return StateSchema(index.key, pa.schema(values), sub)


@dataclass(frozen=True)
class RowKeys:
    """Rows of keys by their running numbers; a `state.KeyBatch`."""

    groups: Groups
    codes: I64
    seq: I64

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def h(self) -> U64:
        return mix(self.groups.h[self.codes] + mix(self.seq.view(np.uint64)))

    @cached_property
    def route(self) -> U64:
        return self.groups.route[self.codes]

    def check(self, identity: Identity | None = None) -> U64:
        secret = (identity or self.groups.identity).secret
        checks = self.groups.check(identity)[self.codes]
        return hash_words(secret, [checks, self.seq.view(np.uint64)]) | np.uint64(1)

    @cached_property
    def columns(self) -> pa.RecordBatch:
        keys = self.groups.columns
        rows = pa.array(self.codes)
        columns = [column.take(rows) for column in keys.columns]
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array(self.seq)], names=[*keys.schema.names, SEQ]
        )


class Index:
    """Where the rings of some keys are, and how many rows they have."""

    def __init__(self, state: StateSession, groups: Groups) -> None:
        self._state, self.groups = state, groups
        held = state.read(groups)
        self._found = held.found
        self._was = [np.array(held[name]) for name in _PLACES]
        self.first, self.count = ([a.copy() for a in self._was[at : at + 2]] for at in (0, 2))

    def __len__(self) -> int:
        return len(self.groups)

    def stored(self, side: int, wanted: Bools) -> Stored:
        """The rows that a side holds of the wanted keys."""
        count = np.where(wanted, self.count[side], 0)
        codes = np.repeat(np.arange(len(count)), count)
        seq = self.first[side][codes] + ramps(count)
        keys = RowKeys(self.groups, codes, seq)
        session = self._state.beside[PARTS[side]]
        return Stored(session, keys, session.read(keys) if len(codes) else None)

    def append(self, side: int, codes: I64, values: Mapping[str, Any]) -> None:
        """Put rows behind those that the side holds of their keys."""
        if not len(codes):
            return
        added = np.bincount(codes, minlength=len(self.groups))
        order = by_code(codes)
        rank = np.empty(len(codes), np.int64)
        rank[order] = ramps(added)
        seq = self.first[side][codes] + self.count[side][codes] + rank
        self._state.beside[PARTS[side]].write(RowKeys(self.groups, codes, seq), values)
        self.count[side] = self.count[side] + added

    def take_out(self, side: int, codes: I64, seq: I64, remove: Callable[[I64], None]) -> None:
        """Remove rows, and close the rings behind them; `remove` takes out some of these."""
        session, first = self._state.beside[PARTS[side]], self.first[side]
        gone = np.bincount(codes, minlength=len(self.groups))
        after = first + gone
        # Of each ring the first `gone` places go. What stays there moves into the holes behind.
        hole = np.flatnonzero(seq >= after[codes])
        front = np.flatnonzero(seq < after[codes])
        if len(hole):
            starts = np.cumsum(gone) - gone
            stays = np.ones(len(codes), np.bool_)
            stays[(starts[codes] + seq - first[codes])[front]] = False
            left = np.flatnonzero(stays)
            owner = np.repeat(np.arange(len(self.groups)), gone)[left]
            movers = RowKeys(self.groups, owner, first[owner] + ramps(gone)[left])
            hole = hole[np.lexsort((seq[hole], codes[hole]))]
            held = session.read(movers)
            moved = {name: held.arrow(name) for name in session.schema.values.names}
            session.write(RowKeys(self.groups, codes[hole], seq[hole]), moved)
            session.remove(movers)
        remove(front)
        self.first[side] = after
        self.count[side] = self.count[side] - gone

    def write(self) -> None:
        """Keep what has changed; keys without any row are forgotten."""
        some = (self.count[0] > 0) | (self.count[1] > 0)
        gone = self._found & ~some
        if gone.any():
            self._state.remove(self.groups.take(gone))
        now = [*self.first, *self.count]
        changed = ~self._found
        for mine, was in zip(now, self._was, strict=True):
            changed |= mine != was
        changed &= some
        if not changed.any():
            return
        kept: Any = self.groups if changed.all() else self.groups.take(changed)
        self._state.write(kept, {n: a[changed] for n, a in zip(_PLACES, now, strict=True)})


@dataclass
class Stored:
    """Rows of one side as the state holds them, in order of their keys' groups."""

    session: StateSession
    keys: RowKeys
    held: Held | None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def codes(self) -> I64:
        return self.keys.codes

    @property
    def times(self) -> I64:
        times: I64 = self[TIME]
        return times

    @property
    def until(self) -> I64:
        until: I64 = self[UNTIL]
        return until

    def __getitem__(self, name: str) -> Any:
        return np.zeros(0, np.int64) if self.held is None else self.held[name]

    def arrow(self, name: str) -> pa.Array:
        assert self.held is not None
        return self.held.arrow(name)

    def write(self, rows: I64, values: Mapping[str, Any]) -> None:
        """Change columns of some of the rows."""
        if len(rows):
            keys = RowKeys(self.keys.groups, self.keys.codes[rows], self.keys.seq[rows])
            self.session.write(keys, values)


def by_code(codes: I64) -> I64:
    """Rows in order of small numbers, earlier ones first among equals: 16 bits sort by radix."""
    if len(codes) and codes.max() < 1 << 16:
        return np.argsort(codes.astype(np.uint16), kind="stable")
    return np.argsort(codes, kind="stable")


def ramps(counts: I64) -> I64:
    """0, 1, ... up to each count, one after the other.

    Examples:
        >>> ramps(np.array([2, 0, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    total = int(counts.sum())
    starts = np.cumsum(counts) - counts
    result: I64 = np.arange(total) - np.repeat(starts, counts)
    return result


def take_out(state: StateSession, side: int, rows: StateRows) -> None:
    """Remove rows of a side, and close the rings behind them."""
    session, groups = state.beside[PARTS[side]], groups_of(rows, SEQ)
    index = Index(state, groups)

    def remove(some: I64) -> None:
        session.remove_rows(rows if len(some) == len(rows) else rows.take(some))

    index.take_out(side, groups.codes, rows[SEQ], remove)
    index.write()
