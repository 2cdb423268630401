"""What aggregates measure: columns of state, how values and partials join them, what they come to.

A `Measure` is declared by the columns it keeps, each an `Accumulator`: which input it takes, and
how values and partials join it. Its result is made of those columns, wherever they come from: the
state, a closed window, every row. `Measuring` is an operator with one or several of them in one row
of state: a measure by itself, or all of an `Aggregate` (`joint.py`). Partials, panes of windows,
and so sessions, are all merged by `Accumulator.merge` and `over`: an accumulator that has those
works everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import Bools
from headgate.errors import DeclarationError
from headgate.operator.aggregate import PerKey
from headgate.operator.arithmetic import Fold
from headgate.operator.base import Emit, Output, state_schema
from headgate.operator.panes import Ranges, Singles, held_of, with_values
from headgate.operator.rows import Groups, KeyedRows, Partials
from headgate.operator.totals import TOTALS, totals_schema
from headgate.operator.where import check_where, masks_of, read_by
from headgate.operator.window import Window
from headgate.state.layout import StateSchema
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice
from headgate.topology.schema import column_of


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

    def adds_up(self, kind: pa.DataType) -> bool:
        """Is it a sum of exact numbers, of which some can be taken away again?"""
        return False

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


class Measuring(PerKey):
    """Base of operators that keep measures: rows go into all of them, in one row of state."""

    adds_rows = True

    @property
    def measures(self) -> Mapping[str, Measure]:
        """By the name of the result."""
        raise NotImplementedError

    def check_emit(self) -> None:
        super().check_emit()
        for measure in self.measures.values():
            if self.emit == "running" and not measure.runs:
                who = type(measure).__name__
                raise DeclarationError(
                    f"{who} has no result after every row (emit='running'); choose 'updates', "
                    "'changes' or 'rows'",
                    operator=who,
                )

    def beside(self, rows: pa.Schema, key: Sequence[str]) -> dict[str, StateSchema]:
        window = self.window
        if window is None or not window.keeps_totals or self.tells or self.ttl is not None:
            return {}
        if not all(measure.adds_up(rows) for measure in self.measures.values()):
            return {}
        return {TOTALS: totals_schema(state_schema(self, rows, key))}

    def reads(self) -> set[str]:
        return {name for measure in self.measures.values() for name in measure.own_reads()}

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        conditions = [measure.where for measure in self.measures.values()]
        return super().needs(rows, key, wanted) | read_by(conditions, rows)

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [kept for measure in self.measures.values() for kept in measure.kept(rows)]

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        measures = self.measures.items()
        for _, measure in measures:
            check_where(measure.where, rows, type(self).__name__)
        return [pa.field(name, measure.result_type(rows)) for name, measure in measures]

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        results = [measure.result_of(held) for measure in self.measures.values()]
        return pa.RecordBatch.from_arrays(results, list(self.measures))

    def combined(self, panes: StateRows, ranges: Ranges) -> StateRows:
        merged: dict[str, Any] = {}
        for measure in self.measures.values():
            merged |= measure.over(panes, ranges)
        return with_values(panes.take(ranges.lo), merged)

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        fold = Fold.into(groups, state)
        masks = masks_of([measure.where for measure in self.measures.values()], rows.batch)
        batch = rows.batch if self.emit in ("rows", "running") else None
        new: dict[str, Any] = {}
        dead: dict[int, str] = {}
        for (name, measure), mask in zip(self.measures.items(), masks, strict=True):
            step, running = measure.step(fold, rows, mask, running=self.emit == "running")
            new |= step
            if running is not None and batch is not None:
                batch = batch.append_column(name, running)
            self._refuse(measure, fold, dead)
        return self._write(fold, new, dead, state, batch)

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        fold = Fold.into(groups, state)
        new: dict[str, Any] = {}
        dead: dict[int, str] = {}
        for measure in self.measures.values():
            new |= measure.merge_step(fold, partials)
            self._refuse(measure, fold, dead)
        return self._write(fold, new, dead, state)

    def _refuse(self, measure: Measure, fold: Fold, dead: dict[int, str]) -> None:
        """Rows (or partials) of groups that overflow are refused, by the first who says so."""
        if fold.overflow.any():
            why = f"{type(measure).__name__} of column {measure.column!r} leaves the 64-bit range"
            bad = np.flatnonzero(fold.overflow[fold.groups.codes]).tolist()
            dead.update((row, why) for row in bad if row not in dead)

    def _write(
        self,
        fold: Fold,
        new: Mapping[str, Any],
        dead: dict[int, str],
        state: StateSession,
        batch: pa.RecordBatch | None = None,
    ) -> Output:
        """Write the state; groups that overflow stay, and their rows (or partials) are dead."""
        groups = fold.groups
        if not dead:
            state.write(groups, new)
            return Output(batch, carry=self.touched(groups))
        good, kept = np.flatnonzero(~fold.overflow), np.flatnonzero(~fold.overflow[groups.codes])
        if not len(good):
            return Output(dead=dead)
        keys = groups.take(good)
        state.write(
            keys, {name: as_arrow(column).take(pa.array(good)) for name, column in new.items()}
        )
        if batch is None:
            return Output(dead=dead, carry=self.touched(keys))
        return Output(batch.take(pa.array(kept)), kept, dead, carry=self.touched(keys))

    def why_not_merged(self, rows: pa.Schema) -> str:
        return _first(measure.why_not_split(rows) for measure in self.measures.values())

    def why_not_panes(self, rows: pa.Schema) -> str:
        return _first(measure.why_not_joined(rows) for measure in self.measures.values())


@dataclass(frozen=True)
class Measure(Measuring):
    """Base of the aggregates: one value per key, or per key and window, in column `name`.

    `emit` as in `PerKey`; with a `window` only "changes". `ttl` and `ordered` as in
    `StatefulOperator`. `where`: only rows that fulfil this condition (SQL text, or an expression of
    pyarrow) go into the value; a key is there, with the value of no rows, once any row of it came.
    """

    parts: ClassVar[Parts] = MappingProxyType({})  # state columns; the first: the result's type
    exact = True  # merge only where that changes no bit
    runs: ClassVar[bool] = True  # has it a result after every row, for `emit="running"`?
    joins: ClassVar[bool] = True  # can it share a row of state with others?
    prefix = ""  # of the names of its state columns, in a row with those of others

    column: str | None
    emit: Emit = "updates"
    name: str = "value"
    window: Window | None = None
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)
    where: Any = field(default=None, kw_only=True, repr=False, compare=False)
    ends_epochs: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_choice(self.emit, f"{who}: emit", get_args(Emit), operator=who)
        self.check_emit()
        object.__setattr__(self, "ends_epochs", self.window is not None)

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {self.name: self}

    @property
    def is_its_state(self) -> bool:
        """Is its one state column the result?"""
        own, base = type(self), Measure
        plain = own.result is base.result and own.result_of is base.result_of
        return plain and own.result_type is base.result_type and len(self.parts) == 1

    @property
    def columns(self) -> Parts:
        """The accumulators by the names of their state columns."""
        return {self.prefix + name: part for name, part in self.parts.items()}

    def own_reads(self) -> set[str]:
        return set() if self.column is None else {self.column}

    def kept(self, rows: pa.Schema) -> list[pa.Field]:
        """Its state columns. Raises a DeclarationError if the input does not fit."""
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
            for name, part in self.columns.items()
        ]

    def _input_type(self, rows: pa.Schema) -> pa.DataType:
        if self.column is None:
            return pa.null()
        return column_of(rows, self.column, type(self).__name__).type

    def adds_up(self, rows: pa.Schema) -> bool:
        """See `Accumulator.adds_up`."""
        kind = self._input_type(rows)
        return bool(self.parts) and all(part.adds_up(kind) for part in self.parts.values())

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        return self.kept(rows)[0].type

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The results that state columns stand for, by the names of the parts."""
        return next(iter(columns.values()))

    def result_of(self, held: Held | StateRows) -> pa.Array:
        return self.result({name: held.arrow(self.prefix + name) for name in self.parts})

    def values(self, rows: KeyedRows, mask: Bools | None) -> pa.Array | None:
        """The input column, null in rows that do not count (None: all rows count as they are)."""
        if self.column is None:
            return None if mask is None else pa.array(mask, mask=~mask)
        values = rows.column(self.column)
        if mask is None:
            return values
        return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))

    def step(
        self, fold: Fold, rows: KeyedRows, mask: Bools | None, *, running: bool
    ) -> tuple[dict[str, Any], pa.Array | None]:
        """The state columns after the rows; if `running` also the result after each row."""
        values = self.values(rows, mask)
        kept = {f.name: f for f in self.kept(rows.batch.schema)}
        new = {name: part.add(fold, kept[name], values) for name, part in self.columns.items()}
        if not running:
            return new, None
        each = fold.running()
        after = {
            name: as_arrow(part.add(each, kept[self.prefix + name], values))
            for name, part in self.parts.items()
        }
        return new, self.result(after)

    def merge_step(self, fold: Fold, partials: Partials) -> dict[str, Any]:
        """The state columns after the partials."""
        kept, columns = partials.schema.values, partials.column
        parts = self.columns.items()
        return {name: part.merge(fold, kept.field(name), columns(name)) for name, part in parts}

    def over(self, panes: StateRows, ranges: Ranges) -> dict[str, Any]:
        """The state columns of windows that are stretches of panes."""
        kept, parts = panes.layout.schema.values, self.columns.items()
        return {name: part.over(panes, kept.field(name), ranges) for name, part in parts}

    def why_not_split(self, rows: pa.Schema) -> str:
        """See `PerKey.why_not_merged`."""
        kind = self._input_type(rows)
        if not self.exact or all(part.exact(kind) for part in self.parts.values()):
            return ""
        return (
            f"sums of column {self.column!r} round differently when added in another order; "
            "exact=False allows that"
        )

    def why_not_joined(self, rows: pa.Schema) -> str:
        """See `PerKey.why_not_panes`."""
        return ""

    def describe(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.describe()
        told = {"operator": type(self).__name__, "column": self.column, "window": window}
        if self.where is not None:
            told["where"] = str(self.where)
        return told | ({"tells": True} if self.tells else {})


def as_arrow(column: Any) -> pa.Array:
    if isinstance(column, np.ndarray) and column.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])
    return column if isinstance(column, pa.Array) else pa.array(column)


def _first(reasons: Any) -> str:
    return next((why for why in reasons if why), "")
