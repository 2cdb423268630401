"""Mean: the average of what is there."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import (
    Stream,
    check_running,
    check_updates,
    check_windows,
    streams,
)
from tests.unit.operator.harness import batch_of, run_once

from headgate.operator import Mean, Tumbling

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6))


def average(values: list[Any]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


@settings(max_examples=18, deadline=None)
@given(streams(VALUES))
def test_averages_what_is_there(stream: Stream) -> None:
    check_updates(Mean("v"), stream, pa.float64(), average, "mean")
    check_running(Mean("v", emit="running"), stream, pa.float64(), average, "mean")


@settings(max_examples=12, deadline=None)
@given(streams(st.one_of(st.none(), st.integers(-1000, 1000))))
def test_averages_integers_per_window(stream: Stream) -> None:
    operator = Mean("v", window=Tumbling("10 seconds", time="ts"))
    check_windows(operator, stream, pa.int64(), average, "mean", 10)


def test_decimals_become_floats() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.decimal128(30, 2)})
    batch = batch_of(rows, k=[1, 1, 1], v=[Decimal("1.00"), None, Decimal("2.50")])
    assert run_once(Mean("v"), batch, ["k"]).finished == [{"k": 1, "mean": 1.75}]
