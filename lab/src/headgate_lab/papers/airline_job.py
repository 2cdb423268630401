"""The airline job of Madsen et al. 2017, as situations: loads and traffic of key groups by day.

Three operators over flights: the delay of a flight (by airplane and year), sums by airplane and
year (the same key, so perfect collocation is possible), and sums by route, to which only flights
with a delay go on. A row costs 1 where it is processed, and `remote_over_row` at either end if it
crosses nodes. The paper measured on Storm that collocation halves the load of the whole job;
`remote_over_row` is chosen so that collocating all of the first edge does. Where the data is not at
hand, generated flights stand in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.arrays import F64, I32, I64
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units
from headgate.routing.hashing import hash_columns

OPERATORS = ("delays", "by_airplane", "by_route")
FILE = "us_flights_2008_jan_apr.parquet"
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Flights:
    """Flights in order: key groups of airplane and route, delayed or not, the first row per day."""

    groups: int
    airplane: I64
    route: I64
    delayed: I64
    starts: I64

    @property
    def days(self) -> int:
        return len(self.starts) - 1

    @property
    def delayed_share(self) -> float:
        return float(self.delayed.mean())


def read_flights(file: Path, groups: int) -> Flights:
    columns = ["ts", "tail", "origin", "dest", "arr_delay"]
    return flights_of(pq.read_table(file, columns=columns), groups)


def generated_flights(days: int, per_day: int = 4_000, seed: int = 0) -> pa.Table:
    """Airplanes that each fly a few routes between airports of uneven size."""
    rng = np.random.default_rng(seed)
    planes, airports = 1_000, 120
    size = 1.0 / np.arange(1, airports + 1)
    bases = rng.choice(airports, (planes, 4), p=size / size.sum())
    rows = days * per_day
    tail = rng.integers(0, planes, rows)
    legs = rng.integers(0, 4, (2, rows))
    return pa.table(
        {
            "ts": np.repeat(np.arange(days), per_day) * DAY_MS,
            "tail": [f"N{t}" for t in tail],
            "origin": bases[tail, legs[0]],
            "dest": bases[tail, legs[1]],
            "arr_delay": rng.normal(5.0, 30.0, rows),
        }
    )


def flights_of(rows: pa.Table, groups: int) -> Flights:
    """Flights without an airplane are left out."""
    rows = rows.filter(pc.is_valid(rows.column("tail")))
    column = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    ts = column["ts"]
    ms = np.asarray(ts.cast(pa.timestamp("ms")).cast(pa.int64()) if ts.type != pa.int64() else ts)
    day = (ms // DAY_MS).astype(np.int64)
    year = pa.array(np.asarray(ms, "datetime64[ms]").astype("datetime64[Y]").astype(np.int64))
    delay = np.asarray(pc.fill_null(column["arr_delay"], 0), np.float64)

    def group(keys: list[pa.Array]) -> I64:
        return (hash_columns(keys, len(rows)) % np.uint64(groups)).astype(np.int64)

    return Flights(
        groups,
        group([column["tail"], year]),
        group([column["origin"], column["dest"]]),
        (delay > 0).astype(np.int64),
        np.searchsorted(day, np.arange(day[0], day[-1] + 2)),
    )


def remote_over_row(delayed_share: float, nodes: int) -> float:
    """Cost of a crossing, per end and row, at which collocating the first edge halves the load.

    Before, rows of both edges cross with probability 1 - 1/nodes; after, those of the second only.
    """
    processed = 2.0 + delayed_share
    crossing = 2.0 * (1.0 - 1.0 / nodes)
    return processed / (crossing * (1.0 - delayed_share))


def situation_of(
    flights: Flights, period: int, home: I32, nodes: Nodes, load_per_row: float, remote: float
) -> Situation:
    """A period (one day, looped) under an allocation; loads in percent of a node."""
    n, day = flights.groups, period % flights.days
    rows = slice(int(flights.starts[day]), int(flights.starts[day + 1]))
    plane, route = flights.airplane[rows], flights.route[rows]
    late = flights.delayed[rows] > 0
    flown = np.bincount(plane, minlength=n).astype(np.float64)
    routed = np.bincount(route[late], minlength=n).astype(np.float64)
    pairs = np.bincount(plane[late] * n + route[late], minlength=n * n)
    some = np.flatnonzero(pairs)
    traffic = Traffic(
        np.concatenate([np.arange(n), n + some // n]),
        np.concatenate([n + np.arange(n), 2 * n + some % n]),
        np.concatenate([flown, pairs[some].astype(np.float64)]),
        load_per_row * remote,
    )
    base: F64 = load_per_row * np.concatenate([flown, flown, routed])
    load = base + traffic.remote_load * traffic.remote(home)
    operator = np.repeat(np.arange(3, dtype=np.int32), n)
    units = Units(OPERATORS, operator, load, np.ones(3 * n))
    return Situation(units, nodes, home, traffic, period=period)
