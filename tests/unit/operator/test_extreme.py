"""Min and Max: every orderable type, nulls skipped, NaN the largest."""

from __future__ import annotations

import math
from datetime import date, datetime
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
from tests.unit.operator.harness import batch_of, run_once

from headgate.errors import DeclarationError
from headgate.operator import Max, Min, Tumbling

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
    with pytest.raises(DeclarationError, match="cannot order column 'v'"):
        Max("v").state_fields(rows, ["k"])
