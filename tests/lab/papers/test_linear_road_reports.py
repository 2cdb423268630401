"""Position reports: the benchmark's fields and ranges, and vehicles that drive."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from headgate_lab.papers.linear_road_reports import (
    ENTRY_LANE,
    EXIT_LANE,
    FIELDS,
    REPORT_SECONDS,
    TRIP_REPORTS,
    position_reports,
)


def numbers_of(table: pa.Table) -> dict[str, np.ndarray]:
    lines = [list(map(int, line.split(","))) for line in table.column("line").to_pylist()]
    return dict(zip(FIELDS, np.array(lines).T, strict=True))


@pytest.fixture(scope="module")
def trips() -> dict[int, list[dict[str, int]]]:
    """All reports of vehicles whose whole trip is in fifty epochs."""
    seen = defaultdict(list)
    for epoch in range(50):
        numbers = numbers_of(position_reports(600, seed=5, epoch=epoch))
        for row in zip(*numbers.values(), strict=True):
            report = dict(zip(FIELDS, map(int, row), strict=True))
            seen[report["vid"]].append(report)
    return {vid: told for vid, told in seen.items() if len(told) == TRIP_REPORTS}


def test_reports_have_the_benchmarks_fields_and_repeat_by_seed() -> None:
    table = position_reports(5_000, seed=5, epoch=3, xways=2)
    numbers = numbers_of(table)

    assert table.equals(position_reports(5_000, seed=5, epoch=3, xways=2))
    assert not table.equals(position_reports(5_000, seed=6, epoch=3, xways=2))
    assert (numbers["type"] == 0).all() and len(set(numbers["vid"])) == 5_000
    assert (numbers["seg"] == numbers["pos"] // 5_280).all()
    assert set(numbers["seg"]) == set(range(100))
    assert set(numbers["xway"]) == {0, 1} and set(numbers["dir"]) == {0, 1}
    assert set(numbers["lane"]) == {0, 1, 2, 3, 4}
    assert numbers["spd"].min() == 0 and 80 < numbers["spd"].max() <= 100
    assert (np.diff(numbers["time"]) >= 0).all()
    assert (numbers["time"] // REPORT_SECONDS == 3).all()


def test_a_vehicle_is_where_the_speeds_it_reported_have_brought_it(trips) -> None:
    for told in trips.values():
        sign = 1 if told[0]["dir"] == 0 else -1
        for before, after in pairwise(told):
            assert after["time"] - before["time"] == REPORT_SECONDS
            assert after["pos"] - before["pos"] == sign * before["spd"] * 44
            assert abs(after["seg"] - before["seg"]) <= 1  # a report from every segment
    assert len(trips) > 500


def test_a_trip_begins_on_the_ramp_and_ends_at_the_exit(trips) -> None:
    for told in trips.values():
        lanes = [report["lane"] for report in told]
        assert (lanes[0], lanes[-1]) == (ENTRY_LANE, EXIT_LANE)
        assert len(set(lanes[1:-1])) == 1 and lanes[1] in (1, 2, 3)
        assert len({(report["xway"], report["dir"]) for report in told}) == 1


def test_a_few_vehicles_stand_for_four_reports(trips) -> None:
    stood = [sum(report["spd"] == 0 for report in told) for told in trips.values()]

    assert set(stood) == {0, 4} and stood.count(4) < len(stood) / 50


def test_vehicles_crowd_where_they_are_slow() -> None:
    numbers = numbers_of(position_reports(20_000, seed=7, epoch=19))
    place = (numbers["xway"] * 2 + numbers["dir"]) * 100 + numbers["seg"]
    cars = np.bincount(place, minlength=400)
    slow = np.bincount(place, weights=numbers["spd"], minlength=400) / cars < 40

    assert 0.02 < slow.mean() < 0.3
    assert cars[slow].mean() > 1.2 * cars[~slow].mean()
