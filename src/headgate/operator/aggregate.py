"""What all aggregates share: reading, folding and writing state, and three ways to emit.

A built-in says how rows fold into the held columns of their group and what those columns mean;
when to emit, windows, late rows and overflow are settled here, once.

Costs in the docstrings are CPU time per row of a whole epoch, from hashing to commit, at 500,000
rows of 20,000 integer keys; text keys add about 50 ns for their hash, `emit="running"` 20 to 40.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, get_args

import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, NameClash
from headgate.operator.arithmetic import SumOverflow
from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import BOUNDS, SUB_KEY, Tumbling, check_window
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession

Items = TypeVar("Items", KeyedRows, Partials)


@dataclass(frozen=True)
class Aggregate(StatefulOperator):
    """Base of the aggregates: one value per key, or per key and window.

    `emit="updates"`: one row per key touched in the epoch, with its final value. `"rows"`: input
    rows pass on unchanged, the value is only kept. `"running"`: input rows pass on with the value
    after that row appended as column `name`. With a `window`, results come once, when the
    window is final, and `emit` must be left alone. `ttl` and `ordered` as in `StatefulOperator`.
    """

    column: str | None
    emit: Emit = "updates"
    name: str = "value"
    window: Tumbling | None = None
    ttl: str | timedelta | None = field(default=None, kw_only=True, repr=False)
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ends_epochs: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        check_emit(self, self.emit, get_args(Emit))
        if self.window is not None:
            check_window(self.window, type(self).__name__)
        if self.window is not None and self.emit != "updates":
            raise DeclarationError(
                f"{self!r}: a window emits when it is final; leave out emit={self.emit!r}",
                operator=type(self).__name__,
            )
        object.__setattr__(self, "ends_epochs", self.window is not None)

    # What a built-in answers ------------------------------------------------------------------

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        """Arrow type of the result. Raises a DeclarationError if the column does not fit."""
        raise NotImplementedError

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        """Value columns of the state."""
        raise NotImplementedError

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        """The held columns of every group after the rows; may raise SumOverflow."""
        raise NotImplementedError

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        """The result after each row, in arrival order, given what was held before the batch."""
        raise NotImplementedError

    def fold_running(
        self, rows: KeyedRows, groups: Groups, held: Held
    ) -> tuple[dict[str, Any], pa.Array]:
        """Both at once, for a built-in that can share the work."""
        return self.fold(rows, groups, held), self.running(rows, groups, held)

    def result(self, held: Held | StateRows) -> pa.Array:
        """The result that held columns stand for."""
        raise NotImplementedError

    def merges(self, rows: pa.Schema) -> bool:
        """Do held columns of parts of a key's rows merge into those of all, to the last bit?"""
        return False

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        """The held columns of every group after the partials; may raise SumOverflow."""
        raise self._not_mergeable()

    def why_not_merged(self) -> str:
        """Why `merges` says no, half a sentence."""
        return "what it keeps of parts of a key's rows cannot be merged"

    # The contract -----------------------------------------------------------------------------

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        sub = pa.schema([]) if self.window is None else SUB_KEY
        return StateFields(pa.schema(self.held_fields(rows)), sub)

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        value = pa.field(self.name, self.value_type(rows))
        if self.emit == "rows":
            return rows
        if self.emit == "running":
            head = list(rows)
        elif self.window is None:
            head = [rows.field(name) for name in key]
        else:
            self.window.check(rows, key, type(self).__name__)
            head = [*(rows.field(name) for name in key), *BOUNDS]
        if self.name in {f.name for f in head}:
            raise NameClash(
                f"{type(self).__name__} adds a column {self.name!r}, which is there already; "
                "choose another name=",
                column=self.name,
                operator=type(self).__name__,
            )
        return pa.schema([*head, value])

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        if self.emit != "updates" or self.window is not None:
            return None
        return touched_schema(rows, key)

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key} | ({self.column} if self.column is not None else set())
        if self.window is not None:
            own.add(self.window.time)
        return own if self.emit == "updates" else own | (wanted & set(rows.names))

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if self.window is None:
            return self.fold_in(rows, rows.groups, lambda some: some.groups, state)
        placed = self.window.place(rows, clock)
        output = self.fold_in(placed.rows, placed.groups, self.window.groups, state)
        return placed.report(output.dead)

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if self.window is not None:
            return self._close(self.window, state, clock)
        if carry is None or not carry.num_rows:
            return None
        groups = touched_keys(carry)
        return updates(groups, {self.name: self.result(state.read(groups))})

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        """Not `emit="running"`, which needs what is held, nor `ordered`, which needs all rows."""
        return self._may_split and self.merges(rows)

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        if self.emit == "running":
            return (
                "emit='running' gives every row the value after it, which only the slot that owns "
                "the key knows; emit='updates' or 'rows' can be split"
            )
        if not self.ordered and not self.merges(rows):
            return self.why_not_merged()
        return super().why_not_mergeable(rows, key)

    def held_from(self, watermark_us: int) -> int | None:
        return None if self.window is None else self.window.start_of(watermark_us)

    @property
    def emits_at_end(self) -> bool:
        return self.emit == "updates"

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output:
        """As `process`: a key whose sum would overflow stays, and its partials are dead."""
        if not self._may_split:
            raise self._not_mergeable()

        def merged(some: Partials, groups: Groups) -> Output:
            state.write(groups, self.merge(some, groups, state.read(groups)))
            return Output(carry=self._carry(groups))

        return self._without_overflow(partials, partials.groups, lambda some: some.groups, merged)

    @property
    def _may_split(self) -> bool:
        return self.emit != "running" and not self.ordered

    def describe(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.describe()
        return {"operator": type(self).__name__, "column": self.column, "window": window}

    # Inside -----------------------------------------------------------------------------------

    def fold_in(
        self,
        rows: KeyedRows,
        groups: Groups,
        regroup: Callable[[KeyedRows], Groups],
        state: StateSession,
    ) -> Output:
        """Fold the rows into the state of their groups; `regroup` groups some of them."""

        def folded(some: KeyedRows, groups: Groups) -> Output:
            held = state.read(groups)
            if self.emit == "running":
                new, running = self.fold_running(some, groups, held)
                batch = some.batch.append_column(self.name, running)
            else:
                new = self.fold(some, groups, held)
                batch = some.batch if self.emit == "rows" else None
            state.write(groups, new)
            return Output(batch, carry=self._carry(groups))

        return self._without_overflow(rows, groups, regroup, folded)

    def _without_overflow(
        self,
        items: Items,
        groups: Groups,
        regroup: Callable[[Items], Groups],
        write: Callable[[Items, Groups], Output],
    ) -> Output:
        """Groups whose sum would overflow stay as they are; their rows (or partials) are dead."""
        if not len(items):
            return Output()
        try:
            return write(items, groups)
        except SumOverflow as overflow:
            bad = overflow.groups[groups.codes]
        kept = np.flatnonzero(~bad)
        good = items.take(kept)
        output = self._without_overflow(good, regroup(good), regroup, write)
        why = f"{type(self).__name__} of column {self.column!r} leaves the 64-bit range"
        dead = dict.fromkeys(np.flatnonzero(bad).tolist(), why)
        dead |= {int(kept[row]): reason for row, reason in output.dead.items()}
        origins = None
        if output.batch is not None:
            origins = kept if output.origins is None else kept[output.origins]
        return replace(output, dead=dead, origins=origins)

    def _carry(self, groups: Groups) -> pa.RecordBatch | None:
        return touched(groups) if self.emit == "updates" and self.window is None else None

    def _close(
        self, window: Tumbling, state: StateSession, clock: EpochClock
    ) -> pa.RecordBatch | None:
        rows = window.closed(state, clock)
        if rows is None:
            return None
        key, value = rows.layout.schema.key, self.result(rows)
        batch = pa.RecordBatch.from_arrays(
            [*(rows.keys.column(name) for name in key.names), *window.bounds(rows), value],
            schema=pa.schema([*key, *BOUNDS, pa.field(self.name, value.type)]),
        )
        state.remove_rows(rows)
        return batch


def check_emit(operator: object, emit: str, allowed: Sequence[str]) -> None:
    """Raise unless `emit` is one of the ways this operator knows."""
    if emit not in allowed:
        raise DeclarationError(
            f"{type(operator).__name__} cannot emit {emit!r}; choose one of "
            f"{', '.join(map(repr, allowed))}",
            operator=type(operator).__name__,
        )


# Which keys an epoch touched: the carry of every operator that emits updates. Each call names its
# keys; `finish` finds all of them together, makes them distinct, and emits one row per key, however
# many calls and tasks the epoch took.

TOUCHED = "@touched"  # stands in for the key columns of a global operator, which has none


def touched_schema(rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Schema of a carry that names the keys touched."""
    if not key:
        return pa.schema([pa.field(TOUCHED, pa.bool_())])
    return pa.schema([rows.field(name) for name in key])


def touched(groups: Groups) -> pa.RecordBatch:
    """The keys of a call, for `finish` to find."""
    keys = groups.columns
    if keys.num_columns:
        return keys
    return pa.RecordBatch.from_arrays([pa.array(np.ones(len(groups), np.bool_))], [TOUCHED])


def updates(groups: Groups, values: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """One row per key: its columns, then these."""
    keys = groups.columns
    fields = [pa.field(name, column.type) for name, column in values.items()]
    return pa.RecordBatch.from_arrays(
        [*keys.columns, *values.values()], schema=pa.schema([*keys.schema, *fields])
    )


def touched_keys(carry: pa.RecordBatch) -> Groups:
    """The distinct keys of the epoch's carries."""
    names = carry.schema.names
    return KeyedRows(carry, [] if names == [TOUCHED] else names).groups
