"""Operators with one result per key: when to emit, windows, overflow, and how one is declared.

`PerKey` settles when and what to emit. An `Aggregate` is a `PerKey` that is declared by the columns
it keeps, each an `Accumulator`: which input it takes, and how values and partials join it. Its
result is made of those columns, wherever they come from: the state, a closed window, every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from headgate.arrays import Bools
from headgate.errors import DeclarationError, NameClash
from headgate.operator.arithmetic import Fold, from_words
from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.changes import seen_now, side_by_side, told_as
from headgate.operator.panes import Ranges, Singles, held_of, with_values
from headgate.operator.rows import (
    EpochClock,
    Groups,
    KeyedRows,
    Partials,
    SomeKeys,
    partial_schema,
)
from headgate.operator.window import (
    CHANGE,
    INSERT,
    SEEN,
    TIMESTAMP,
    UPDATE,
    Window,
    check_window,
)
from headgate.state.rows import Held, StateRows
from headgate.state.session import PrivateSession, StateSession
from headgate.topology.arguments import check_choice
from headgate.topology.schema import column_of

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

    def choose(self, closed: StateRows) -> StateRows:
        """Which results of final windows to emit, and in which order."""
        return closed

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
    def tells(self) -> bool:
        """Has the output a column `change`?"""
        return self.early or (self.window is not None and self.window.lateness_us > 0)

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
        if self.tells and type(self).choose is not PerKey.choose:
            raise DeclarationError(
                f"{who} ranks what a window holds once, when it is final; leave out "
                "allowed_lateness= (a larger watermark= of the source waits for late rows)",
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

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        if not self._carries:
            return None
        keys = [*(rows.field(name) for name in key), *self.sub_key(rows)]
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
            output = self.fold(rows, groups, state)
            if output.dead:  # all rows of their groups were refused
                refused = np.zeros(len(groups), np.bool_)
                refused[groups.codes[list(output.dead)]] = True
                good = np.flatnonzero(~refused[groups.codes])
                if len(good):
                    self.window.note(times, groups, held, state, ~refused)
            else:
                self.window.note(times, groups, held, state, None)
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
            sub = 0 if self.window is None else len(self.window.sub_key)
            keyed = KeyedRows(carry, names[: len(names) - sub])
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
        output = self.merge(partials, groups, state)
        self.window.absorb(partials, groups, held, state)
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


class Accumulator:
    """A column of an aggregate's state, and how values join it.

    `wanted` tells a user what input it `takes`. `nullable`: null until there is a value.
    """

    wanted: str = ""
    nullable: bool = False

    def takes(self, kind: pa.DataType) -> bool:
        return True

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        """What is kept of values of that type."""
        return kind

    def exact(self, kind: pa.DataType) -> bool:
        """Is the outcome the same, to the last bit, in whatever order values and partials come?"""
        return True

    def add(self, fold: Fold, kept: pa.Field, values: Any) -> Any:
        """The column `kept`, with the values of an input column added."""
        raise NotImplementedError

    def merge(self, fold: Fold, kept: pa.Field, partials: pa.Array) -> Any:
        """The same with partials added; for most they are values like others."""
        return self.add(fold, kept, partials)

    def over(self, panes: StateRows, kept: pa.Field, ranges: Ranges) -> Any:
        """The column `kept` of windows that are stretches of panes; by default merged pairwise."""

        def join(left: StateRows, right: StateRows) -> StateRows:
            overflow = np.zeros(len(left), np.bool_)
            fold = Fold(Singles(len(left)), held_of(left.layout, left), overflow)
            merged = self.merge(fold, kept, right.arrow(kept.name))
            return with_values(left, {kept.name: merged})

        name = panes.layout.find(kept.name).name
        column = StateRows(panes.layout, panes.ids, {name: panes.columns[name]})
        return ranges.merged(column, join).arrow(kept.name)


Parts: TypeAlias = Mapping[str, Accumulator]


@dataclass(frozen=True)
class Aggregate(PerKey):
    """Base of the aggregates: one value per key, or per key and window, in column `name`.

    `emit` as in `PerKey`; with a `window` it must be left alone. `ttl` and `ordered` as in
    `StatefulOperator`.
    """

    parts: ClassVar[Parts]  # state columns; the first has the result's type
    exact = True  # merge only where that changes no bit

    column: str | None
    emit: Emit = "updates"
    name: str = "value"
    window: Window | None = None
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ends_epochs: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_choice(self.emit, f"{who}: emit", get_args(Emit), operator=who)
        self.check_emit()
        object.__setattr__(self, "ends_epochs", self.window is not None)

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The results that state columns stand for."""
        return next(iter(columns.values()))

    def reads(self) -> set[str]:
        return set() if self.column is None else {self.column}

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        who, kind = type(self).__name__, self._input_type(rows)
        for part in self.parts.values():
            if not part.takes(kind):
                raise DeclarationError(
                    f"{who} cannot take column {self.column!r} of type {kind}; it needs "
                    f"{part.wanted}",
                    column=self.column,
                    operator=who,
                )
        return [
            pa.field(name, part.type_of(kind), nullable=part.nullable)
            for name, part in self.parts.items()
        ]

    def _input_type(self, rows: pa.Schema) -> pa.DataType:
        if self.column is None:
            return pa.null()
        return column_of(rows, self.column, type(self).__name__).type

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [pa.field(self.name, self.held_fields(rows)[0].type)]

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        result = self.result({name: held.arrow(name) for name in self.parts})
        return pa.RecordBatch.from_arrays([result], [self.name])

    def step(self, fold: Fold, rows: KeyedRows) -> tuple[dict[str, Any], pa.Array | None]:
        """The state columns after the rows; for `emit="running"` also the result after each row."""
        values = None if self.column is None else rows.column(self.column)
        kept = {f.name: f for f in self.held_fields(rows.batch.schema)}
        new = {name: part.add(fold, kept[name], values) for name, part in self.parts.items()}
        if self.emit != "running":
            return new, None
        each, parts = fold.running(), self.parts.items()
        running = {name: _arrow(part.add(each, kept[name], values)) for name, part in parts}
        return new, self.result(running)

    def merge_step(self, fold: Fold, partials: Partials) -> dict[str, Any]:
        """The state columns after the partials."""
        kept, columns = partials.schema.values, partials.column
        parts = self.parts.items()
        return {name: part.merge(fold, kept.field(name), columns(name)) for name, part in parts}

    def combined(self, panes: StateRows, ranges: Ranges) -> StateRows:
        kept = {f.name: f for f in panes.layout.schema.values}
        merged = {name: part.over(panes, kept[name], ranges) for name, part in self.parts.items()}
        return with_values(panes.take(ranges.lo), merged)

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        fold = Fold.into(groups, state)
        new, running = self.step(fold, rows)
        batch = rows.batch if self.emit in ("rows", "running") else None
        if running is not None:
            batch = rows.batch.append_column(self.name, running)
        return self._write(fold, new, state, batch)

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        fold = Fold.into(groups, state)
        return self._write(fold, self.merge_step(fold, partials), state)

    def _write(
        self,
        fold: Fold,
        new: Mapping[str, Any],
        state: StateSession,
        batch: pa.RecordBatch | None = None,
    ) -> Output:
        """Write the state; groups that overflow stay, and their rows (or partials) are dead."""
        groups = fold.groups
        if not fold.overflow.any():
            state.write(groups, new)
            return Output(batch, carry=self.touched(groups))
        why = f"{type(self).__name__} of column {self.column!r} leaves the 64-bit range"
        bad = fold.overflow[groups.codes]
        dead = dict.fromkeys(np.flatnonzero(bad).tolist(), why)
        good, kept = np.flatnonzero(~fold.overflow), np.flatnonzero(~bad)
        if not len(good):
            return Output(dead=dead)
        keys = groups.take(good)
        state.write(
            keys, {name: _arrow(column).take(pa.array(good)) for name, column in new.items()}
        )
        if batch is None:
            return Output(dead=dead, carry=self.touched(keys))
        return Output(batch.take(pa.array(kept)), kept, dead, carry=self.touched(keys))

    def why_not_merged(self, rows: pa.Schema) -> str:
        kind = self._input_type(rows)
        if not self.exact or all(part.exact(kind) for part in self.parts.values()):
            return ""
        return (
            f"sums of column {self.column!r} round differently when added in another order; "
            "exact=False allows that"
        )

    def describe(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.describe()
        told = {"operator": type(self).__name__, "column": self.column, "window": window}
        return told | ({"tells": True} if self.tells else {})


def _arrow(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)
