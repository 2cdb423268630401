"""Mean speed and number of cars, per key and window: step `agg` of Linear Road.

A car reports twice a minute, so reports are no count of cars. Which cars were seen is kept with the
window, four bytes each, sorted, and forgotten with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I32, I64
from headgate.operator import Mean
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.state.rows import Held, StateRows
from headgate.state.session import StateSession

CAR = "vid"


@dataclass(frozen=True)
class SpeedAndCars(Mean):
    """The mean of `column` over all reports, as `speed`, and how many cars sent them, as `cars`."""

    name: str = "speed_and_cars"

    def value_type(self, rows: pa.Schema) -> pa.DataType:
        return pa.struct([("speed", super().value_type(rows)), ("cars", pa.int64())])

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [*super().held_fields(rows), pa.field("seen", pa.binary())]

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        schema = super().output_schema(rows, key)
        return pa.schema([*list(schema)[:-1], *schema.field(self.name).type])

    def needs(self, rows: pa.Schema, key: Sequence[str], wanted: set[str]) -> set[str]:
        return super().needs(rows, key, wanted) | {CAR}

    def fold(self, rows: KeyedRows, groups: Groups, held: Held) -> dict[str, Any]:
        cars = rows.column(CAR).to_numpy()
        return super().fold(rows, groups, held) | {
            "seen": _joined(groups, groups.codes, cars, held)
        }

    def merge(self, partials: Partials, groups: Groups, held: Held) -> dict[str, Any]:
        codes, cars = _spread(groups.codes, partials.column("seen"))
        return super().merge(partials, groups, held) | {"seen": _joined(groups, codes, cars, held)}

    def result(self, held: Held | StateRows) -> pa.Array:
        cars = pa.array(_lengths(held.arrow("seen")))
        return pa.StructArray.from_arrays([super().result(held), cars], ["speed", "cars"])

    def finish(
        self, state: StateSession, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch | None:
        closed = super().finish(state, clock, carry)
        if closed is None:
            return None
        *columns, both = closed.columns
        names = [*closed.schema.names[:-1], "speed", "cars"]
        return pa.RecordBatch.from_arrays([*columns, *both.flatten()], names)


def _joined(groups: Groups, codes: I64, cars: I32, held: Held) -> pa.Array:
    """The distinct cars of every group, with those that are held: int32, as bytes."""
    before, known = _spread(np.arange(len(groups)), held.arrow("seen"))
    pairs = np.concatenate([codes, before]) << 32 | np.concatenate([cars, known])
    pairs.sort()
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])]
    counts = np.bincount(pairs >> 32, minlength=len(groups))
    ends = np.append(0, 4 * np.cumsum(counts)).astype(np.int32)
    data = pa.py_buffer(pairs.astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(groups), [None, pa.py_buffer(ends), data])


def _spread(codes: I64, seen: pa.Array) -> tuple[I64, I32]:
    """Every car of some lists, with the code of its list."""
    seen = seen.fill_null(b"")
    return np.repeat(codes, _lengths(seen)), np.frombuffer(b"".join(seen.to_pylist()), np.int32)


def _lengths(seen: pa.Array) -> I64:
    lengths: I64 = pa.compute.binary_length(seen.fill_null(b"")).to_numpy().astype(np.int64) // 4
    return lengths
