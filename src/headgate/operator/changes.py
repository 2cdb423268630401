"""Results that change: which rows are new, which replace others, which are taken back.

An operator tells changes with `emit="changes"`, or with a window that allows lateness. Its output
has a column `change`. A result is known by its key, and its window if there is one: "insert" is
the first result there, "update" replaces it, "delete" takes it back (a session that was merged into
another, or grew); of a deleted result the value columns are null.

The state column `@epoch` says when a row was touched last: the number of the epoch, from 1,
negative while it was not there before that epoch. So it is known at the end of an epoch which rows
it touched, and which of them nobody has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.panes import Ranges
from headgate.operator.rows import EpochClock, Groups
from headgate.operator.window import CHANGE, DELETE, INSERT, SEEN, UPDATE
from headgate.state.rows import StateRows
from headgate.state.session import StateSession

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey


@dataclass(frozen=True)
class Told:
    """Results, and the state rows that each is made of."""

    results: StateRows
    rows: StateRows
    ranges: Ranges

    def has(self, flags: Bools) -> Bools:
        """Which results have a row that is so."""
        result: Bools = self.ranges.sums(flags.astype(np.int64)) > 0
        return result

    def since(self, epoch: int) -> tuple[Bools, Bools]:
        """Which rows were touched in this epoch, and which of these were not there before it."""
        seen: I64 = self.rows[SEEN]
        return np.abs(seen) == epoch + 1, seen == -(epoch + 1)


def seen_now(state: StateSession, clock: EpochClock, touched: Groups) -> Bools:
    """Note the rows that this epoch touched; returns which of them are new."""
    new: Bools = state.read(touched)[SEEN] == 0
    stamp = clock.epoch + 1
    state.write(touched, {SEEN: np.where(new, -stamp, stamp)})
    return new


def of_results(
    operator: PerKey, results: StateRows, new: Bools | None = None
) -> pa.RecordBatch | None:
    """Output rows of the results: key, bounds, values, and the change if it is told."""
    if not len(results):
        return None
    assert operator.window is not None
    best = operator.choose(results)
    key = best.keys.select(best.layout.schema.key.names)
    parts = [key, operator.window.bounds(best)]
    spread = operator.spread(best)
    if spread is not None:
        parts = [part.take(pa.array(spread)) for part in parts if part is not None]
    parts.append(operator.results(best))
    if operator.tells:
        changes = np.where(np.ones(len(best), np.bool_) if new is None else new, INSERT, UPDATE)
        parts.append(told_as(changes if spread is None else changes[spread]))
    return side_by_side(*(part for part in parts if part is not None))


def taken_back(operator: PerKey, results: StateRows) -> pa.RecordBatch:
    """Output rows that take these results back: key and bounds, the values null."""
    assert operator.window is not None
    key = results.keys.select(results.layout.schema.key.names)
    values = operator.results(results)
    nulls = [pa.nulls(len(results), field.type) for field in values.schema]
    gone = pa.RecordBatch.from_arrays(nulls, schema=values.schema)
    bounds = operator.window.bounds(results)
    assert bounds is not None
    return side_by_side(key, bounds, gone, told_as([DELETE] * len(results)))


def told_as(changes: object) -> pa.RecordBatch:
    column = pa.array(changes, pa.string())
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([CHANGE]))


def side_by_side(*parts: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column for part in parts for column in part.columns]
    schema = pa.schema([f for part in parts for f in part.schema])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
