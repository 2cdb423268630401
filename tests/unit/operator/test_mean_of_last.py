"""MeanOfLast: a sliding mean per key, exact row by row."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, check_running, check_updates, streams
from tests.unit.operator.harness import batch_of, run_once

from headgate.errors import DeclarationError
from headgate.operator import MeanOfLast

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6))
ROWS = pa.schema({"k": pa.string(), "v": pa.float64()})


def mean_of(n: int) -> Any:
    def mean(values: list[float | None]) -> float | None:
        last = [value for value in values if value is not None][-n:]
        return sum(last) / len(last) if last else None

    return mean


@settings(max_examples=30, deadline=None)
@given(streams(VALUES), st.sampled_from([1, 2, 3, 7, 50]))
def test_averages_the_last_values(stream: Stream, n: int) -> None:
    check_running(MeanOfLast("v", n), stream, pa.float64(), mean_of(n), "mean")
    check_updates(MeanOfLast("v", n, emit="updates"), stream, pa.float64(), mean_of(n), "mean")


def test_a_nan_and_a_huge_value_are_gone_after_n_more() -> None:
    batch = batch_of(ROWS, k=["a"] * 7, v=[math.nan, 1e300, 0.1, 0.1, 0.1, math.inf, 1.0])
    means = [row["mean"] for row in run_once(MeanOfLast("v", 2), batch, ["k"]).passed]
    assert math.isnan(means[0])
    assert math.isnan(means[1])
    assert means[3:5] == [0.1, 0.1]
    assert means[5:] == [math.inf, math.inf]


def test_repr_and_pickling_and_declaration() -> None:
    assert MeanOfLast("v", 3) == MeanOfLast("v", 3)
    assert MeanOfLast("v", 3) != MeanOfLast("v", 4)
    assert MeanOfLast("v", 3).describe() != MeanOfLast("v", 4).describe()
    with pytest.raises(DeclarationError, match="at least 1"):
        MeanOfLast("v", 0)
    with pytest.raises(DeclarationError, match="number"):
        MeanOfLast("k", 2).state_fields(ROWS, ["k"])
