"""TopK: the heaviest items of every key and window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import Bools
from headgate.errors import DeclarationError
from headgate.operator.aggregate import Aggregate, PerKey
from headgate.operator.aggregates import Count, Sum
from headgate.operator.arithmetic import sortable, to_words
from headgate.operator.base import Output
from headgate.operator.rows import Groups, KeyedRows, Partials
from headgate.operator.window import START, SUB_KEY, Tumbling, check_window
from headgate.routing.hashing import is_hashable
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_count
from headgate.topology.schema import column_of

RANK = pa.field("rank", pa.int64())


@dataclass(frozen=True)
class TopK(PerKey):
    """For every key and window, the `k` items with the most rows, or the largest sum of `weight`.

    Emitted once, when the window is final: key columns, `window_start`, `window_end`, `rank` (from
    1), the item and its count (column `name`). Exact and deterministic: equal counts are ordered
    by item value. Null items and null weights are skipped. Keeps one state row per key, window and
    item: use it where items per key are bounded. Closing sorts the rows of the closed windows.

    Mergeable, unless it adds up floats: a partial is a count per item, and ranks come at the end.

    Examples:
        >>> TopK("hashtag", k=3, window=Tumbling("1 hour", time="ts")).output_schema(
        ...     pa.schema({"city": pa.string(), "hashtag": pa.string(), "ts": pa.timestamp("us")}),
        ...     ["city"],
        ... ).names
        ['city', 'window_start', 'window_end', 'rank', 'hashtag', 'count']
    """

    instead = "rename the key or the item, or choose another name="

    item: str
    k: int
    window: Tumbling
    weight: str | None = None
    name: str = "count"
    ends_epochs: bool = field(init=False, default=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_count(self.k, "k of TopK", operator="TopK"))
        check_window(self.window, "TopK")

    @property
    def measure(self) -> Aggregate:
        """What is kept per item."""
        if self.weight is None:
            return Count(name=self.name, window=self.window)
        return Sum(self.weight, name=self.name, window=self.window)

    def reads(self) -> set[str]:
        return {self.item} | self.measure.reads()

    def sub_key(self, rows: pa.Schema) -> pa.Schema:
        return pa.schema([*SUB_KEY, rows.field(self.item)])

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return self.measure.held_fields(rows)

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        item = column_of(rows, self.item, "TopK")
        if not is_hashable(item.type) or pa.types.is_dictionary(item.type):
            raise DeclarationError(
                f"TopK cannot count items of type {item.type} (column {self.item!r}); cast it to a "
                "string or a number",
                column=self.item,
                operator="TopK",
            )
        return [RANK, item, *self.measure.result_fields(rows)]

    def counts(self, rows: KeyedRows) -> Bools | None:
        there: Bools = rows.column(self.item).is_valid().to_numpy(zero_copy_only=False)
        if self.weight is not None:
            there &= rows.column(self.weight).is_valid().to_numpy(zero_copy_only=False)
        return there

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        return self.measure.fold(rows, groups, state)

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        return self.measure.merge(partials, groups, state)

    def choose(self, closed: StateRows) -> StateRows:
        groups, items = self._windows(closed), np.empty(len(closed), np.int64)
        values = closed.keys.column(self.item)
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())  # Arrow does not sort them
        items[pc.sort_indices(values).to_numpy()] = np.arange(len(closed))
        weight = ~sortable(to_words(self.measure.results(closed).column(0))[0])  # descending
        order = np.lexsort((items, weight, groups.codes))
        rank = np.arange(len(closed)) - np.repeat(groups.starts, groups.sizes)
        return closed.take(order[rank < self.k])

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        assert isinstance(held, StateRows)  # of windows: chosen, in order of rank
        value = self.measure.results(held)
        rank, items = pa.array(self._windows(held).rank + 1), held.keys.column(self.item)
        fields = [RANK, held.keys.schema.field(self.item), *value.schema]
        return pa.RecordBatch.from_arrays([rank, items, *value.columns], schema=pa.schema(fields))

    def _windows(self, rows: StateRows) -> Groups:
        keyed = KeyedRows(rows.keys, rows.layout.schema.key.names)
        return keyed.sub_groups([START], [rows.keys.column(START)])

    def merges(self, rows: pa.Schema) -> bool:
        return self.measure.merges(rows)

    def why_not_merged(self) -> str:
        return f"floats (weight={self.weight!r}) round differently when added in another order"

    def describe(self) -> dict[str, Any]:
        window = self.window.describe()
        return {"operator": "TopK", "item": self.item, "weight": self.weight, "window": window}
