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
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials, SomeKeys
from headgate.operator.window import BOUNDS, SUB_KEY, TIMESTAMP, Tumbling, check_window
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice
from headgate.topology.schema import column_of

TOUCHED = "@touched"  # stands in for the key columns of a global operator, which has none


class PerKey(StatefulOperator):
    """Base of operators with one result per key, or per key and window.

    `emit="updates"`: one row per key touched in the epoch, with its final result. `"rows"`: input
    rows pass on unchanged, the result is only kept. `"running"`: input rows pass on with the result
    after that row appended. With a `window`, results come once, when the window is final.

    Which keys an epoch touched is the carry: each call names its keys, and `finish` emits one row
    for each, however many calls and tasks the epoch took.
    """

    instead: ClassVar[str] = "choose another name="  # the way out of a name clash
    emit: Emit = "updates"
    window: Tumbling | None = None

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
        """Which state rows of final windows to emit, and in which order."""
        return closed

    def why_not_merged(self, rows: pa.Schema) -> str:
        """Why states of parts of a key's rows do not merge into that of all, to the last bit.

        Half a sentence; nothing if they do.
        """
        return ""

    def counts(self, rows: KeyedRows) -> Bools | None:
        """Which rows count towards a window (None: all)."""
        return None

    # The contract -----------------------------------------------------------------------------

    def sub_key(self, rows: pa.Schema) -> pa.Schema:
        return pa.schema([]) if self.window is None else SUB_KEY

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        return StateFields(pa.schema(self.held_fields(rows)), self.sub_key(rows))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        results = self.result_fields(rows)
        if self.emit == "rows":
            return rows
        head = list(rows) if self.emit == "running" else [rows.field(name) for name in key]
        if self.window is not None:
            self.window.check(rows, key, type(self).__name__)
            head += BOUNDS
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
        if self.emit != "updates" or self.window is not None:
            return None
        keys = [rows.field(name) for name in key]
        return pa.schema(keys or [pa.field(TOUCHED, pa.bool_())])

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key} | self.reads()
        if self.window is not None:
            own.add(self.window.time)
        return own if self.emit == "updates" else own | (wanted & set(rows.names))

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if self.window is None:
            return self.fold(rows, rows.groups, state)
        starts, chosen, dead, late = self.window.place(rows, clock)
        counted = self.counts(rows)
        if counted is not None:
            chosen &= counted
        kept = None
        if not chosen.all():
            kept = np.flatnonzero(chosen)
            rows, starts = rows.take(kept), starts[kept]
        names = self.sub_key(rows.batch.schema).names
        columns = [from_words(starts, None, TIMESTAMP), *map(rows.column, names[1:])]
        refused = self.fold(rows, rows.sub_groups(names, columns), state).dead
        dead |= {row if kept is None else int(kept[row]): why for row, why in refused.items()}
        return Output(dead=dead, late=late)

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if self.window is not None:
            closed = self.window.closed(state, clock)
            if closed is None:
                return None
            best = self.choose(closed)
            key = best.keys.select(best.layout.schema.key.names)
            batch = _side_by_side(key, self.window.bounds(best), self.results(best))
            state.remove_rows(closed)
            return batch
        if carry is None or not carry.num_rows:
            return None
        names = carry.schema.names
        groups = KeyedRows(carry, [] if names == [TOUCHED] else names).groups
        return _side_by_side(groups.columns, self.results(state.read(groups)))

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output:
        if not self.splits:
            raise self._not_mergeable()
        return self.merge(partials, partials.groups, state) if len(partials) else Output()

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
        return None if self.window is None else self.window.start_of(watermark_us)

    @property
    def emits_at_end(self) -> bool:
        return self.emit == "updates"

    def touched(self, keys: Groups | SomeKeys) -> pa.RecordBatch | None:
        """The carry that names these keys to `finish`."""
        if self.emit != "updates" or self.window is not None:
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
    window: Tumbling | None = None
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ends_epochs: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_choice(self.emit, f"{who}: emit", get_args(Emit), operator=who)
        if self.window is not None:
            check_window(self.window, who)
            if self.emit != "updates":
                raise DeclarationError(
                    f"{self!r}: a window emits when it is final; leave out emit={self.emit!r}",
                    operator=who,
                )
            object.__setattr__(self, "ends_epochs", True)

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

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        fold = Fold.into(groups, state)
        new, running = self.step(fold, rows)
        batch = None if self.emit == "updates" else rows.batch
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
        return {"operator": type(self).__name__, "column": self.column, "window": window}


def _arrow(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)


def _side_by_side(*parts: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column for part in parts for column in part.columns]
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([f for p in parts for f in p.schema])
    )
