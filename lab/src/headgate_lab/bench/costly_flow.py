"""A flow with one costly operator, two that cost a tenth of it, and a tiny global one.

    spout -> (shuffle) costly -> (key a) by_a -> (key b) by_b -> (global) total

`costly` waits for each of its rows, as a call to a service does, so many instances of it make sense
even on few cores. `by_a` and `by_b` compute, a tenth as long, and gain nothing from more instances
than cores. But every instance is a task, which costs the same whether its operator needs it or not.
So the best number of instances differs from operator to operator, and no number of slots is right
for all of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.operator import Count
from headgate.topology.stream import Stream
from headgate_lab.bench.spending import TURN_S, Passing, Spends, TimedCount

CALLS = pa.schema({"a": pa.int64(), "b": pa.int64(), "amount": pa.int64()})
ROW_WAIT_S = 100e-6  # of the costly operator
CHEAPER = 10
KEYS_A, KEYS_B = 20_000, 500
MOVABLE = ("costly", "by_a", "by_b")  # `total` is global and has one instance


def costly(calls: Stream, *, row_s: float = ROW_WAIT_S) -> None:
    """Declare the flow behind a stream of calls; `total` counts the keys touched."""
    cheap = Spends(turns=round(row_s / CHEAPER / TURN_S))
    asked = calls.shuffle().map(Passing(Spends(wait_s=row_s)), CALLS, name="costly")
    by_a = asked.key_by("a", grouping="hash").process(
        TimedCount(emit="rows", spends=cheap), name="by_a"
    )
    by_b = by_a.key_by("b", grouping="hash").process(TimedCount(spends=cheap), name="by_b")
    by_b.globally(grouping="hash").process(Count(name="touched"), name="total").to_table("totals")


def service_calls(rows: int, *, seed: int, epoch: int) -> pa.Table:
    draw = np.random.default_rng((seed, epoch))
    columns = draw.integers(KEYS_A, size=rows), draw.integers(KEYS_B, size=rows), np.arange(rows)
    return pa.table([pa.array(c) for c in columns], schema=CALLS)
