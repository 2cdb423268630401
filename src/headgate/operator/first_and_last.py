"""Operators that go by order: Deduplicate (the first row), Last, MeanOfLast (the last n values)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import F64, I64
from headgate.errors import DeclarationError, NameClash
from headgate.operator.aggregate import (
    Aggregate,
    check_emit,
    touched,
    touched_keys,
    touched_schema,
    updates,
)
from headgate.operator.aggregates import float_words, quotient
from headgate.operator.arithmetic import (
    Words,
    from_sortable,
    from_words,
    group_count,
    group_extreme,
    has_words,
    kept_words,
    running_count,
    sortable,
    to_words,
    worst,
)
from headgate.operator.base import (
    Emit,
    Output,
    StateFields,
    StatefulOperator,
    require_column,
    require_numeric,
)
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import Tumbling
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_count, positive_us, ttl_ms

BY = "@by"  # state column: the `by` value of the row that Last keeps


@dataclass(frozen=True)
class Deduplicate(StatefulOperator):
    """Pass the first row of every key on, unchanged, and drop all later ones.

    Exact, also among the rows of one batch (first in order of arrival). With `within` ("10
    minutes" or a timedelta, processing time of the epoch) a key counts as new again that long after
    the row that passed, and its state is forgotten; without it every key is remembered for good.
    Keeps nothing but the key (and a clock); about 30 ns per row. Not mergeable: whether a row
    passes must be known when it comes.

    Examples:
        >>> Deduplicate(within="1 day").ttl
        datetime.timedelta(days=1)
    """

    within: str | timedelta | None = None
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ttl: timedelta | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if self.within is not None:
            ttl_ms(self.within)
            object.__setattr__(self, "ttl", timedelta(microseconds=positive_us(self.within)))

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        return {*key} | (wanted & set(rows.names))

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if not len(rows):
            return Output()
        groups = rows.groups
        new = ~state.read(groups).found  # a key whose time is over counts as absent
        if not new.any():
            return Output()
        state.write(groups if new.all() else groups.take(new), {})
        passed = groups.first[new]
        if len(passed) == len(rows):
            return Output(rows.batch)
        return Output(rows.batch.take(pa.array(passed)), origins=passed)

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return "whether a row is the first of its key must be known when it comes"

    @property
    def emits_at_end(self) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        return {"operator": "Deduplicate"}


@dataclass(frozen=True, init=False)
class Last(StatefulOperator):
    """Keep, for every key, the given columns of its latest row (nulls included).

    Latest is the last to arrive, or with `by` the one with the largest value there, the later
    arrival among equals: then the result does not depend on the order of arrival, unless times
    are equal. A row whose `by` is null counts as older than all others. `emit="updates"`: one row
    per key touched in the epoch, key columns and the kept ones; `"rows"`: input rows pass on.
    Costs the kept columns per key and about 45 ns per row.

    Mergeable with `by`: the latest is the latest in any order of merging. Between slots the winner
    among equal times is as open as it always is between upstreams.

    Examples:
        >>> Last("lat", "lon", by="ts")
        Last(columns=('lat', 'lon'), by='ts', emit='updates')
    """

    columns: tuple[str, ...]
    by: str | None
    emit: Emit
    ttl: str | timedelta | None = field(repr=False)
    ordered: bool = field(repr=False)

    def __init__(
        self,
        *columns: str,
        by: str | None = None,
        emit: Emit = "updates",
        ttl: str | timedelta | None = None,
        ordered: bool = False,
    ) -> None:
        check_emit(self, emit, ("updates", "rows"))
        if not columns or len(set(columns)) < len(columns):
            raise DeclarationError(
                f"Last needs one or more different columns, not {columns!r}", operator="Last"
            )
        given = {"columns": columns, "by": by, "emit": emit, "ttl": ttl, "ordered": ordered}
        for attribute, value in given.items():
            object.__setattr__(self, attribute, value)

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        kept = [pa.field(name, rows.field(name).type) for name in self.columns]
        if self.by is not None:
            kept.append(pa.field(BY, rows.field(self.by).type))
        return StateFields(pa.schema(kept))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        for name in self.columns:
            require_column(rows, name, "Last")
            if name in key:
                raise NameClash(
                    f"Last keeps column {name!r}, which is part of the key and known anyway; "
                    "leave it out",
                    column=name,
                    operator="Last",
                )
        if self.by is not None and not has_words(require_column(rows, self.by, "Last").type):
            raise DeclarationError(
                f"Last cannot order by column {self.by!r} of type {rows.field(self.by).type}; "
                "use a timestamp or a number",
                column=self.by,
                operator="Last",
            )
        if self.emit == "rows":
            return rows
        kept = [pa.field(name, rows.field(name).type) for name in self.columns]
        return pa.schema([*(rows.field(name) for name in key), *kept])

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        return touched_schema(rows, key) if self.emit == "updates" else None

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key, *self.columns} | ({self.by} if self.by is not None else set())
        return own if self.emit == "updates" else own | (wanted & set(rows.names))

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if not len(rows):
            return Output()
        groups, values = rows.groups, rows.batch.select(list(self.columns)).columns
        if self.by is None:
            state.write(groups, self._taken(values, groups.last))
        else:
            self._keep_latest(rows.column(self.by), values, groups, state)
        return Output(rows.batch) if self.emit == "rows" else Output(carry=touched(groups))

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if carry is None or not carry.num_rows:
            return None
        groups = touched_keys(carry)
        held = state.read(groups)
        return updates(groups, {name: held.arrow(name) for name in self.columns})

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        return self.by is not None and not self.ordered

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        if self.by is None:
            return "which row came last is not known between tasks; name a column of times with by="
        return super().why_not_mergeable(rows, key)

    @property
    def emits_at_end(self) -> bool:
        return self.emit == "updates"

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output:
        if not self.mergeable(partials.batch.schema, partials.schema.key.names):
            raise self._not_mergeable()
        if not len(partials):
            return Output()
        groups, values = partials.groups, [partials.column(name) for name in self.columns]
        self._keep_latest(partials.column(BY), values, groups, state)
        return Output() if self.emit == "rows" else Output(carry=touched(groups))

    def describe(self) -> dict[str, Any]:
        return {"operator": "Last", "columns": list(self.columns), "by": self.by}

    def _keep_latest(
        self, by: pa.Array, values: Sequence[pa.Array], groups: Groups, state: StateSession
    ) -> None:
        words, valid = to_words(by)
        times = sortable(words)
        if valid is not None:
            times = np.where(valid, times, worst(largest=True))
        latest = group_extreme(groups, times, largest=True)
        hits = np.flatnonzero(times == latest[groups.codes])
        winner = np.empty(len(groups), np.int64)
        winner[groups.codes[hits]] = hits  # of equal times the last one stays
        held = state.read(groups)
        before = np.where(held.valid(BY), sortable(kept_words(held[BY])), worst(largest=True))
        newer = latest >= before
        seen = latest > worst(largest=True)
        words = from_sortable(np.where(seen, latest, 0), pa.types.is_floating(by.type))
        new = self._taken(values, winner[newer])
        new[BY] = from_words(words[newer], seen[newer], by.type)
        state.write(groups.take(newer), new)

    def _taken(self, values: Sequence[pa.Array], chosen: I64) -> dict[str, Any]:
        index = pa.array(chosen)
        return {name: column.take(index) for name, column in zip(self.columns, values, strict=True)}


@dataclass(frozen=True)
class Line:
    """All values of a batch in one line: per group the n held ones (oldest first, zeros before the
    first), then those of the batch, then zeros up to a multiple of n.

    `begins` is where each group begins and `fresh` how many values the batch brings it; for every
    row, `so_far` counts those up to it and `newest` is where the latest of them stands.
    """

    values: F64
    begins: I64
    fresh: I64
    so_far: I64
    newest: I64


@dataclass(frozen=True, init=False)
class MeanOfLast(Aggregate):
    """Average the last `n` values of `column` for every key (all of them while there are fewer).

    Nulls are skipped; no value yet gives null. With `emit="running"` (the default) every input row
    passes on with the mean after it, in order of arrival. Sums are made by addition only (no
    running difference), so errors do not build up, and a NaN or a huge value is gone after n more.
    Costs 8 n + 8 bytes of state per key; time and memory follow rows + n × keys touched. Not
    mergeable: which values are the last n is a matter of order.

    The sliding sums are van Herk's (1992): prefix and suffix sums in blocks of n, and any stretch
    of n values is one of each.

    Examples:
        >>> MeanOfLast("speed", 10)
        MeanOfLast(column='speed', emit='running', name='mean', n=10)
    """

    window: Tumbling | None = field(init=False, default=None, repr=False)
    n: int = field(init=False, default=1)

    def __init__(
        self,
        column: str,
        n: int,
        emit: Emit = "running",
        name: str = "mean",
        *,
        ttl: str | timedelta | None = None,
        ordered: bool = False,
    ) -> None:
        n = check_count(n, "n of MeanOfLast", operator="MeanOfLast")
        given = {"column": column, "n": n, "emit": emit, "name": name, "window": None}
        for attribute, value in {**given, "ttl": ttl, "ordered": ordered}.items():
            object.__setattr__(self, attribute, value)
        self.__post_init__()

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        require_numeric(rows, str(self.column), "MeanOfLast")
        return pa.float64()

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [
            pa.field("last", pa.list_(pa.float64(), self.n), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        return self._newest(self._line_up(rows, groups, held), held)

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        return self._means(self._line_up(rows, groups, held), groups, held)

    def fold_running(
        self, rows: KeyedRows, groups: Groups, held: Held
    ) -> tuple[dict[str, Any], pa.Array]:
        line = self._line_up(rows, groups, held)
        return self._newest(line, held), self._means(line, groups, held)

    def result(self, held: Held | StateRows) -> pa.Array:
        total: Words = held["last"].sum(axis=1)
        return quotient(total, held["count"])

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return f"which values are the last {self.n} is a matter of order"

    def describe(self) -> dict[str, Any]:
        return {"operator": "MeanOfLast", "column": self.column, "n": self.n}

    def _line_up(self, rows: KeyedRows, groups: Groups, held: Held) -> Line:
        values, valid = float_words(rows, str(self.column))
        fresh, so_far = group_count(groups, valid), running_count(groups, valid)
        lengths = self.n * (1 + -(-fresh // self.n))
        begins = np.cumsum(lengths) - lengths
        line: F64 = np.zeros(int(lengths.sum()), np.float64)
        line[begins[:, None] + np.arange(self.n)] = held["last"]
        newest = begins[groups.codes] + self.n - 1 + so_far
        if valid is None:
            line[newest] = values
        else:
            line[newest[valid]] = values[valid]
        return Line(line, begins, fresh, so_far, newest)

    def _newest(self, line: Line, held: Held) -> dict[str, Any]:
        places = (line.begins + line.fresh)[:, None] + np.arange(self.n)
        count = np.minimum(held["count"] + line.fresh, self.n)
        return {"last": line.values[places], "count": count}

    def _means(self, line: Line, groups: Groups, held: Held) -> pa.Array:
        blocks = line.values.reshape(-1, self.n)
        prefix = np.cumsum(blocks, axis=1).reshape(-1)
        suffix = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].reshape(-1)
        oldest = line.newest - self.n + 1
        total = prefix[line.newest] + np.where(oldest % self.n == 0, 0.0, suffix[oldest])
        count = np.minimum(held["count"][groups.codes] + line.so_far, self.n)
        return quotient(total, count)
