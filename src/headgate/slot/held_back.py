"""What an operator holds back until its time: rows that wait for their order, and timers.

Both are state tables beside the operator's own, of the same keys, owners and moves, so they commit,
migrate and survive as it does. `process(..., order_by="ts")` has rows wait, in state, until the
watermark has passed their event time: then no earlier one can come. Rows are handed over in order
of time, those of equal times in order of arrival (epoch, then place in the source). A row that
comes after rows of its time were handed over is late.

A slot tells the earliest time at which it has something to do (`Due`), which the manifest keeps: in
epochs that do not reach it nothing is scanned, and an idle stream need not tick. A bound may be too
early (a timer was cancelled), never too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import to_words
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.operator.timers import COLUMNS, Timers
from headgate.routing.identity import Identity
from headgate.state.layout import StateSchema
from headgate.state.session import StateSession
from headgate.state.state_file import Chain

ARRIVAL, TIME = "@arrival", "@time_us"
WAITING, TIMERS = "waiting", "timers"


def table_of(operator: str, part: str) -> str:
    """The name of a state table beside an operator's own; operators have no such names."""
    return f"{operator}@{part}"


def waiting_schema(rows: pa.Schema, key: Sequence[str]) -> StateSchema:
    """A row of state per row that waits: its key, when it arrived, its time, its other columns."""
    values = [pa.field(TIME, pa.int64(), nullable=False)]
    values += [field for field in rows if field.name not in key]
    keys = pa.schema([rows.field(name) for name in key])
    sub = pa.schema([pa.field(ARRIVAL, pa.int64(), nullable=False)])
    return StateSchema(keys, pa.schema(values), sub)


def times_of(batch: pa.RecordBatch, column: str) -> tuple[I64, I64]:
    """The event times of rows in µs, and the numbers of rows that have none."""
    times = batch.column(column)
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    words, valid = to_words(times.cast(pa.timestamp("us", zone), safe=False))
    return words, np.zeros(0, np.int64) if valid is None else np.flatnonzero(~valid)


class Waiting:
    """The rows of one operator and slot that wait for their order."""

    def __init__(self, session: StateSession, column: str, rows: pa.Schema) -> None:
        self.session, self._column, self._schema = session, column, rows
        self.earliest: int | None = None  # of the rows that began to wait in this session

    def take_in(
        self, batch: pa.RecordBatch, key: Sequence[str], identity: Identity, clock: EpochClock
    ) -> tuple[pa.RecordBatch, I64, I64, int, I64]:
        """Keep the rows that must wait; returns those that need not, with times and arrivals.

        Costs a write of state for every row that waits.
        """
        times, without = times_of(batch, self._column)
        fits = np.ones(len(times), np.bool_)
        fits[without] = False
        before = clock.previous_watermark_us
        late = 0
        if before is not None:
            late = int(np.count_nonzero(fits & (times < before)))
            fits &= times >= before
        keyed = KeyedRows(batch, key, identity=identity)
        arrival = (np.int64(clock.epoch) << 32) + keyed.groups.rank
        passes = fits & self._is_over(times, clock)
        waits = np.flatnonzero(fits & ~passes)
        if len(waits):
            some = keyed.take(waits)
            rows = some.sub_groups([ARRIVAL], [pa.array(arrival[waits])])
            values = {TIME: times[waits]}
            self.earliest = int(times[waits].min())
            values |= {n: some.column(n) for n in batch.schema.names if n not in key}
            self.session.write(rows, values)
        now = np.flatnonzero(passes)
        return batch.take(pa.array(now)), times[now], arrival[now], late, without

    def released(
        self, clock: EpochClock, fresh: tuple[pa.RecordBatch, I64, I64] | None
    ) -> pa.RecordBatch | None:
        """Rows whose time has come, with those that arrive just now, in order; they are gone."""
        batches: list[pa.RecordBatch] = []
        times: list[I64] = []
        arrivals: list[I64] = []
        if clock.input_ends:
            rows = self.session.all()
        elif clock.watermark_us is not None:
            rows = self.session.select(TIME, below=clock.watermark_us)
        else:
            return None
        if len(rows):
            held = [rows.arrow(field.name) for field in self._schema]
            batches.append(pa.RecordBatch.from_arrays(held, schema=self._schema))
            times.append(rows[TIME])
            arrivals.append(rows[ARRIVAL])
            self.session.remove_rows(rows)
        if fresh is not None and fresh[0].num_rows:
            columns = fresh[0].select(self._schema.names).columns
            batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            times.append(fresh[1])
            arrivals.append(fresh[2])
        if not batches:
            return None
        order = np.lexsort((np.concatenate(arrivals), np.concatenate(times)))
        return pa.concat_batches(batches).take(pa.array(order))

    def _is_over(self, times: I64, clock: EpochClock) -> Bools:
        if clock.input_ends:
            return np.ones(len(times), np.bool_)
        if clock.watermark_us is None:
            return np.zeros(len(times), np.bool_)
        return np.asarray(times < clock.watermark_us)


# --- when there is something to do -----------------------------------------------------------
Due = tuple[int | None, int | None]  # earliest watermark and processing time, in µs; None: never
NEVER: Due = (None, None)


def is_due(due: Due | None, clock: EpochClock) -> bool:
    """May something be due by this clock? Unknown counts as yes."""
    if due is None:
        return True
    event, processing = due
    if event is not None and clock.input_ends:
        return True
    if event is not None and clock.watermark_us is not None and event <= clock.watermark_us:
        return True
    return processing is not None and processing <= clock.now_ms * 1000


@dataclass
class HeldBack:
    """The tables beside an operator's own in one slot, while a task has them open.

    `before` is the bound that the last manifest has (None: unknown, as units have moved). `own` are
    tables that the operator itself asked for (`StatefulOperator.beside`).
    """

    waiting: Waiting | None
    timers: Timers | None
    before: Due | None
    is_over: bool = False  # what was due has been dealt with, so the bound must be found anew
    own: dict[str, StateSession] = field(default_factory=dict)

    @property
    def sessions(self) -> dict[str, StateSession]:
        """All of them, by part."""
        parts = {WAITING: self.waiting, TIMERS: self.timers}
        held = {name: part.session for name, part in parts.items() if part is not None}
        return held | self.own

    def due_after(self) -> Due:
        """When there is something to do next; scans what is held only if some of it was due."""
        waiting, timers = self.waiting, self.timers
        if self.is_over or self.before is None:
            at = None if waiting is None else waiting.session.least(TIME)
            event = None if timers is None else timers.session.least(COLUMNS["event"])
            later = None if timers is None else timers.session.least(COLUMNS["processing"])
            return _least(None if at is None else at + 1, event), later
        at = None if waiting is None else waiting.earliest
        new = {} if timers is None else timers.earliest
        event, processing = self.before
        event = _least(event, None if at is None else at + 1, new.get("event"))
        return event, _least(processing, new.get("processing"))

    def commit(self) -> dict[str, Chain]:
        """Commit all tables; their chains by part."""
        return {part: session.commit() for part, session in self.sessions.items()}


def _least(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)
