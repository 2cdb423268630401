"""Joins of two streams: rows of equal keys meet, within an interval, in a window, or at any time.

Both sides of a key live in one slot, in the state of one operator (`join_state.py`). A batch meets
itself and what is held, and is held in turn. So every pair is put out once, in the epoch in which
its later row comes, wherever rows come from and however they are cut into epochs.

An **interval join** (`within`) and a **window join** (`window`) go by event time. A row is late if
its time (its window's end) was passed by the watermark of the epoch before. A row leaves the state
when no row that is not late can meet it; of an outer side it is put out then, if it never met one.
With `allowed_lateness` all of that goes by a watermark that much earlier.
A **regular join** has no such end: it holds all rows, or those of the last `ttl` of processing
time. Its outer rows are put out at once, and taken back when a partner comes: the column `change`
says "insert" or "delete". If a side of it tells changes, see `changelog_join.py`.

A null in the key equals nothing, as in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator import join_match
from headgate.operator.arithmetic import from_words, to_words
from headgate.operator.base import Output, StateFields, StatefulOperator, state_schema
from headgate.operator.fixed_windows import FixedWindow
from headgate.operator.join_rows import (
    Made,
    NewRows,
    made_at_end,
    null_rows,
    picked,
    refused_late,
    seconds,
    side_rows,
    us_of,
)
from headgate.operator.join_state import (
    INDEX,
    MATCHED,
    PARTS,
    TIME,
    UNTIL,
    Index,
    Stored,
    side_schema,
    take_out,
)
from headgate.operator.rows import EpochClock, Groups, KeyedRows
from headgate.operator.window import (
    BOUNDS,
    CHANGE,
    DELETE,
    FOREVER,
    INSERT,
    START,
    TIMESTAMP,
    Late,
)
from headgate.state.layout import StateSchema
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.joining import LEFT, RIGHT, SIDE, How, Sides

WINDOW = pa.schema([pa.field(START, TIMESTAMP)])
_BOTH = (LEFT, RIGHT)


@dataclass(frozen=True)
class Within:
    """How far the right row's time may lie from the left one's; both ends count.

    `until` is a column of the left side with a time, in place of `high_us`.
    """

    low_us: int
    high_us: int
    until: str | None = None


@dataclass(frozen=True, repr=False)
class Join(StatefulOperator):
    """Made by `Stream.join`."""

    sides: Sides
    how: How = "inner"
    within: Within | None = None
    window: FixedWindow | None = None
    times: tuple[str | None, str | None] = (None, None)
    keep_us: int | None = field(default=None)
    late: Late = "drop"
    lateness_us: int = 0

    # Declaration --------------------------------------------------------------------------------

    @property
    def timed(self) -> bool:
        """Does it go by event time?"""
        return self.within is not None or self.window is not None

    @property
    def tells(self) -> bool:  # type: ignore[override]
        """Are outer rows put out before it is known that they stay alone?"""
        return not self.timed and self.how != "inner"

    @property
    def whole_epochs(self) -> bool:  # type: ignore[override]
        return self.tells  # else a row might be told and taken back in the same epoch

    @property
    def ends_epochs(self) -> bool:  # type: ignore[override]
        return self.timed or self.keep_us is not None

    @property
    def by_clock(self) -> bool:
        return self.keep_us is not None

    @property
    def emits_at_end(self) -> bool:
        return self.timed and self.how != "inner"

    def is_outer(self, side: int) -> bool:
        """Are rows of that side put out if they meet none?"""
        return self.how in (("left", "full"), ("right", "full"))[side]

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(INDEX, pa.schema([]) if self.window is None else WINDOW)

    def beside(self, rows: pa.Schema, key: Sequence[str]) -> dict[str, StateSchema]:
        index = state_schema(self, rows, key)
        tables = {}
        for side, part in enumerate(PARTS):
            own = [UNTIL] if self.ends_epochs else []
            own += [TIME] if self.within is not None else []
            own += [MATCHED] if self.is_outer(side) else []
            columns = self.sides.columns(side, rows).items()
            passed = self.sides.passed(side, rows)
            kinds = {n: rows.field(wide).type for n, wide in columns if n in passed}
            tables[part] = side_schema(index, kinds, *own)
        return tables

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        bounds = () if self.window is None else BOUNDS
        schema = self.sides.output(rows, self.how, bounds)
        return schema.append(CHANGE) if self.tells else schema

    def held_from(self, watermark_us: int) -> int | None:
        watermark_us -= self.lateness_us
        if self.window is not None:
            return self.window.first_open(watermark_us)
        if self.within is None:
            return None
        return watermark_us - max(self.within.high_us, -self.within.low_us, 0)

    def late_by(self, side: int = 0) -> tuple[str, ...]:
        own = self.times[side]
        until = self.within.until if self.within is not None and side == LEFT else None
        return tuple(name for name in (own, until) if name is not None)

    def is_late(self, times_us: I64, clock: EpochClock) -> Bools:
        before = clock.behind(self.lateness_us).previous_watermark_us
        if before is None:
            return np.zeros(len(times_us), np.bool_)
        if self.window is None:
            return np.asarray(times_us < before)
        return ~self.window.is_open(self.window.starts_of(times_us), times_us, before)

    @property
    def wants_dead_letters(self) -> bool:
        return self.late == "dead_letters"

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return "rows of a key have to meet those of the other side in one place"

    def __repr__(self) -> str:
        told = [f"how={self.how!r}"]
        if self.within is not None:
            high = self.within.until or seconds(self.within.high_us)
            told.append(f"within={(seconds(self.within.low_us), high)}")
        told += [] if self.window is None else [f"window={self.window!r}"]
        told += [] if self.keep_us is None else [f"ttl={seconds(self.keep_us)!r}"]
        told += [] if not self.lateness_us else [f"allowed_lateness={seconds(self.lateness_us)!r}"]
        return f"join({', '.join(told)})"

    def describe(self) -> dict[str, Any]:
        told: dict[str, Any] = {"operator": "Join", "how": self.how, "times": list(self.times)}
        if self.within is not None:
            told["within"] = [self.within.low_us, self.within.until or self.within.high_us]
        if self.window is not None:
            told["window"] = self.window.describe()
        return told

    # Rows ---------------------------------------------------------------------------------------

    def may_wait(self, rows: pa.RecordBatch, side: int, clock: EpochClock) -> Bools | None:
        """Rows that leave in this epoch: they need not be held until the other side is in."""
        below = self._below(clock)
        if not self.timed or below is None:
            return None
        name = self.times[side]
        assert name is not None
        times, valid = us_of(rows.column(name))
        ends = None
        if self.within is not None and side == LEFT and self.within.until is not None:
            ends, there = us_of(rows.column(self.within.until))
            valid = there if valid is None else valid if there is None else valid & there
        starts = None if self.window is None else self.window.grid.start_of(times)
        gone = self._until(side, times, starts, ends) < below
        return gone if valid is None else gone & valid

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if self.keep_us is not None:
            self._expire(state, clock)
        side = np.asarray(rows.column(SIDE))
        times, kept, dead, late = np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_), {}, 0
        if self.timed:
            times, valid = self._times(rows.batch, side)
            missed = valid & self.is_late(times, clock)
            kept, late = valid & ~missed, int(np.count_nonzero(missed))
            dead = dict.fromkeys(np.flatnonzero(~valid).tolist(), "no event time: it is null")
            if late and self.late == "dead_letters":
                dead |= refused_late(missed, clock.behind(self.lateness_us))
        nulls = null_rows(rows.batch, rows.key)
        if nulls is not None:  # they meet nothing; of an outer side they are rows all the same
            kept &= ~nulls | np.array([self.is_outer(s) for s in _BOTH])[side]
        chosen = np.flatnonzero(kept)
        starts = None
        if self.window is not None:
            chosen, starts = self._in_windows(chosen, times, clock)
        made = self._made(rows.batch.schema)
        if len(chosen):
            some = rows if np.array_equal(chosen, np.arange(len(rows))) else rows.take(chosen)
            groups = some.groups
            if starts is not None:
                groups = some.sub_groups([START], [from_words(starts, None, TIMESTAMP)])
            leave = self._below(clock) if self.timed and rows.is_last else None
            call = _Call(some.batch, side[chosen], chosen, times[chosen], starts, groups, leave)
            self._meet(call, None if nulls is None else nulls[chosen], state, clock, made)
        batch, origins = made.batch()
        return Output(batch, origins, dead, late)

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if not self.ends_epochs:
            return None
        if not self.timed:
            self._expire(state, clock)
            return None
        below = self._below(clock)
        if below is None or below == clock.behind(self.lateness_us).previous_watermark_us:
            return None
        made: list[pa.RecordBatch] = []
        for side, part in enumerate(PARTS):
            told = self.is_outer(side)
            gone = state.beside[part].select(UNTIL, below=below, keys_only=not told)
            if len(gone):
                if told:
                    made += self._alone(side, gone, state)
                take_out(state, side, gone)
        return pa.concat_batches(made) if made else None

    def _below(self, clock: EpochClock) -> int | None:
        """Rows whose `@until` is below that leave when the epoch ends; None: none do."""
        return FOREVER if clock.input_ends else clock.behind(self.lateness_us).watermark_us

    def _expire(self, state: StateSession, clock: EpochClock) -> None:
        for side, part in enumerate(PARTS):
            gone = state.beside[part].select(UNTIL, below=clock.now_ms * 1000, keys_only=True)
            if len(gone):
                take_out(state, side, gone)

    # Inside -------------------------------------------------------------------------------------

    def _meet(
        self, call: _Call, nulls: Bools | None, state: StateSession, clock: EpochClock, made: Made
    ) -> None:
        """Have the rows of a call meet each other and what is held, then hold them."""
        index = Index(state, call.groups)
        came = np.ones(len(call.side), np.bool_) if nulls is None else ~nulls
        new = [self._new(call, np.flatnonzero(came & (call.side == s)), s, clock) for s in _BOTH]
        touched = [np.bincount(n.codes, minlength=len(index)) > 0 for n in new]
        held = [index.stored(s, touched[1 - s]) for s in _BOTH]
        met = [np.zeros(len(n), np.bool_) for n in new]
        met_held = [np.zeros(len(h), np.bool_) for h in held]
        back: list[tuple[I64, I64]] = [_NONE, _NONE]  # held rows that met, and rows they met first
        pairs: list[tuple[NewRows | Stored, NewRows | Stored, join_match.Pairs, I64]] = []
        if len(new[LEFT]) and len(new[RIGHT]):
            a, b = self._pairs(new[LEFT], new[RIGHT], len(index))
            pairs.append((new[LEFT], new[RIGHT], (a, b), new[LEFT].origin[a]))
            met[LEFT][a] = met[RIGHT][b] = True
        if len(new[LEFT]) and len(held[RIGHT]):
            a, b = self._pairs(new[LEFT], held[RIGHT], len(index))
            pairs.append((new[LEFT], held[RIGHT], (a, b), new[LEFT].origin[a]))
            met[LEFT][a] = met_held[RIGHT][b] = True
            back[RIGHT] = b, new[LEFT].origin[a]
        if len(held[LEFT]) and len(new[RIGHT]):
            a, b = self._pairs(held[LEFT], new[RIGHT], len(index))
            pairs.append((held[LEFT], new[RIGHT], (a, b), new[RIGHT].origin[b]))
            met_held[LEFT][a] = met[RIGHT][b] = True
            back[LEFT] = a, new[RIGHT].origin[b]
        for s in _BOTH:
            if self.is_outer(s) and len(held[s]):
                first = np.flatnonzero(met_held[s] & ~held[s][MATCHED])
                if self.tells and len(first):
                    rows, at = np.unique(back[s][0], return_index=True)
                    origin = back[s][1][at][np.isin(rows, first)]
                    head = self._head(call, held[s].codes[first])
                    made.add(head, side_rows(s, held[s], first), origin, DELETE)
                held[s].write(first, {MATCHED: np.ones(len(first), np.bool_)})
        change = INSERT if self.tells else None
        for left, right, (a, b), origin in pairs:
            made.add(self._head(call, left.codes[a]), ((left, a), (right, b)), origin, change)
        for s in _BOTH:
            if self.tells and self.is_outer(s):
                alone = np.flatnonzero(~met[s])
                head, origin = self._head(call, new[s].codes[alone]), new[s].origin[alone]
                made.add(head, side_rows(s, new[s], alone), origin, INSERT)
            self._hold(index, s, new[s], met[s], call.leave)
        if nulls is not None:
            for s in _BOTH:
                lonely = self._new(call, np.flatnonzero(nulls & (call.side == s)), s, clock)
                if self.tells:
                    every = np.arange(len(lonely))
                    head = self._head(call, lonely.codes)
                    made.add(head, side_rows(s, lonely, every), lonely.origin, INSERT)
                else:
                    met_none = np.zeros(len(lonely), np.bool_)
                    index.append(s, lonely.codes, self._values(s, lonely, met_none))
        index.write()

    def _new(self, call: _Call, rows: I64, side: int, clock: EpochClock) -> NewRows:
        """The rows of a side among those of a call."""
        times, batch = call.times[rows], picked(call.batch, rows)
        names = self.sides.columns(side, batch.schema)
        starts, ends = None if call.starts is None else call.starts[rows], None
        if self.within is not None and side == LEFT and self.within.until is not None:
            ends = us_of(self.sides.column(batch, LEFT, self.within.until))[0]
        if self.keep_us is not None:
            until = np.full(len(rows), clock.now_ms * 1000 + self.keep_us, np.int64)
        else:
            until = self._until(side, times, starts, ends)
        return NewRows(batch, names, call.origin[rows], call.groups.codes[rows], times, until)

    def _until(self, side: int, times: I64, starts: I64 | None, ends: I64 | None) -> I64:
        """After which event time nobody can want rows; `ends` are those of the column for that."""
        if self.window is not None:
            assert starts is not None
            return self.window.ends_of(starts) - 1
        if self.within is None:
            return np.zeros(len(times), np.int64)
        if side == RIGHT:
            return times - self.within.low_us
        return times + self.within.high_us if ends is None else ends

    def _hold(self, index: Index, side: int, rows: NewRows, met: Bools, leave: int | None) -> None:
        """Put new rows into the state; not those that are done with, and leave with this epoch."""
        if leave is not None:
            stay = rows.until >= leave
            if self.is_outer(side):
                stay |= ~met  # put out when the epoch ends
            if not stay.all():
                some = np.flatnonzero(stay)
                rows, met = rows.take(some), met[some]
        index.append(side, rows.codes, self._values(side, rows, met))

    def _pairs(
        self, left: NewRows | Stored, right: NewRows | Stored, codes: int
    ) -> join_match.Pairs:
        if self.within is None:
            return join_match.equal(left.codes, right.codes, codes)
        low = left.times + self.within.low_us
        return join_match.within(left.codes, low, left.until, right.codes, right.times)

    def _values(self, side: int, rows: NewRows, met: Bools) -> dict[str, Any]:
        """What is held of new rows."""
        values: dict[str, Any] = {
            name: rows.arrow(name) for name, _ in self.sides.names[side] if name in rows.names
        }
        if self.ends_epochs:
            values[UNTIL] = rows.until
        if self.within is not None:
            values[TIME] = rows.times
        if self.is_outer(side):
            values[MATCHED] = met
        return values

    def _head(self, call: _Call, codes: I64) -> pa.RecordBatch:
        """Key and window of groups, as columns of the output."""
        head = call.groups.columns.take(pa.array(codes))
        return head if self.window is None else self._with_end(head)

    def _with_end(self, head: pa.RecordBatch) -> pa.RecordBatch:
        assert self.window is not None
        starts = to_words(head.column(START))[0]
        ends = from_words(self.window.ends_of(starts), None, TIMESTAMP)
        return head.append_column(BOUNDS[1], ends)

    def _alone(self, side: int, gone: StateRows, state: StateSession) -> list[pa.RecordBatch]:
        """Rows that leave and never met one of the other side."""
        rows = gone.take(np.flatnonzero(~gone[MATCHED]))
        if not len(rows):
            return []
        head = rows.keys.select(list(range(rows.keys.num_columns - 1)))  # but their number
        head = head if self.window is None else self._with_end(head)
        made = made_at_end(self.sides, head.schema, state)
        made.add(head, side_rows(side, rows, np.arange(len(rows))))
        return [made.batch()[0]]

    def _made(self, wide: pa.Schema) -> Made:
        names = (self.sides.passed(LEFT, wide), self.sides.passed(RIGHT, wide))
        return Made(self.output_schema(wide, self.sides.key), names)

    # Time ---------------------------------------------------------------------------------------

    def _times(self, batch: pa.RecordBatch, side: I64) -> tuple[I64, Bools]:
        """The event times of rows, and which rows have one (and an end, if that is a column)."""
        times, valid = np.zeros(len(side), np.int64), np.ones(len(side), np.bool_)
        for s in _BOTH:
            mine = side == s
            wanted = [self.times[s]]
            if s == LEFT and self.within is not None and self.within.until is not None:
                wanted.append(self.within.until)
            for number, name in enumerate(wanted):
                assert name is not None
                words, there = us_of(self.sides.column(batch, s, name))
                if number == 0:
                    times[mine] = words[mine]
                if there is not None:
                    valid[mine] &= there[mine]
        return times, valid

    def _in_windows(self, rows: I64, times: I64, clock: EpochClock) -> tuple[I64, I64]:
        """Rows, once for each open window that they are in, and the starts of these windows."""
        assert self.window is not None
        at, start = times[rows], self.window.grid.start_of(times[rows])
        before = clock.behind(self.lateness_us).previous_watermark_us
        least = -FOREVER if before is None else self.window.first_open(before)
        found, starts = [], []
        while len(rows):
            found.append(rows)
            starts.append(start)
            start = self.window.grid.start_of(start - 1)
            within = (self.window.ends_of(start) > at) & (start >= least)
            rows, at, start = rows[within], at[within], start[within]
        if not found:
            return rows, start
        return np.concatenate(found), np.concatenate(starts)


@dataclass(frozen=True)
class _Call:
    """Rows that came in a call and count; `origin` are their numbers there.

    `leave`: no row comes any more that could meet one whose `@until` is below that.
    """

    batch: pa.RecordBatch
    side: I64
    origin: I64
    times: I64
    starts: I64 | None
    groups: Groups
    leave: int | None = None


_NONE: tuple[I64, I64] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
