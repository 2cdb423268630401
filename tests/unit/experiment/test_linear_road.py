"""Linear Road against a plain fold over the lines, in any cut into epochs, slots and partitions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.experiment.linear_road import (
    FIELDS,
    LINES,
    REPORT_SECONDS,
    capacity_of,
    linear_road,
    parse,
    position_reports,
    toll_of,
)
from headgate.testing import ListSource, run


def flow_of(epochs: list[pa.Table]) -> hg.Flow:
    flow = hg.Flow("linear_road")
    linear_road(flow.source(ListSource(LINES, epochs), name="spout", event_time="ts"))
    flow.dead_letters().to_memory("bad")
    return flow


def fold(epochs: list[pa.Table]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Tolls and capacities by segment and minute, row by row, with lists and dicts."""
    speeds = defaultdict(list)
    for table in epochs:
        for line in table.column("line").to_pylist():
            report = dict(zip(FIELDS, map(int, line.split(",")), strict=True))
            place = (report["xway"], report["dir"], report["seg"])
            speeds[place, report["time"] // 60].append(report["spd"])
    tolls, capacities = {}, {}
    last, total, least = defaultdict(list), defaultdict(int), {}
    for place, minute in sorted(speeds, key=lambda at: at[1]):
        speed = sum(speeds[place, minute]) / len(speeds[place, minute])
        last[place] = [*last[place], speed][-5:]
        lav = sum(last[place]) / len(last[place])
        toll = int(toll_of(np.array([lav]))[0])
        total[place] += toll
        capacity = int(capacity_of(np.array([speed * 5280 / 3600]))[0])
        least[place] = min(least.get(place, capacity), capacity)
        tolls[place, minute] = (lav, toll, total[place])
        capacities[place, minute] = (capacity, least[place])
    return tolls, capacities


def at(row: dict[str, Any]) -> Any:
    since_start = row["window_start"] - min_time
    return (row["xway"], row["dir"], row["seg"]), int(since_start.total_seconds()) // 60


min_time = position_reports(1, seed=0, epoch=0).column("ts")[0].as_py().replace(second=0)


@pytest.mark.parametrize(("slots", "partitions", "joined"), [(1, 1, 1), (3, 2, 1), (2, 3, 7)])
def test_tolls_and_capacities_are_those_of_a_plain_fold(
    slots: int, partitions: int, joined: int
) -> None:
    made = [position_reports(300, seed=3, epoch=epoch) for epoch in range(22)]
    epochs = [pa.concat_tables(made[i : i + joined]) for i in range(0, len(made), joined)]

    done = run(flow_of(epochs), slots=slots, partitions=partitions)

    tolls, capacities = fold(made)
    found = {at(row): row for row in done.rows("tolls")}
    blocked = {at(row): (row["capacity"], row["least"]) for row in done.rows("capacity")}
    closed = {minute for _, minute in found}
    assert closed == set(range(max(closed) + 1)) and len(closed) >= 5
    wanted = {place: tolls[place] for place in tolls if place[1] in closed}
    assert found.keys() == wanted.keys() == blocked.keys()
    for place, (lav, toll, total) in wanted.items():
        row = found[place]
        assert row["lav"] == pytest.approx(lav, rel=1e-12)
        assert (row["toll"], row["total"]) == (toll, total)
        assert blocked[place] == capacities[place]
    assert any(toll for _, toll, _ in wanted.values()) and done.rows("bad") == []


def test_reports_have_the_benchmarks_fields_and_repeat_by_seed() -> None:
    table = position_reports(500, seed=5, epoch=3, xways=2)
    columns = parse(table.to_batches()[0])
    numbers = {name: columns[name].to_numpy() for name in FIELDS}

    assert table.equals(position_reports(500, seed=5, epoch=3, xways=2))
    assert not table.equals(position_reports(500, seed=6, epoch=3, xways=2))
    assert (numbers["type"] == 0).all() and len(set(numbers["vid"])) == 500
    assert (numbers["seg"] == numbers["pos"] // 5_280).all() and numbers["seg"].max() < 100
    assert set(numbers["xway"]) == {0, 1} and set(numbers["dir"]) == {0, 1}
    assert (np.diff(numbers["time"]) >= 0).all()
    assert (numbers["time"] // REPORT_SECONDS == 3).all()


def test_a_vehicle_moves_on_by_its_speed() -> None:
    first, second = (
        {
            int(vid): int(pos)
            for vid, pos in zip(columns["vid"].to_numpy(), columns["pos"].to_numpy(), strict=True)
        }
        for columns in (
            parse(position_reports(200, seed=5, epoch=e).to_batches()[0]) for e in (0, 1)
        )
    )
    road = 100 * 5_280
    steps = [(second[vid] - first[vid]) % road for vid in first.keys() & second.keys()]
    assert len(steps) > 150
    assert all(min(step, road - step) in range(1_900, 4_100) for step in steps)


def test_a_line_that_is_no_report_is_a_dead_letter() -> None:
    good = position_reports(20, seed=3, epoch=0)
    bad = pa.table([["0,1,2", "0,x,1,1,0,1,0,1,1"], good.column("ts")[:2]], schema=LINES)

    done = run(flow_of([pa.concat_tables([good, bad])]))

    assert {row["operator"] for row in done.rows("bad")} == {"parse"}
    assert len(done.rows("bad")) == 2
