"""Mean speed and number of cars, per key and window: step `agg` of Linear Road.

A car reports twice a minute, so reports are no count of cars. Which cars were seen is kept with the
window, four bytes each, sorted, and forgotten with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I32, I64, Bools
from headgate.operator import Mean
from headgate.operator.arithmetic import Fold
from headgate.operator.rows import KeyedRows, Partials
from headgate.state.rows import Held, StateRows

CAR = "vid"


@dataclass(frozen=True)
class SpeedAndCars(Mean):
    """The mean of `column` over all reports, as `speed`, and how many cars sent them, as `cars`."""

    def reads(self) -> set[str]:
        return super().reads() | {CAR}

    def held_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [*super().held_fields(rows), pa.field("seen", pa.binary())]

    def result_fields(self, rows: pa.Schema) -> list[pa.Field]:
        return [pa.field("speed", pa.float64()), pa.field("cars", pa.int64())]

    def step(
        self, fold: Fold, rows: KeyedRows, mask: Bools | None, *, running: bool
    ) -> tuple[dict[str, Any], pa.Array | None]:
        new, after = super().step(fold, rows, mask, running=running)
        seen = _joined(fold, fold.groups.codes, rows.column(CAR).to_numpy())
        return new | {"seen": seen}, after

    def merge_step(self, fold: Fold, partials: Partials) -> dict[str, Any]:
        codes, cars = _spread(fold.groups.codes, partials.column("seen"))
        return super().merge_step(fold, partials) | {"seen": _joined(fold, codes, cars)}

    def results(self, held: Held | StateRows) -> pa.RecordBatch:
        cars = pa.array(_lengths(held.arrow("seen")))
        return pa.record_batch([super().results(held).column(0), cars], ["speed", "cars"])


def _joined(fold: Fold, codes: I64, cars: I32) -> pa.Array:
    """The distinct cars of every group, with those that are held: int32, as bytes."""
    groups = fold.groups
    before, known = _spread(np.arange(len(groups)), fold.held.arrow("seen"))
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
