"""Results that change: which rows are new, which replace others, which are taken back.

An operator tells changes with `emit="changes"`, or with a window that allows lateness. Its output
has a column `change`. A result is known by its key, its window if there is one, and its rank if it
is one of several: "insert" is the first result there, "update" replaces it, "delete" takes it back
(a session that was merged into another, or grew); of a deleted result the value columns are null.

The state column `@epoch` says when a row was touched last: the number of the epoch, from 1,
negative while it was not there before that epoch. So it is known at the end of an epoch which rows
it touched, and which of them nobody has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.panes import Ranges
from headgate.operator.rows import EpochClock, Groups
from headgate.operator.window import CHANGE, SEEN
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


@dataclass(frozen=True)
class Lines:
    """Output rows of some results: which result each is of (None: one of each), what it says.

    `changes`: what each of them tells (None: they are told once).
    """

    values: pa.RecordBatch
    changes: Any = None
    of: I64 | None = None


def of_results(
    operator: PerKey, results: StateRows, new: Bools | None = None
) -> pa.RecordBatch | None:
    """Output rows of the results: key, bounds, values, and the change if it is told.

    `new`: nothing was told of them before (None: of none of them).
    """
    if not len(results):
        return None
    new = np.ones(len(results), np.bool_) if new is None else new
    return _put_out(operator, results, operator.lines(results, new))


def taken_back(operator: PerKey, panes: StateRows, ranges: Ranges) -> pa.RecordBatch:
    """Output rows that take back what was told of these stretches of panes: values are null."""
    gone = _put_out(operator, panes.take(ranges.lo), operator.gone(panes, ranges))
    assert gone is not None
    return gone


def _put_out(operator: PerKey, results: StateRows, lines: Lines) -> pa.RecordBatch | None:
    if not lines.values.num_rows:
        return None
    assert operator.window is not None
    key = results.keys.select(results.layout.schema.key.names)
    bounds = operator.window.bounds(results)
    parts = [key] if bounds is None else [key, bounds]
    if lines.of is not None:
        parts = [part.take(pa.array(lines.of)) for part in parts]
    parts.append(lines.values)
    if operator.tells:
        parts.append(told_as(lines.changes))
    return side_by_side(*parts)


def nulls_of(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """The values of what is taken back."""
    return pa.RecordBatch.from_arrays([pa.nulls(count, f.type) for f in schema], schema.names)


def told_as(changes: object) -> pa.RecordBatch:
    column = pa.array(changes, pa.string())
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([CHANGE]))


def side_by_side(*parts: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column for part in parts for column in part.columns]
    schema = pa.schema([f for part in parts for f in part.schema])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
