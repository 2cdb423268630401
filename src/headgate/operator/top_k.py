"""TopK: the heaviest items of every key and window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64
from headgate.errors import DeclarationError, NameClash
from headgate.operator.aggregate import Aggregate
from headgate.operator.aggregates import Count, Sum
from headgate.operator.arithmetic import sortable, to_words
from headgate.operator.base import Output, StateFields, StatefulOperator, require_column
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import BOUNDS, START, SUB_KEY, Tumbling, check_window
from headgate.routing.hashing import is_hashable
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_count

RANK = pa.field("rank", pa.int64())


@dataclass(frozen=True)
class TopK(StatefulOperator):
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

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        self.output_schema(rows, key)
        sub = pa.schema([*SUB_KEY, rows.field(self.item)])
        return StateFields(pa.schema(self.measure.held_fields(rows)), sub)

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        kind = require_column(rows, self.item, "TopK").type
        if not is_hashable(kind) or pa.types.is_dictionary(kind):
            raise DeclarationError(
                f"TopK cannot count items of type {kind} (column {self.item!r}); cast it to a "
                "string or a number",
                column=self.item,
                operator="TopK",
            )
        self.window.check(rows, key, "TopK")
        value = pa.field(self.name, self.measure.value_type(rows))
        fields = [
            *(rows.field(name) for name in key),
            *BOUNDS,
            RANK,
            rows.field(self.item),
            value,
        ]
        names = [f.name for f in fields]
        for name in (RANK.name, self.item, self.name):
            if names.count(name) > 1:
                raise NameClash(
                    f"TopK would return two columns named {name!r}; rename the key or the item, "
                    "or choose another name=",
                    column=name,
                    operator="TopK",
                )
        return pa.schema(fields)

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        own = {*key, self.item, self.window.time}
        return own if self.weight is None else own | {self.weight}

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        placed = self.window.place(rows, clock)
        there = np.asarray(pc.is_valid(placed.rows.column(self.item)), np.bool_)
        if self.weight is not None:
            there &= np.asarray(pc.is_valid(placed.rows.column(self.weight)), np.bool_)
        chosen = placed.rows if there.all() else placed.rows.take(there)
        output = self.measure.fold_in(chosen, self._groups(chosen), self._groups, state)
        positions = np.flatnonzero(there)
        return placed.report({int(positions[row]): why for row, why in output.dead.items()})

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        closed = self.window.closed(state, clock)
        if closed is None:
            return None
        schema = closed.layout.schema
        chosen, rank = self._best(closed, schema.key.names)
        best = closed.take(chosen)
        value = self.measure.result(best)
        keys = [best.keys.column(name) for name in schema.key.names]
        items = best.keys.column(self.item)
        item, count = schema.sub.field(self.item), pa.field(self.name, value.type)
        batch = pa.RecordBatch.from_arrays(
            [*keys, *self.window.bounds(best), pa.array(rank), items, value],
            schema=pa.schema([*schema.key, *BOUNDS, RANK, item, count]),
        )
        state.remove_rows(closed)
        return batch

    def held_from(self, watermark_us: int) -> int | None:
        return self.window.start_of(watermark_us)

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        return self.measure.merges(rows)

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return f"floats (weight={self.weight!r}) round differently when added in another order"

    def absorb(self, partials: Partials, state: StateSession, clock: EpochClock) -> Output:
        return self.measure.absorb(partials, state, clock)

    def describe(self) -> dict[str, Any]:
        window = self.window.describe()
        return {"operator": "TopK", "item": self.item, "weight": self.weight, "window": window}

    def _groups(self, rows: KeyedRows) -> Groups:
        starts = self.window.starts(rows)
        return rows.sub_groups([START, self.item], [starts, rows.column(self.item)])

    def _best(self, closed: StateRows, names: Sequence[str]) -> tuple[I64, I64]:
        """Which rows win, by group and rank, and the rank of each."""
        keys = closed.keys
        groups = KeyedRows(keys, names).sub_groups([START], [keys.column(START)])
        items = np.empty(len(closed), np.int64)
        values = keys.column(self.item)
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())  # Arrow does not sort them
        items[pc.sort_indices(values).to_numpy()] = np.arange(len(closed))
        weight = ~sortable(to_words(self.measure.result(closed))[0])  # descending
        order = np.lexsort((items, weight, groups.codes))
        rank = np.arange(len(closed)) - np.repeat(groups.starts, groups.sizes)
        chosen = rank < self.k
        return order[chosen], rank[chosen] + 1
