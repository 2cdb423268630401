"""What the panes of a sliding window add up to, kept per key, so that closing one reads few panes.

Where every aggregate is made of exact sums and counts, a pane can be taken out of a sum again. So a
table beside the panes has a row per key: the total of the panes that the next window shares with
the last one. Closing a window adds the panes that are new in it and puts out what it has; then the
panes go that no window needs any more, out of the total too. An input row that comes to a pane
which was added already changes the total as well. So an epoch costs what came and went and what it
puts out, not what windows hold.

The invariant: a total is the sum of its key's panes before `entered`, the end of the last window
that was closed. Totals are counted in panes, and if their number is not that of the panes held
(they were not kept, by an earlier flow or version), or a value is so large that sums may leave
their range, all panes are read, as for aggregates that cannot subtract, and totals made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import from_words, to_words
from headgate.operator.changes import of_results
from headgate.operator.rows import EpochClock, Groups, KeyedRows, SomeKeys
from headgate.operator.window import FOREVER, START
from headgate.state.layout import StateSchema, Values
from headgate.state.rows import Held, RowIds, StateRows
from headgate.state.session import StateSession

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey
    from headgate.operator.fixed_windows import Sliding

TOTALS = "totals"
PANES, LARGE = "@panes", "@large"  # how many panes, and how many of them hold a large value
THERE = "@there."  # how many panes hold a value, where that may be null
WINDOWS_MAX = 64  # that are closed at once by totals
_WORDS_MAX = 1 << 22  # of a column, for windows and keys that are closed at once
Words = dict[str, I64]


def totals_schema(panes: StateSchema) -> StateSchema:
    """A row per key: its panes, those with large values, and sums of all columns."""
    names = [PANES, LARGE]
    for kept in panes.values:
        names += [kept.name, THERE + kept.name] if kept.nullable else [kept.name]
    fields = [pa.field(name, pa.int64(), nullable=False) for name in names]
    return StateSchema(panes.key, pa.schema(fields))


@dataclass(frozen=True)
class Totals:
    """The panes and the totals of one operator, in one slot and epoch."""

    operator: PerKey
    window: Sliding
    state: StateSession
    clock: EpochClock

    @cached_property
    def totals(self) -> StateSession:
        return self.state.beside[TOTALS]

    @cached_property
    def kept(self) -> pa.Schema:
        return self.state.schema.values

    # Rows and partials --------------------------------------------------------------------------

    @classmethod
    def touched(
        cls, operator: PerKey, groups: Groups, state: StateSession, clock: EpochClock
    ) -> Touched | None:
        """To be asked before panes are written: which of them are in totals already."""
        mine: Any = operator.window
        before = mine.reached(clock)[0] if TOTALS in state.beside else None
        if before is None:
            return None
        starts = groups.columns.column(START).view(pa.int64()).to_numpy()
        index = np.flatnonzero(starts < mine.entered(mine.first_open(before)))
        if not len(index):
            return None
        panes = groups.take(index)
        totals = cls(operator, mine, state, clock)
        return Touched(totals, panes, totals._words(state.read(panes), len(panes)))

    # When windows close -------------------------------------------------------------------------

    def close(self) -> pa.RecordBatch | None:
        before, now = self.window.reached(self.clock)
        if now is None:
            return None
        low = None if before is None else self.window.first_open(before)
        high = self.window.first_open(now)
        if low == high:
            return None
        starts = None
        if low is not None and high != FOREVER:
            starts = self.window.starts_between(low, high, WINDOWS_MAX)
        if low is not None and starts is not None:
            entered = self.window.entered(low)
            found = self.state.scan(START, [(low, high), (entered, FOREVER)])
            fresh = int(np.count_nonzero(found.values >= entered))
            held = self.totals.all()
            if int(held[PANES].sum()) + fresh == self.state.rows:
                ends = self.window.ends_of(starts)
                rows = found.rows(np.flatnonzero(found.values < ends[-1]))
                closing = _Closing.of(self, held, rows, (high, entered), starts, ends)
                if closing is not None:
                    return closing.done()
        return self._read_all(low, high)

    def _read_all(self, low: int | None, high: int) -> pa.RecordBatch | None:
        """The same from all panes, and totals made anew."""
        stale = self.totals.all()
        self.totals.remove_rows(stale)
        rows = self.window.held_before(self.state, high)
        if not len(rows):
            return None
        results = self.window.windows(self.operator, rows, low, high).results
        batch = of_results(self.operator, results)
        over = rows[START] < high
        self.state.remove_rows(rows.take(np.flatnonzero(over)))
        stay = rows.take(np.flatnonzero(~over))
        if len(stay) and high != FOREVER:
            groups = keys_of(stay).groups
            made = {}
            for name, words in self._words(stay, len(stay)).items():
                made[name] = np.zeros(len(groups), np.int64)
                np.add.at(made[name], groups.codes, words)
            self.totals.write(groups, made)
        return batch

    # Panes as words -----------------------------------------------------------------------------

    def _words(self, held: Held | StateRows, count: int) -> Words:
        """What panes add to a total; zeros for those that are not there."""
        there = held.found if isinstance(held, Held) else np.ones(count, np.bool_)
        large = np.zeros(count, np.bool_)
        found: Words = {}
        for kept in self.kept:
            words, valid = to_words(held.arrow(kept.name))
            limit = self._least_large(kept.type)
            too = (words >= limit) | (words <= -limit)
            if words.dtype == np.float64:
                too |= ~np.isfinite(words) | (words != np.floor(words))
                words = np.where(too, 0.0, words).astype(np.int64)
            large |= too
            found[kept.name] = words
            if kept.nullable:
                found[THERE + kept.name] = (there if valid is None else valid).astype(np.int64)
        return {PANES: there.astype(np.int64), LARGE: large.astype(np.int64), **found}

    def _least_large(self, kind: pa.DataType) -> int:
        """From where on the sums of all panes of a window may not be exact."""
        exact: int = 2**53 if pa.types.is_floating(kind) else 2**62
        return exact // (self.window.panes_per_window + 1)


@dataclass(frozen=True)
class Touched:
    """Panes that are in totals, as they were before rows came to them."""

    totals: Totals
    panes: SomeKeys
    before: Words

    def follow(self) -> None:
        """Add to the totals what has come to the panes since."""
        mine, panes = self.totals, self.panes
        after = mine._words(mine.state.read(panes), len(panes))
        names = mine.state.schema.key.names
        groups = KeyedRows(panes.columns.select(range(len(names))), names, panes.route).groups
        held, new = mine.totals.read(groups), {}
        for name, words in after.items():
            new[name] = held[name].copy()
            np.add.at(new[name], groups.codes, words - self.before[name])
        mine.totals.write(groups, new)


@dataclass(frozen=True)
class _Closing:
    """Windows that are closed by totals: a row of words per window, a column per key."""

    of_totals: Totals
    rows: StateRows  # that are new in the windows, or go with them
    starts: I64
    high: int
    groups: Groups  # the keys of the totals, then those of the rows that are not among them
    before: Words
    after: Mapping[str, I64]  # what each window holds, and in the end what goes into the next one

    @classmethod
    def of(
        cls,
        totals: Totals,
        held: StateRows,
        rows: StateRows,
        bounds: tuple[int, int],
        starts: I64,
        ends: I64,
    ) -> _Closing | None:
        """None if sums may have left their range, or there are too many."""
        high, entered = bounds
        keyed = keys_of(held, rows)
        groups, at = keyed.groups, rows[START]
        known, keys, steps = len(held), len(groups), len(starts) + 1
        if steps > 2 and steps * keys > _WORDS_MAX:
            return None
        codes = groups.codes[known:]
        comes = np.flatnonzero(at >= entered)
        goes = np.flatnonzero(at < high)
        first = np.searchsorted(ends, at[comes], "right") * keys + codes[comes]
        last = np.searchsorted(starts, at[goes], "right") * keys + codes[goes]
        before, after = {}, {}
        for name, words in totals._words(rows, len(rows)).items():
            steps_of = np.zeros(steps * keys, np.int64)
            steps_of[:known] = held[name]
            np.add.at(steps_of, first, words[comes])
            np.subtract.at(steps_of, last, words[goes])
            before[name] = held[name]
            after[name] = np.cumsum(steps_of.reshape(steps, keys), axis=0)
            if name == LARGE and after[name][:-1].any():
                return None
        return cls(totals, rows, starts, high, groups, before, after)

    def done(self) -> pa.RecordBatch | None:
        results = self._results()
        operator, state = self.of_totals.operator, self.of_totals.state
        state.remove_rows(self.rows.take(np.flatnonzero(self.rows[START] < self.high)))
        self._keep()
        return of_results(operator, results)

    def _results(self) -> StateRows:
        """A row for each window of a key that has panes in it, by start and then by route."""
        panes, route = self.after[PANES][:-1], self.groups.route
        order: Any = slice(None)
        if len(self.before[PANES]) < len(route):
            order = np.argsort(route, kind="stable")
        hit = np.flatnonzero(panes[:, order].reshape(-1))
        window, key = np.divmod(hit, max(1, len(route)))
        if not isinstance(order, slice):
            key = order[key]
        at = window * len(route) + key
        layout, keys = self.rows.layout, self.groups.columns
        columns: dict[str, Values] = {}
        for number, name in enumerate(layout.schema.key.names):
            column = layout.columns[f"key.{name}"]
            columns[column.name] = column.store(keys.column(number), len(route)).take(key)
        start = layout.find(START)
        columns[start.name] = start.store(self.starts[window], len(at))
        for kept in self.of_totals.kept:
            words: Any = self.after[kept.name][:-1].reshape(-1)[at]
            there = (
                self.after[THERE + kept.name][:-1].reshape(-1)[at] > 0 if kept.nullable else None
            )
            if pa.types.is_floating(kept.type):
                words = words.astype(np.float64)
            column = layout.find(kept.name)
            columns[column.name] = column.store(from_words(words, there, kept.type), len(at))
        return StateRows(layout, RowIds(route[key], route[key], route[key]), columns)

    def _keep(self) -> None:
        """Write the totals that have changed, and remove those of keys without panes."""
        totals, known = self.of_totals.totals, len(self.before[PANES])
        last = {name: words[-1] for name, words in self.after.items()}
        changed = last[PANES] > 0
        changed[:known] &= _differ(last, self.before, known)
        gone = np.flatnonzero(last[PANES][:known] == 0)
        if len(gone):
            totals.remove(self.groups.take(gone))
        if changed.all():
            totals.write(self.groups, last)
        elif changed.any():
            index = np.flatnonzero(changed)
            totals.write(self.groups.take(index), {n: words[index] for n, words in last.items()})


def _differ(last: Mapping[str, I64], before: Words, known: int) -> Bools:
    differs = np.zeros(known, np.bool_)
    for name, words in before.items():
        differs |= last[name][:known] != words
    return differs


def keys_of(*parts: StateRows) -> KeyedRows:
    """The keys of state rows, without sub-keys."""
    schema = parts[0].layout.schema.key
    batches = [part.keys.select(schema.names) for part in parts]
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    return KeyedRows(whole[0], schema.names, np.concatenate([part.route for part in parts]))
