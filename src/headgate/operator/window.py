"""Windows: where a row belongs, when it is late, when a window is final, what is told of it.

What goes behind `window=` is a `Window`: tumbling and sliding ones (`fixed_windows.py`), sessions
(`session_window.py`) and the global one with a trigger (`global_window.py`). It decides under which
sub-key the rows of a key are kept, which columns it keeps beside the operator's, and what to do
with the state when an epoch ends.

Event time goes as in Spark. A window is final in the first epoch whose watermark has reached its
end. It is emitted there, and rows for it count up to and including that epoch: a row is **late**
when its window ends at or before the watermark of the epoch *before*. Rows without an event time
are refused (dead letters). In processing time (`time=None`) every row of an epoch has the
time of its plan, so that an epoch that is run again puts its rows into the same windows.

With `allowed_lateness` the state of a window stays for longer, and late rows change what was
emitted. An operator that tells changes says so in a column: see `CHANGE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.errors import DeclarationError, NameClash
from headgate.operator.arithmetic import to_words
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice, duration_us
from headgate.topology.schema import time_of

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey

Late = Literal["drop", "dead_letters"]
TIMESTAMP = pa.timestamp("us", "UTC")
START, END = "window_start", "window_end"
SUB_KEY = pa.schema([pa.field(START, TIMESTAMP)])
BOUNDS = (pa.field(START, TIMESTAMP), pa.field(END, TIMESTAMP))
CHANGE = pa.field("change", pa.string())
INSERT, UPDATE, DELETE = "insert", "update", "delete"
SEEN = "@epoch"  # state column of operators that tell changes: see `Changes`
FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Placed:
    """Rows of a call: the sub-key of each, its time, and which of them are folded.

    Of the others `dead` are to refuse, each with a reason; `late` counts those that came too late.
    """

    starts: I64
    times: I64
    kept: Bools
    dead: dict[int, str]
    late: int = 0


@dataclass(frozen=True)
class Window:
    """Base of what can stand behind `window=`.

    Args:
        late: What becomes of late rows: `"drop"` (they are counted), or `"dead_letters"`.
        allowed_lateness: How long after its end, in the watermark's time, a window still takes
            rows. What has been emitted by then is told again, in a column `change`.
    """

    sub_key: ClassVar[pa.Schema] = SUB_KEY
    bounded: ClassVar[tuple[pa.Field, ...]] = BOUNDS
    needs_merge: ClassVar[bool] = False  # results are made of several state rows
    keeps_totals: ClassVar[bool] = False  # of panes, beside them: see `totals.py`
    wants_touched: ClassVar[bool] = False  # `finish` has to know which rows an epoch touched
    repeats: ClassVar[bool] = False  # a result may be told again, with later rows in it
    late: Late = field(default="drop", kw_only=True, repr=False)
    allowed_lateness: str | timedelta | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_choice(self.late, f"{who}: late", get_args(Late))
        if self.lateness_us and self.by_clock:
            raise DeclarationError(
                f"{who}: in processing time no row is late; leave out allowed_lateness="
            )

    @cached_property
    def lateness_us(self) -> int:
        return duration_us(self.allowed_lateness or timedelta(0))

    @property
    def time_column(self) -> str | None:
        """Where the times of rows are; None: they have that of the epoch."""
        raise NotImplementedError

    @property
    def by_clock(self) -> bool:
        """Does it go by processing time?"""
        return self.time_column is None

    @property
    def reads(self) -> set[str]:
        return set() if self.time_column is None else {self.time_column}

    def check(self, rows: pa.Schema, key: Sequence[str], operator: str) -> None:
        """Raise unless the input has the time column and the key leaves room for the bounds."""
        if self.time_column is not None:
            time_of(rows, self.time_column, operator)
        for name in (f.name for f in self.bounded):
            if name in key:
                raise NameClash(
                    f"{operator} adds a column {name!r}, and its key has one of that name; "
                    "rename the key column",
                    column=name,
                    operator=operator,
                )

    # What each kind answers ---------------------------------------------------------------------

    def held_fields(self, tells: bool) -> list[pa.Field]:
        """State columns of its own; `tells`: the operator tells changes."""
        return [pa.field(SEEN, pa.int64(), nullable=False)] if tells else []

    def starts_of(self, times: I64) -> I64:
        """The sub-keys of rows with these times."""
        raise NotImplementedError

    def is_open(self, starts: I64, times: I64, mark_us: int) -> Bools:
        """Which rows are in a window that is not over at this time."""
        raise NotImplementedError

    def before(self, held: Held) -> None:
        """Look at what the state holds of columns of its own, before rows are folded."""

    def note(
        self, times: I64, groups: Groups, held: Held, state: StateSession, good: Bools | None
    ) -> None:
        """Write columns of its own for rows that were folded; `held` is what was there before.

        `good`: the groups whose rows were taken (None: all).
        """

    def absorb(
        self,
        partials: Partials,
        groups: Groups,
        held: Held,
        state: StateSession,
        good: Bools | None,
    ) -> None:
        """The same for partials."""

    def finish(
        self, operator: PerKey, state: StateSession, clock: EpochClock, touched: Groups | None
    ) -> pa.RecordBatch | None:
        """The results to emit when all rows of an epoch are in."""
        raise NotImplementedError

    def first_open(self, time_us: int) -> int:
        """Where the first window starts that is not over at this time."""
        raise NotImplementedError

    def bounds(self, rows: StateRows) -> pa.RecordBatch | None:
        """Start and end of the windows of some results."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What stored state depends on."""
        told: dict[str, Any] = {"kind": type(self).__name__.lower(), "time": self.time_column}
        if self.lateness_us:
            told["tells"] = True
        return told

    # For all kinds ------------------------------------------------------------------------------

    def reached(self, clock: EpochClock) -> tuple[int | None, int | None]:
        """The time that the epoch before went by, and that of this one; None: not known yet."""
        if self.by_clock:
            before_ms = clock.previous_now_ms
            before, now = None if before_ms is None else before_ms * 1000, clock.now_ms * 1000
        else:
            before, now = clock.previous_watermark_us, clock.watermark_us  # type: ignore[assignment]
        return before, FOREVER if clock.input_ends else now

    def place(self, rows: KeyedRows, clock: EpochClock) -> Placed:
        """Where rows belong, and which of them are late."""
        if self.time_column is None:
            times = np.full(len(rows), clock.now_ms * 1000, np.int64)
            return Placed(self.starts_of(times), times, np.ones(len(rows), np.bool_), {})
        times, valid = event_times(rows.column(self.time_column))
        starts = self.starts_of(times)
        kept, dead, late = np.ones(len(rows), np.bool_), dict[int, str](), 0
        if valid is not None:
            why = f"no event time: column {self.time_column!r} is null"
            kept, dead = valid, dict.fromkeys(np.flatnonzero(~valid).tolist(), why)
        missed = kept & self.is_late(starts, times, clock)
        late = int(np.count_nonzero(missed))
        if late:
            kept = kept & ~missed
            if self.late == "dead_letters":
                assert clock.previous_watermark_us is not None
                mark = iso_of(clock.previous_watermark_us - self.lateness_us)
                why = f"late: its window was emitted when the watermark was at {mark}"
                dead |= dict.fromkeys(np.flatnonzero(missed).tolist(), why)
        return Placed(starts, times, kept, dead, late)

    def is_late(self, starts: I64, times: I64, clock: EpochClock) -> Bools:
        """Which rows came too late: their window was over in the epoch before."""
        before = clock.previous_watermark_us
        if before is None or self.by_clock:
            return np.zeros(len(times), np.bool_)
        return ~self.is_open(starts, times, before - self.lateness_us)

    def held_from(self, watermark_us: int) -> int | None:
        """See `StatefulOperator.held_from`."""
        return None if self.by_clock else self.first_open(watermark_us - self.lateness_us)


def event_times(column: pa.Array) -> tuple[I64, Bools | None]:
    """A column of times in us, and which of them are there (None: all)."""
    timezone = column.type.tz if pa.types.is_timestamp(column.type) else None
    return to_words(column.cast(pa.timestamp("us", timezone), safe=False))


def iso_of(time_us: int) -> str:
    return str(np.datetime64(time_us, "us"))


def check_window(window: object, operator: str) -> None:
    """Raise unless it is a window: its length alone does not say which column has the times."""
    if not isinstance(window, Window):
        raise DeclarationError(
            f"{operator} got window={window!r}; write window=Tumbling('1 minute', time='ts'), with "
            "the column of event times",
            operator=operator,
        )
