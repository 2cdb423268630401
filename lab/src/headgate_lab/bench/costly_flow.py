"""A flow with one costly operator, two that cost a tenth of it, and a tiny global one.

    spout -> (shuffle) costly -> (key a) by_a -> (key b) by_b -> (global) total

`costly` waits for each of its rows, as a call to a service does, and so do `by_a` and `by_b`, a
tenth as long. Waiting takes no processor, so many instances make sense even on few cores; but every
instance is a task, which costs the same whether its operator is costly or not. So the best number
of instances differs from operator to operator, and no number of slots is right for all of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operator import Count, Output
from headgate.operator.rows import EpochClock, KeyedRows
from headgate.state.session import StateSession
from headgate.topology.stream import Stream

CALLS = pa.schema({"a": pa.int64(), "b": pa.int64(), "amount": pa.int64()})
ROW_WAIT_S = 200e-6  # of the costly operator
CHEAPER = 10
KEYS_A, KEYS_B = 20_000, 500
MOVABLE = ("costly", "by_a", "by_b")  # `total` is global and has one instance


def wait_for(rows: int, row_s: float) -> None:
    """What calling a service for so many rows takes."""
    time.sleep(rows * row_s)


@dataclass(frozen=True)
class Asking:
    """A stateless step that waits for every row."""

    row_s: float

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        wait_for(batch.num_rows, self.row_s)
        return {name: batch.column(name) for name in batch.schema.names}


@dataclass(frozen=True)
class SlowCount(Count):
    """A count that waits for every row."""

    row_s: float = field(default=0.0, kw_only=True)

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        wait_for(len(rows), self.row_s)
        return super().process(rows, state, clock)


def costly(calls: Stream, *, row_s: float = ROW_WAIT_S) -> None:
    """Declare the flow behind a stream of calls; `total` counts the keys touched."""
    cheap_s = row_s / CHEAPER
    asked = calls.shuffle().map(Asking(row_s), CALLS, name="costly")
    by_a = asked.key_by("a", grouping="hash").process(
        SlowCount(emit="rows", row_s=cheap_s), name="by_a"
    )
    by_b = by_a.key_by("b", grouping="hash").process(SlowCount(row_s=cheap_s), name="by_b")
    by_b.globally(grouping="hash").process(Count(name="touched"), name="total").to_table("totals")


def service_calls(rows: int, *, seed: int, epoch: int) -> pa.Table:
    draw = np.random.default_rng((seed, epoch))
    columns = draw.integers(KEYS_A, size=rows), draw.integers(KEYS_B, size=rows), np.arange(rows)
    return pa.table([pa.array(c) for c in columns], schema=CALLS)
