"""The global window: all rows of a key, told when a trigger says so.

It keeps a state row per key, and how many rows came since it was told last. Triggers are looked at
when an epoch ends, so a key is told at most once an epoch. A trigger of time is one for all keys:
it fires when the clock passes a multiple of the interval, and tells the keys that got rows since.
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
from headgate.errors import DeclarationError
from headgate.operator.changes import of_results
from headgate.operator.panes import with_values
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.window import FOREVER, Placed, Window
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice, check_count, positive_us

if TYPE_CHECKING:
    from headgate.operator.aggregate import PerKey

Clock = Literal["processing", "event"]
Then = Literal["keep", "reset"]
ROWS = "@rows"  # state column: rows since the key was told


@dataclass(frozen=True)
class Global(Window):
    """All rows of a key in one window without an end, told by a trigger.

    `every=100` tells a key when at least 100 rows came since it was told; `every="1 minute"` tells
    all keys that got rows, when the clock of the epochs passes a full minute, with `clock="event"`
    when the watermark does; without `every` an epoch tells the keys that it touched. Triggers are
    looked at when an epoch ends. `then="reset"` begins anew after a result, `"keep"` goes on
    adding. When the input ends, what was not told is told. No row is late.

    Examples:
        >>> Global(every=100, then="reset")
        Global(every=100, clock='processing', then='reset')
    """

    sub_key: ClassVar[pa.Schema] = pa.schema([])
    bounded: ClassVar[tuple[pa.Field, ...]] = ()
    wants_touched: ClassVar[bool] = True

    every: int | str | timedelta | None = None
    clock: Clock = field(default="processing", kw_only=True)
    then: Then = field(default="keep", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.clock, "Global: clock", get_args(Clock))
        check_choice(self.then, "Global: then", get_args(Then))
        if self.lateness_us or self.late != "drop":
            raise DeclarationError(
                "Global has no end, so no row is late; leave out late= and allowed_lateness="
            )
        if self.interval_us is None and self.clock != "processing":
            raise DeclarationError(
                f"Global: clock={self.clock!r} is for an interval; write every='1 minute'"
            )

    @cached_property
    def rows(self) -> int:
        """How many rows have a key told, where rows do."""
        return check_count(self.every, "Global: every") if isinstance(self.every, int) else 1

    @cached_property
    def interval_us(self) -> int | None:
        if self.every is None or isinstance(self.every, int):
            self.rows  # noqa: B018 (raises if it is no count)
            return None
        return positive_us(self.every)

    @property
    def time_column(self) -> str | None:
        return None

    @property
    def by_clock(self) -> bool:
        return self.interval_us is not None and self.clock == "processing"

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        return self.then == "keep"

    def check(self, rows: pa.Schema, key: Sequence[str], operator: str) -> None:
        if operator == "TopK":
            raise DeclarationError(
                "TopK ranks what a window holds when it is final, and Global never is; use "
                "Tumbling, or TopRows",
                operator=operator,
            )

    def held_fields(self, tells: bool) -> list[pa.Field]:
        if tells:
            raise DeclarationError(
                "Global says by its trigger when results are told; leave out emit='changes', or "
                "the window"
            )
        return [pa.field(ROWS, pa.int64(), nullable=False)]

    def place(self, rows: KeyedRows, clock: EpochClock) -> Placed:
        none = np.zeros(len(rows), np.int64)
        return Placed(none, none, np.ones(len(rows), np.bool_), {})

    def before(self, held: Held) -> None:
        held[ROWS]

    def note(
        self, times: I64, groups: Groups, held: Held, state: StateSession, good: Bools | None
    ) -> None:
        self._count(held[ROWS] + groups.sizes, groups, state, good)

    def absorb(
        self,
        partials: Partials,
        groups: Groups,
        held: Held,
        state: StateSession,
        good: Bools | None,
    ) -> None:
        rows = held[ROWS].copy()
        np.add.at(rows, groups.codes, partials.column(ROWS).to_numpy())
        self._count(rows, groups, state, good)

    def _count(self, rows: I64, groups: Groups, state: StateSession, good: Bools | None) -> None:
        if good is None:
            state.write(groups, {ROWS: rows})
        else:
            state.write(groups.take(good), {ROWS: rows[good]})

    def finish(
        self, operator: PerKey, state: StateSession, clock: EpochClock, touched: Groups | None
    ) -> pa.RecordBatch | None:
        if clock.input_ends or (self.interval_us is not None and self._is_due(clock)):
            rows = state.select(ROWS, below=FOREVER, at_least=1)
        elif self.interval_us is None and touched is not None:
            rows = state.rows_of(touched)
            rows = rows.take(np.flatnonzero(rows[ROWS] >= self.rows))
        else:
            return None
        if not len(rows):
            return None
        told = of_results(operator, rows)
        if self.then == "reset":
            state.remove_rows(rows)
        else:
            state.absorb(with_values(rows, {ROWS: np.zeros(len(rows), np.int64)}))
        return told

    def _is_due(self, clock: EpochClock) -> bool:
        before = clock.previous_watermark_us
        now = clock.watermark_us
        if self.by_clock:
            last_ms = clock.previous_now_ms
            before, now = None if last_ms is None else last_ms * 1000, clock.now_ms * 1000
        assert self.interval_us is not None
        if before is None or now is None:
            return False
        return now // self.interval_us > before // self.interval_us

    def bounds(self, rows: StateRows) -> None:
        return None

    def held_from(self, watermark_us: int) -> int | None:
        return watermark_us if self.clock == "event" else None

    def describe(self) -> dict[str, Any]:
        every = self.rows if self.interval_us is None else {"us": self.interval_us}
        return {"kind": "global", "every": every, "clock": self.clock, "then": self.then}
