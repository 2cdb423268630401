"""Deduplicate: the first row of every key, once."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, check_running, check_updates, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn
from headgate.operator import Deduplicate, EpochClock, KeyedRows, Last, MeanOfLast

ROWS = pa.schema({"id": pa.string(), "v": pa.int64()})


@settings(max_examples=24, deadline=None)
@given(streams(st.integers(0, 100)))
def test_passes_the_first_row_of_every_key_in_order(stream: Stream) -> None:
    seen: set[object] = set()
    with Slot(Deduplicate(), stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in stream.epochs():
            expected = []
            for row in (row for calls in tasks for call in calls for row in call):
                if stream.key(row) not in seen:
                    seen.add(stream.key(row))
                    expected.append(row[1])
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            assert [row["v"] for row in slot.run(Epoch(batches)).passed] == expected


@settings(max_examples=60, deadline=None)
@given(streams(st.integers(0, 100)), st.sampled_from([1, 10, 30]), st.data())
def test_a_key_is_new_again_when_the_watermark_is_past_its_time(
    stream: Stream, within: int, data: Any
) -> None:
    until: dict[object, int] = {}
    before, now = -(10**6), -40
    operator = Deduplicate(f"{within} seconds", time="ts")
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            expected, late = [], 0
            for row in (row for calls in tasks for call in calls for row in call):
                late += row[2] <= before
                if row[2] > before and stream.key(row) not in until:
                    until[stream.key(row)] = row[2] + within
                    expected.append(row[1])
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches, watermark_us=now * 10**6))
            assert [row["v"] for row in result.passed] == expected
            assert result.late == late
            until = {key: time for key, time in until.items() if time > now}
            assert len(slot.held()) == len(until)
            before, now = now, now + data.draw(st.integers(0, 30))


def test_rows_without_a_time_are_refused_where_duplicates_go_by_time() -> None:
    rows = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us", "UTC")})
    given_ = batch_of(rows, k=[1, 1, 2], ts=[None, 10**6, 10**6])
    result = run_once(Deduplicate("1 minute", time="ts"), given_, ["k"])

    assert [row["k"] for row in result.passed] == [1, 2]
    assert list(result.dead) == [0]
    with pytest.raises(DeclarationError, match="needs within="):
        Deduplicate(time="ts")


@settings(max_examples=18, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=30))
def test_a_key_is_new_again_when_its_time_is_over(steps: list[tuple[int, int]]) -> None:
    passed_at: dict[int, int] = {}
    now_ms = 1_000_000
    rows = pa.schema({"id": pa.int64()})
    with Slot(Deduplicate(within=timedelta(milliseconds=10)), rows, ["id"]) as slot:
        for key, wait_ms in steps:
            now_ms += wait_ms
            new = key not in passed_at or now_ms - passed_at[key] >= 10
            if new:
                passed_at[key] = now_ms
            result = slot.run(Epoch([[batch_of(rows, id=[key, key])]], now_ms=now_ms))
            assert len(result.passed) == new


def test_says_which_rows_passed() -> None:
    batch = batch_of(ROWS, id=["a", "a", "b"], v=[1, 2, 3])
    with Slot(Deduplicate(), ROWS, ["id"]) as slot, slot._open(0, 0, None) as state:
        output = Deduplicate().process(KeyedRows(batch, ["id"]), state, EpochClock(0, 0))
        assert output.origins is not None
        assert output.origins.tolist() == [0, 2]


def test_durations_are_checked() -> None:
    assert Deduplicate("10 minutes").ttl == timedelta(minutes=10)
    with pytest.raises(DeclarationError, match="not a duration"):
        Deduplicate("soon")
    with pytest.raises(DeclarationError, match="positive"):
        Deduplicate(timedelta(0))
    with pytest.raises(DeclarationError, match="millisecond at least"):
        Deduplicate("10 microseconds")


def test_changing_the_time_keeps_the_state_usable() -> None:
    assert Deduplicate().describe() == Deduplicate("1 day").describe()


# --- Last: by arrival or by time, whole rows, nulls included.

LAST_ROWS = pa.schema({"k": pa.string(), "v": pa.int64(), "w": pa.string(), "t": pa.float64()})


@settings(max_examples=24, deadline=None)
@given(streams(st.one_of(st.none(), st.text("ab", max_size=3))))
def test_keeps_the_last_to_arrive(stream: Stream) -> None:
    check_updates(Last("v"), stream, pa.string(), lambda values: values[-1], "v")


@settings(max_examples=24, deadline=None)
@given(streams(st.one_of(st.none(), st.integers(0, 5))))
def test_keeps_the_latest_by_time_and_the_later_among_equals(stream: Stream) -> None:
    pairs = Stream(
        stream.shape, [(k, (v, at), s, b) for at, (k, v, s, b) in enumerate(stream.rows)]
    )
    best: dict[tuple[Any, ...], tuple[int, int, Any]] = {}
    with Slot(Last("w", by="v"), _with_marks(stream), stream.keys) as slot:
        for plain, tasks in zip(stream.epochs(), pairs.epochs(), strict=True):
            touched = set()
            for key, value, at in _rows(pairs, tasks):
                touched.add(key)
                order = -1 if value is None else value
                if key not in best or order >= best[key][0]:
                    best[key] = (order, at, f"row {at}")
            result = slot.run(Epoch(_batches(stream, plain, tasks)))
            got = {tuple(row[k] for k in stream.keys): row["w"] for row in result.finished}
            assert got == {key: best[key][2] for key in touched}


def _with_marks(stream: Stream) -> pa.Schema:
    return stream.schema(pa.int64()).append(pa.field("w", pa.string()))


def _rows(stream: Stream, tasks: Any) -> list[tuple[tuple[Any, ...], Any, int]]:
    rows = (row for calls in tasks for call in calls for row in call)
    return [(stream.key(row), row[1][0], row[1][1]) for row in rows]


def _batches(stream: Stream, plain: Any, tasks: Any) -> list[list[pa.RecordBatch]]:
    return [
        [
            stream.batch(call, pa.int64()).append_column(
                "w", pa.array([f"row {row[1][1]}" for row in marked], pa.string())
            )
            for call, marked in zip(calls, marked_calls, strict=True)
        ]
        for calls, marked_calls in zip(plain, tasks, strict=True)
    ]


def test_several_columns_come_from_one_row() -> None:
    batch = batch_of(
        LAST_ROWS, k=["a", "a", "b"], v=[1, None, 3], w=["x", "y", None], t=[2.0, 1.0, 0]
    )
    by_arrival = run_once(Last("v", "w"), batch, ["k"]).finished
    assert by_arrival == [{"k": "a", "v": None, "w": "y"}, {"k": "b", "v": 3, "w": None}]
    by_time = run_once(Last("v", "w", by="t"), batch, ["k"]).finished
    assert by_time == [{"k": "a", "v": 1, "w": "x"}, {"k": "b", "v": 3, "w": None}]


def test_rows_pass_unchanged() -> None:
    batch = batch_of(LAST_ROWS, k=["a"], v=[1], w=["x"], t=[2.0])
    assert run_once(Last("v", emit="rows"), batch, ["k"]).passed == batch.to_pylist()


def test_only_needed_columns_are_asked_for() -> None:
    assert Last("v", by="t").needs(LAST_ROWS, ["k"], {"v"}) == {"k", "v", "t"}


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(UnknownColumn, match="'nope'"):
        Last("v", by="nope").state_fields(LAST_ROWS, ["k"])
    with pytest.raises(NameClash, match="part of the key"):
        Last("k").state_fields(LAST_ROWS, ["k"])
    with pytest.raises(DeclarationError, match="order by column 'w'"):
        Last("v", by="w").state_fields(LAST_ROWS, ["k"])
    with pytest.raises(DeclarationError, match="one or more"):
        Last()
    with pytest.raises(DeclarationError, match="running"):
        Last("v", emit="running")
    nested = pa.schema({"k": pa.int64(), "v": pa.struct({"x": pa.int64()})})
    with pytest.raises(SchemaMismatch, match="'v'"):
        Last("v").declared(nested, ["k"])


# --- MeanOfLast: a sliding mean per key, exact row by row.

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6))
SPEEDS = pa.schema({"k": pa.string(), "v": pa.float64()})


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
    batch = batch_of(SPEEDS, k=["a"] * 7, v=[math.nan, 1e300, 0.1, 0.1, 0.1, math.inf, 1.0])
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
        MeanOfLast("k", 2).state_fields(SPEEDS, ["k"])
