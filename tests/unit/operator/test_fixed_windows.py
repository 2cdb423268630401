"""Tumbling and sliding windows against a plain fold: every (row, window) pair by itself.

The oracle puts each row into each of its windows that was not emitted in an earlier epoch, as
Spark does, and a window is emitted when the watermark has reached its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import EPOCH_START, Stream, same, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of

from headgate.errors import DeclarationError
from headgate.operator import (
    Count,
    Max,
    Mean,
    Min,
    Sliding,
    StatefulOperator,
    Sum,
    TopK,
    Tumbling,
)
from headgate.operator.grid import Grid

NUMBERS = st.one_of(st.none(), st.integers(-(10**6), 10**6))
SHAPES = [(10, 10, 0), (10, 5, 0), (30, 10, 3), (12, 8, 5), (7, 1, 0), (60, 7, 2)]
FOLDS: dict[str, tuple[Any, pa.DataType, Any]] = {
    "count": (lambda w: Count("v", window=w), pa.int64(), len),
    "sum": (lambda w: Sum("v", window=w), pa.int64(), lambda vs: sum(vs) if vs else None),
    "mean": (lambda w: Mean("v", window=w), pa.int32(),
             lambda vs: sum(vs) / len(vs) if vs else None),
    "min": (lambda w: Min("v", window=w), pa.int64(), lambda vs: min(vs, default=None)),
    "max": (lambda w: Max("v", window=w), pa.string(), lambda vs: max(vs, default=None)),
    "floats": (lambda w: Sum("v", window=w, name="floats"), pa.float64(),
               lambda vs: float(sum(vs)) if vs else None),
}  # fmt: skip


def windows_of(second: int, shape: tuple[int, int, int]) -> list[int]:
    size, slide, offset = shape
    last = (second - offset) // slide * slide + offset
    return list(range(last, second - size, -slide))


def second_of(at: datetime) -> int:
    return (at.astimezone(UTC) - EPOCH_START) // timedelta(seconds=1)


def window(shape: tuple[int, int, int], **more: Any) -> Any:
    size, slide, offset = (timedelta(seconds=s) for s in shape)
    if size == slide:
        return Tumbling(size, "ts", offset=offset, **more)
    return Sliding(size, slide, "ts", offset=offset, **more)


@settings(max_examples=80, deadline=None)
@given(streams(NUMBERS), st.sampled_from(SHAPES), st.sampled_from(list(FOLDS)), st.data())
def test_windows_are_those_of_a_plain_fold(
    stream: Stream, shape: tuple[int, int, int], name: str, data: Any
) -> None:
    make, kind, oracle = FOLDS[name]
    if pa.types.is_string(kind):
        rows = [(k, None if v is None else f"{v:07}", t, b) for k, v, t, b in stream.rows]
        stream = Stream(stream.shape, rows)
    open_: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    before, now = -(10**6), -20
    with Slot(make(window(shape)), stream.schema(kind), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            late = 0
            for row in (row for calls in tasks for call in calls for row in call):
                starts = [s for s in windows_of(row[2], shape) if s + shape[0] > before]
                late += not starts
                for start in starts:
                    open_[(*stream.key(row), start)] += [row[1]]
            batches = [[stream.batch(call, kind) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches, watermark_us=now * 10**6))
            closed = {key for key in open_ if key[-1] + shape[0] <= now}
            got = {
                (*(row[k] for k in stream.keys), second_of(row["window_start"])): row
                for row in result.finished
            }
            assert result.late == late
            assert len(got) == len(result.finished)
            assert {repr(key) for key in got} == {repr(key) for key in closed}
            for key, row in got.items():
                assert second_of(row["window_end"]) == key[-1] + shape[0]
                values = [v for v in open_.pop(key) if v is not None]
                assert same(row[name], oracle(values)), (key, values)
            assert [row["window_start"] for row in result.finished] == sorted(
                row["window_start"] for row in result.finished
            )
            before, now = now, now + data.draw(st.integers(0, 40))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


@settings(max_examples=40, deadline=None)
@given(streams(st.sampled_from(["x", "y", "z", None])), st.sampled_from(SHAPES[1:4]))
def test_ranks_the_items_of_sliding_windows(stream: Stream, shape: tuple[int, int, int]) -> None:
    counts: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    with Slot(TopK("v", 2, window(shape)), stream.schema(pa.string()), stream.keys) as slot:
        batches = []
        for row in stream.rows:
            batches.append([stream.batch([row], pa.string())])
            for start in windows_of(row[2], shape):
                if row[1] is not None:
                    counts[(*stream.key(row), start)][row[1]] += 1
        slot.run(Epoch(batches))
        got = [
            (*(row[k] for k in stream.keys), second_of(row["window_start"]), row["rank"], row["v"],
             row["count"])
            for row in slot.run(Epoch([], watermark_us=10**9)).finished
        ]  # fmt: skip
    expected = [
        (*key, rank, *pair)
        for key, items in counts.items()
        for rank, pair in enumerate(
            sorted(items.items(), key=lambda pair: (-pair[1], pair[0]))[:2], start=1
        )
    ]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))


# --- early results, changes, late updates -------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    streams(NUMBERS),
    st.sampled_from(SHAPES),
    st.booleans(),
    st.sampled_from([0, 15, 60]),
    st.data(),
)
def test_changes_build_what_a_plain_fold_holds(
    stream: Stream, shape: tuple[int, int, int], early: bool, lateness: int, data: Any
) -> None:
    """Applied to a table in order, changes leave it as a fold of all rows that were not late."""
    if not early and not lateness:
        lateness = 5
    emit = "changes" if early else "updates"
    kept = window(shape, allowed_lateness=timedelta(seconds=lateness))
    open_: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    table: dict[tuple[Any, ...], Any] = {}
    before, now = -(10**6), -20
    operator = Sum("v", window=kept, emit=emit)
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            touched = set()
            late = 0
            for row in (row for calls in tasks for call in calls for row in call):
                starts = [s for s in windows_of(row[2], shape) if s + shape[0] + lateness > before]
                late += not starts
                for start in starts:
                    open_[(*stream.key(row), start)] += [row[1]]
                    touched.add((*stream.key(row), start))
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches, watermark_us=now * 10**6))
            assert result.late == late
            told = set()
            for row in result.finished:
                key = (*(row[k] for k in stream.keys), second_of(row["window_start"]))
                assert key not in told
                told.add(key)
                assert row["change"] == ("update" if key in table else "insert"), key
                table[key] = row["sum"]
            due = touched if early else {
                key for key in open_
                if key[-1] + shape[0] <= now and (key in touched or key[-1] + shape[0] > before)
            }  # fmt: skip
            assert {repr(key) for key in told} == {repr(key) for key in due}
            for key in told:
                values = [v for v in open_[key] if v is not None]
                assert table[key] == (sum(values) if values else None)
            before, now = now, now + data.draw(st.integers(0, 40))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


def test_keys_without_windows_tell_changes() -> None:
    rows = pa.schema({"k": pa.string(), "v": pa.int64()})
    with Slot(Sum("v", emit="changes"), rows, ["k"]) as slot:
        first = slot.run(Epoch([[batch_of(rows, k=["a", "a"], v=[1, 2])]])).finished
        second = slot.run(Epoch([[batch_of(rows, k=["b", "a"], v=[5, 1])]])).finished

    assert first == [{"k": "a", "sum": 3, "change": "insert"}]
    assert second == [
        {"k": "b", "sum": 5, "change": "insert"},
        {"k": "a", "sum": 4, "change": "update"},
    ]


# --- late rows, clocks, places ------------------------------------------------------------------

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})


def batch(*seconds: int) -> pa.RecordBatch:
    count = len(seconds)
    times = [second * 10**6 for second in seconds]
    return batch_of(ROWS, k=[1] * count, v=list(seconds), ts=times)


def test_a_row_counts_in_the_epoch_that_emits_its_window() -> None:
    with Slot(Count(window=Tumbling("10 seconds", "ts")), ROWS, ["k"]) as slot:
        slot.run(Epoch([[batch(1)]], watermark_us=0))
        closing = slot.run(Epoch([[batch(2)]], watermark_us=10_000_000))
        after = slot.run(Epoch([[batch(3)]], watermark_us=10_000_000))

    assert [row["count"] for row in closing.finished] == [2]
    assert (closing.late, after.late, after.finished) == (0, 1, [])


def test_late_rows_go_to_the_dead_letters() -> None:
    late = Tumbling("10 seconds", "ts", late="dead_letters")
    with Slot(Count(window=late), ROWS, ["k"]) as slot:
        slot.run(Epoch([], watermark_us=10_000_000))
        result = slot.run(Epoch([[batch(12, 3)]], watermark_us=10_000_000))

    assert result.late == 1
    assert list(result.dead) == [1]
    assert "late" in result.dead[1]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Tumbling("10 seconds", None), [[], [(0, 2)], [(10, 1)], []]),
        (Sliding("20 seconds", "10 seconds", None),
         [[], [(-10, 2)], [(0, 3), (10, 1)], []]),
    ],
)  # fmt: skip
def test_processing_time_is_that_of_the_plan(shape: Any, expected: list[Any]) -> None:
    epochs = [([1, 1], 3_000), ([1], 12_000), ([], 40_000), ([], 41_000)]
    with Slot(Count(window=shape), ROWS, ["k"]) as slot:
        for (rows, now_ms), wanted in zip(epochs, expected, strict=True):
            result = slot.run(Epoch([[batch(*rows)]], now_ms=now_ms))
            got = [(second_of(r["window_start"]), r["count"]) for r in result.finished]
            assert got == wanted


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata",
                                  "Australia/Lord_Howe", "America/New_York"])  # fmt: skip
@pytest.mark.parametrize("hours", [24, 1, 6])
def test_every_instant_is_in_one_window_of_local_time(zone: str, hours: int) -> None:
    """Starts are those of the clocks on the wall, and each window ends where the next begins."""
    step = hours * 3_600_000_000
    grid = Grid(step, timezone=zone)
    begin = int(datetime(2018, 1, 1, tzinfo=UTC).timestamp()) * 10**6
    times = begin + np.arange(0, 365 * 24 * 6) * 600_000_000
    starts = grid.start_of(times)
    distinct = np.unique(starts)

    assert (starts <= times).all() and (np.diff(starts) >= 0).all()
    assert (grid.start_of(distinct) == distinct).all()
    assert (grid.end_of(distinct[:-1], step) == distinct[1:]).all()
    local = [datetime.fromtimestamp(s / 1e6, ZoneInfo(zone)) for s in distinct[1:].tolist()]
    odd = [at for at in local if (at.hour * 60 + at.minute) % (hours * 60)]
    assert len(odd) <= 1  # where the clocks leave the hour out


def test_days_in_a_time_zone_have_23_to_25_hours() -> None:
    rows = [datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC),
            datetime(2026, 10, 25, 12, tzinfo=UTC)]  # fmt: skip
    days = Tumbling("1 day", "ts", timezone="Europe/Berlin")
    given = pa.RecordBatch.from_pylist([{"k": 1, "v": 1, "ts": at} for at in rows], schema=ROWS)
    with Slot(Count(window=days), ROWS, ["k"]) as slot:
        slot.run(Epoch([[given]]))
        got = slot.run(Epoch([], watermark_us=10**16)).finished

    assert [row["window_end"] - row["window_start"] for row in got] == [
        timedelta(hours=24), timedelta(hours=23), timedelta(hours=25),
    ]  # fmt: skip


def test_sums_of_floats_do_not_leak_into_the_next_window() -> None:
    rows = pa.schema({"k": pa.int64(), "v": pa.float64(), "ts": pa.timestamp("us", "UTC")})
    values = [1e300, float("nan"), 1.0, 2.0, 3.0]
    given = batch_of(rows, k=[1] * 5, v=values, ts=[s * 10**6 for s in range(5)])
    with Slot(Sum("v", window=Sliding("2 seconds", "1 second", "ts")), rows, ["k"]) as slot:
        slot.run(Epoch([[given]]))
        got = [row["sum"] for row in slot.run(Epoch([], watermark_us=10**8)).finished]

    assert got[0] == 1e300 and got[3:] == [3.0, 5.0, 3.0]


def test_a_sum_beyond_64_bits_is_null() -> None:
    given = batch_of(ROWS, k=[1] * 3, v=[2**62, 2**62, 5], ts=[0, 10**6, 2 * 10**6])
    with Slot(Sum("v", window=Sliding("2 seconds", "1 second", "ts")), ROWS, ["k"]) as slot:
        slot.run(Epoch([[given]]))
        got = [row["sum"] for row in slot.run(Epoch([], watermark_us=10**8)).finished]

    assert got == [2**62, None, 2**62 + 5, 5]


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: Sliding("1 minute", "2 minutes", "ts"), "longer than size"),
        (lambda: Sliding("1 minute", "0 seconds", "ts"), "positive"),
        (lambda: Tumbling("1 day", "ts", timezone="Nowhere/Else"), "Europe/Berlin"),
        (lambda: Tumbling("1 day", "ts", late="keep"), "choose 'drop' or 'dead_letters'"),
        (lambda: Tumbling("1 day", None, allowed_lateness="1 hour"), "no row is late"),
        (
            lambda: Count(window=Sliding("2 seconds", "1 second", "ts"), emit="rows"),
            "when it is final",
        ),
    ],
)
def test_what_cannot_work_is_refused(declare: Any, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        declare()


def test_windows_keep_their_settings_in_the_checkpoint() -> None:
    operators: list[StatefulOperator] = [
        Count(window=Tumbling("1 day", "ts")),
        Count(window=Tumbling("1 day", "ts", offset="1 hour")),
        Count(window=Tumbling("1 day", "ts", timezone="Europe/Berlin")),
        Count(window=Tumbling("1 day", "ts", allowed_lateness="1 hour")),
        Count(window=Tumbling("1 day", "ts"), emit="changes"),
        Count(window=Sliding("1 day", "1 hour", "ts")),
    ]
    assert len({repr(operator.describe()) for operator in operators}) == len(operators)
    assert operators[0].describe()["window"] == {
        "kind": "tumbling", "time": "ts", "size_us": 86_400_000_000,
    }  # fmt: skip
