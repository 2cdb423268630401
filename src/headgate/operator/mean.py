"""Mean: the average of a column per key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operator.aggregate import Aggregate
from headgate.operator.base import require_numeric
from headgate.operator.partial import Partials
from headgate.operator.reduce import group_count, group_sum, running_count, running_sum
from headgate.operator.rows import Groups, KeyedRows
from headgate.operator.words import Mask, Words, from_words, to_words
from headgate.state.rows import Held, StateRows


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


def float_words(rows: KeyedRows, column: str) -> tuple[Words, Mask | None]:
    """A numeric column as float64, zero under a null, and which values are there (None: all)."""
    valid = None
    if rows.column(column).null_count:
        valid = np.asarray(rows.column(column).is_valid())
    numbers = rows.numbers(column)
    return numbers if valid is None else np.where(valid, numbers, 0.0), valid


def quotient(total: Words, count: Words) -> pa.Array:
    """Total by count as float64, null where the count is zero."""
    return from_words(total / np.maximum(count, 1), count > 0, pa.float64())
