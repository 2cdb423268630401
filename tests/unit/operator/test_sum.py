"""Sum: exact for integers and decimals, careful with floats, refuses what does not fit."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import (
    Stream,
    check_running,
    check_updates,
    check_windows,
    streams,
)
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError
from headgate.operator import Sum, Tumbling

INTS = st.one_of(st.none(), st.integers(-(2**31), 2**31), st.integers(-(2**57), 2**57))
FLOATS = st.one_of(st.none(), st.floats(-1e6, 1e6))
MONEY = pa.decimal128(10, 2)
DECIMALS = st.one_of(
    st.none(), st.decimals("-99999999.99", "99999999.99", places=2, allow_nan=False)
)
ROWS = pa.schema({"k": pa.string(), "v": pa.int64()})


def total(values: list[Any]) -> Any:
    there = [value for value in values if value is not None]
    return sum(there[1:], start=there[0]) if there else None


@settings(max_examples=18, deadline=None)
@given(streams(INTS))
def test_integers_add_up_exactly(stream: Stream) -> None:
    check_updates(Sum("v"), stream, pa.int64(), total, "sum")
    check_running(Sum("v", emit="running"), stream, pa.int64(), total, "sum")


@settings(max_examples=15, deadline=None)
@given(streams(FLOATS))
def test_floats_add_up(stream: Stream) -> None:
    check_updates(Sum("v", name="s"), stream, pa.float64(), total, "s")
    check_running(Sum("v", emit="running"), stream, pa.float64(), total, "sum")


@settings(max_examples=12, deadline=None)
@given(streams(DECIMALS))
def test_decimals_add_up_exactly(stream: Stream) -> None:
    check_updates(Sum("v"), stream, MONEY, total, "sum")
    check_running(Sum("v", emit="running"), stream, MONEY, total, "sum")


@settings(max_examples=12, deadline=None)
@given(streams(INTS))
def test_sums_per_window(stream: Stream) -> None:
    operator = Sum("v", window=Tumbling("10 seconds", time="ts"))
    check_windows(operator, stream, pa.int64(), total, "sum", 10)


@pytest.mark.parametrize("emit", ["updates", "running"])
def test_rows_that_overflow_are_refused_and_the_sum_stays(emit: Any) -> None:
    big = 2**63 - 1
    batch = batch_of(ROWS, k=["a", "b", "a", "c"], v=[big, 5, 1, -big])
    with Slot(Sum("v", emit=emit), ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert sorted(result.dead) == [0, 2]
        assert "64-bit range" in result.dead[0]
        held = sorted((row["k"], row["sum"]) for row in slot.held())
        assert held == [("b", 5), ("c", -big)]
        again = slot.run(Epoch([[batch_of(ROWS, k=["c", "c"], v=[-1, -1])]]))
        assert sorted(again.dead) == [0, 1]
        assert sorted((row["k"], row["sum"]) for row in slot.held()) == held


def test_a_running_sum_that_overflows_on_the_way_is_refused() -> None:
    batch = batch_of(ROWS, k=["a"] * 3, v=[2**63 - 1, 1, -1])
    assert sorted(run_once(Sum("v", emit="running"), batch, ["k"]).dead) == [0, 1, 2]
    assert run_once(Sum("v"), batch, ["k"]).finished == [{"k": "a", "sum": 2**63 - 1}]


def test_a_window_that_overflows_is_refused_by_its_own_rows() -> None:
    rows = pa.schema({"k": pa.string(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})
    batch = batch_of(rows, k=["a"] * 4, v=[7, 2**63 - 1, 2, 1], ts=[None, 0, 5_000_000, 1])
    with Slot(Sum("v", window=Tumbling("1 second", time="ts")), rows, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert sorted(result.dead) == [0, 1, 3]
        assert [row["sum"] for row in slot.held()] == [2]


def test_a_nan_or_a_huge_value_of_one_key_does_not_touch_another() -> None:
    rows = pa.schema({"k": pa.string(), "v": pa.float64()})
    batch = batch_of(
        rows, k=["a", "b", "a", "c", "b", "c"], v=[math.nan, 1e300, 1.0, 0.1, -1e300, 0.2]
    )
    passed = run_once(Sum("v", emit="running"), batch, ["k"]).passed
    assert [row["sum"] for row in passed if row["k"] == "c"] == [0.1, 0.1 + 0.2]
    assert all(math.isnan(row["sum"]) for row in passed if row["k"] == "a")
    infinite = batch_of(rows, k=["a", "a", "b", "a"], v=[math.inf, 1.0, 2.0, -math.inf])
    passed = run_once(Sum("v", emit="running"), infinite, ["k"]).passed
    assert [row["sum"] for row in passed[:3]] == [math.inf, math.inf, 2.0]
    assert math.isnan(passed[3]["sum"])


def test_the_type_of_the_result_follows_the_column() -> None:
    rows = pa.schema(
        {"k": pa.int64(), "i": pa.int8(), "f": pa.float32(), "d": pa.decimal128(12, 3)}
    )
    types = [Sum(name).output_schema(rows, ["k"]).field("sum").type for name in "ifd"]
    assert types == [pa.int64(), pa.float64(), pa.decimal128(22, 3)]
    batch = batch_of(rows, k=[1, 1], i=[100, 100], f=[0.5, 0.5], d=[Decimal("1.5"), None])
    assert [run_once(Sum(n), batch, ["k"]).finished[0]["sum"] for n in "ifd"] == [
        200, 1.0, Decimal("1.500"),
    ]  # fmt: skip


def test_columns_that_cannot_be_added_are_refused() -> None:
    rows = pa.schema({"k": pa.int64(), "s": pa.string(), "d": pa.decimal128(30, 3)})
    with pytest.raises(DeclarationError, match="needs a number in column 's'"):
        Sum("s").state_fields(rows, ["k"])
    with pytest.raises(DeclarationError, match="at most 18 digits"):
        Sum("d").state_fields(rows, ["k"])
