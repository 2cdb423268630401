"""Tumbling and sliding windows: of a fixed size, beginning on a grid.

A tumbling window is one state row per key. A sliding one is made of *panes* as long as the largest
common divisor of size and slide, one state row each, so a row is folded once however many windows
it is in. Panes are read when a window closes, all that the closing windows need, once for all of
them, or only those that come and go, where they can be subtracted (`totals.py`); an epoch in which
none closes reads nothing. A pane goes when its last window has closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError
from headgate.operator.arithmetic import from_words
from headgate.operator.changes import Told, of_results, seen_now
from headgate.operator.grid import Grid
from headgate.operator.panes import Ranges, groups_of, runs, with_values
from headgate.operator.rows import EpochClock, Groups
from headgate.operator.totals import TOTALS, Totals
from headgate.operator.window import END, FOREVER, START, TIMESTAMP, Window
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import duration_us, positive_us

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey


@dataclass(frozen=True)
class FixedWindow(Window):
    """What tumbling and sliding windows have in common.

    Starts are at multiples of the slide since 1970-01-01 00:00, plus `offset`, in UTC or in the
    local time of `timezone`.
    """

    size: str | timedelta
    time: str | None
    offset: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    timezone: str | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_us(self.size)
        self.grid.check(type(self).__name__)

    @property
    def time_column(self) -> str | None:
        return self.time

    @cached_property
    def size_us(self) -> int:
        return positive_us(self.size)

    @property
    def slide_us(self) -> int:
        return self.size_us

    @cached_property
    def grid(self) -> Grid:
        """Where windows begin."""
        return Grid(self.slide_us, duration_us(self.offset or timedelta(0)), self.timezone)

    def is_open(self, starts: I64, times: I64, mark_us: int) -> Bools:
        result: Bools = starts >= self.first_open(mark_us)
        return result

    def first_open(self, time_us: int) -> int:
        if time_us == FOREVER:
            return FOREVER
        start = self._start_of(time_us)
        if self.timezone is None:
            before = (self.size_us - 1 - (time_us - start)) // self.slide_us
            return start - before * self.slide_us
        while True:  # as many times as windows overlap
            earlier = self._start_of(start - 1)
            if self.ends_of(np.array([earlier]))[0] <= time_us:
                return start
            start = earlier

    def _start_of(self, time_us: int) -> int:
        return int(self.grid.start_of(np.array([time_us]))[0])

    def ends_of(self, starts: I64) -> I64:
        return self.grid.end_of(starts, self.size_us)

    def bounds(self, rows: StateRows) -> pa.RecordBatch:
        bounds = (rows[START], self.ends_of(rows[START]))
        return pa.record_batch([from_words(at, None, TIMESTAMP) for at in bounds], [START, END])

    def finish(
        self, operator: PerKey, state: StateSession, clock: EpochClock, touched: Groups | None
    ) -> pa.RecordBatch | None:
        before, now = self.reached(clock)
        if touched is not None:
            seen_now(state, clock, touched)
        low = None if before is None else self.first_open(before)
        high = None if now is None else self.first_open(now)
        if operator.tells:
            told = None
            if operator.early or high is not None:
                told = self._changes(operator, state, clock, touched, before, high)
            if touched is not None:
                operator.settle(state, touched)
            self._forget(state, before, now)
            return told
        if high is None or low == high:
            return None
        rows = self.held_before(state, high)
        if not len(rows):
            return None
        batch = of_results(operator, self.windows(operator, rows, low, high).results)
        if not self.needs_merge:
            state.remove_rows(rows)
        else:
            state.remove_rows(rows.take(np.flatnonzero(rows[START] < high)))
        return batch

    def held_before(self, state: StateSession, high: int) -> StateRows:
        """All rows that windows before `high` may hold."""
        if high == FOREVER:
            return state.all()
        return state.select(START, below=self._panes_until(high))

    def _panes_until(self, high: int) -> int:
        """Where the last window ends that starts before `high`."""
        return high

    def windows(self, operator: PerKey, rows: StateRows, low: int | None, high: int | None) -> Told:
        """The windows that these rows make, starting from `low` on and before `high`."""
        chosen = rows.take(np.argsort(rows[START], kind="stable"))
        starts, ones = chosen[START], np.arange(len(chosen))
        hit = np.ones(len(chosen), np.bool_)
        if low is not None:
            hit &= starts >= low
        if high is not None and high != FOREVER:
            hit &= starts < high
        if not hit.all():
            chosen = chosen.take(np.flatnonzero(hit))
            ones = np.arange(len(chosen))
        return Told(chosen, chosen, Ranges(ones, ones + 1))

    def _changes(
        self,
        operator: PerKey,
        state: StateSession,
        clock: EpochClock,
        touched: Groups | None,
        before: int | None,
        high: int | None,
    ) -> pa.RecordBatch | None:
        """Windows that are complete for the first time, or that rows of this epoch have changed."""
        low = None if before is None else self.first_open(before)
        closing = not operator.early and low != high
        if closing:
            rows = self.held_before(state, high or 0)
        elif touched is not None:
            rows = self._held_of(state, touched)
        else:
            return None
        if not len(rows):
            return None
        told = self.windows(operator, rows, None, None if operator.early else high)
        is_touched, is_new = told.since(clock.epoch)
        new = ~told.has(~is_new)
        hit = told.has(is_touched)
        if not operator.early:
            starts = told.results[START]
            first = np.ones(len(starts), np.bool_) if low is None else starts >= low
            hit, new = hit | first, new | first
        if before is not None:
            hit &= told.results[START] >= self.first_open(before - self.lateness_us)
        index = np.flatnonzero(operator.together(told.results, hit))
        return of_results(operator, told.results.take(index), new[index]) if len(index) else None

    def _held_of(self, state: StateSession, touched: Groups) -> StateRows:
        """All rows that windows of these may be made of."""
        if len(state.schema.sub) > 1:
            return state.of_routes(np.unique(touched.route))
        return state.rows_of(touched)

    def _forget(self, state: StateSession, before: int | None, now: int | None) -> None:
        if now is None:
            return
        high = self.first_open(now if now == FOREVER else now - self.lateness_us)
        if before is None or high != self.first_open(before - self.lateness_us):
            state.remove_rows(state.all() if high == FOREVER else state.select(START, below=high))

    def describe(self) -> dict[str, Any]:
        told = super().describe() | {"size_us": self.size_us}
        if self.grid.offset_us:
            told["offset_us"] = self.grid.offset_us
        if self.timezone is not None:
            told["timezone"] = self.timezone
        return told


@dataclass(frozen=True)
class Tumbling(FixedWindow):
    """Windows of a fixed size that do not overlap, over the event time in column `time`.

    They start at multiples of the size since 1970-01-01 00:00 UTC, plus `offset`. With `timezone`
    these are the days and hours of that place, and a day may have 23 or 25 hours.
    `time=None` goes by the clock of the epoch. `late` and `allowed_lateness` say what
    becomes of late rows.

    Examples:
        >>> Tumbling("1 minute", time="ts").size_us
        60000000
        >>> Tumbling("1 day", time="ts", timezone="Europe/Berlin")
        Tumbling(size='1 day', time='ts')
    """

    def starts_of(self, times: I64) -> I64:
        return self.grid.start_of(times)


@dataclass(frozen=True, init=False)
class Sliding(FixedWindow):
    """Windows of a fixed `size`, one every `slide`, so that they overlap.

    A row costs as much as with `Tumbling`. What is made of exact sums and counts (`Count`; `Sum` of
    integers and decimals; `Mean` of integers up to 32 bits) keeps a total per key, so that a window
    costs the panes (of the largest common divisor of size and slide) that are new in it, and those
    that go. With other aggregates, and where changes are told, it costs a state row for each of its
    panes. `offset`, `timezone`, `late` and `allowed_lateness` as in `Tumbling`. A row is late when
    the last window that it is in was emitted; until then it counts for the windows that are left.

    Examples:
        >>> Sliding("1 hour", "1 minute", time="ts").slide_us
        60000000
    """

    needs_merge: ClassVar[bool] = True
    keeps_totals: ClassVar[bool] = True
    slide: str | timedelta = field(default="")

    def __init__(
        self,
        size: str | timedelta,
        slide: str | timedelta,
        time: str | None,
        *,
        offset: str | timedelta | None = None,
        timezone: str | None = None,
        late: Any = "drop",
        allowed_lateness: str | timedelta | None = None,
    ) -> None:
        given = {
            "size": size, "slide": slide, "time": time, "offset": offset, "timezone": timezone,
            "late": late, "allowed_lateness": allowed_lateness,
        }  # fmt: skip
        for attribute, value in given.items():
            object.__setattr__(self, attribute, value)
        if positive_us(slide) > positive_us(size):
            raise DeclarationError(
                f"Sliding: slide={slide!r} is longer than size={size!r}, so that some rows would "
                "be in no window; make it at most as long"
            )
        self.__post_init__()

    @cached_property
    def slide_us(self) -> int:
        return positive_us(self.slide)

    @cached_property
    def panes(self) -> Grid:
        """Where panes begin."""
        offset_us = duration_us(self.offset or timedelta(0))
        return Grid(gcd(self.size_us, self.slide_us), offset_us, self.timezone)

    @cached_property
    def panes_per_window(self) -> int:
        """At most, also where the clocks are put back."""
        return 2 * self.size_us // self.panes.step_us

    def starts_of(self, times: I64) -> I64:
        return self.panes.start_of(times)

    def starts_between(self, low: int, high: int, most: int) -> I64 | None:
        """The starts of windows from `low` on and before `high`; None if they are too many."""
        found, start = list[int](), self._start_of(high - 1)
        while start >= low:
            found.append(start)
            start = self._start_of(start - 1)
            if len(found) > most:
                return None
        return np.array(found[::-1], np.int64)

    def entered(self, low: int) -> int:
        """Where the last window ends that starts before `low`."""
        return self._panes_until(low)

    def finish(
        self, operator: PerKey, state: StateSession, clock: EpochClock, touched: Groups | None
    ) -> pa.RecordBatch | None:
        if TOTALS in state.beside:
            return Totals(operator, self, state, clock).close()
        return super().finish(operator, state, clock, touched)

    def _panes_until(self, high: int) -> int:
        return int(self.ends_of(self.grid.start_of(np.array([high - 1])))[0])

    def _held_of(self, state: StateSession, touched: Groups) -> StateRows:
        return state.of_routes(np.unique(touched.route))

    def windows(self, operator: PerKey, rows: StateRows, low: int | None, high: int | None) -> Told:
        groups, at = groups_of(rows, START), rows[START]
        order = np.lexsort((at, groups.codes))
        rows, codes, at = rows.take(order), groups.codes[order], at[order]
        panes, rank = np.unique(at, return_inverse=True)
        starts = self._starts_around(panes)
        starts = starts[starts >= low] if low is not None else starts
        starts = starts[starts < high] if high is not None else starts
        ends = self.ends_of(starts)
        # Pane p is in the windows numbered from after[p] up to until[p]: both rise with p. So the
        # windows that a row is the first of its key in are those that the row before is not in.
        after = np.searchsorted(ends, panes, "right")[rank]
        until = np.searchsorted(starts, panes, "right")[rank]
        after[1:] = np.where(runs(codes)[1:], after[1:], np.maximum(after[1:], until[:-1]))
        count = np.maximum(until - after, 0)
        low_row = np.repeat(np.arange(len(rows)), count)
        begun = np.cumsum(count) - count
        window = np.arange(len(low_row)) - np.repeat(begun - after, count)
        width = len(panes) + 1
        behind = codes[low_row] * width + np.searchsorted(panes, ends, "left")[window]
        ranges = Ranges(low_row, np.searchsorted(codes * width + rank, behind, "left"))
        made = rows.take(low_row)
        if len(ranges):
            made = with_values(operator.combined(rows, ranges), {START: starts[window]})
        order = np.argsort(starts[window], kind="stable")
        return Told(made.take(order), rows, Ranges(ranges.lo[order], ranges.hi[order]))

    def _starts_around(self, panes: I64) -> I64:
        """The starts of all windows that hold one of these panes."""
        start, found = self.grid.start_of(panes), []
        while len(panes):
            found.append(start)
            start = self.grid.start_of(start - 1)
            held = self.ends_of(start) > panes
            start, panes = start[held], panes[held]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"slide_us": self.slide_us}
