"""Position reports with the fields and ranges of the Linear Road benchmark (Arasu et al. 2004).

Vehicles enter an expressway on the ramp (lane 0), drive on lanes 1 to 3 and leave by the exit (lane
4). Each reports every thirty seconds, and is where the speeds that it reported have brought it. In
any ten minutes some stretches are congested: there all drive at two fifths of their own speed, so
that vehicles crowd. A few break down and stand for two minutes. Two that stand at one place, which
the benchmark calls an accident, are not arranged for.

Any epoch follows from seed and number alone: a trip is short, so it is driven again from its start.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I32, I64
from headgate.demo import mixed

FIELDS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos")
LINES = pa.schema({"line": pa.string(), "ts": pa.timestamp("us", tz="UTC")})
REPORT_SECONDS = 30
SEGMENTS, SEGMENT_FEET = 100, 5_280
ROAD_FEET = SEGMENTS * SEGMENT_FEET
FEET_PER_MPH = SEGMENT_FEET * REPORT_SECONDS // 3_600  # 44 feet from report to report
TRIP_REPORTS = 24  # a trip takes twelve minutes
ENTRY_LANE, EXIT_LANE, TRAVEL_LANES = 0, 4, 3
SLOWEST_MPH, FASTEST_MPH = 45, 90
_START = np.datetime64("2026-01-01T00:00:00", "us")
_JAM_EPOCHS, _JAM_SEGMENTS, _ONE_JAM_IN = 20, 5, 8
_BREAKS_DOWN, _STANDS, _ONE_BREAKDOWN_IN = 10, 4, 500  # at its tenth report, for four of them


def position_reports(vehicles: int, *, seed: int, epoch: int, xways: int = 2) -> pa.Table:
    """Lines and their times: one report of each vehicle, from thirty seconds of road.

    There are always as many vehicles: for each that leaves another one enters. Times ascend.
    """
    place = np.arange(vehicles, dtype=np.int64)
    trip, report = np.divmod(epoch + mixed(seed, 1, place) % TRIP_REPORTS, TRIP_REPORTS)
    vid = place + vehicles * trip
    xway, direction = mixed(seed, 2, vid) % xways, mixed(seed, 3, vid) % 2
    driven, speed = _drive(seed, epoch, vid, report, xway * 2 + direction, 2 * xways)
    pos = np.where(direction == 0, driven, ROAD_FEET - 1 - driven)

    lane = 1 + mixed(seed, 4, vid) % TRAVEL_LANES
    lane[report == 0] = ENTRY_LANE
    lane[report == TRIP_REPORTS - 1] = EXIT_LANE
    second = mixed(seed, 5, place) % REPORT_SECONDS
    time = epoch * REPORT_SECONDS + second
    seg = pos // SEGMENT_FEET
    columns = (np.zeros_like(vid), time, vid, speed, xway, lane, direction, seg, pos)
    order = pa.array(np.argsort(second, kind="stable"))
    texts = [pa.array(c).take(order).cast(pa.string()) for c in columns]
    ts = _START + (time * 1_000_000).astype("timedelta64[us]")
    lines = pc.binary_join_element_wise(*texts, ",")
    return pa.table([lines, pa.array(ts).cast(LINES.field("ts").type).take(order)], schema=LINES)


def _drive(seed: int, epoch: int, vid: I64, report: I64, road: I64, roads: int) -> tuple[I32, I32]:
    """Feet from the road's beginning, in driving direction, and the speed at this report."""
    mph = (SLOWEST_MPH + mixed(seed, 6, vid) % (FASTEST_MPH - SLOWEST_MPH + 1)).astype(np.int32)
    room = ROAD_FEET - mph * np.int32(FEET_PER_MPH * (TRIP_REPORTS - 1))
    feet = (mixed(seed, 7, vid) % room).astype(np.int32)  # no trip goes beyond the end
    breaks_down = mixed(seed, 8, vid) % _ONE_BREAKDOWN_IN == 0
    first = (epoch - TRIP_REPORTS + 1) // _JAM_EPOCHS
    jams = _jams(seed, first, epoch // _JAM_EPOCHS - first + 1, roads)
    entered = (epoch - report - first * _JAM_EPOCHS).astype(np.int32)
    row = road.astype(np.int32)
    speed = mph
    for at in range(TRIP_REPORTS):
        period = (entered + np.int32(at)) // np.int32(_JAM_EPOCHS)
        spot = (period * roads + row) * SEGMENTS + feet // SEGMENT_FEET
        there = at <= report
        now = np.where(jams.take(np.where(there, spot, 0)), mph * 2 // 5, mph)
        if _BREAKS_DOWN <= at < _BREAKS_DOWN + _STANDS:
            now[breaks_down] = 0
        speed = np.where(there, now, speed)
        feet += np.where(at < report, now * np.int32(FEET_PER_MPH), 0)
    return feet, speed


def _jams(seed: int, first: int, periods: int, roads: int) -> npt.NDArray[np.bool_]:
    """Which segments are congested, by period, road and segment, as one flat array."""
    stretches = SEGMENTS // _JAM_SEGMENTS
    numbers = first * roads * stretches + np.arange(periods * roads * stretches, dtype=np.int64)
    return np.repeat(mixed(seed, 9, numbers) % _ONE_JAM_IN == 0, _JAM_SEGMENTS)
