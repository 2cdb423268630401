"""Aggregates that keep rows' values as they are: First, Last beside others, Collect.

Which values stay is decided by an order: that of a column (`by=`), or that of arrival. Every row is
lifted into a partial of its own, and partials are joined: so rows, partials of other slots and
panes of windows all go one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError
from headgate.operator.arithmetic import Fold, has_words, sortable, to_words, worst
from headgate.operator.lists import Elements, elements_of, is_text, lengths_of, list_of, lists_of
from headgate.operator.measure import Measure
from headgate.operator.panes import Ranges, Singles, held_of, with_values
from headgate.operator.rows import KeyedRows, Partials
from headgate.state.rows import StateRows
from headgate.topology.arguments import check_count
from headgate.topology.schema import column_of


@dataclass(frozen=True)
class Picked(Measure):
    """Base: values of some rows, by the order of column `by` or that of arrival."""

    runs: ClassVar[bool] = False
    names: ClassVar[tuple[str, str]]  # state columns: what is kept, and the order of it

    by: str | None = field(default=None, kw_only=True)

    def lift(self, values: pa.Array, order: I64, counts: Bools) -> dict[str, Any]:
        """Every row as a partial; nothing in rows that do not count."""
        raise NotImplementedError

    def join(self, fold: Fold, partials: Mapping[str, pa.Array]) -> dict[str, Any]:
        """The state columns after the partials."""
        raise NotImplementedError

    def own_reads(self) -> set[str]:
        return super().own_reads() | ({self.by} if self.by is not None else set())

    def _check_by(self, rows: pa.Schema) -> None:
        who = type(self).__name__
        if self.by is not None and not has_words(column_of(rows, self.by, who).type):
            raise DeclarationError(
                f"{who} cannot order by column {self.by!r} of type {rows.field(self.by).type}; "
                "use a timestamp or a number",
                column=self.by,
                operator=who,
            )

    def _order(self, rows: KeyedRows, none: int) -> I64:
        if self.by is None:
            return np.zeros(len(rows), np.int64)
        words, valid = to_words(rows.column(self.by))
        order = sortable(words)
        return order if valid is None else np.where(valid, order, none)

    def _counted(self, rows: KeyedRows, mask: Bools | None) -> Bools:
        return np.ones(len(rows), np.bool_) if mask is None else mask

    def step(
        self, fold: Fold, rows: KeyedRows, mask: Bools | None, *, running: bool
    ) -> tuple[dict[str, Any], pa.Array | None]:
        assert not running and self.column is not None
        order, counts = self._order(rows, worst(self._largest)), self._counted(rows, mask)
        return self.join(fold, self.lift(rows.column(self.column), order, counts)), None

    _largest = False

    def merge_step(self, fold: Fold, partials: Partials) -> dict[str, Any]:
        given = {self.prefix + name: partials.column(self.prefix + name) for name in self.names}
        return self.join(fold, given)

    def over(self, panes: StateRows, ranges: Ranges) -> dict[str, Any]:
        own = [self.prefix + name for name in self.names]
        stored = [panes.layout.find(name).name for name in own]

        def joined(left: StateRows, right: StateRows) -> StateRows:
            fold = Fold(
                Singles(len(left)), held_of(left.layout, left), np.zeros(len(left), np.bool_)
            )
            return with_values(left, self.join(fold, {name: right.arrow(name) for name in own}))

        columns = StateRows(panes.layout, panes.ids, {name: panes.columns[name] for name in stored})
        merged = ranges.merged(columns, joined)
        return {name: merged.arrow(name) for name in own}

    def why_not_split(self, rows: pa.Schema) -> str:
        if self.by is not None:
            return ""
        return "which row came first is not known between tasks; name a column of times with by="

    def why_not_joined(self, rows: pa.Schema) -> str:
        return self.why_not_split(rows)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"by": self.by}


@dataclass(frozen=True)
class First(Picked):
    """Keep `column` of the first row of every key (a null included).

    First is the first to arrive, or with `by` the one with the smallest value there, the earlier
    arrival among equals. A row whose `by` is null counts as later than all others. To skip nulls,
    `where=pc.field("x").is_valid()`. Costs the value and 8 bytes per key, about 50 ns per row.
    Mergeable, and at home in windows made of panes, with `by`. Not for `emit="running"`.

    Examples:
        >>> First("price", by="ts").name
        'first'
    """

    names: ClassVar[tuple[str, str]] = ("value", "at")

    name: str = "first"

    def kept(self, rows: pa.Schema) -> list[pa.Field]:
        assert self.column is not None
        self._check_by(rows)
        kind = column_of(rows, self.column, type(self).__name__).type
        return [
            pa.field(f"{self.prefix}value", kind),
            pa.field(f"{self.prefix}at", pa.int64()),  # null: no row yet
        ]

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        return self.kept(rows)[0].type

    def result_of(self, held: Any) -> pa.Array:
        return held.arrow(f"{self.prefix}value")

    def lift(self, values: pa.Array, order: I64, counts: Bools) -> dict[str, Any]:
        at = pa.array(order, mask=None if counts.all() else ~counts)
        return {f"{self.prefix}value": values, f"{self.prefix}at": at}

    def join(self, fold: Fold, partials: Mapping[str, pa.Array]) -> dict[str, Any]:
        value, at = f"{self.prefix}value", f"{self.prefix}at"
        order, valid = to_words(partials[at])
        rows = np.arange(len(order)) if valid is None else np.flatnonzero(valid)
        order, codes, groups = order[rows], fold.groups.codes[rows], len(fold.groups)
        best = np.full(groups, worst(self._largest))
        (np.maximum if self._largest else np.minimum).at(best, codes, order)
        hits = np.flatnonzero(order == best[codes])
        hits = hits if self._largest else hits[::-1]  # of equal ones the one written last stays
        winner = np.full(groups, -1)
        winner[codes[hits]] = rows[hits]
        before, known = fold.held[at], fold.held.valid(at)
        better = best >= before if self._largest else best < before
        taken = (winner >= 0) & (~known | better)
        both = pa.concat_arrays([fold.held.arrow(value), partials[value]])
        index = np.where(taken, groups + winner, np.arange(groups))
        there = taken | known
        return {
            value: both.take(pa.array(index)),
            at: pa.array(np.where(taken, best, before), mask=None if there.all() else ~there),
        }


@dataclass(frozen=True)
class Latest(First):
    """What `Last` is within an `Aggregate`: one column of the latest row, as `First` otherwise."""

    _largest = True

    name: str = "last"

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"operator": "Last"}


@dataclass(frozen=True)
class Collect(Picked):
    """Keep the first `limit` values of `column` for every key, as a list. Nulls are skipped.

    First are those that arrive first, and the list is in order of arrival; with `by` those with
    the smallest values there, in that order, and in order of value among equals (a null in `by`
    comes last). A key without values has an empty list. Takes numbers, dates, times, strings and
    binary. Costs the values per key (with `by` 8 bytes more each), rewritten when the key is
    touched, and 0.4 to 0.8 us per row. Mergeable, and at home in windows made of panes, with `by`.
    Not for `emit="running"`.

    Examples:
        >>> Collect("url", limit=10, by="ts").name
        'collect'
    """

    names: ClassVar[tuple[str, str]] = ("values", "at")

    name: str = "collect"
    limit: int = field(default=100, kw_only=True)

    def __post_init__(self) -> None:
        check_count(self.limit, "limit of Collect", operator="Collect")
        super().__post_init__()

    def kept(self, rows: pa.Schema) -> list[pa.Field]:
        assert self.column is not None
        self._check_by(rows)
        kind = column_of(rows, self.column, "Collect").type
        number = has_words(kind) and not pa.types.is_boolean(kind) and not pa.types.is_decimal(kind)
        if not is_text(kind) and not number:
            raise DeclarationError(
                f"Collect cannot take column {self.column!r} of type {kind}; it needs numbers, "
                "dates, times, strings or binary: cast it",
                column=self.column,
                operator="Collect",
            )
        return [
            pa.field(f"{self.prefix}values", list_of(kind)),
            pa.field(f"{self.prefix}at", pa.list_(pa.int64())),
        ]

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        kind = self.kept(rows)[0].type
        return pa.list_(kind) if is_text(kind) else kind

    def result_of(self, held: Any) -> pa.Array:
        lists = held.arrow(f"{self.prefix}values")
        bounds = pa.array(np.append(0, np.cumsum(lengths_of(lists))), pa.int32())
        kind = lists.type if is_text(lists.type) else lists.type.value_type
        return pa.ListArray.from_arrays(bounds, elements_of(lists).cast(kind))

    def lift(self, values: pa.Array, order: I64, counts: Bools) -> dict[str, Any]:
        counts = counts & np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
        lengths, chosen = counts.astype(np.int64), pa.array(np.flatnonzero(counts))
        return {
            f"{self.prefix}values": lists_of(values.take(chosen), lengths, list_of(values.type)),
            f"{self.prefix}at": lists_of(
                pa.array(order).take(chosen), lengths, pa.list_(pa.int64())
            ),
        }

    def join(self, fold: Fold, partials: Mapping[str, pa.Array]) -> dict[str, Any]:
        values, at = f"{self.prefix}values", f"{self.prefix}at"
        fresh = partials[values]
        held = Elements.of(
            fold.held.arrow(values),
            np.repeat(fold.groups.codes, lengths_of(fresh)),
            elements_of(fresh),
        )
        times = pa.concat_arrays([elements_of(fold.held.arrow(at)), elements_of(partials[at])])
        order = times.to_numpy()
        among_equals = held.words if self.by is not None else np.arange(len(order))
        index = np.lexsort((among_equals, order, held.codes))
        codes = held.codes[index]
        sizes = np.bincount(codes, minlength=len(fold.groups))
        rank = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        index = index[rank < self.limit]
        lengths = np.minimum(sizes, self.limit)
        return {
            values: held.take(index).lists,
            at: lists_of(pa.array(order[index]), lengths, pa.list_(pa.int64())),
        }

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"limit": self.limit}
