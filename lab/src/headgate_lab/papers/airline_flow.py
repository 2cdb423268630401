"""The airline job of Madsen et al. 2017 as a flow: what `airline_job` counts, run.

    flights -> delays -> by_airplane -> by_route

`delays` takes the delay of a flight, by airplane and year, and counts its flights; `by_airplane`
sums delays by the same key, so perfect collocation is possible; only flights that were late go on
to `by_route`. An epoch is a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.flow import Flow
from headgate.operator import Count, Sum
from headgate.topology.files import Files
from headgate_lab.papers.airline_job import DAY_MS, OPERATORS

FLIGHTS = pa.schema(
    {
        "tail": pa.string(),
        "year": pa.int64(),
        "origin": pa.string(),
        "dest": pa.string(),
        "arr_delay": pa.int64(),
    }
)
LATE = pa.schema([*(FLIGHTS.field(n) for n in FLIGHTS.names[:4]), ("delay", pa.int64())])
PLANE, ROUTE = ("tail", "year"), ("origin", "dest")


def days_of(rows: pa.Table, days: int) -> list[pa.Table]:
    """The flights of so many days, from the first again if there are fewer.

    Flights without an airplane are left out.
    """
    rows = rows.filter(pc.is_valid(rows.column("tail")))
    ts = rows.column("ts").combine_chunks()
    ms = np.asarray(ts if ts.type == pa.int64() else ts.cast(pa.timestamp("ms")).cast(pa.int64()))
    day = ms // DAY_MS
    year = 1970 + ms.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64)
    delay = pc.fill_null(rows.column("arr_delay"), 0).cast(pa.int64(), safe=False)
    texts = [rows.column(name).cast(pa.string()) for name in ("tail", "origin", "dest")]
    flights = pa.table([texts[0], pa.array(year), texts[1], texts[2], delay], schema=FLIGHTS)
    starts = np.searchsorted(day, np.arange(day[0], day[-1] + 2))
    sizes = np.diff(starts)
    each = [flights.slice(int(s), int(n)) for s, n in zip(starts, sizes, strict=False)]
    return [each[number % len(each)] for number in range(days)]


def airline_flow(folder: Path) -> Flow:
    """An epoch per file. What it says is in the states of its operators."""
    flow = Flow("airline")
    flights = flow.source(Files(folder, schema=FLIGHTS, max_files=1), name="flights")
    counted = flights.key_by(*PLANE, grouping="hash").process(
        Count(name="flights", emit="rows"), name=OPERATORS[0]
    )
    late = counted.map(delays, LATE, name="delay").key_by(*PLANE, grouping="hash")
    summed = late.process(Sum("delay", emit="rows"), name=OPERATORS[1])
    routes = summed.filter("delay > 0", name="late").key_by(*ROUTE, grouping="hash")
    routes.process(Sum("delay"), name=OPERATORS[2]).discard()
    return flow


def delays(batch: pa.RecordBatch) -> dict[str, Any]:
    """How much later than planned a flight came, if it did."""
    found = {name: batch.column(name) for name in LATE.names[:4]}
    return found | {"delay": pc.max_element_wise(batch.column("arr_delay"), 0)}


def fold(days: Sequence[pa.Table]) -> dict[str, Counter[tuple[Any, ...]]]:
    """What the states of the operators hold in the end, flight by flight."""
    found: dict[str, Counter[tuple[Any, ...]]] = {name: Counter() for name in OPERATORS}
    for day in days:
        columns = (day.column(name).to_pylist() for name in FLIGHTS.names)
        for tail, year, origin, dest, delay in zip(*columns, strict=True):
            found["delays"][tail, year] += 1
            found["by_airplane"][tail, year] += max(0, delay)
            if delay > 0:
                found["by_route"][origin, dest] += delay
    return found
