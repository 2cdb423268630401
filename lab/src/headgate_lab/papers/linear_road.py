"""The modified Linear Road flow of Sax et al. 2013 (section IV-A).

    spout -> parse -> agg -> mv -> toll
                          -> block

Every vehicle of an expressway reports its position every thirty seconds, as a line of text with the
fields of the Linear Road benchmark. `agg` takes the mean speed and counts the cars of a segment and
minute, `mv` takes the mean of its last five minutes, `block` how many vehicles it can carry at that
speed, `toll` what it costs to enter it in the minute that follows. That toll is the benchmark's
(Arasu et al. 2004), but for accidents, which waive it there: no step of the paper's flow looks for
them. `agg` takes the mean over reports; the benchmark first takes that of every car.

What `mv`, `block` and `toll` keep depends on the order of minutes only, and all rows of a segment
come from one instance of `agg`: no batching can change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from headgate.arrays import F64, I64
from headgate.operator import Output, StateFields, StatefulOperator, Tumbling
from headgate.operator.rows import EpochClock, Groups, KeyedRows
from headgate.state.session import StateSession
from headgate.topology.stream import Stream
from headgate_lab.papers.linear_road_cars import SpeedAndCars
from headgate_lab.papers.linear_road_reports import FIELDS, LINES, TRAVEL_LANES, position_reports

__all__ = ["LINES", "linear_road", "position_reports"]

TYPES = dict(zip(FIELDS, "int8 int32 int32 int16 int16 int8 int8 int8 int32".split(), strict=True))
REPORT = pa.schema(
    [*((name, pa.type_for_alias(t)) for name, t in TYPES.items()), LINES.field("ts")]
)
SEGMENT = ("xway", "dir", "seg")
_CSV = (
    csv.ReadOptions(use_threads=False, block_size=1 << 30, column_names=FIELDS),
    csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
    csv.ConvertOptions(column_types=REPORT, null_values=[], include_columns=FIELDS),
)
MINUTE_US = 60_000_000
_FEET_PER_SECOND = 5_280 / 3_600  # of one mile an hour
_CAR_FEET, _GAP_SECONDS = 16.0, 2.0
_FREE_MPH, _FREE_CARS = 40.0, 50


def linear_road(lines: Stream) -> None:
    """Declare the flow behind a stream of lines; `capacity` and `tolls` are its tables."""
    reports = lines.shuffle().map(parse, REPORT, name="parse")
    minute = Tumbling("1 minute", time="ts")
    segments = reports.key_by(*SEGMENT, grouping="hash").process(
        SpeedAndCars("spd", window=minute), name="agg"
    )
    moving = segments.key_by("xway", "dir", grouping="hash").process(
        SpeedOfLast(minutes=5), name="mv"
    )
    segments.key_by(*SEGMENT, grouping="hash").process(Capacity(), name="block").to_table(
        "capacity"
    )
    moving.key_by(*SEGMENT, grouping="hash").process(Toll(), name="toll").to_table("tolls")


def parse(batch: pa.RecordBatch) -> dict[str, Any]:
    """Split lines into the nine fields; a line that is no report raises."""
    lines = batch.column("line")
    together = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text = pc.binary_join(together, "\n")[0].as_buffer()
    if text is None:
        raise ValueError("a line is null")
    read = csv.read_csv(pa.BufferReader(text), *_CSV) if len(lines) else REPORT.empty_table()
    if read.num_rows != len(lines):
        raise ValueError(f"a report is one line with the fields {', '.join(FIELDS)}")
    fields = {name: read.column(name).combine_chunks() for name in FIELDS}
    return fields | {"ts": batch.column("ts")}


@dataclass(frozen=True)
class SpeedOfLast(StatefulOperator):
    """The mean speed of a segment in its last `minutes`, as column `lav`.

    The mean of the means of those minutes in which there were reports, as in the benchmark. Keyed
    by expressway and direction, as in the paper; a segment is a sub-key, so that segments of one
    direction live together and each has a window of its own.
    """

    minutes: int

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        ring = [
            pa.field(name, kind, nullable=False)
            for i in range(self.minutes)
            for name, kind in ((f"minute_{i}", pa.int64()), (f"speed_{i}", pa.float64()))
        ]
        return StateFields(pa.schema(ring), pa.schema([rows.field("seg")]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("lav", pa.float64())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.sub_groups(["seg"], [rows.column("seg")])
        held = state.read(groups)
        of: I64 = np.stack([held[f"minute_{i}"] for i in range(self.minutes)], axis=1)
        ring: F64 = np.stack([held[f"speed_{i}"] for i in range(self.minutes)], axis=1)
        speed, lav = rows.numbers("speed"), np.empty(len(rows))
        minute = rows.column("window_start").cast(pa.int64()).to_numpy() // MINUTE_US
        for turn in turns(groups):
            group, now = groups.codes[turn], minute[turn]
            of[group, now % self.minutes] = now
            ring[group, now % self.minutes] = speed[turn]
            recent = of[group] > (now - self.minutes)[:, np.newaxis]
            lav[turn] = np.where(recent, ring[group], 0.0).sum(axis=1) / recent.sum(axis=1)
        minutes = {f"minute_{i}": of[:, i] for i in range(self.minutes)}
        speeds = {f"speed_{i}": ring[:, i] for i in range(self.minutes)}
        state.write(groups, {**minutes, **speeds})
        return Output(rows.batch.append_column("lav", pa.array(lav)))

    def describe(self) -> dict[str, Any]:
        return {"operator": "SpeedOfLast", "minutes": self.minutes}


@dataclass(frozen=True)
class Capacity(StatefulOperator):
    """How many vehicles an hour a segment carries at its speed, and the least it ever could.

    Vehicles keep two seconds apart, so that the faster they drive the more get through.
    """

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("least", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("capacity", pa.int64()), ("least", pa.int64())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.groups
        held = state.read(groups)
        feet = rows.numbers("speed") * _FEET_PER_SECOND
        capacity = capacity_of(feet)
        now = np.where(held.found, held["least"], np.iinfo(np.int64).max)
        least = np.empty(len(rows), np.int64)
        for turn in turns(groups):
            group = groups.codes[turn]
            now[group] = least[turn] = np.minimum(now[group], capacity[turn])
        state.write(groups, {"least": now})
        batch = rows.batch.append_column("capacity", pa.array(capacity))
        return Output(batch.append_column("least", pa.array(least)))


@dataclass(frozen=True)
class Toll(StatefulOperator):
    """What a vehicle pays to enter a segment in the next minute, in cents, and the sum so far."""

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("total", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("toll", pa.int64()), ("total", pa.int64())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.groups
        total = state.read(groups)["total"].copy()
        cars = rows.column("cars").to_numpy()
        toll, so_far = toll_of(rows.numbers("lav"), cars), np.empty(len(rows), np.int64)
        for turn in turns(groups):
            group = groups.codes[turn]
            total[group] += toll[turn]
            so_far[turn] = total[group]
        state.write(groups, {"total": total})
        batch = rows.batch.append_column("toll", pa.array(toll))
        return Output(batch.append_column("total", pa.array(so_far)))


def capacity_of(feet_per_second: F64) -> I64:
    """Vehicles an hour on the travel lanes of a segment."""
    each = _CAR_FEET + _GAP_SECONDS * feet_per_second
    return np.rint(TRAVEL_LANES * 3_600 * feet_per_second / each).astype(np.int64)


def toll_of(mph: F64, cars: I64) -> I64:
    """Cents: twice the square of the cars beyond fifty, and nothing at forty miles an hour."""
    crowded = np.where(mph < _FREE_MPH, np.maximum(0, cars - _FREE_CARS), 0)
    return 2 * crowded**2


def turns(groups: Groups) -> Iterator[I64]:
    """Rows by their rank in their group: the first row of every group, then every second one.

    As many turns as the largest group has rows; here, minutes that close in one epoch.
    """
    for rank in range(int(groups.rank.max(initial=-1)) + 1):
        yield np.flatnonzero(groups.rank == rank)
