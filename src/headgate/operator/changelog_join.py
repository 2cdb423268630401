"""A regular join whose sides may tell changes: what is put out follows what both sides say now.

Invariant: the output, added up, is the join of the rows that hold on each side. Of L and R at the
epoch's begin some rows go, others come: `L' = L - gone + came`. What changes of the pairs is

    taken back   gone(L) x R      and   stays(L) x gone(R)
    told         came(L) x R'     and   stays(L) x came(R)

so no pair is told and taken back in one epoch, and what an epoch costs follows the rows of the keys
that it touched. Of an outer side a row stands alone while the other side holds none of its key: a
count in the index says so, and no row has to remember it.

A side that tells no changes only adds rows. A change finds its row by the columns that it is known
by, or by all values if rows are taken back whole; a new row takes the place of one that went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.operator import join_match
from headgate.operator.base import Output, state_schema
from headgate.operator.join_rows import Made, NewRows, null_rows, picked, side_rows
from headgate.operator.join_state import PARTS, Index, RowKeys, Stored, by_code, ramps, side_schema
from headgate.operator.joins import Join
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.operator.window import DELETE, INSERT
from headgate.state.layout import StateSchema
from headgate.state.session import StateSession
from headgate.topology.joining import CHANGE, LEFT, RIGHT, SIDE

_BOTH = (LEFT, RIGHT)


@dataclass(frozen=True, repr=False)
class ChangelogJoin(Join):
    """Made by `Stream.join`.

    `known_by_side`: the columns by which rows of a side are known (None: rows are only added);
    `whole`: does that side take rows back with all their values?
    """

    known_by_side: tuple[tuple[str, ...] | None, ...] = (None, None)
    whole: tuple[bool, ...] = (False, False)

    @property
    def tells(self) -> bool:  # type: ignore[override]
        return True

    def beside(self, rows: pa.Schema, key: Sequence[str]) -> dict[str, StateSchema]:
        index, tables = state_schema(self, rows, key), {}
        for side, part in enumerate(PARTS):
            passed = {*self.sides.passed(side, rows), *(self.known_by_side[side] or ())}
            columns = self.sides.columns(side, rows).items()
            kinds = {name: rows.field(wide).type for name, wide in columns if name in passed}
            tables[part] = side_schema(index, kinds)
        return tables

    def describe(self) -> dict[str, Any]:
        known = [None if names is None else list(names) for names in self.known_by_side]
        return {**super().describe(), "changes": known, "whole": list(self.whole)}

    # Rows ---------------------------------------------------------------------------------------

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        origin = np.arange(len(rows))
        nulls = null_rows(rows.batch, rows.key)
        if nulls is not None:  # they meet nothing; of an outer side they are rows all the same
            outer = np.array([self.is_outer(side) for side in _BOTH])
            origin = np.flatnonzero(~nulls | outer[np.asarray(rows.column(SIDE))])
            rows, nulls = rows.take(origin), nulls[origin]
        made = self._made(rows.batch.schema)
        if len(rows):
            groups = rows.groups
            index = Index(state, groups)
            meets = np.ones(len(groups), np.bool_) if nulls is None else ~nulls[groups.first]
            self._change(rows, origin, index, meets, made)
            index.write()
        return Output(*made.batch())

    def _change(self, rows: KeyedRows, origin: I64, index: Index, meets: Bools, made: Made) -> None:
        """Take in what came of both sides, and tell what that changes; `meets`: which keys can."""
        new = [self._of_side(side, rows, origin, index.groups.codes) for side in _BOTH]
        touched = [np.bincount(one.codes, minlength=len(index)) > 0 for one in new]
        sides = []
        for side in _BOTH:
            told = self.known_by_side[side] is not None
            wanted = touched[1 - side] | touched[side] if told else touched[1 - side]
            sides.append(self._side(side, new[side], index.stored(side, wanted)))
        before = [meets & (index.count[side] > 0) for side in _BOTH]
        for side, one in enumerate(sides):
            one.keep(index, side)
        after = [meets & (index.count[side] > 0) for side in _BOTH]

        def tell(change: str, by: int, rows: tuple[Any, Any], sets: tuple[I64, I64]) -> None:
            """Pairs of these rows, which come of those of side `by`."""
            both = zip(rows, sets, strict=True)
            chosen = [some[meets[one.codes[some]]] for one, some in both]
            codes = [one.codes[some] for one, some in zip(rows, chosen, strict=True)]
            pairs = join_match.equal(codes[LEFT], codes[RIGHT], len(index))
            left, right = chosen[LEFT][pairs[LEFT]], chosen[RIGHT][pairs[RIGHT]]
            head = index.groups.columns.take(pa.array(rows[LEFT].codes[left]))
            causes = sides[by].cause(rows[by], (left, right)[by])
            made.add(head, ((rows[LEFT], left), (rows[RIGHT], right)), causes, change)

        def alone(change: str, side: int, rows: Any, some: I64, causes: I64) -> None:
            head = index.groups.columns.take(pa.array(rows.codes[some]))
            made.add(head, side_rows(side, rows, some), causes, change)

        a, b = sides
        tell(DELETE, LEFT, (a.held, b.held), (a.gone, np.arange(len(b.held))))
        tell(DELETE, RIGHT, (a.held, b.held), (a.stays, b.gone))
        flips = []
        for side, one in enumerate(sides):
            if self.is_outer(side):
                codes, other = one.held.codes, 1 - side
                gone = one.gone[~before[other][codes[one.gone]]]
                alone(DELETE, side, one.held, gone, one.cause(one.held, gone))
                stays = codes[one.stays]
                now, then = after[other][stays], before[other][stays]
                some = one.stays[now & ~then]
                alone(DELETE, side, one.held, some, sides[other].any_of(codes[some]))
                flips.append((side, one.stays[then & ~now]))
        tell(INSERT, LEFT, (a.new, b.held), (a.came, b.stays))
        tell(INSERT, LEFT, (a.new, b.new), (a.came, b.came))
        tell(INSERT, RIGHT, (a.held, b.new), (a.stays, b.came))
        for side, some in flips:
            one = sides[side]
            alone(INSERT, side, one.held, some, sides[1 - side].any_of(one.held.codes[some]))
            came = one.came[~after[1 - side][one.new.codes[one.came]]]
            alone(INSERT, side, one.new, came, one.new.origin[came])

    def _of_side(self, side: int, rows: KeyedRows, origin: I64, codes: I64) -> NewRows:
        mine = np.flatnonzero(np.asarray(rows.column(SIDE)) == side)
        batch, zeros = picked(rows.batch, mine), np.zeros(len(mine), np.int64)
        names = self.sides.columns(side, batch.schema)
        return NewRows(batch, names, origin[mine], codes[mine], zeros, zeros)

    def _side(self, side: int, new: NewRows, held: Stored) -> _Side:
        """Which of the rows held go, and which of the new ones come."""
        known = self.known_by_side[side]
        if known is None:
            return _Side(new, held, _NONE, np.arange(len(new)), _NONE)
        was, now = self._numbers(side, known, new, held)
        ids = int(max(was.max(initial=-1), now.max(initial=-1))) + 1
        is_told = pc.fill_null(pc.not_equal(new.arrow(CHANGE), DELETE), True)
        told = np.flatnonzero(np.asarray(is_told))
        last = np.full(ids, -1, np.int64)
        last[now] = np.arange(len(now))
        if self.whole[side]:
            net = 2 * np.bincount(now[told], minlength=ids) - np.bincount(now, minlength=ids)
            came = told[_ranks(now[told][::-1])[::-1] < net[now[told]]]
            gone = np.flatnonzero(_ranks(was) < -net[was])
        else:
            newest = np.full(ids, -1, np.int64)
            newest[now[told]] = told
            came = np.sort(newest[newest >= 0])
            gone = np.flatnonzero(last[was] >= 0)
        return _Side(new, held, gone, came, last[was[gone]])

    def _numbers(
        self, side: int, known: tuple[str, ...], new: NewRows, held: Stored
    ) -> tuple[I64, I64]:
        """Numbers of rows, the same for rows that are known as the same: those held, and new."""
        names = [name for name in known if name not in self.sides.keys[side]]
        if not names:
            return held.codes, new.codes
        columns: list[pa.Array] = [pa.array(np.concatenate([held.codes, new.codes]))]
        for name in names:
            both = [new.arrow(name)] if not len(held) else [held.arrow(name), new.arrow(name)]
            columns.append(pa.concat_arrays(both))
        table = pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])
        codes = KeyedRows(table, table.schema.names).groups.codes
        return codes[: len(held)], codes[len(held) :]


@dataclass(frozen=True)
class _Side:
    """What an epoch does to a side: rows held that go, new rows that come.

    `gone_by` are the new rows by which those go.
    """

    new: NewRows
    held: Stored
    gone: I64
    came: I64
    gone_by: I64

    @cached_property
    def stays(self) -> I64:
        kept = np.ones(len(self.held), np.bool_)
        kept[self.gone] = False
        return np.flatnonzero(kept)

    def cause(self, rows: NewRows | Stored, some: I64) -> I64:
        """The rows of the call that some rows, new ones or such that go, are told for."""
        if rows is self.new:
            return self.new.origin[some]
        return self.new.origin[self.gone_by[np.searchsorted(self.gone, some)]]

    def any_of(self, codes: I64) -> I64:
        """A row of the call, of this side, of each of these keys."""
        found = np.zeros(
            int(max(self.new.codes.max(initial=0), codes.max(initial=0))) + 1, np.int64
        )
        found[self.new.codes] = self.new.origin
        return found[codes]

    def keep(self, index: Index, side: int) -> None:
        """Put rows that come in the places of those that go; the rest is added, or taken out."""
        gone = self.gone[by_code(self.held.codes[self.gone])]
        came = self.came[by_code(self.new.codes[self.came])]
        theirs, mine = self.held.codes[gone], self.new.codes[came]
        reused = _ranks(theirs) < np.bincount(mine, minlength=len(index))[theirs]
        placed = _ranks(mine) < np.bincount(theirs, minlength=len(index))[mine]
        self.held.write(gone[reused], self._values(came[placed]))
        over, added = gone[~reused], came[~placed]
        if len(over):
            codes, seq, session = theirs[~reused], self.held.keys.seq[over], self.held.session

            def remove(some: I64) -> None:
                session.remove(RowKeys(index.groups, codes[some], seq[some]))

            index.take_out(side, codes, seq, remove)
        index.append(side, self.new.codes[added], self._values(added))

    def _values(self, rows: I64) -> dict[str, Any]:
        names = self.held.session.schema.values.names
        return {name: self.new.arrow(name).take(pa.array(rows)) for name in names}


def _ranks(codes: I64) -> I64:
    """For every row, how many rows before it have its code."""
    order = by_code(codes)
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = ramps(np.bincount(codes)) if len(codes) else codes
    return ranks


_NONE: I64 = np.zeros(0, np.int64)
