"""Operators that go by order: Deduplicate (the first row), Last, MeanOfLast (the last n values)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import F64, I64, Bools
from headgate.errors import DeclarationError
from headgate.operator.aggregate import PerKey
from headgate.operator.aggregates import Counted, FloatTotal
from headgate.operator.arithmetic import (
    Fold,
    float_words,
    from_sortable,
    has_words,
    kept_words,
    quotient,
    sortable,
    to_words,
    worst,
)
from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.measure import Measure, Parts
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import Window, event_times
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice, check_count, positive_us, ttl_ms
from headgate.topology.schema import column_of, time_of

UNTIL = "@until_us"  # state column: when Deduplicate forgets a key, in event time
BY = "@by"  # state column: the `by` value of the row that Last keeps


@dataclass(frozen=True)
class Deduplicate(StatefulOperator):
    """Pass the first row of every key on, unchanged, and drop all later ones.

    Exact, also among the rows of one batch (first in order of arrival). With `within` ("10
    minutes" or a timedelta, processing time of the epoch) a key counts as new again that long after
    the row that passed, and its state is forgotten; without it every key is remembered for good.
    Keeps nothing but the key (and a clock); about 30 ns per row. Not mergeable: whether a row
    passes must be known when it comes.

    With `time`, a column of event times, `within` is event time, as in Spark's
    `dropDuplicatesWithinWatermark`: a key is remembered until the watermark has passed the time of
    the row that passed by `within`. So duplicates at most that far apart are dropped, unless they
    come too late. Rows at or before the watermark of the epoch before are late, and dropped.

    Examples:
        >>> Deduplicate(within="1 day").ttl
        datetime.timedelta(days=1)
    """

    within: str | timedelta | None = None
    time: str | None = field(default=None, kw_only=True)
    ordered: bool = field(default=False, kw_only=True, repr=False)
    ttl: timedelta | None = field(init=False, default=None, repr=False)
    ends_epochs: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        if self.time is not None:
            if self.within is None:
                raise DeclarationError(
                    f"Deduplicate(time={self.time!r}) needs within=, how far apart in event time "
                    "duplicates may be; leave out time= to remember every key for good",
                    operator="Deduplicate",
                )
            positive_us(self.within)
            object.__setattr__(self, "ends_epochs", True)
        elif self.within is not None:
            ttl_ms(self.within)
            object.__setattr__(self, "ttl", timedelta(microseconds=positive_us(self.within)))

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        if self.time is None:
            return StateFields(pa.schema([]))
        return StateFields(pa.schema([pa.field(UNTIL, pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        if self.time is not None:
            time_of(rows, self.time, "Deduplicate")
        return rows

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key} if self.time is None else {*key, self.time}
        return own | (wanted & set(rows.names))

    def passes(self, rows: pa.Schema) -> set[str]:
        return set(rows.names)

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        if self.time is None:
            return self._first_of(rows, None, state)
        times, valid = event_times(rows.column(self.time))
        there = np.ones(len(rows), np.bool_) if valid is None else valid
        fits = there & ~self.is_late(times, clock)
        why = f"no event time: column {self.time!r} is null"
        dead = dict.fromkeys(np.flatnonzero(~there).tolist(), why)
        kept = np.flatnonzero(fits)
        late = len(rows) - len(kept) - len(dead)
        if len(kept) == len(rows):
            return self._first_of(rows, times, state)
        passed = self._first_of(rows.take(kept), times[kept], state)
        if passed.batch is None:
            return Output(dead=dead, late=late)
        origins = kept if passed.origins is None else kept[passed.origins]
        return Output(passed.batch, origins, dead, late)

    def late_by(self, side: int = 0) -> tuple[str, ...]:
        return () if self.time is None else (self.time,)

    def is_late(self, times_us: I64, clock: EpochClock) -> Bools:
        before = clock.previous_watermark_us
        if before is None:
            return np.zeros(len(times_us), np.bool_)
        return np.asarray(times_us <= before)

    def _first_of(self, rows: KeyedRows, times: I64 | None, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        groups = rows.groups
        new = ~state.read(groups).found  # a key whose time is over counts as absent
        if not new.any():
            return Output()
        passed = groups.first[new]
        until = {}
        if times is not None:
            until = {UNTIL: times[passed] + positive_us(self.within or "")}
        state.write(groups if new.all() else groups.take(new), until)
        if len(passed) == len(rows):
            return Output(rows.batch)
        return Output(rows.batch.take(pa.array(passed)), origins=passed)

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        if self.time is not None and clock.watermark_us is not None:
            state.remove_rows(state.select(UNTIL, below=clock.watermark_us + 1))
        return None

    def held_from(self, watermark_us: int) -> int | None:
        return None if self.time is None else watermark_us

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return "whether a row is the first of its key must be known when it comes"

    @property
    def emits_at_end(self) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        told: dict[str, Any] = {"operator": "Deduplicate"}
        if self.time is not None:
            told |= {"time": self.time, "within_us": positive_us(self.within or "")}
        return told


@dataclass(frozen=True, init=False)
class Last(PerKey):
    """Keep, for every key, the given columns of its latest row (nulls included).

    Latest is the last to arrive, or with `by` the one with the largest value there, the later
    arrival among equals: then the result does not depend on the order of arrival, unless times
    are equal. A row whose `by` is null counts as older than all others. `emit="updates"`: one row
    per key touched in the epoch, key columns and the kept ones; `"changes"`: and whether the key is
    new; `"rows"`: input rows pass on.
    Costs the kept columns per key and about 45 ns per row.

    Mergeable with `by`: the latest is the latest in any order of merging. Between slots the winner
    among equal times is as open as it always is between upstreams.

    Examples:
        >>> Last("lat", "lon", by="ts")
        Last(columns=('lat', 'lon'), by='ts', emit='updates')
    """

    instead = "it is part of the key and known anyway; leave it out"

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
        given = {"columns": columns, "by": by, "emit": emit, "ttl": ttl, "ordered": ordered}
        for attribute, value in given.items():
            object.__setattr__(self, attribute, value)
        check_choice(emit, "Last: emit", ("updates", "rows", "changes"), operator="Last")
        if not columns or len(set(columns)) < len(columns):
            raise DeclarationError(
                f"Last needs one or more different columns, not {columns!r}", operator="Last"
            )

    def reads(self) -> set[str]:
        return {*self.columns} | ({self.by} if self.by is not None else set())

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        by = [] if self.by is None else [pa.field(BY, rows.field(self.by).type)]
        return self.result_fields(rows) + by

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        if self.by is not None and not has_words(column_of(rows, self.by, "Last").type):
            raise DeclarationError(
                f"Last cannot order by column {self.by!r} of type {rows.field(self.by).type}; "
                "use a timestamp or a number",
                column=self.by,
                operator="Last",
            )
        return [pa.field(name, column_of(rows, name, "Last").type) for name in self.columns]

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        if not len(rows):
            return Output()
        values = {name: rows.column(name) for name in self.columns}
        if self.by is None:
            state.write(groups, _taken(values, groups.last))
        else:
            self._keep_latest(rows.column(self.by), values, groups, state)
        return Output(rows.batch if self.emit == "rows" else None, carry=self.touched(groups))

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        values = {name: partials.column(name) for name in self.columns}
        self._keep_latest(partials.column(BY), values, groups, state)
        return Output(carry=self.touched(groups))

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        return pa.record_batch([held.arrow(name) for name in self.columns], list(self.columns))

    @property
    def splits(self) -> bool:
        return self.by is not None and super().splits

    def why_not_merged(self, rows: pa.Schema) -> str:
        if self.by is not None:
            return ""
        return "which row came last is not known between tasks; name a column of times with by="

    def describe(self) -> dict[str, Any]:
        told = {"operator": "Last", "columns": list(self.columns), "by": self.by}
        return told | ({"tells": True} if self.tells else {})

    def _keep_latest(
        self, by: pa.Array, values: Mapping[str, pa.Array], groups: Groups, state: StateSession
    ) -> None:
        fold, (words, valid), none = Fold.into(groups, state), to_words(by), worst(largest=True)
        times = sortable(words)
        if valid is not None:
            times = np.where(valid, times, none)
        latest = fold.extreme(times, largest=True)
        hits = np.flatnonzero(times == latest[groups.codes])
        winner = np.empty(len(groups), np.int64)
        winner[groups.codes[hits]] = hits  # of equal times the last one stays
        before = np.where(fold.held.valid(BY), sortable(kept_words(fold.held[BY])), none)
        newer = latest >= before
        new = _taken(values, winner[newer])
        new[BY] = from_sortable(by.type, latest[newer], latest[newer] > none)
        state.write(groups.take(newer), new)


def _taken(values: Mapping[str, pa.Array], chosen: I64) -> dict[str, Any]:
    return {name: column.take(pa.array(chosen)) for name, column in values.items()}


@dataclass(frozen=True, init=False)
class MeanOfLast(Measure):
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

    parts: ClassVar[Parts] = {"last": FloatTotal(), "count": Counted()}
    joins: ClassVar[bool] = False

    window: Window | None = field(init=False, default=None, repr=False)
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
        where: Any = None,
    ) -> None:
        n = check_count(n, "n of MeanOfLast", operator="MeanOfLast")
        object.__setattr__(self, "n", n)
        super().__init__(column, emit, name, ttl=ttl, ordered=ordered, where=where)

    def kept(self, rows: pa.Schema) -> list[pa.Field]:
        _, count = super().kept(rows)
        return [pa.field("last", pa.list_(pa.float64(), self.n), nullable=False), count]

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        self.kept(rows)
        return pa.float64()

    def step(
        self, fold: Fold, rows: KeyedRows, mask: Bools | None, *, running: bool
    ) -> tuple[dict[str, Any], pa.Array | None]:
        """All values stand in one line: per group the n held ones (oldest first, zeros before the
        first), then those of the batch, then zeros up to a multiple of n.
        """
        n, held, codes = self.n, fold.held, fold.groups.codes
        values, valid = float_words(self.values(rows, mask))
        fresh, so_far = fold.count(valid), fold.running().count(valid)
        lengths = n * (1 + -(-fresh // n))
        begins = np.cumsum(lengths) - lengths
        line: F64 = np.zeros(int(lengths.sum()), np.float64)
        line[begins[:, None] + np.arange(n)] = held["last"]
        newest = begins[codes] + n - 1 + so_far  # for every row, where its latest value stands
        line[newest if valid is None else newest[valid]] = (
            values if valid is None else values[valid]
        )
        new = {
            "last": line[(begins + fresh)[:, None] + np.arange(n)],
            "count": np.minimum(held["count"] + fresh, n),
        }
        if not running:
            return new, None
        prefix = np.cumsum(line.reshape(-1, n), axis=1).reshape(-1)
        suffix = np.cumsum(line.reshape(-1, n)[:, ::-1], axis=1)[:, ::-1].reshape(-1)
        oldest = newest - n + 1
        total = prefix[newest] + np.where(oldest % n == 0, 0.0, suffix[oldest])
        return new, quotient(total, np.minimum(held["count"][codes] + so_far, n))

    def result(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        last = columns["last"].flatten().to_numpy().reshape(-1, self.n)
        return quotient(last.sum(axis=1), to_words(columns["count"])[0])

    splits = False

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return f"which values are the last {self.n} is a matter of order"

    def describe(self) -> dict[str, Any]:
        where = {} if self.where is None else {"where": str(self.where)}
        return {"operator": "MeanOfLast", "column": self.column, "n": self.n, **where}
