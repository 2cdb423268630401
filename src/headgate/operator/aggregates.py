"""The aggregates: Count, Sum, Mean, Min and Max of a column per key.

Each says how the rows of a batch, or the partials of other slots, fold into the columns it keeps.
Min and Max compare values as 64-bit integers of the same order. Text is given ranks first: the
distinct values of the batch and of the state are sorted once, and a rank stands for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError
from headgate.operator.aggregate import Aggregate
from headgate.operator.arithmetic import (
    DECIMAL_DIGITS,
    Words,
    from_sortable,
    from_words,
    group_count,
    group_extreme,
    group_sum,
    has_words,
    kept_words,
    running_count,
    running_extreme,
    running_sum,
    sortable,
    to_words,
    valid_mask,
    worst,
)
from headgate.operator.base import require_column, require_numeric
from headgate.operator.rows import Groups, KeyedRows, Partials
from headgate.state.rows import Held, StateRows


@dataclass(frozen=True)
class Count(Aggregate):
    """Count the rows of every key, or the non-null values of `column`.

    Exact, and mergeable. Costs 8 bytes of state per key and about 40 ns per row.

    Examples:
        >>> Count()
        Count(column=None, emit='updates', name='count', window=None)
    """

    column: str | None = None
    name: str = "count"

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        if self.column is not None:
            require_column(rows, self.column, "Count")
        return pa.int64()

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [pa.field("count", pa.int64(), nullable=False)]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        return {"count": held["count"] + group_count(groups, self._valid(rows))}

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        return pa.array(held["count"][groups.codes] + running_count(groups, self._valid(rows)))

    def result(self, held: Held | StateRows) -> pa.Array:
        return pa.array(held["count"])

    def merges(self, rows: pa.Schema) -> bool:
        return True

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        return {"count": group_sum(groups, to_words(partials.column("count"))[0], held["count"])}

    def _valid(self, rows: KeyedRows) -> Bools | None:
        return None if self.column is None else valid_mask(rows.column(self.column))


@dataclass(frozen=True)
class Sum(Aggregate):
    """Add up `column` for every key. Nulls are skipped; a key with nothing but nulls sums to null.

    Integers and decimals (up to 18 digits) are exact: rows that would take a key out of the 64-bit
    range are refused as dead letters, all of that key's rows of the call, and its sum stays.
    Floats are float64, added in arrival order. Costs 8 bytes of state per key and about 50 ns
    per row.

    Mergeable for integers and decimals. Floats round differently when added in another order, so
    they are only with `exact=False`, which lets the last digits depend on where rows were added.
    A partial sum that would overflow is one dead letter at the key's owner; its rows are gone by
    then.

    Examples:
        >>> Sum("amount", name="total")
        Sum(column='amount', emit='updates', name='total', window=None)
    """

    name: str = "sum"
    exact: bool = field(default=True, kw_only=True, repr=False)

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        kind = require_numeric(rows, str(self.column), "Sum").type
        if not has_words(kind):
            raise DeclarationError(
                f"Sum cannot add up column {self.column!r} of type {kind} exactly; cast it to a "
                f"decimal of at most {DECIMAL_DIGITS} digits, to bigint or to double",
                column=self.column,
                operator="Sum",
            )
        if pa.types.is_decimal(kind):
            return pa.decimal128(max(DECIMAL_DIGITS + 1, kind.precision + 10), kind.scale)
        return pa.float64() if pa.types.is_floating(kind) else pa.int64()

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [pa.field("sum", self.value_type(rows))]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        column, kind = rows.column(str(self.column)), self.value_type(rows.batch.schema)
        return {"sum": _added(column, groups, held, kind)}

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        values, valid = to_words(rows.column(str(self.column)))
        total = running_sum(groups, values, kept_words(held["sum"]))
        seen = None
        if valid is not None:
            seen = held.valid("sum")[groups.codes] | (running_count(groups, valid) > 0)
        return from_words(total, seen, self.value_type(rows.batch.schema))

    def result(self, held: Held | StateRows) -> pa.Array:
        return held.arrow("sum")

    def merges(self, rows: pa.Schema) -> bool:
        return not (self.exact and pa.types.is_floating(self.value_type(rows)))

    def why_not_merged(self) -> str:
        return (
            f"floats (column {self.column!r}) round differently when added in another order; "
            "exact=False allows that"
        )

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        column = partials.column("sum")
        if self.exact and pa.types.is_floating(column.type):
            raise self._not_mergeable()
        return {"sum": _added(column, groups, held, column.type)}


def _added(column: pa.Array, groups: Groups, held: Held, kind: pa.DataType) -> Any:
    """What is held plus the values of each group, null where neither is there."""
    values, valid = to_words(column)
    total = group_sum(groups, values, kept_words(held["sum"]))
    if valid is None and isinstance(held["sum"], np.ndarray):
        return total
    seen = None if valid is None else held.valid("sum") | (group_count(groups, valid) > 0)
    return from_words(total, seen, kind)


@dataclass(frozen=True)
class Mean(Aggregate):
    """Average `column` for every key, as float64. Nulls are skipped; nothing but nulls gives null.

    Keeps sum and count, both in float64 arithmetic, 16 bytes of state per key. For an exact mean
    of decimals use `Sum` and `Count`. About 50 ns per row.

    Mergeable for integers of up to 32 bits, whose sum a float64 holds exactly up to 2**53 (four
    million rows of the largest values per key; beyond, it rounds in any order). For wider ones and
    floats only with `exact=False`, which lets the last digits depend on where rows were added.

    Examples:
        >>> Mean("delay", emit="running")
        Mean(column='delay', emit='running', name='mean', window=None)
    """

    name: str = "mean"
    exact: bool = field(default=True, kw_only=True, repr=False)

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        require_numeric(rows, str(self.column), "Mean")
        return pa.float64()

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [
            pa.field("sum", pa.float64(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        values, valid = float_words(rows, str(self.column))
        return {
            "sum": group_sum(groups, values, held["sum"]),
            "count": held["count"] + group_count(groups, valid),
        }

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        values, valid = float_words(rows, str(self.column))
        count = held["count"][groups.codes] + running_count(groups, valid)
        return quotient(running_sum(groups, values, held["sum"]), count)

    def result(self, held: Held | StateRows) -> pa.Array:
        return quotient(held["sum"], held["count"])

    def merges(self, rows: pa.Schema) -> bool:
        kind = rows.field(str(self.column)).type
        return not self.exact or (pa.types.is_integer(kind) and kind.bit_width <= 32)

    def why_not_merged(self) -> str:
        return (
            f"sums of column {self.column!r} are floats, which round differently when added in "
            "another order; exact=False allows that"
        )

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        return {
            name: group_sum(groups, to_words(partials.column(name))[0], held[name])
            for name in ("sum", "count")
        }


def float_words(rows: KeyedRows, column: str) -> tuple[Words, Bools | None]:
    """A numeric column as float64, zero under a null, and which values are there (None: all)."""
    valid, numbers = valid_mask(rows.column(column)), rows.numbers(column)
    return numbers if valid is None else np.where(valid, numbers, 0.0), valid


def quotient(total: Words, count: Words) -> pa.Array:
    """Total by count as float64, null where the count is zero."""
    return from_words(total / np.maximum(count, 1), count > 0, pa.float64())


@dataclass(frozen=True)
class _Ordered:
    """The values of a batch and the held ones as comparable integers; `back` makes them Arrow."""

    rows: I64
    held: I64
    back: Callable[[I64, Bools], pa.Array]


@dataclass(frozen=True)
class Extreme(Aggregate):
    """What Min and Max share: everything but the direction."""

    largest: ClassVar[bool]

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        name = type(self).__name__
        kind = require_column(rows, str(self.column), name).type
        if not (has_words(kind) or _is_text(kind)):
            raise DeclarationError(
                f"{name} cannot order column {self.column!r} of type {kind}; it takes numbers "
                "(decimals up to 18 digits), dates, times, strings and binary",
                column=self.column,
                operator=name,
            )
        return kind

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [pa.field("value", self.value_type(rows))]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        return {"value": self._best(rows.column(str(self.column)), groups, held)}

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        column = rows.column(str(self.column))
        values, valid = self._ordered(column, held)
        batch = running_extreme(groups, values.rows, self.largest)
        seen = np.ones(len(column), np.bool_)
        if valid is not None:
            seen = running_extreme(groups, valid.astype(np.int64), largest=True) > 0
            seen |= held.valid("value")[groups.codes]
        return values.back(self._better(values.held[groups.codes], batch), seen)

    def result(self, held: Held | StateRows) -> pa.Array:
        return held.arrow("value")

    def merges(self, rows: pa.Schema) -> bool:
        return True

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        return {"value": self._best(partials.column("value"), groups, held)}

    def _best(self, column: pa.Array, groups: Groups, held: Held) -> pa.Array:
        """The best of what is held and of each group's values."""
        values, valid = self._ordered(column, held)
        batch = group_extreme(groups, values.rows, self.largest)
        seen = held.valid("value").copy()
        seen[groups.codes if valid is None else groups.codes[valid]] = True
        return values.back(self._better(values.held, batch), seen)

    def _better(self, one: I64, other: I64) -> I64:
        return np.maximum(one, other) if self.largest else np.minimum(one, other)

    def _ordered(self, column: pa.Array, held: Held) -> tuple[_Ordered, Bools | None]:
        """Values in which nulls are worse than any other, and which rows have one (None: all)."""
        text = _is_text(column.type)
        values = _text(column, held.arrow("value")) if text else _numbers(column, held["value"])
        nothing, valid = worst(self.largest), valid_mask(column)
        rows = values.rows if valid is None else np.where(valid, values.rows, nothing)
        before = np.where(held.valid("value"), values.held, nothing)
        return _Ordered(rows, before, values.back), valid


@dataclass(frozen=True)
class Min(Extreme):
    """Keep the smallest value of `column` for every key, in the column's own type.

    Takes numbers, dates, times, strings and binary (compared byte by byte). Nulls are skipped;
    nothing but nulls gives null. NaN counts as larger than any number, as in Spark. Costs one
    value of state per key and about 50 ns per row (text: a sort of the distinct values). Mergeable.

    Examples:
        >>> Min("price")
        Min(column='price', emit='updates', name='min', window=None)
    """

    name: str = "min"
    largest: ClassVar[bool] = False


@dataclass(frozen=True)
class Max(Extreme):
    """Keep the largest value of `column` for every key, in the column's own type.

    Takes, skips and costs what `Min` does. Mergeable.

    Examples:
        >>> Max("price", name="highest")
        Max(column='price', emit='updates', name='highest', window=None)
    """

    name: str = "max"
    largest: ClassVar[bool] = True


def _is_text(kind: pa.DataType) -> bool:
    of_text = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in of_text


def _numbers(column: pa.Array, held: Any) -> _Ordered:
    kind = column.type

    def back(ordered: I64, seen: Bools) -> pa.Array:
        words = from_sortable(np.where(seen, ordered, 0), pa.types.is_floating(kind))
        return from_words(words, seen, kind)

    return _Ordered(sortable(to_words(column)[0]), sortable(kept_words(held)), back)


def _text(column: pa.Array, held: pa.Array) -> _Ordered:
    encoded = pa.concat_arrays([held, column]).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.zeros(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    codes = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    values = encoded.dictionary.take(pa.array(order))

    def back(ordered: I64, seen: Bools) -> pa.Array:
        return values.take(pa.array(np.where(seen, ordered, 0), mask=~seen))

    return _Ordered(ranks[codes[len(held) :]], ranks[codes[: len(held)]], back)
