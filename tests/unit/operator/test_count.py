"""Count: rows per key, by update, by row and by window."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, check_running, check_updates, check_windows, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn
from headgate.operator import Count, Tumbling

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
