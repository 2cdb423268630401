"""Count: rows per key, by update, by row and by window."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, check_running, check_updates, check_windows, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn
from headgate.operator import Count, Max, Mean, Min, Sum, Tumbling

MAYBE = st.one_of(st.none(), st.integers(0, 3))
ROWS = pa.schema({"k": pa.string(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})


def not_null(values: list[int | None]) -> int:
    return sum(value is not None for value in values)


@settings(max_examples=24, deadline=None)
@given(streams(MAYBE))
def test_counts_rows(stream: Stream) -> None:
    check_updates(Count(), stream, pa.int64(), len, "count")
    check_running(Count(emit="running"), stream, pa.int64(), len, "count")


@settings(max_examples=15, deadline=None)
@given(streams(MAYBE))
def test_counts_what_is_not_null(stream: Stream) -> None:
    check_updates(Count("v", name="n"), stream, pa.int64(), not_null, "n")
    check_running(Count("v", emit="running", name="n"), stream, pa.int64(), not_null, "n")


@settings(max_examples=24, deadline=None)
@given(streams(MAYBE), st.sampled_from([1, 10, 60]))
def test_counts_per_window(stream: Stream, seconds: int) -> None:
    window = Tumbling(f"{seconds} seconds", time="ts")
    check_windows(Count(window=window), stream, pa.int64(), len, "count", seconds)


def test_rows_pass_unchanged_while_the_count_is_kept() -> None:
    batch = batch_of(ROWS, k=["a", "b", "a"], v=[1, 2, 3], ts=[1, 2, 3])
    with Slot(Count(emit="rows"), ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert result.passed == batch.to_pylist()
        assert sorted((row["k"], row["count"]) for row in slot.held()) == [("a", 2), ("b", 1)]


def test_rows_without_event_time_are_refused_and_the_rest_go_on() -> None:
    batch = batch_of(ROWS, k=["a", "a", "a"], v=[1, 2, 3], ts=[None, 5, None])
    operator = Count(window=Tumbling("1 second", time="ts"))
    with Slot(operator, ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert sorted(result.dead) == [0, 2]
        assert "'ts' is null" in result.dead[0]
        assert [row["count"] for row in slot.held()] == [1]


def test_an_idle_epoch_closes_windows_only_when_a_boundary_is_crossed() -> None:
    batch = batch_of(ROWS, k=["a"], v=[1], ts=[500_000])
    with Slot(Count(window=Tumbling("1 second", time="ts")), ROWS, ["k"]) as slot:
        assert slot.run(Epoch([[batch]])).finished == []
        assert slot.run(Epoch([], watermark_us=999_999)).finished == []
        assert len(slot.run(Epoch([], watermark_us=1_000_000)).finished) == 1
        assert slot.run(Epoch([], watermark_us=9_000_000)).finished == []


def test_a_window_takes_any_timestamp_unit_and_dates() -> None:
    for kind, value in (
        (pa.timestamp("ns", "Europe/Madrid"), 61_000_000_000),
        (pa.timestamp("s"), 61),
        (pa.timestamp("ms", "UTC"), 61_000),
        (pa.date32(), 1),
    ):
        rows = pa.schema({"k": pa.int64(), "ts": kind})
        operator = Count(window=Tumbling("1 minute", time="ts"))
        with Slot(operator, rows, ["k"]) as slot:
            slot.run(Epoch([[batch_of(rows, k=[1], ts=[value])]]))
            (row,) = slot.run(Epoch([], watermark_us=10**12)).finished
        assert row["window_start"].timestamp() == (86_400 if kind == pa.date32() else 60)


def test_a_key_left_alone_for_its_ttl_starts_again() -> None:
    batch = batch_of(ROWS, k=["a"], v=[1], ts=[0])
    with Slot(Count(ttl=timedelta(seconds=1)), ROWS, ["k"]) as slot:
        counts = [
            slot.run(Epoch([[batch]], now_ms=now_ms)).finished[0]["count"]
            for now_ms in (10_000, 10_999, 11_500, 12_500)
        ]
    assert counts == [1, 2, 3, 1]


def test_an_empty_call_does_nothing() -> None:
    empty = batch_of(ROWS, k=[], v=[], ts=[])
    for operator in (Count(), Count(emit="running"), Count(window=Tumbling("1 day", time="ts"))):
        result = run_once(operator, empty, ["k"])
        assert (result.passed, result.finished, result.dead, result.late) == ([], [], {}, 0)


def test_only_needed_columns_are_asked_for() -> None:
    assert Count().needs(ROWS, ["k"], {"count"}) == {"k"}
    assert Count(emit="running").needs(ROWS, ["k"], {"count", "v"}) == {"k", "v"}
    assert Count(window=Tumbling("1 day", time="ts")).needs(ROWS, ["k"], set()) == {"k", "ts"}


def test_wrong_declarations_are_refused_by_name() -> None:
    with pytest.raises(UnknownColumn, match="Count reads column 'nope'") as caught:
        Count("nope").output_schema(ROWS, ["k"])
    assert caught.value.column == "nope"
    with pytest.raises(NameClash, match="'v'"):
        Count(emit="running", name="v").state_fields(ROWS, ["k"])
    with pytest.raises(DeclarationError, match="'often'"):
        Count(emit="often")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="leave out emit"):
        Count(emit="running", window=Tumbling("1 day", time="ts"))
    with pytest.raises(SchemaMismatch, match="cast it to a timestamp"):
        Count(window=Tumbling("1 day", time="v")).state_fields(ROWS, ["k"])
    clash = pa.schema({"window_start": pa.int64(), "ts": pa.timestamp("us")})
    with pytest.raises(NameClash, match="window_start"):
        Count(window=Tumbling("1 day", time="ts")).state_fields(clash, ["window_start"])


def test_what_matters_to_stored_state_is_described() -> None:
    assert Count(emit="rows", name="n").describe() == Count().describe()
    assert Count("v").describe() != Count().describe()
    by_minute = Count(window=Tumbling("1 minute", time="ts"))
    assert by_minute.describe() == Count(window=Tumbling("60 seconds", time="ts")).describe()


# --- Sum: exact for integers and decimals, careful with floats, refuses what does not fit.

INTS = st.one_of(st.none(), st.integers(-(2**31), 2**31), st.integers(-(2**57), 2**57))
FLOATS = st.one_of(st.none(), st.floats(-1e6, 1e6))
MONEY = pa.decimal128(10, 2)
DECIMALS = st.one_of(
    st.none(), st.decimals("-99999999.99", "99999999.99", places=2, allow_nan=False)
)
SUM_ROWS = pa.schema({"k": pa.string(), "v": pa.int64()})


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
    batch = batch_of(SUM_ROWS, k=["a", "b", "a", "c"], v=[big, 5, 1, -big])
    with Slot(Sum("v", emit=emit), SUM_ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert sorted(result.dead) == [0, 2]
        assert "64-bit range" in result.dead[0]
        held = sorted((row["k"], row["sum"]) for row in slot.held())
        assert held == [("b", 5), ("c", -big)]
        again = slot.run(Epoch([[batch_of(SUM_ROWS, k=["c", "c"], v=[-1, -1])]]))
        assert sorted(again.dead) == [0, 1]
        assert sorted((row["k"], row["sum"]) for row in slot.held()) == held


def test_a_running_sum_that_overflows_on_the_way_is_refused() -> None:
    batch = batch_of(SUM_ROWS, k=["a"] * 3, v=[2**63 - 1, 1, -1])
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
    with pytest.raises(DeclarationError, match="'s' of type string; it needs a number"):
        Sum("s").state_fields(rows, ["k"])
    with pytest.raises(DeclarationError, match="at most 18 digits"):
        Sum("d").state_fields(rows, ["k"])


# --- Mean: the average of what is there.

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


# --- Min and Max: every orderable type, nulls skipped, NaN the largest.

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False).map(lambda x: x + 0.0)),
    "date": (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    "timestamp": (pa.timestamp("ms"), st.integers(-(10**12), 10**12).map(
        lambda ms: datetime(1970, 1, 1) + ms * (datetime.resolution * 1000))),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(9, 2), st.decimals("-9999", "9999", places=2)),
    "string": (pa.string(), st.text("aé漢😀", max_size=3)),
    "large_string": (pa.large_string(), st.text("ab", max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
}  # fmt: skip


def largest(values: list[Any]) -> Any:
    return max((_ordered(v) for v in values if v is not None), default=(None, None))[1]


def smallest(values: list[Any]) -> Any:
    return min((_ordered(v) for v in values if v is not None), default=(None, None))[1]


def _ordered(value: Any) -> tuple[Any, Any]:
    """NaN above all; text by its bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value), value
    return (value.encode() if isinstance(value, str) else value), value


@settings(max_examples=36, deadline=None)
@given(st.data(), st.sampled_from(list(KINDS)))
def test_every_type_keeps_its_extremes(data: st.DataObject, name: str) -> None:
    kind, values = KINDS[name]
    stream = data.draw(streams(st.one_of(st.none(), values)))
    check_updates(Max("v"), stream, kind, largest, "max")
    check_running(Min("v", emit="running"), stream, kind, smallest, "min")


@settings(max_examples=18, deadline=None)
@given(streams(st.one_of(st.none(), st.floats().map(lambda x: x + 0.0))))
def test_nan_is_the_largest_number(stream: Stream) -> None:
    check_updates(Min("v"), stream, pa.float64(), smallest, "min")
    check_running(Max("v", emit="running"), stream, pa.float64(), largest, "max")


@settings(max_examples=12, deadline=None)
@given(streams(st.one_of(st.none(), st.text("abc", max_size=2))))
def test_extremes_per_window(stream: Stream) -> None:
    operator = Max("v", window=Tumbling("10 seconds", time="ts"))
    check_windows(operator, stream, pa.string(), largest, "max", 10)


def test_all_null_text_gives_null() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.string()})
    batch = batch_of(rows, k=[1, 1], v=[None, None])
    assert run_once(Min("v"), batch, ["k"]).finished == [{"k": 1, "min": None}]
    passed = run_once(Min("v", emit="running"), batch, ["k"]).passed
    assert [row["min"] for row in passed] == [None, None]


def test_a_sliced_batch_is_read_at_its_offset() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.decimal128(9, 2), "s": pa.string()})
    batch = batch_of(
        rows, k=[1, 2, 2], v=[Decimal("9.00"), Decimal("1.00"), None], s=["z", "a", "b"]
    ).slice(1)
    assert run_once(Max("v"), batch, ["k"]).finished == [{"k": 2, "max": Decimal("1.00")}]
    assert run_once(Max("s"), batch, ["k"]).finished == [{"k": 2, "max": "b"}]


def test_unordered_types_are_refused() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.list_(pa.int64())})
    with pytest.raises(DeclarationError, match=r"column 'v' .*needs what it can order"):
        Max("v").state_fields(rows, ["k"])
