"""Count: how many rows a key has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operator.aggregate import Aggregate
from headgate.operator.base import require_column
from headgate.operator.partial import Partials
from headgate.operator.reduce import group_count, group_sum, running_count
from headgate.operator.rows import Groups, KeyedRows
from headgate.operator.words import Mask, to_words
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

    def _valid(self, rows: KeyedRows) -> Mask | None:
        if self.column is None or not rows.column(self.column).null_count:
            return None
        valid = pc.is_valid(rows.column(self.column)).to_numpy(zero_copy_only=False)
        return np.asarray(valid, np.bool_)
