"""Timers: what is to be done for a key at a time, kept as state beside the operator's own.

A key has at most one timer of each name. Setting it again moves it, cancelling it is one lookup,
and so nothing piles up. Timers are a state table of their own (a row per key and name), so they
are committed, migrate, rescale and survive a crash exactly as state does. An event-time timer is
due once the watermark has reached its time, a processing-time one once the epoch's clock has.

Finding due timers scans the timers held (a few ns each), not the keys, and only in epochs in which
one can be due: the manifest keeps the earliest time of every slot (`slot/held_back.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headgate.arrays import I64
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.routing.identity import Identity
from headgate.state.layout import KeyBatch, StateSchema
from headgate.state.rows import StateRows
from headgate.state.session import StateSession
from headgate.topology.arguments import check_choice

TimerClock = Literal["event", "processing"]
CLOCKS: tuple[TimerClock, ...] = get_args(TimerClock)
NAME = "@timer"
COLUMNS: dict[TimerClock, str] = {"event": "event_us", "processing": "processing_us"}
TIMESTAMP = pa.timestamp("us", "UTC")


def timer_schema(key: pa.Schema) -> StateSchema:
    """A row per key and name of a timer; one of the two times is null."""
    values = pa.schema([pa.field(column, pa.int64()) for column in COLUMNS.values()])
    return StateSchema(key, values, pa.schema([pa.field(NAME, pa.string())]))


@dataclass(frozen=True)
class FiredTimers:
    """Timers that are due, in order of time, then of name; each fires once.

    `keys` are rows that `state.read(timers.keys.groups)` takes; `names` and `clocks` say which
    timer it was, `at_us` when it was due.
    """

    keys: KeyedRows
    names: list[str]
    clocks: list[TimerClock]
    at_us: I64

    def __len__(self) -> int:
        return len(self.names)

    @property
    def batch(self) -> pa.RecordBatch:
        """Key, name and time as columns: how a timer looks among the dead letters."""
        columns = self.keys.batch
        arrays = [*columns.columns, pa.array(self.names), pa.array(self.at_us).cast(TIMESTAMP)]
        return pa.RecordBatch.from_arrays(arrays, names=[*columns.schema.names, NAME, "@at"])


class Timers:
    """The timers of one operator in one slot: what an operator has as `state.timers`.

    `state.timers.set(rows.groups, at_us)` sets the timer of all these keys. Costs as much as
    writing that many rows of state.
    """

    def __init__(self, session: StateSession, key: Sequence[str], identity: Identity) -> None:
        self.session, self._key, self._identity = session, tuple(key), identity
        self.earliest: dict[TimerClock, int] = {}  # of those that were set in this session

    def set(
        self, keys: KeyBatch, at_us: Any, *, name: str | list[str] = "", clock: TimerClock = "event"
    ) -> None:
        """Have the keys' timers fire at these times (µs since 1970, UTC), one for each key.

        `name` is that of all these timers, or a list with one for each.
        """
        check_choice(clock, "clock= of a timer", CLOCKS)
        at = np.asarray(at_us, np.int64)
        assert len(at) == len(keys.h), f"{len(at)} times for {len(keys.h)} keys"
        if not len(at):
            return
        groups = self._timers(keys, name)
        self.earliest[clock] = min(int(at.min()), self.earliest.get(clock, int(at.min())))
        times = pa.array(at[groups.last])
        none = pa.nulls(len(times), pa.int64())
        self.session.write(
            groups, {column: times if c == clock else none for c, column in COLUMNS.items()}
        )

    def cancel(self, keys: KeyBatch, *, name: str | list[str] = "") -> None:
        """Forget the keys' timers of that name; those without one are no matter."""
        if len(keys.h):
            self.session.remove(self._timers(keys, name))

    def due(self, clock: EpochClock) -> FiredTimers | None:
        """The timers that are due by this clock; they stay."""
        return None if (rows := self._due_rows(clock)) is None else rows[1]

    def take_due(self, clock: EpochClock) -> FiredTimers | None:
        """The same; they have fired and are gone."""
        found = self._due_rows(clock)
        if found is None:
            return None
        self.session.remove_rows(found[0])
        return found[1]

    def _timers(self, keys: KeyBatch, name: str | list[str]) -> Any:
        names = [name] * len(keys.h) if isinstance(name, str) else name
        columns = keys.columns.select(list(range(len(self._key))))
        rows = KeyedRows(columns, self._key, keys.route, self._identity)
        return rows.sub_groups([NAME], [pa.array(names, pa.string())])

    def _due_rows(self, clock: EpochClock) -> tuple[StateRows, FiredTimers] | None:
        limits: dict[TimerClock, int | None] = {
            "event": clock.watermark_us,
            "processing": clock.now_ms * 1000,
        }
        found: list[tuple[StateRows, I64, TimerClock]] = []
        for kind, limit in limits.items():
            if limit is None and not clock.input_ends:
                continue
            if clock.input_ends and kind == "event":
                limit = np.iinfo(np.int64).max - 1
            assert limit is not None
            rows = self.session.select(COLUMNS[kind], below=limit + 1)
            if len(rows):
                found.append((rows, rows[COLUMNS[kind]], kind))
        if not found:
            return None
        rows = StateRows.concat([part for part, _, _ in found])
        at = np.concatenate([times for _, times, _ in found])
        clocks = [kind for part, _, kind in found for _ in range(len(part))]
        names = rows.arrow(NAME).to_pylist()
        order = np.lexsort((np.unique(names, return_inverse=True)[1], at))
        rows = rows.take(order)
        columns = rows.keys.select(list(range(len(self._key))))
        keyed = KeyedRows(columns, self._key, rows.route, self._identity)
        return rows, FiredTimers(
            keyed, [names[i] for i in order], [clocks[i] for i in order], at[order]
        )
