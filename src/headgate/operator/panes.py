"""Windows made of panes: merge stretches of state rows, one result for each stretch.

A sliding window and a session keep one state row per key and *pane*, so that an input row touches
one of them. What a window holds is then a stretch of consecutive panes of its key. Sums of integers
are differences of prefix sums. All else is merged pairwise by doubling: 2, 4, 8 ... panes from each
row on, and a stretch is made of at most log2(its length) of those. So it costs the panes times that
logarithm, however many windows share a pane, and it needs no inverse: a NaN or the largest value of
one window does not touch the next. The order of merging follows from the stretch alone, not from
what stands beside it, so that even floats do not depend on the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.rows import Groups, KeyedRows
from headgate.state.layout import RowLayout, Values
from headgate.state.rows import Held, RowIds, StateRows


class Singles(Groups):
    """As many groups as rows, one row each: to merge row by row with what merges by groups."""

    def __init__(self, count: int) -> None:
        self.codes = self.first = np.arange(count)


@dataclass(frozen=True)
class Ranges:
    """Stretches of rows: from `lo` up to, not including, `hi`; none is empty."""

    lo: I64
    hi: I64

    def __len__(self) -> int:
        return len(self.lo)

    def sums(self, words: I64) -> I64:
        """Sums of integers, modulo 2**64."""
        until = np.zeros(len(words) + 1, np.int64)
        np.cumsum(words, out=until[1:])
        result: I64 = until[self.hi] - until[self.lo]
        return result

    def merged(self, rows: StateRows, join: Callable[[StateRows, StateRows], StateRows]) -> Any:
        """All rows of every stretch in one, in order; `join` merges two lists of rows pairwise."""
        rest, at = self.hi - self.lo, self.lo.copy()
        made: StateRows | None = None  # of the stretches `whose`
        whose = np.zeros(0, np.int64)
        step = 1
        while True:
            due = np.flatnonzero(rest & step)
            pieces = rows.take(at[due])
            if made is None:
                made, whose = pieces, due
            elif len(due):
                begun = np.zeros(len(self), np.bool_)
                begun[whose] = True
                place = np.zeros(len(self), np.int64)
                place[whose] = np.arange(len(whose))
                old = begun[due]
                untouched = np.ones(len(whose), np.bool_)
                untouched[place[due[old]]] = False
                parts = [made.take(np.flatnonzero(untouched)), pieces.take(np.flatnonzero(~old))]
                if old.any():
                    both = pieces.take(np.flatnonzero(old))
                    parts.append(join(made.take(place[due[old]]), both))
                whose = np.concatenate([whose[untouched], due[~old], due[old]])
                made = concat_rows(parts)
            at[due] += step
            rest[due] -= step
            if not rest.any():
                return made.take(np.argsort(whose, kind="stable"))
            rows = join(
                rows.take(np.arange(len(rows) - step)), rows.take(np.arange(step, len(rows)))
            )
            step *= 2


def concat_rows(parts: list[StateRows]) -> StateRows:
    ids = RowIds.concat([part.ids for part in parts])
    names = parts[0].columns
    columns = {name: Values.concat([part.columns[name] for part in parts]) for name in names}
    return StateRows(parts[0].layout, ids, columns)


def with_values(rows: StateRows, values: Mapping[str, Any]) -> StateRows:
    """The rows with other content in some columns."""
    columns = dict(rows.columns)
    for label, content in values.items():
        column = rows.layout.find(label)
        columns[column.name] = column.store(content, len(rows))
    return replace(rows, columns=columns)


def held_of(layout: RowLayout, rows: StateRows) -> Held:
    """State rows in hand, as a lookup would show them."""
    return Held(layout, np.ones(len(rows), np.bool_), lambda name: rows.columns[name])


def keyed_rows(rows: StateRows) -> KeyedRows:
    """The keys of state rows, without sub-keys."""
    schema = rows.layout.schema
    return KeyedRows(rows.keys.select(list(range(len(schema.key)))), schema.key.names, rows.route)


def groups_of(rows: StateRows, without: str) -> Groups:
    """The distinct keys of state rows, and their sub-keys but for one column."""
    schema, keys = rows.layout.schema, rows.keys
    keyed = keyed_rows(rows)
    rest = [
        (name, keys.column(len(schema.key) + number))
        for number, name in enumerate(schema.sub.names)
        if name != without
    ]
    if not rest:
        return keyed.groups
    return keyed.sub_groups([name for name, _ in rest], [column for _, column in rest])


def runs(*codes: Any) -> Bools:
    """Where rows in order differ from the row before in one of the codes; the first row does."""
    first = np.ones(len(codes[0]), np.bool_)
    first[1:] = False
    for code in codes:
        first[1:] |= code[1:] != code[:-1]
    return first


def ranges_of(first: Bools) -> Ranges:
    """The stretches that begin where `first` says."""
    lo = np.flatnonzero(first)
    return Ranges(lo, np.append(lo[1:], len(first)))


def as_times(words: I64, kind: pa.DataType) -> pa.Array:
    return pa.array(np.ascontiguousarray(words)).view(kind)
