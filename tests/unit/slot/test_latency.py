"""Ages in bins: quantiles within the stated error, counts that add up, times of every unit."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import HeadgateError, SchemaMismatch
from headgate.slot.compile import compile_flow
from headgate.slot.latency import ERROR, NO_TIME, age_ms, ages_in_bins, mean_and_quantiles
from headgate.slot.plan import Control
from headgate.testing import ListSource

NOW_MS = 1_800_000_000_000
SHARES = (0.01, 0.5, 0.95, 0.99, 1.0)
TOLERANCE = ERROR + 1e-6  # an age of many days is rounded to 24 bits before it is put in a bin
ages_lists = st.lists(st.integers(0, 10**11) | st.integers(0, 5_000), min_size=1, max_size=300)


def binned(ages: list[int]) -> dict[str, int]:
    arrivals = NOW_MS - np.array(ages, np.int64)
    return ages_in_bins(pa.array(arrivals).cast(pa.timestamp("ms")), NOW_MS)


@given(ages_lists)
def test_mean_and_quantiles_are_within_the_error(ages: list[int]) -> None:
    mean, *found = mean_and_quantiles(binned(ages), SHARES)

    in_order = sorted(ages)
    for share, value in zip(SHARES, found, strict=True):
        exact = in_order[max(1, math.ceil(share * len(ages))) - 1]
        assert value == pytest.approx(exact, rel=TOLERANCE)
    assert found == sorted(found)
    assert mean == pytest.approx(np.mean(ages), rel=TOLERANCE)


@given(ages_lists, ages_lists, st.booleans())
def test_what_tasks_counted_adds_up_in_any_order(
    one: list[int], other: list[int], turned: bool
) -> None:
    records = [Control(ages=binned(one)), Control(ages=binned(other))]
    total = Control()
    for record in reversed(records) if turned else records:
        total.absorb(Control.from_bytes(record.to_bytes()))

    assert total.ages == binned(one + other)


@given(st.integers(0, 63))
def test_small_ages_are_exact(age: int) -> None:
    (name,) = binned([age])
    assert age_ms(int(name)) == age


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_unit_and_zone_are_instants(unit: str, zone: str | None) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    arrivals = pa.array([(NOW_MS // 1000 - 7) * per_second], pa.timestamp(unit, zone))

    assert (
        mean_and_quantiles(ages_in_bins(arrivals, NOW_MS), (0.5,))
        == [pytest.approx(7_000, rel=ERROR)] * 2
    )


def test_rows_of_the_future_are_new_and_rows_without_a_time_are_told_apart() -> None:
    arrivals = pa.array([NOW_MS + 60_000, None, NOW_MS, None], pa.timestamp("ms"))
    assert ages_in_bins(arrivals, NOW_MS) == {NO_TIME: 2, "0": 2}
    assert ages_in_bins(arrivals.slice(1, 1), NOW_MS) == {NO_TIME: 1}
    assert ages_in_bins(arrivals.slice(0, 0), NOW_MS) == {}


def test_a_column_of_arrivals_is_read_and_goes_no_further() -> None:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k bigint, at timestamp, x bigint", []), arrival="at")
    rows.key_by("k").process(hg.Count(), name="count").to_memory("out")
    program = compile_flow(flow.graph())

    assert program.node_schema[0].names == ["k", "at"]
    assert program.edge_columns[0] == ("k",)


@pytest.mark.parametrize("column", ["k", "day", "nowhere"])
def test_arrivals_are_timestamps(column: str) -> None:
    source = ListSource("k bigint, day date", [])
    with pytest.raises(HeadgateError, match=column) as caught:
        hg.Flow("f").source(source, arrival=column)
    assert isinstance(caught.value, SchemaMismatch) or column == "nowhere"
