"""What a join puts out, part by part; and the rows of a call that are new on one side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64, Bools
from headgate.operator.arithmetic import to_words
from headgate.operator.join_state import PARTS
from headgate.operator.rows import EpochClock
from headgate.operator.window import iso_of
from headgate.state.session import StateSession
from headgate.topology.joining import LEFT, Sides


class RowsOfSide(Protocol):
    """Rows of one side, new or held: their columns by name."""

    def arrow(self, name: str) -> pa.Array: ...


@dataclass(frozen=True)
class NewRows:
    """Rows of one side that came in this call.

    `origin` are their numbers in the call, `codes` the groups of their keys, `until` is when they
    may leave.
    """

    batch: pa.RecordBatch
    names: Mapping[str, str]  # name -> name in the batch
    origin: I64
    codes: I64
    times: I64
    until: I64

    def __len__(self) -> int:
        return len(self.codes)

    def arrow(self, name: str) -> pa.Array:
        return self.batch.column(self.names[name])

    def take(self, rows: I64) -> NewRows:
        batch, parts = picked(self.batch, rows), (self.origin, self.codes, self.times, self.until)
        return NewRows(batch, self.names, *(part[rows] for part in parts))


def picked(batch: pa.RecordBatch, rows: I64) -> pa.RecordBatch:
    """Some rows; those that stand together are not copied."""
    if not len(rows):
        return batch.slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def null_rows(batch: pa.RecordBatch, key: tuple[str, ...]) -> Bools | None:
    """Which rows have a null in their key (None: none has)."""
    columns = [c for name in key if (c := batch.column(name)).null_count]
    if not columns:
        return None
    nulls = np.zeros(batch.num_rows, np.bool_)
    for column in columns:
        nulls |= pc.is_null(column).to_numpy(zero_copy_only=False)
    return nulls


Picked = tuple[RowsOfSide, I64]


class Made:
    """Output rows of a call, put together from parts.

    `names`: for both sides, name there -> name in the output.
    """

    def __init__(self, schema: pa.Schema, names: tuple[Mapping[str, str], Mapping[str, str]]):
        self._schema, self._names = schema, names
        self._parts: list[pa.RecordBatch] = []
        self._origins: list[I64] = []

    def add(
        self,
        head: pa.RecordBatch,
        sides: tuple[Picked | None, Picked | None],
        origin: I64 | None = None,
        change: str | None = None,
    ) -> None:
        """Rows with these key columns (and window), and rows of the sides; None is a side of nulls.

        `sides` say which rows of what they are.
        """
        count = head.num_rows
        if not count:
            return
        columns = dict(zip(head.schema.names, head.columns, strict=True))
        for names, side in zip(self._names, sides, strict=True):
            for name, output in names.items():
                if side is None:
                    columns[output] = pa.nulls(count, self._schema.field(output).type)
                else:
                    columns[output] = side[0].arrow(name).take(pa.array(side[1]))
        if change is not None:
            columns["change"] = pa.repeat(change, count)
        arrays = [columns[name] for name in self._schema.names]
        self._parts.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        if origin is not None:
            self._origins.append(origin)

    def batch(self) -> tuple[pa.RecordBatch | None, I64 | None]:
        """All of them, and the rows they came from."""
        if not self._parts:
            return None, None
        origins = np.concatenate(self._origins) if self._origins else None
        if len(self._parts) == 1:
            return self._parts[0], origins
        return pa.concat_batches(self._parts), origins


def made_at_end(sides: Sides, head: pa.Schema, state: StateSession) -> Made:
    """Output rows made of what is held: its tables say which columns there are."""
    fields, names = list(head), []
    for side, part in enumerate(PARTS):
        kept = state.beside[part].schema.values
        names.append({name: out for name, out in sides.names[side] if name in kept.names})
        fields += [kept.field(name).with_name(out) for name, out in names[side].items()]
    schema = pa.schema([field.with_nullable(True) for field in fields])
    return Made(schema, (names[0], names[1]))


def side_rows(side: int, rows: RowsOfSide, chosen: I64) -> tuple[Picked | None, Picked | None]:
    """Rows of one side, and nulls for the other one."""
    return ((rows, chosen), None) if side == LEFT else (None, (rows, chosen))


def refused_late(missed: Bools, clock: EpochClock) -> dict[int, str]:
    """Late rows as dead letters; the clock is that by which the join lets rows go."""
    assert clock.previous_watermark_us is not None
    mark = iso_of(clock.previous_watermark_us)
    why = f"late: the join had let go of its time when the watermark was at {mark}"
    return dict.fromkeys(np.flatnonzero(missed).tolist(), why)


def seconds(us: int) -> str:
    """A duration as people write it.

    Examples:
        >>> seconds(-90_500_000)
        '-90.5 seconds'
    """
    return f"{us / 1e6:g} seconds"


def us_of(column: pa.Array) -> tuple[I64, Bools | None]:
    """Times in µs, and which are there (None: all)."""
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    return to_words(column.cast(pa.timestamp("us", zone), safe=False))
