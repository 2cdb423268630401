"""The modified Linear Road flow of Sax et al. 2013 (section IV-A), and reports to feed it with.

    spout -> parse -> agg -> mv -> toll
                          -> block

Every vehicle of an expressway reports its position every thirty seconds, as a line of text with the
fields of the Linear Road benchmark. `agg` takes the mean speed per segment and minute; `mv` the
mean of a segment's last five minutes, `block` how many vehicles a segment can carry at that speed,
`toll` what the segment costs. What `mv`, `block` and `toll` keep depends on the order of minutes
only, and all rows of a segment come from one instance of `agg`: no batching can change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.experiment.workload import mixed
from headgate.operator import Mean, Output, StateFields, StatefulOperator, Tumbling
from headgate.operator.rows import EpochClock, Groups, KeyedRows
from headgate.routing.hashing import I64
from headgate.state.session import StateSession
from headgate.topology.stream import Stream

F64 = npt.NDArray[np.float64]
FIELDS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos")
LINES = pa.schema({"line": pa.string(), "ts": pa.timestamp("us", tz="UTC")})
REPORT = pa.schema([*((name, pa.int32()) for name in FIELDS), LINES.field("ts")])
SEGMENT = ("xway", "dir", "seg")
REPORT_SECONDS = 30
_START = np.datetime64("2026-01-01T00:00:00", "us")
_SEGMENTS, _SEGMENT_FEET, _TRAVEL_LANES = 100, 5_280, 3
_TRIP_REPORTS = 24  # a trip lasts twelve minutes
_FEET_PER_SECOND = _SEGMENT_FEET / 3_600  # of one mile an hour
_CAR_FEET, _GAP_SECONDS = 16.0, 2.0
_FREE_MPH = 40.0


def position_reports(vehicles: int, *, seed: int, epoch: int, xways: int = 2) -> pa.Table:
    """Lines and their times: one report of each vehicle, from thirty seconds of road.

    A vehicle drives a trip at a speed of its own and then leaves for a new one. Some segments are
    congested for some minutes: there it reports less than its own speed. Any epoch can be made
    without the ones before it. Times ascend.
    """
    place = np.arange(vehicles, dtype=np.int64)
    turn = epoch + mixed(seed, 1, place) % _TRIP_REPORTS
    trip, report = turn // _TRIP_REPORTS, turn % _TRIP_REPORTS
    vid = place + vehicles * trip
    xway, direction = mixed(seed, 2, vid) % xways, mixed(seed, 3, vid) % 2
    mph = 45 + mixed(seed, 4, vid) % 46
    second = mixed(seed, 5, place) % REPORT_SECONDS

    feet = (mph * _FEET_PER_SECOND * REPORT_SECONDS * report).astype(np.int64)
    road = _SEGMENTS * _SEGMENT_FEET
    begin = mixed(seed, 6, vid) % road
    pos = np.where(direction == 0, begin + feet, begin - feet) % road
    seg = pos // _SEGMENT_FEET
    spot = ((xway * 2 + direction) * _SEGMENTS + seg) * 1_000_003 + epoch // 10
    slowed = np.where(mixed(seed, 7, spot) % 8 == 0, mph * 2 // 5, mph)
    lane = 1 + mixed(seed, 8, vid) % _TRAVEL_LANES

    time = epoch * REPORT_SECONDS + second
    columns = (np.zeros_like(vid), time, vid, slowed, xway, lane, direction, seg, pos)
    order = pa.array(np.argsort(second, kind="stable"))
    texts = [pa.array(c).take(order).cast(pa.string()) for c in columns]
    ts = _START + (time * 1_000_000).astype("timedelta64[us]")
    lines = pc.binary_join_element_wise(*texts, ",")
    return pa.table([lines, pa.array(ts).cast(LINES.field("ts").type).take(order)], schema=LINES)


def linear_road(lines: Stream) -> None:
    """Declare the flow behind a stream of lines; `capacity` and `tolls` are its tables."""
    reports = lines.shuffle().map(parse, REPORT, name="parse")
    minute = Tumbling("1 minute", time="ts")
    speeds = reports.key_by(*SEGMENT).process(Mean("spd", name="speed", window=minute), name="agg")
    moving = speeds.key_by("xway", "dir").process(SpeedOfLast(5), name="mv")
    speeds.key_by(*SEGMENT).process(Capacity(), name="block").to_table("capacity")
    moving.key_by(*SEGMENT).process(Toll(), name="toll").to_table("tolls")


def parse(batch: pa.RecordBatch) -> dict[str, Any]:
    """Split lines into the nine fields; a line that is no report raises."""
    fields = pc.split_pattern(batch.column("line"), ",")
    if not pc.all(pc.equal(pc.list_value_length(fields), len(FIELDS)), min_count=0).as_py():
        raise ValueError(f"a position report has the fields {', '.join(FIELDS)}")
    texts = fields.flatten()
    width = len(FIELDS)
    columns = {
        name: texts.take(pa.array(np.arange(at, len(texts), width))).cast(pa.int32())
        for at, name in enumerate(FIELDS)
    }
    return columns | {"ts": batch.column("ts")}


@dataclass(frozen=True)
class SpeedOfLast(StatefulOperator):
    """The mean of the last `n` speeds of every segment, as column `lav`.

    Keyed by expressway and direction, as in the paper; a segment is a sub-key, so that segments of
    one direction live together and each has a window of its own.
    """

    n: int

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        ring = [pa.field(f"speed_{i}", pa.float64(), nullable=False) for i in range(self.n)]
        seen = pa.field("seen", pa.int64(), nullable=False)
        return StateFields(pa.schema([seen, *ring]), pa.schema([rows.field("seg")]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("lav", pa.float64())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.sub_groups(["seg"], [rows.column("seg")])
        held = state.read(groups)
        seen = held["seen"].copy()
        ring: F64 = np.stack([held[f"speed_{i}"] for i in range(self.n)], axis=1)
        speed, lav = rows.numbers("speed"), np.empty(len(rows))
        for turn in turns(groups):
            group = groups.codes[turn]
            ring[group, seen[group] % self.n] = speed[turn]
            seen[group] += 1
            lav[turn] = ring[group].sum(axis=1) / np.minimum(seen[group], self.n)
        kept = {f"speed_{i}": ring[:, i] for i in range(self.n)}
        state.write(groups, {"seen": seen, **kept})
        return Output(rows.batch.append_column("lav", pa.array(lav)))

    def describe(self) -> dict[str, Any]:
        return {"operator": "SpeedOfLast", "n": self.n}


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
    """The toll of a segment, in cents, and what it has come to: free at forty miles an hour."""

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("total", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema([*rows, ("toll", pa.int64()), ("total", pa.int64())])

    def process(self, rows: KeyedRows, state: StateSession, clock: EpochClock) -> Output:
        groups = rows.groups
        total = state.read(groups)["total"].copy()
        toll, so_far = toll_of(rows.numbers("lav")), np.empty(len(rows), np.int64)
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
    return np.rint(_TRAVEL_LANES * 3_600 * feet_per_second / each).astype(np.int64)


def toll_of(mph: F64) -> I64:
    """Cents: twice the square of what is missing to forty miles an hour."""
    cents: I64 = np.rint(2 * np.maximum(0.0, _FREE_MPH - mph) ** 2).astype(np.int64)
    return cents


def turns(groups: Groups) -> Iterator[I64]:
    """Rows by their rank in their group: the first row of every group, then every second one.

    As many turns as the largest group has rows; here, minutes that close in one epoch.
    """
    for rank in range(int(groups.rank.max(initial=-1)) + 1):
        yield np.flatnonzero(groups.rank == rank)
