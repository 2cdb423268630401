"""What Min and Max share: everything but the direction.

Values are compared as 64-bit integers of the same order. Text is given ranks first: the distinct
values of the batch and of what is held are sorted once, and a rank stands for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import DeclarationError
from headgate.operator.aggregate import Aggregate
from headgate.operator.base import require_column
from headgate.operator.partial import Partials
from headgate.operator.reduce import group_extreme, running_extreme, worst
from headgate.operator.rows import Groups, KeyedRows
from headgate.operator.words import (
    Mask,
    from_sortable,
    from_words,
    has_words,
    kept_words,
    sortable,
    to_words,
)
from headgate.routing.hashing import I64
from headgate.state.rows import Held, StateRows


@dataclass(frozen=True)
class Ordered:
    """The values of a batch and the held ones as comparable integers; `back` makes them Arrow."""

    rows: I64
    held: I64
    back: Callable[[I64, Mask], pa.Array]


@dataclass(frozen=True)
class Extreme(Aggregate):
    """Base of Min and Max."""

    largest: ClassVar[bool]

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        name = type(self).__name__
        kind = require_column(rows, str(self.column), name).type
        if not (has_words(kind) or is_text(kind)):
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
        values = self._ordered(column, held)
        batch = running_extreme(groups, values.rows, self.largest)
        seen = _valid(column)
        if column.null_count:
            seen = running_extreme(groups, seen.astype(np.int64), largest=True) > 0
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
        values = self._ordered(column, held)
        batch = group_extreme(groups, values.rows, self.largest)
        return values.back(self._better(values.held, batch), self._seen(groups, held, column))

    def _better(self, one: I64, other: I64) -> I64:
        return np.maximum(one, other) if self.largest else np.minimum(one, other)

    def _seen(self, groups: Groups, held: Held, column: pa.Array) -> Mask:
        seen = held.valid("value").copy()
        seen[groups.codes[_valid(column)]] = True
        return seen

    def _ordered(self, column: pa.Array, held: Held) -> Ordered:
        """Nulls and missing values are made worse than any other."""
        text = is_text(column.type)
        values = _text(column, held.arrow("value")) if text else _numbers(column, held["value"])
        nothing = worst(self.largest)
        rows = np.where(_valid(column), values.rows, nothing) if column.null_count else values.rows
        return Ordered(rows, np.where(held.valid("value"), values.held, nothing), values.back)


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _numbers(column: pa.Array, held: Any) -> Ordered:
    kind = column.type

    def back(ordered: I64, seen: Mask) -> pa.Array:
        words = from_sortable(np.where(seen, ordered, 0), pa.types.is_floating(kind))
        return from_words(words, seen, kind)

    return Ordered(sortable(to_words(column)[0]), sortable(kept_words(held)), back)


def _text(column: pa.Array, held: pa.Array) -> Ordered:
    encoded = pa.concat_arrays([held, column]).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.zeros(len(order) + 1, np.int64)
    ranks[order] = np.arange(len(order))
    codes = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    values = encoded.dictionary.take(pa.array(order))

    def back(ordered: I64, seen: Mask) -> pa.Array:
        return values.take(pa.array(np.where(seen, ordered, 0), mask=~seen))

    return Ordered(ranks[codes[len(held) :]], ranks[codes[: len(held)]], back)


def _valid(column: pa.Array) -> Mask:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), np.bool_)
