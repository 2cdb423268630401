"""Tumbling event-time windows: where a row belongs, when it is late, when a window is final.

A row of event time t belongs to the window [start, start + size) that holds t, with starts at
multiples of the size since 1970-01-01 UTC. A window is final in the first epoch whose watermark
has reached its end: it is emitted once, there, and forgotten. Rows of a final window are **late**:
they are dropped and counted. Rows without an event time are refused (dead letters).

What a window emits is as old as the window. So an operator behind windows has a watermark of its
own (`slot/compile.py`), made with `start_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError, NameClash
from headgate.operator.arithmetic import from_words, to_words
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import positive_us
from headgate.topology.schema import time_of

TIMESTAMP = pa.timestamp("us", "UTC")
START, END = "window_start", "window_end"
SUB_KEY = pa.schema([pa.field(START, TIMESTAMP)])
BOUNDS = (pa.field(START, TIMESTAMP), pa.field(END, TIMESTAMP))


@dataclass(frozen=True)
class Tumbling:
    """Windows of a fixed size that do not overlap, over the event time in column `time`.

    Examples:
        >>> Tumbling("1 minute", time="ts").size_us
        60000000
    """

    size: str | timedelta
    time: str

    def __post_init__(self) -> None:
        positive_us(self.size)

    @cached_property
    def size_us(self) -> int:
        return positive_us(self.size)

    def check(self, rows: pa.Schema, key: Sequence[str], operator: str) -> None:
        """Raise unless the input has the time column and the key leaves room for the bounds."""
        time_of(rows, self.time, operator)
        for name in (START, END):
            if name in key:
                raise NameClash(
                    f"{operator} adds a column {name!r}, and its key has one of that name; "
                    "rename the key column",
                    column=name,
                    operator=operator,
                )

    def place(self, rows: KeyedRows, clock: EpochClock) -> tuple[I64, Bools, dict[int, str], int]:
        """The start of every row's window, which rows have one that is open, and of the others
        those to refuse, each with a reason, and the number of late ones.
        """
        column = rows.column(self.time)
        timezone = column.type.tz if pa.types.is_timestamp(column.type) else None
        times, valid = to_words(column.cast(pa.timestamp("us", timezone), safe=False))
        starts: I64 = times // self.size_us * self.size_us
        open_, dead, late = np.ones(len(rows), np.bool_), dict[int, str](), 0
        if valid is not None:
            why = f"no event time: column {self.time!r} is null"
            open_, dead = valid, dict.fromkeys(np.flatnonzero(~valid).tolist(), why)
        if clock.late_us is not None:
            on_time = starts > clock.late_us - self.size_us
            late = int(np.count_nonzero(open_ & ~on_time))
            open_ = open_ & on_time
        return starts, open_, dead, late

    def closed(self, state: StateSession, clock: EpochClock) -> StateRows | None:
        """State rows of the windows that became final in this epoch (None: there are none).

        In order of window, then of key hash. Costs a scan of the held window starts, and only when
        the watermark crossed a boundary. When the input ends, all windows are final.
        """
        now, before = clock.watermark_us, clock.previous_watermark_us
        if clock.input_ends:
            rows = state.all()
        elif now is None or (before is not None and self.start_of(now) == self.start_of(before)):
            return None
        else:
            rows = state.select(START, below=now - self.size_us + 1)
        if not len(rows):
            return None
        return rows.take(np.argsort(rows[START], kind="stable"))

    def start_of(self, time_us: int) -> int:
        """Start of the window that holds an event time.

        Once the watermark is here, no window that starts earlier is still open.
        """
        return time_us // self.size_us * self.size_us

    def bounds(self, rows: StateRows) -> pa.RecordBatch:
        """Start and end of the windows of some state rows."""
        bounds = (rows[START], rows[START] + self.size_us)
        return pa.record_batch([from_words(at, None, TIMESTAMP) for at in bounds], [START, END])

    def describe(self) -> dict[str, object]:
        return {"kind": "tumbling", "size_us": self.size_us, "time": self.time}


def check_window(window: object, operator: str) -> None:
    """Raise unless it is a window: its length alone does not say which column has the times."""
    if not isinstance(window, Tumbling):
        raise DeclarationError(
            f"{operator} got window={window!r}; write window=Tumbling('1 minute', time='ts'), with "
            "the column of event times",
            operator=operator,
        )
