"""Late rows as a stream of their own.

Whether a row is late follows from its time and the clock that the plan gives the operator, not from
state. So late rows need no way out of the operator: a filter beside it, on the same input, asks the
same question and lets through what the operator drops, where the rows are, before any exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError
from headgate.topology.joining import LEFT, RIGHT

SIDES = {"left": LEFT, "right": RIGHT}


@dataclass(frozen=True)
class LateRows:
    """A predicate: which rows come too late for the operator `of`.

    `times` are columns of times: rows that lack one are not late but bad; the first one decides,
    by `judge(times in µs, clock)`. Rows with a null in `never` do not reach the operator at all.
    `clock` is the operator's in an epoch.
    """

    of: str
    times: tuple[str, ...]
    judge: Callable[[I64, Any], Bools]
    never: tuple[str, ...] = ()
    clock: Any = None

    @property
    def reads(self) -> set[str]:
        return {*self.times, *self.never}

    def at(self, clock: Any) -> LateRows:
        return replace(self, clock=clock)

    def __call__(self, batch: pa.RecordBatch) -> Bools:
        assert self.clock is not None, f"late rows of {self.of}: no epoch"
        there = [batch.column(name).is_valid() for name in sorted(self.reads)]
        late: Bools = ~reduce(or_, [~np.asarray(valid) for valid in there])
        times = batch.column(self.times[0])
        zone = times.type.tz if pa.types.is_timestamp(times.type) else None
        in_us = pc.fill_null(times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()), 0)
        return late & self.judge(np.asarray(in_us), self.clock)


def before_watermark(times: I64, clock: Any) -> Bools:
    """Which rows are late for an operator that takes rows in order of time."""
    mark = clock.previous_watermark_us
    return np.zeros(len(times), np.bool_) if mark is None else np.asarray(times < mark)


def late_rows(node: Any, side: str | None, never: Iterable[str]) -> LateRows:
    """The filter for rows late for an operator, on a side of its input; raises if none ever is.

    `never`: columns of the key; rows with a null there are dropped before it.
    """
    operator = node.spec if node.kind == "stateful" else None
    if operator is None:
        raise DeclarationError(
            f"late() gives the rows that come too late for an operator with state, and "
            f"{node.name!r} keeps none; call it on what process(...) or join(...) returned",
            operator=node.name,
        )
    if (side is not None) != (operator.sides is not None) or side not in (None, *SIDES):
        which = "late('left') or late('right')" if operator.sides is not None else "late()"
        given = "" if side is None else repr(side)
        raise DeclarationError(
            f"late({given}) of {node.name!r}: write {which}, as it has "
            f"{'two inputs' if operator.sides is not None else 'one input'}",
            operator=node.name,
        )
    if node.order_by is not None:
        return LateRows(node.name, (node.order_by,), before_watermark, tuple(never))
    times = operator.late_by(SIDES.get(side or "left", LEFT))
    if not times:
        raise DeclarationError(
            f"no row {'of that side ' if side else ''}is late for {node.name!r}: it does not drop "
            "rows by their event time. Rows are late for windows of event time, for joins with "
            "within=, window= or as_of= and for order_by=",
            operator=node.name,
        )
    return LateRows(node.name, times, operator.is_late, tuple(never))
