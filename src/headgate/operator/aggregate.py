"""Operators with one result per key: when and what they emit, with windows and without.

How most of them are declared, by the columns that they keep, is in `measure.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError, NameClash
from headgate.operator.arithmetic import from_words
from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.changes import Lines, nulls_of, seen_now, side_by_side, told_as
from headgate.operator.panes import Ranges, with_values
from headgate.operator.rows import (
    EpochClock,
    Groups,
    KeyedRows,
    Partials,
    SomeKeys,
    partial_schema,
)
from headgate.operator.totals import Totals
from headgate.operator.window import (
    CHANGE,
    DELETE,
    INSERT,
    SEEN,
    TIMESTAMP,
    UPDATE,
    Window,
    check_window,
)
from headgate.state.rows import Held, StateRows
from headgate.state.session import PrivateSession, StateSession

TOUCHED = "@touched"  # stands in for the key columns of a global operator, which has none


class PerKey(StatefulOperator):
    """Base of operators with one result per key, or per key and window.

    `emit="updates"`: one row per key touched in the epoch, with its final result. `"rows"`: input
    rows pass on unchanged, the result is only kept. `"running"`: input rows pass on with the result
    after that row appended. With a `window`, results come once, when the window is final.
    `"changes"`: one row per key (and window) touched in the epoch, with the result so far and a
    column `change` (see `changes.py`).

    Which keys an epoch touched is the carry: each call names its keys, and `finish` emits one row
    for each, however many calls and tasks the epoch took.
    """

    instead: ClassVar[str] = "choose another name="  # the way out of a name clash
    emit: Emit = "updates"
    window: Window | None = None

    # What a built-in answers ------------------------------------------------------------------

    def reads(self) -> set[str]:
        """The input columns that go into the result."""
        raise NotImplementedError

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        """Value columns of the state. Raises a DeclarationError if the input does not fit."""
        raise NotImplementedError

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        """The columns of a result. Raises a DeclarationError if the input does not fit."""
        raise NotImplementedError

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        """Fold rows into the state of their groups."""
        raise NotImplementedError

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        """Fold partials into the state of their groups."""
        raise self._not_mergeable()

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        """The results that state rows stand for, in the columns of `result_fields`."""
        raise NotImplementedError

    def lines(self, results: StateRows, new: Bools) -> Lines:
        """The output rows of results of a window; `new`: those of which nothing was told before."""
        return Lines(self.results(results), np.where(new, INSERT, UPDATE))

    def gone(self, panes: StateRows, ranges: Ranges) -> Lines:
        """The output rows that take back what was told of these stretches of panes."""
        schema = self.results(panes.take(ranges.lo)).schema
        return Lines(nulls_of(schema, len(ranges)), np.repeat(DELETE, len(ranges)))

    def together(self, results: StateRows, told: Bools) -> Bools:
        """Which results are told if these are: those that share a ranking with them."""
        return told

    def settle(self, state: StateSession, touched: Groups) -> None:
        """Results were told; what tells what an epoch changed may be forgotten."""

    def joined(self, left: StateRows, right: StateRows) -> StateRows:
        """State rows merged pairwise: what the rows behind both would have come to."""
        schema = left.layout.schema
        with PrivateSession(schema) as state:
            state.absorb(left)
            values = right.batch().columns[len(schema.row_key) :]
            batch = pa.RecordBatch.from_arrays(
                [*left.keys.columns, *values], schema=partial_schema(schema)
            )
            partials = Partials(batch, schema)
            self.merge(partials, partials.groups, state)
            held = state.read(partials.groups)
            return with_values(left, {name: held.arrow(name) for name in schema.values.names})

    def combined(self, panes: StateRows, ranges: Ranges) -> StateRows:
        """One row for each stretch of panes, merged. Override it where that can be cheaper."""
        merged: StateRows = ranges.merged(panes, self.joined)
        return merged

    def why_not_merged(self, rows: pa.Schema) -> str:
        """Why states of parts of a key's rows do not merge into that of all, to the last bit.

        Half a sentence; nothing if they do.
        """
        return ""

    def why_not_panes(self, rows: pa.Schema) -> str:
        """Why it cannot be merged from parts of its rows even in the order of time; "": it can."""
        return ""

    def counts(self, rows: KeyedRows) -> Bools | None:
        """Which rows count towards a window (None: all)."""
        return None

    # When it emits ----------------------------------------------------------------------------

    @property
    def early(self) -> bool:
        """Are results told before they are final?"""
        return self.emit == "changes"

    @property
    def tells(self) -> bool:  # type: ignore[override]
        """Has the output a column `change`?"""
        return self.early or (self.window is not None and self.window.lateness_us > 0)

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        """Are results told again as they change, without a word?"""
        return self.emit == "updates" if self.window is None else self.window.repeats

    def check_emit(self) -> None:
        """Raise if there is no way to emit so. To be called when the operator is declared."""
        who = type(self).__name__
        if self.window is None:
            return
        check_window(self.window, who)
        if self.emit not in ("updates", "changes"):
            raise DeclarationError(
                f"{self!r}: a window emits when it is final; leave out emit={self.emit!r}",
                operator=who,
            )

    # The contract -----------------------------------------------------------------------------

    def sub_key(self, rows: pa.Schema) -> pa.Schema:
        return pa.schema([]) if self.window is None else self.window.sub_key

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        own: list[pa.Field] = []
        if self.window is not None:
            own = self.window.held_fields(self.tells)
        elif self.tells:
            own = [pa.field(SEEN, pa.int64(), nullable=False)]
        return StateFields(pa.schema([*self.held_fields(rows), *own]), self.sub_key(rows))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        results = self.result_fields(rows)
        if self.emit == "rows":
            return rows
        head = list(rows) if self.emit == "running" else [rows.field(name) for name in key]
        if self.window is not None:
            self.window.check(rows, key, type(self).__name__)
            head += self.window.bounded
            why = self.why_not_panes(rows)
            if why and self.window.needs_merge:
                raise DeclarationError(
                    f"{type(self).__name__} does not work in {self.window!r}, whose results are "
                    f"merged from parts: {why}. Use Tumbling",
                    operator=type(self).__name__,
                )
        results = [*results, CHANGE] if self.tells else results
        names = [f.name for f in (*head, *results)]
        for name in (f.name for f in results):
            if names.count(name) > 1:
                raise NameClash(
                    f"{type(self).__name__} adds a column {name!r}, which is there already; "
                    f"{self.instead}",
                    column=name,
                    operator=type(self).__name__,
                )
        return pa.schema([*head, *results])

    def known_by(self, key: Sequence[str]) -> tuple[str, ...] | None:
        bounds = () if self.window is None else self.window.bounded
        return (*key, *(bound.name for bound in bounds))

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        if not self._carries:
            return None
        keys = [*(rows.field(name) for name in key), *self.sub_key(rows)]
        if self.sub_key(rows):
            keys = [one.with_nullable(True) for one in keys]
        return pa.schema(keys or [pa.field(TOUCHED, pa.bool_())])

    @property
    def _carries(self) -> bool:
        if self.window is None:
            return self.emit in ("updates", "changes")
        return self.tells or self.window.wants_touched

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key} | self.reads()
        if self.window is not None:
            own |= self.window.reads
        passes_on = self.emit in ("rows", "running")
        return own | (wanted & set(rows.names)) if passes_on else own

    def passes(self, rows: pa.Schema) -> set[str]:
        return set(rows.names) if self.emit in ("rows", "running") else set()

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if self.window is None:
            return self.fold(rows, rows.groups, state)
        placed = self.window.place(rows, clock)
        dead, chosen, starts, times = placed.dead, placed.kept, placed.starts, placed.times
        counted = self.counts(rows)
        if counted is not None:
            chosen = chosen & counted
        kept = None
        if not chosen.all():
            kept = np.flatnonzero(chosen)
            rows, starts, times = rows.take(kept), starts[kept], times[kept]
        output = Output()
        if len(rows):
            names = self.sub_key(rows.batch.schema).names
            groups = rows.groups
            if names:
                columns = [from_words(starts, None, TIMESTAMP), *map(rows.column, names[1:])]
                groups = rows.sub_groups(names, columns)
            held = state.read(groups)
            self.window.before(held)
            touched = Totals.touched(self, groups, state, clock)
            output = self.fold(rows, groups, state)
            if touched is not None:
                touched.follow()
            good = _taken(groups, output)
            if good is None or good.any():
                self.window.note(times, groups, held, state, good)
            dead |= {
                row if kept is None else int(kept[row]): why for row, why in output.dead.items()
            }
        return Output(dead=dead, late=placed.late, carry=output.carry)

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        touched = None
        if carry is not None and carry.num_rows:
            names = [] if carry.schema.names == [TOUCHED] else carry.schema.names
            sub = len(state.schema.sub)
            keyed = KeyedRows(carry, state.schema.keyed_by.called(names[: len(names) - sub]))
            touched = keyed.groups
            if sub:
                touched = keyed.sub_groups(names[-sub:], carry.columns[-sub:])
        if self.window is not None:
            return self.window.finish(self, state, clock, touched)
        if touched is None:
            return None
        parts = [touched.columns] if touched.columns.schema.names != [TOUCHED] else []
        parts.append(self.results(state.read(touched)))
        if self.tells:
            new = seen_now(state, clock, touched)
            parts.append(told_as(np.where(new, INSERT, UPDATE)))
        return side_by_side(*parts)

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output:
        if not self.splits:
            raise self._not_mergeable()
        if not len(partials):
            return Output()
        if self.window is None:
            return self.merge(partials, partials.groups, state)
        groups = partials.groups
        held = state.read(groups)
        self.window.before(held)
        touched = Totals.touched(self, groups, state, clock)
        output = self.merge(partials, groups, state)
        if touched is not None:
            touched.follow()
        good = _taken(groups, output)
        if good is None or good.any():
            self.window.absorb(partials, groups, held, state, good)
        return output

    @property
    def splits(self) -> bool:
        """Not `emit="running"`, which needs what is held, nor `ordered`, which needs all rows."""
        return self.emit != "running" and not self.ordered

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        return self.splits and not self.why_not_merged(rows)

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        if self.emit == "running":
            return (
                "emit='running' gives every row the value after it, which only the slot that owns "
                "the key knows; emit='updates' or 'rows' can be split"
            )
        return self.why_not_merged(rows) or super().why_not_mergeable(rows, key)

    def held_from(self, watermark_us: int) -> int | None:
        return None if self.window is None else self.window.held_from(watermark_us)

    @property
    def by_clock(self) -> bool:
        return self.window is not None and self.window.by_clock

    def late_by(self, side: int = 0) -> tuple[str, ...]:
        time = None if self.window is None else self.window.time_column
        return () if time is None else (time,)

    def is_late(self, times_us: I64, clock: EpochClock) -> Bools:
        assert self.window is not None
        return self.window.is_late(self.window.starts_of(times_us), times_us, clock)

    @property
    def wants_dead_letters(self) -> bool:
        return self.window is not None and self.window.late == "dead_letters"

    @property
    def emits_at_end(self) -> bool:
        return self.emit in ("updates", "changes")

    def touched(self, keys: Groups | SomeKeys) -> pa.RecordBatch | None:
        """The carry that names these keys to `finish`."""
        if not self._carries:
            return None
        if keys.columns.num_columns:
            return keys.columns
        return pa.RecordBatch.from_arrays([pa.array(np.ones(len(keys), np.bool_))], [TOUCHED])


def _taken(groups: Groups, output: Output) -> Bools | None:
    """The groups whose rows (or partials) were not refused, which are all of a group; None: all."""
    if not output.dead:
        return None
    taken = np.ones(len(groups), np.bool_)
    taken[groups.codes[list(output.dead)]] = False
    return taken
