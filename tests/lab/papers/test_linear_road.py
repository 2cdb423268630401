"""Linear Road against a plain fold over the lines, in any cut into epochs, slots and partitions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import ListSource, run
from headgate_lab.papers.linear_road import (
    LINES,
    REPORT,
    SEGMENT,
    capacity_of,
    linear_road,
    parse,
    position_reports,
    toll_of,
)
from headgate_lab.papers.linear_road_cars import SpeedAndCars
from headgate_lab.papers.linear_road_reports import FIELDS
from lab.papers.test_linear_road_reports import numbers_of


def flow_of(epochs: list[pa.Table]) -> hg.Flow:
    flow = hg.Flow("linear_road")
    linear_road(flow.source(ListSource(LINES, epochs), name="spout", event_time="ts"))
    flow.dead_letters().to_memory("bad")
    return flow


def fold(epochs: list[pa.Table]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Tolls and capacities by segment and minute, row by row, with lists and dicts."""
    speeds, cars = defaultdict(list), defaultdict(set)
    for table in epochs:
        for line in table.column("line").to_pylist():
            report = dict(zip(FIELDS, map(int, line.split(",")), strict=True))
            at = (report["xway"], report["dir"], report["seg"]), report["time"] // 60
            speeds[at].append(report["spd"])
            cars[at].add(report["vid"])
    mean = {at: sum(told) / len(told) for at, told in speeds.items()}
    tolls, capacities = {}, {}
    total, least = defaultdict(int), {}
    for place, minute in sorted(speeds, key=lambda at: at[1]):
        last = [mean[place, m] for m in range(minute - 4, minute + 1) if (place, m) in mean]
        lav, count = sum(last) / len(last), len(cars[place, minute])
        toll = 2 * (count - 50) ** 2 if lav < 40 and count > 50 else 0
        total[place] += toll
        capacity = int(capacity_of(mean[place, minute] * 5280 / 3600))
        least[place] = min(least.get(place, capacity), capacity)
        tolls[place, minute] = (lav, count, toll, total[place])
        capacities[place, minute] = (capacity, least[place])
    return tolls, capacities


def at(row: dict[str, Any]) -> Any:
    since_start = row["window_start"] - min_time
    return (row["xway"], row["dir"], row["seg"]), int(since_start.total_seconds()) // 60


min_time = position_reports(1, seed=0, epoch=0).column("ts")[0].as_py().replace(second=0)


def check(done: Any, made: list[pa.Table]) -> list[int]:
    """The tables hold what the fold says of all minutes that are closed; returns their tolls."""
    tolls, capacities = fold(made)
    found = {at(row): row for row in done.rows("tolls")}
    blocked = {at(row): (row["capacity"], row["least"]) for row in done.rows("capacity")}
    closed = {minute for _, minute in found}
    assert closed == set(range(max(closed) + 1)) and len(closed) > 5
    wanted = {place: tolls[place] for place in tolls if place[1] in closed}
    assert found.keys() == wanted.keys() == blocked.keys()
    for place, (lav, cars, toll, total) in wanted.items():
        row = found[place]
        assert row["lav"] == pytest.approx(lav, rel=1e-12)
        assert (row["cars"], row["toll"], row["total"]) == (cars, toll, total)
        assert blocked[place] == capacities[place]
    assert done.rows("bad") == []
    return [toll for _, _, toll, _ in wanted.values()]


@pytest.mark.parametrize(("slots", "partitions", "joined"), [(1, 1, 2), (3, 2, 1), (2, 3, 5)])
def test_tolls_and_capacities_are_those_of_a_plain_fold(
    slots: int, partitions: int, joined: int
) -> None:
    """Few vehicles: most segments have minutes without any, and the last five minutes fewer."""
    made = [position_reports(300, seed=3, epoch=epoch) for epoch in range(16)]
    epochs = [pa.concat_tables(made[i : i + joined]) for i in range(0, len(made), joined)]

    check(run(flow_of(epochs), slots=slots, partitions=partitions), made)


def test_crowded_segments_cost_what_the_benchmark_says() -> None:
    made = [position_reports(8_000, seed=3, epoch=epoch, xways=1) for epoch in range(14)]

    tolls = check(run(flow_of(made), slots=2, check_purity=False), made)

    assert len({toll for toll in tolls if toll}) > 5
    assert 0 < sum(toll > 0 for toll in tolls) < len(tolls) / 4


@pytest.mark.parametrize(
    ("mph", "cars", "cents"), [(39.9, 60, 200), (40.0, 60, 0), (20.0, 50, 0), (0.0, 51, 2)]
)
def test_a_toll_needs_a_slow_and_a_crowded_segment(mph: float, cars: int, cents: int) -> None:
    assert toll_of(pa.array([mph]).to_numpy(), pa.array([cars]).to_numpy()).tolist() == [cents]


def test_cars_are_counted_once_wherever_their_reports_were_processed() -> None:
    """Partials of several slots make the same minutes as one slot that sees all rows."""
    made = [position_reports(400, seed=5, epoch=epoch) for epoch in range(5)]

    def minutes(split: bool) -> list[dict[str, Any]]:
        flow = hg.Flow("minutes")
        lines = flow.source(ListSource(LINES, made), name="spout", event_time="ts")
        speeds = SpeedAndCars("spd", window=hg.Tumbling("1 minute", time="ts"))
        reports = lines.shuffle().map(parse, REPORT, name="parse")
        reports.key_by(*SEGMENT, grouping="partial" if split else "hash").process(
            speeds, name="agg"
        ).to_memory("minutes")
        rows = run(flow, slots=3).rows("minutes")
        return sorted(rows, key=lambda row: (row["window_start"], *(row[k] for k in SEGMENT)))

    whole = minutes(split=False)

    assert minutes(split=True) == whole
    assert max(row["cars"] for row in whole) > 1


def test_a_line_is_split_into_its_fields() -> None:
    numbers = numbers_of(position_reports(50, seed=3, epoch=2))
    columns = parse(position_reports(50, seed=3, epoch=2).combine_chunks().to_batches()[0])

    assert {name: columns[name].to_pylist() for name in FIELDS} == {
        name: values.tolist() for name, values in numbers.items()
    }


def test_a_line_that_is_no_report_is_a_dead_letter() -> None:
    good = position_reports(20, seed=3, epoch=0)
    report = "0,1,2,3,0,1,0,1,1"
    bad = ["0,1,2", "0,x,1,1,0,1,0,1,1", "", f"{report},1", f"{report}\n{report}", None]
    table = pa.table([bad, good.column("ts")[: len(bad)]], schema=LINES)

    done = run(flow_of([pa.concat_tables([good, table])]))

    assert {row["operator"] for row in done.rows("bad")} == {"parse"}
    assert len(done.rows("bad")) == len(bad)
