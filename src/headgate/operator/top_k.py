"""The heaviest items of every key and window: a state row per key, window and item.

Where changes are told, a state row also holds what the item weighed when the epoch began, and
whether it was there then. So an epoch's end ranks the items twice, as they were and as they are,
and tells the ranks that differ. What an item weighed is merged over panes as what it weighs is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError
from headgate.operator.aggregate import PerKey
from headgate.operator.aggregates import Count, Sum
from headgate.operator.arithmetic import sortable, to_words
from headgate.operator.base import Output
from headgate.operator.changes import Lines
from headgate.operator.measure import Measure
from headgate.operator.panes import Ranges, runs, with_values
from headgate.operator.ranks import RANK, ranks_gone
from headgate.operator.rows import Groups, KeyedRows, Partials
from headgate.operator.window import INSERT, START, UPDATE, Window, check_window
from headgate.routing.hashing import is_hashable
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice, check_count
from headgate.topology.schema import column_of

WAS = "@was."  # state columns: the same without it, as the epoch before left it
THERE = "@there"  # state column: was the item there then?


@dataclass(frozen=True)
class TopK(PerKey):
    """For every key and window, the `k` items with the most rows, or the largest sum of `weight`.

    Emitted once, when the window is final: key columns, `window_start`, `window_end`, `rank` (from
    1), the item and its count (column `name`). Exact and deterministic: equal counts are ordered
    by item value. Null items and null weights are skipped. Keeps one state row per key, window and
    item: use it where items per key are bounded. Closing sorts the rows of the closed windows.

    With `emit="changes"` each epoch tells the ranks that have another item or count now, and a
    column `change`: "insert" for a rank that was not there, "update" for one that was. With
    `allowed_lateness` on the window that begins when the window is final; a session that grew is
    taken back ("delete"). State then holds two weights per item; an epoch ranks all items of the
    keys it touched, and goes through all state rows of its slot to find them, some 25 ns each.

    Mergeable, unless it adds up floats: a partial is a count per item, and ranks come at the end.

    Examples:
        >>> from headgate.operator.fixed_windows import Tumbling
        >>> TopK("hashtag", k=3, window=Tumbling("1 hour", time="ts")).output_schema(
        ...     pa.schema({"city": pa.string(), "hashtag": pa.string(), "ts": pa.timestamp("us")}),
        ...     ["city"],
        ... ).names
        ['city', 'window_start', 'window_end', 'rank', 'hashtag', 'count']
    """

    instead = "rename the key or the item, or choose another name="
    adds_rows = True

    item: str
    k: int
    window: Window
    weight: str | None = None
    name: str = "count"
    emit: Literal["updates", "changes"] = field(default="updates", kw_only=True)
    ends_epochs: bool = field(init=False, default=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_count(self.k, "k of TopK", operator="TopK"))
        check_window(self.window, "TopK")
        check_choice(self.emit, "TopK: emit", ("updates", "changes"), operator="TopK")
        self.check_emit()

    @property
    def measure(self) -> Measure:
        """What is kept per item."""
        if self.weight is None:
            return Count(name=self.name, window=self.window, emit=self.emit)
        return Sum(self.weight, name=self.name, window=self.window, emit=self.emit)

    def reads(self) -> set[str]:
        return {self.item} | self.measure.reads()

    def sub_key(self, rows: pa.Schema) -> pa.Schema:
        return pa.schema([*self.window.sub_key, rows.field(self.item)])

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        held = self.measure.held_fields(rows)
        if not self.tells:
            return held
        there = pa.field(THERE, pa.int8(), nullable=False)
        return [*held, *(one.with_name(WAS + one.name) for one in held), there]

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        item = column_of(rows, self.item, "TopK")
        if not is_hashable(item.type) or pa.types.is_dictionary(item.type):
            raise DeclarationError(
                f"TopK cannot count items of type {item.type} (column {self.item!r}); cast it to a "
                "string or a number",
                column=self.item,
                operator="TopK",
            )
        if self.tells:  # of what is taken back it is null
            item = item.with_nullable(True)
        return [RANK, item, *self.measure.result_fields(rows)]

    def known_by(self, key: Sequence[str]) -> tuple[str, ...] | None:
        return (*(super().known_by(key) or ()), RANK.name)

    def counts(self, rows: KeyedRows) -> Bools | None:
        there: Bools = rows.column(self.item).is_valid().to_numpy(zero_copy_only=False)
        if self.weight is not None:
            there &= rows.column(self.weight).is_valid().to_numpy(zero_copy_only=False)
        return there

    def fold(self, rows: KeyedRows, groups: Groups, state: StateSession) -> Output:
        return self.measure.fold(rows, groups, state)

    def merge(self, partials: Partials, groups: Groups, state: StateSession) -> Output:
        return self.measure.merge(partials, groups, state)

    def combined(self, panes: StateRows, ranges: Ranges) -> StateRows:
        made = self.measure.combined(panes, ranges)
        if not self.tells:
            return made
        was = self.measure.combined(_as_it_was(panes), ranges)
        there = ranges.sums(panes[THERE].astype(np.int64)) > 0
        held = {WAS + name: was.arrow(name) for name in _doubled(panes)}
        return with_values(made, {**held, THERE: there.astype(np.int8)})

    # What is told -------------------------------------------------------------------------------

    def lines(self, results: StateRows, new: Bools) -> Lines:
        values, items = self.measure.results(results), _order_of(results.keys.column(self.item))
        codes = self._windows(results).codes
        weights = _weights(values.column(0))
        order, place = self._best(codes, weights, items)
        if not self.tells:
            return self._lines(results, values, order, place, None)
        then = np.flatnonzero((results[THERE] > 0) & ~new)
        weighed = _weights(self.measure.results(_as_it_was(results)).column(0))
        old, old_place = self._best(codes[then], weighed[then], items[then])
        old = then[old]
        begun = np.append(0, np.cumsum(np.bincount(codes)))  # room for the ranks of each window
        held = np.full(len(results), -1)
        held[begun[codes[old]] + old_place] = old
        was = held[begun[codes[order]] + place]
        same = (items[was] == items[order]) & (weighed[was] == weights[order])
        told = np.flatnonzero((was < 0) | ~same)
        changes = np.where(was < 0, INSERT, UPDATE)[told]
        return self._lines(results, values, order[told], place[told], changes)

    def _lines(
        self, results: StateRows, values: pa.RecordBatch, of: I64, place: I64, changes: Any
    ) -> Lines:
        take, item = pa.array(of), results.keys.schema.field(self.item)
        if self.tells:
            item = item.with_nullable(True)
        columns = [results.keys.column(self.item), *values.columns]
        arrays = [pa.array(place + 1), *(column.take(take) for column in columns)]
        schema = pa.schema([RANK, item, *values.schema])
        return Lines(pa.RecordBatch.from_arrays(arrays, schema=schema), changes, of)

    def _best(self, codes: I64, weights: I64, items: I64) -> tuple[I64, I64]:
        """The heaviest of each window, in order, and their places in it."""
        order = np.lexsort((items, ~weights, codes))
        begun = np.flatnonzero(runs(codes[order]))
        place = np.arange(len(order)) - np.repeat(begun, np.diff(np.append(begun, len(order))))
        best = place < self.k
        return order[best], place[best]

    def gone(self, panes: StateRows, ranges: Ranges) -> Lines:
        spans = np.repeat(np.arange(len(ranges)), ranges.hi - ranges.lo)
        items = _order_of(panes.keys.column(self.item))
        counts = np.bincount(np.unique(np.stack([spans, items]), axis=1)[0], minlength=len(ranges))
        schema = self.lines(panes.take(ranges.lo), np.ones(len(ranges), np.bool_)).values.schema
        return ranks_gone(np.minimum(counts, self.k), schema)

    def together(self, results: StateRows, told: Bools) -> Bools:
        codes = self._windows(results).codes
        windows = np.zeros(len(results), np.bool_)
        windows[codes[told]] = True
        return windows[codes]

    def settle(self, state: StateSession, touched: Groups) -> None:
        held = state.read(touched)
        names = [name for name in held.value_names if WAS + name in held.value_names]
        now = {WAS + name: held.arrow(name) for name in names}
        state.write(touched, {**now, THERE: np.ones(len(touched), np.int8)})

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        return self.measure.results(held)

    def _windows(self, rows: StateRows) -> Groups:
        keyed = KeyedRows(rows.keys, rows.layout.schema.key.names)
        return keyed.sub_groups([START], [rows.keys.column(START)])

    def why_not_merged(self, rows: pa.Schema) -> str:
        if not self.measure.why_not_merged(rows):
            return ""
        return f"floats (weight={self.weight!r}) round differently when added in another order"

    def describe(self) -> dict[str, Any]:
        window = self.window.describe()
        told = {"operator": "TopK", "item": self.item, "weight": self.weight, "window": window}
        return told | ({"tells": True} if self.tells else {})


def _doubled(rows: StateRows) -> list[str]:
    """The state columns that are held twice."""
    names = rows.layout.schema.values.names
    return [name for name in names if WAS + name in names]


def _as_it_was(rows: StateRows) -> StateRows:
    return with_values(rows, {name: rows.arrow(WAS + name) for name in _doubled(rows)})


def _order_of(items: pa.Array) -> I64:
    """Numbers in the order of the items, the same for the same item."""
    if pa.types.is_float16(items.type):
        items = items.cast(pa.float32())  # Arrow does not sort them
    result: I64 = pc.rank(items, tiebreaker="dense").to_numpy().astype(np.int64)
    return result


def _weights(column: pa.Array) -> I64:
    return sortable(to_words(column)[0])
