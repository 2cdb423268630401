"""Sessions: stretches of a key's rows in which no pause is longer than a gap.

A key's rows are kept in *panes* as long as the gap. Rows of one pane are never further apart than
that, so a pane belongs to one session, whatever comes later: a state row per pane holds the values,
and the first and the last time in it. So a row costs what it costs in a tumbling window, partials
of other slots merge pane by pane, and a late row that joins two sessions needs no search. Sessions
are made when some are over: panes in order of time, cut where a pause is longer than the gap.

A session that goes on for long would be read again in every epoch, pane by pane; so panes in its
past are merged into one, as soon as there are `MANY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import from_words
from headgate.operator.changes import of_results, seen_now, taken_back
from headgate.operator.panes import Ranges, groups_of, keyed_rows, ranges_of, runs, with_values
from headgate.operator.rows import EpochClock, Groups, Partials
from headgate.operator.window import END, FOREVER, SEEN, START, TIMESTAMP, Window
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import positive_us

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey

FIRST, LAST = "@first_us", "@last_us"  # times of the first and the last row of a pane
TOLD, LENGTH = "@told_us", "@length_us"  # the session that was told of a pane; length 0: none
MANY = 4


@dataclass(frozen=True)
class Session(Window):
    """Windows that last as long as rows of a key keep coming, at most `gap` apart.

    A session goes from its first row to `gap` after its last one. Rows exactly `gap` apart are in
    one session. It is final when the watermark has reached its end; a row is late when the
    watermark had passed the row's own time by `gap` in the epoch before. With `emit="changes"`, or
    `allowed_lateness`, a session that grew or was joined to another is taken back ("delete"), and
    told again with its new bounds. `time=None` goes by the clock of the epoch.

    Costs about two times as much per row as `Tumbling`, and a state row per key and `gap` of time
    that rows came in.

    Examples:
        >>> Session("30 minutes", time="ts")
        Session(gap='30 minutes', time='ts')
    """

    needs_merge: ClassVar[bool] = True

    gap: str | timedelta
    time: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_us(self.gap)

    @property
    def time_column(self) -> str | None:
        return self.time

    @cached_property
    def gap_us(self) -> int:
        return positive_us(self.gap)

    def held_fields(self, tells: bool) -> list[pa.Field]:
        names = [FIRST, LAST, *([TOLD, LENGTH] if tells else [])]
        own = [pa.field(name, pa.int64(), nullable=False) for name in names]
        return own + super().held_fields(tells)

    def starts_of(self, times: I64) -> I64:
        return times // self.gap_us * self.gap_us

    def is_open(self, starts: I64, times: I64, mark_us: int) -> Bools:
        return np.asarray(times > mark_us - self.gap_us)

    def first_open(self, time_us: int) -> int:
        """Of ends: sessions that are still to come end after it, wherever they started."""
        return time_us

    def bounds(self, rows: StateRows) -> pa.RecordBatch:
        bounds = (rows[START], rows[LAST] + self.gap_us)
        return pa.record_batch([from_words(at, None, TIMESTAMP) for at in bounds], [START, END])

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"gap_us": self.gap_us}

    # Rows and partials --------------------------------------------------------------------------

    def before(self, held: Held) -> None:
        held[FIRST], held[LAST]

    def note(
        self, times: I64, groups: Groups, held: Held, state: StateSession, good: Bools | None
    ) -> None:
        self._span(times, times, groups, held, state, good)

    def absorb(
        self,
        partials: Partials,
        groups: Groups,
        held: Held,
        state: StateSession,
        good: Bools | None,
    ) -> None:
        first, last = (partials.column(name).to_numpy() for name in (FIRST, LAST))
        self._span(first, last, groups, held, state, good)

    def _span(
        self,
        firsts: I64,
        lasts: I64,
        groups: Groups,
        held: Held,
        state: StateSession,
        good: Bools | None,
    ) -> None:
        first = np.where(held.found, held[FIRST], FOREVER)
        last = np.where(held.found, held[LAST], -FOREVER)
        np.minimum.at(first, groups.codes, firsts)
        np.maximum.at(last, groups.codes, lasts)
        if good is None:
            state.write(groups, {FIRST: first, LAST: last})
        else:
            state.write(groups.take(good), {FIRST: first[good], LAST: last[good]})

    # When an epoch ends -------------------------------------------------------------------------

    def finish(
        self, operator: PerKey, state: StateSession, clock: EpochClock, touched: Groups | None
    ) -> pa.RecordBatch | None:
        now = self.reached(clock)[1]
        told = None
        if operator.tells:
            told = self._tell(operator, state, clock, touched, now)
            if touched is not None:
                operator.settle(state, touched)
        if now is None:
            return told
        limit_us = now if now == FOREVER else now - self.lateness_us
        sessions = self._reached_by(state, limit_us)
        if sessions is None:
            return told
        over = sessions.ends_by(limit_us)
        rows = over[sessions.number]
        if not operator.tells and over.any():
            told = of_results(operator, sessions.merged(operator, over)[0])
        state.remove_rows(sessions.rows.take(np.flatnonzero(rows)))
        past = ~rows & (sessions.rows[LAST] <= limit_us - self.gap_us)
        self._merge_past(operator, state, sessions, past)
        return told

    def _reached_by(self, state: StateSession, limit_us: int) -> Sessions | None:
        """The sessions that have begun, as far as it matters for which are over; None: none is.

        A pane after the limit cannot belong to a session that ends before it.
        """
        if limit_us == FOREVER:
            rows = state.all()
            return Sessions.of(rows, self.gap_us) if len(rows) else None
        last = state.least(LAST)
        if last is None or last > limit_us - self.gap_us:
            return None
        return Sessions.of(state.select(FIRST, below=limit_us + 1), self.gap_us)

    def _merge_past(
        self, operator: PerKey, state: StateSession, sessions: Sessions, past: Bools
    ) -> None:
        rows, ranges, _ = sessions.stretches(past)
        long = np.flatnonzero(ranges.hi - ranges.lo >= MANY)
        if not len(long):
            return
        ranges = Ranges(ranges.lo[long], ranges.hi[long])
        edges = np.stack([ranges.lo, ranges.hi], axis=1).reshape(-1)
        last = np.maximum.reduceat(np.append(rows[LAST], -FOREVER), edges)[::2]
        merged = with_values(operator.combined(rows, ranges), {LAST: last})
        gone = np.zeros(len(rows) + 1, np.int64)
        gone[ranges.lo + 1] += 1
        gone[ranges.hi] -= 1
        state.remove_rows(rows.take(np.flatnonzero(np.cumsum(gone[:-1]))))
        state.absorb(merged)

    def _tell(
        self,
        operator: PerKey,
        state: StateSession,
        clock: EpochClock,
        touched: Groups | None,
        now: int | None,
    ) -> pa.RecordBatch | None:
        """What has changed of the sessions that are told: before they are over, or once they are.

        What was told of a pane is kept with it. A session keeps its place if its bounds are those
        that were told; otherwise these are taken back.
        """
        rows = self._to_tell(operator, state, clock, touched, now)
        if rows is None:
            return None
        sessions = Sessions.of(rows, self.gap_us)
        rows, number = sessions.rows, sessions.number
        length = sessions.last + self.gap_us - sessions.first
        visible = np.ones(len(sessions), np.bool_)
        if not operator.early:
            visible = sessions.ends_by(-FOREVER if now is None else now)
        was = rows[LENGTH] > 0
        stays = was & visible[number]
        stays &= (rows[TOLD] == sessions.first[number]) & (rows[LENGTH] == length[number])
        is_touched = np.abs(rows[SEEN]) == clock.epoch + 1
        known, hit = sessions.any(stays), sessions.any(is_touched)
        hit = visible & (hit | ~known)
        parts = []
        back = np.flatnonzero(was & ~stays)
        if len(back):
            back = back[np.lexsort((rows[TOLD][back], number[back]))]
            gone = rows.take(back)
            last = gone[TOLD] + gone[LENGTH] - self.gap_us
            spans = ranges_of(runs(number[back], gone[TOLD]))
            gone = with_values(gone, {START: gone[TOLD], LAST: last})
            parts.append(taken_back(operator, gone, spans))
        if hit.any():
            results, which = sessions.merged(operator, hit)
            made = of_results(operator, results, ~known[which])
            parts += [] if made is None else [made]
        changed = np.flatnonzero(hit[number] | (was & ~stays))
        if len(changed):
            seen = np.where(visible, length, 0)[number[changed]]
            start = np.where(visible, sessions.first, 0)[number[changed]]
            state.absorb(with_values(rows.take(changed), {TOLD: start, LENGTH: seen}))
        return pa.concat_batches(parts) if parts else None

    def _to_tell(
        self,
        operator: PerKey,
        state: StateSession,
        clock: EpochClock,
        touched: Groups | None,
        now: int | None,
    ) -> StateRows | None:
        """All panes of the keys that rows of this epoch touched, and of sessions that are over."""
        parts = []
        if touched is not None:
            seen_now(state, clock, touched)
            parts.append(state.of_routes(np.unique(touched.route)))
        if not operator.early and now is not None:
            over = self._reached_by(state, now)
            if over is not None:
                rows = over.rows
                if touched is not None:
                    rows = rows.take(np.flatnonzero(~np.isin(rows.route, touched.route)))
                parts.append(rows)
        parts = [part for part in parts if len(part)]
        return StateRows.concat(parts) if parts else None


@dataclass(frozen=True)
class Sessions:
    """Panes in order of key and time, the session of each, and the times of the sessions."""

    rows: StateRows
    number: I64
    first: I64
    last: I64
    gap_us: int

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, rows: StateRows, gap_us: int) -> Sessions:
        codes = keyed_rows(rows).groups.codes
        order = np.argsort(_in_line(codes, rows[FIRST]), kind="stable")
        rows, codes = rows.take(order), codes[order]
        line = _in_line(codes, rows[LAST])
        furthest = rows[LAST][_highest_so_far(line)]  # of a key up to here; panes may overlap
        first: I64 = rows[FIRST]
        begins = runs(codes)
        begins[1:] |= first[1:] > furthest[:-1] + gap_us
        ranges = ranges_of(begins)
        number = np.cumsum(begins) - 1
        return cls(rows, number, first[ranges.lo], furthest[ranges.hi - 1], gap_us)

    def ends_by(self, time_us: int) -> Bools:
        result: Bools = self.last <= time_us - self.gap_us
        return result

    def any(self, rows: Bools) -> Bools:
        """Which sessions have such a row."""
        result: Bools = np.bincount(self.number[rows], minlength=len(self)) > 0
        return result

    def stretches(self, chosen: Bools) -> tuple[StateRows, Ranges, I64]:
        """Some of the panes, those of a session (and of one further sub-key) in a row.

        Returns with them the stretches, and the session of each stretch.
        """
        index = np.flatnonzero(chosen)
        rows, codes = self.rows.take(index), [self.number[index]]
        if len(rows.layout.schema.sub) > 1:
            rest = groups_of(rows, START).codes
            order = np.lexsort((rest, codes[0]))
            rows, codes = rows.take(order), [codes[0][order], rest[order]]
        ranges = ranges_of(runs(*codes))
        return rows, ranges, codes[0][ranges.lo]

    def merged(self, operator: PerKey, chosen: Bools) -> tuple[StateRows, I64]:
        """One row for each of these sessions (and sub-keys), by start; and which session it is."""
        rows, ranges, which = self.stretches(chosen[self.number])
        made = operator.combined(rows, ranges) if len(ranges) < len(rows) else rows
        made = with_values(made, {START: self.first[which], LAST: self.last[which]})
        order = np.argsort(self.first[which], kind="stable")
        return made.take(order), which[order]


def _in_line(codes: I64, times: I64) -> I64:
    """Numbers in the order of codes, then of times."""
    least = int(times.min())
    span = int(times.max()) - least + 1
    if span * (int(codes.max()) + 1) < FOREVER:
        return codes * span + (times - least)
    ranks = np.unique(times, return_inverse=True)[1]
    return codes * len(times) + ranks


def _highest_so_far(line: I64) -> I64:
    """For each number, where the highest is up to and including it."""
    top = np.where(line == np.maximum.accumulate(line), np.arange(len(line)), 0)
    return np.maximum.accumulate(top)
