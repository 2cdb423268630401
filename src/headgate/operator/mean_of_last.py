"""MeanOfLast: the average of the last n values per key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operator.aggregate import Aggregate
from headgate.operator.base import Emit, require_numeric
from headgate.operator.mean import float_words, quotient
from headgate.operator.reduce import group_count, running_count
from headgate.operator.rows import Groups, KeyedRows
from headgate.operator.window import Tumbling
from headgate.operator.words import Words
from headgate.routing.hashing import I64
from headgate.state.rows import Held, StateRows
from headgate.topology.declared import check_count

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """All values of a batch in one line: per group the n held ones (oldest first, zeros before the
    first), then those of the batch, then zeros up to a multiple of n.

    `begins` is where each group begins and `fresh` how many values the batch brings it; for every
    row, `so_far` counts those up to it and `newest` is where the latest of them stands.
    """

    values: F64
    begins: I64
    fresh: I64
    so_far: I64
    newest: I64


@dataclass(frozen=True, init=False)
class MeanOfLast(Aggregate):
    """Average the last `n` values of `column` for every key (all of them while there are fewer).

    Nulls are skipped; no value yet gives null. With `emit="running"` (the default) every input row
    passes on with the mean after it, in order of arrival. Sums are made by addition only (no
    running difference), so errors do not build up, and a NaN or a huge value is gone after n more.
    Costs 8 n + 8 bytes of state per key; time and memory follow rows + n × keys touched. Not
    mergeable: which values are the last n is a matter of order.

    The sliding sums are van Herk's (1992): prefix and suffix sums in blocks of n, and any stretch
    of n values is one of each.

    Examples:
        >>> MeanOfLast("speed", 10)
        MeanOfLast(column='speed', emit='running', name='mean', n=10)
    """

    window: Tumbling | None = field(init=False, default=None, repr=False)
    n: int = field(init=False, default=1)

    def __init__(
        self,
        column: str,
        n: int,
        emit: Emit = "running",
        name: str = "mean",
        *,
        ttl: str | timedelta | None = None,
        ordered: bool = False,
    ) -> None:
        n = check_count(n, "n of MeanOfLast", operator="MeanOfLast")
        given = {"column": column, "n": n, "emit": emit, "name": name, "window": None}
        for attribute, value in {**given, "ttl": ttl, "ordered": ordered}.items():
            object.__setattr__(self, attribute, value)
        self.__post_init__()

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        require_numeric(rows, str(self.column), "MeanOfLast")
        return pa.float64()

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [
            pa.field("last", pa.list_(pa.float64(), self.n), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ]

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        return self._newest(self._line_up(rows, groups, held), held)

    def running(self, rows: KeyedRows, groups: Groups, held: Held) -> pa.Array:
        return self._means(self._line_up(rows, groups, held), groups, held)

    def fold_running(
        self, rows: KeyedRows, groups: Groups, held: Held
    ) -> tuple[dict[str, Any], pa.Array]:
        line = self._line_up(rows, groups, held)
        return self._newest(line, held), self._means(line, groups, held)

    def result(self, held: Held | StateRows) -> pa.Array:
        total: Words = held["last"].sum(axis=1)
        return quotient(total, held["count"])

    def why_not_mergeable(self, rows: pa.Schema, key: Sequence[str]) -> str:
        return f"which values are the last {self.n} is a matter of order"

    def describe(self) -> dict[str, Any]:
        return {"operator": "MeanOfLast", "column": self.column, "n": self.n}

    def _line_up(self, rows: KeyedRows, groups: Groups, held: Held) -> Line:
        values, valid = float_words(rows, str(self.column))
        fresh, so_far = group_count(groups, valid), running_count(groups, valid)
        lengths = self.n * (1 + -(-fresh // self.n))
        begins = np.cumsum(lengths) - lengths
        line: F64 = np.zeros(int(lengths.sum()), np.float64)
        line[begins[:, None] + np.arange(self.n)] = held["last"]
        newest = begins[groups.codes] + self.n - 1 + so_far
        if valid is None:
            line[newest] = values
        else:
            line[newest[valid]] = values[valid]
        return Line(line, begins, fresh, so_far, newest)

    def _newest(self, line: Line, held: Held) -> dict[str, Any]:
        places = (line.begins + line.fresh)[:, None] + np.arange(self.n)
        count = np.minimum(held["count"] + line.fresh, self.n)
        return {"last": line.values[places], "count": count}

    def _means(self, line: Line, groups: Groups, held: Held) -> pa.Array:
        blocks = line.values.reshape(-1, self.n)
        prefix = np.cumsum(blocks, axis=1).reshape(-1)
        suffix = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].reshape(-1)
        oldest = line.newest - self.n + 1
        total = prefix[line.newest] + np.where(oldest % self.n == 0, 0.0, suffix[oldest])
        count = np.minimum(held["count"][groups.codes] + line.so_far, self.n)
        return quotient(total, count)
