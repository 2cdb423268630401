"""The best rows of every key against a plain sort of all rows so far."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of
from tests.unit.operator.test_fixed_windows import SHAPES, second_of, window, windows_of
from tests.unit.operator.test_session_window import GAPS, bounds_of, place_of, sessions_of

from headgate.errors import DeclarationError, SchemaMismatch
from headgate.operator import Global, Session, TopK, TopRows, Tumbling

NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
Row = tuple[int, Any, int, int]


def best(rows: list[Row], n: int, largest: bool) -> list[tuple[Any, int]]:
    """(value, second): by value, nulls last, then by time; what ties in all is the same."""

    def order(row: Row) -> tuple[Any, ...]:
        value = row[1] or 0
        return row[1] is None, -value if largest else value, row[2]

    return [(row[1], row[2]) for row in sorted(rows, key=order)[:n]]


def spell(stream: Stream, text: bool) -> Stream:
    rows = [(k, v if v is None or not text else f"{v + 3:03}", t, b) for k, v, t, b in stream.rows]
    return Stream(stream.shape, rows)


@settings(max_examples=120, deadline=None)
@given(streams(NUMBERS), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans())
def test_changes_build_what_a_sort_of_all_rows_gives(
    stream: Stream, n: int, largest: bool, text: bool, away: bool
) -> None:
    """Each rank is told when its row is another one, and only then; also over partials."""
    kind = pa.string() if text else pa.int64()
    operator = TopRows(n, "v desc" if largest else "v", emit="changes")
    seen: dict[Any, list[Row]] = defaultdict(list)
    table: dict[tuple[Any, ...], tuple[Any, int]] = {}
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in stream.epochs():
            for row in (row for calls in tasks for call in calls for row in call):
                seen[stream.key(row)].append(row)
            batches = [[spelled(stream, call, text) for call in calls] for calls in tasks]
            if away:
                batches = [[Away(b) if i % 2 else b for i, b in enumerate(bs)] for bs in batches]
            for row in slot.run(Epoch(batches)).finished:
                place = (*(row[k] for k in stream.keys), row["rank"])
                value = row["v"] if not text or row["v"] is None else int(row["v"]) - 3
                now = value, second_of(row["ts"])
                assert row["change"] == ("update" if place in table else "insert")
                assert table.get(place) != now, "told again, though it is the same row"
                table[place] = now
            expected = {
                (*key, rank): row
                for key, rows in seen.items()
                for rank, row in enumerate(best(rows, n, largest), 1)
            }
            assert table == expected
        assert len(slot.held()) == len(table)


def spelled(stream: Stream, call: list[Row], text: bool) -> pa.RecordBatch:
    return spell(stream, text).batch(
        spell(Stream(stream.shape, call), text).rows, pa.string() if text else pa.int64()
    )


@settings(max_examples=50, deadline=None)
@given(streams(NUMBERS), st.integers(1, 4), st.booleans())
def test_windows_emit_their_best_rows_once(stream: Stream, n: int, away: bool) -> None:
    operator = TopRows(n, ("v desc", "ts"), window=Tumbling("10 seconds", "ts"))
    held: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in stream.epochs():
            for row in (row for calls in tasks for call in calls for row in call):
                held[(*stream.key(row), row[2] // 10 * 10)].append(row)
            batches: list[list[Any]] = [
                [stream.batch(call, pa.int64()) for call in calls] for calls in tasks
            ]
            if away:
                batches = [[Away(b) if i % 2 else b for i, b in enumerate(bs)] for bs in batches]
            slot.run(Epoch(batches))
        got = [
            (*(row[k] for k in stream.keys), second_of(row["window_start"]), row["rank"], row["v"],
             second_of(row["ts"]))
            for row in slot.run(Epoch([], watermark_us=10**9)).finished
        ]  # fmt: skip
        assert slot.held() == []
    expected = [
        (*key, rank, *row)
        for key, rows in held.items()
        for rank, row in enumerate(best(rows, n, True), 1)
    ]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))


def in_calls(stream: Stream, tasks: Any, away: bool, text: bool = False) -> list[list[Any]]:
    """The batches of an epoch; with `away` other slots fold every second one."""
    batches: list[list[Any]] = [[spelled(stream, call, text) for call in calls] for calls in tasks]
    if away:
        batches = [[Away(b) if i % 2 else b for i, b in enumerate(bs)] for bs in batches]
    return batches


def told_of(row: dict[str, Any], text: bool) -> tuple[int, Any, int]:
    value = row["v"] if not text or row["v"] is None else int(row["v"]) - 3
    return row["rank"], value, second_of(row["ts"])


@settings(max_examples=60, deadline=None)
@given(
    streams(NUMBERS),
    st.sampled_from(SHAPES[1:]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_sliding_windows_rank_the_rows_in_them(
    stream: Stream, shape: Any, n: int, text: bool, away: bool, data: Any
) -> None:
    operator = TopRows(n, ("v desc", "ts"), window=window(shape))
    kind = pa.string() if text else pa.int64()
    open_: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    before, now = -(10**6), -20
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            for row in (row for calls in tasks for call in calls for row in call):
                for start in windows_of(row[2], shape):
                    if start + shape[0] > before:
                        open_[(*stream.key(row), start)].append(row)
            result = slot.run(Epoch(in_calls(stream, tasks, away, text), watermark_us=now * 10**6))
            closed = [key for key in open_ if key[-1] + shape[0] <= now]
            expected = [
                (*key, rank, *row)
                for key in closed
                for rank, row in enumerate(best(open_.pop(key), n, True), 1)
            ]
            got = [
                (*(row[k] for k in stream.keys), second_of(row["window_start"]),
                 *told_of(row, text))
                for row in result.finished
            ]  # fmt: skip
            assert sorted(map(repr, got)) == sorted(map(repr, expected))
            before, now = now, now + data.draw(st.integers(0, 40))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


@settings(max_examples=60, deadline=None)
@given(streams(NUMBERS), GAPS, st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_sessions_rank_the_rows_in_them(
    stream: Stream, gap: int, n: int, text: bool, away: bool, data: Any
) -> None:
    """Bounds are those of all rows of a session, also of rows that are not among the best."""
    operator = TopRows(n, ("v desc", "ts"), window=Session(timedelta(seconds=gap), "ts"))
    kind = pa.string() if text else pa.int64()
    open_: dict[tuple[Any, ...], list[tuple[int, Any]]] = defaultdict(list)
    before, now = -(10**6), -20
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            for row in (row for calls in tasks for call in calls for row in call):
                if row[2] + gap > before:
                    open_[stream.key(row)].append((row[2], row))
            result = slot.run(Epoch(in_calls(stream, tasks, away, text), watermark_us=now * 10**6))
            expected = []
            for key, rows in open_.items():
                cut = sessions_of(rows, gap)
                over = [one for one in cut if one[-1][0] + gap <= now]
                for one in over:
                    ranked = enumerate(best([row for _, row in one], n, True), 1)
                    place = (*key, *bounds_of(one, gap))
                    expected += [(*place, rank, *row) for rank, row in ranked]
                open_[key] = [row for one in cut if one not in over for row in one]
            got = [(*place_of(row, stream.keys), *told_of(row, text)) for row in result.finished]
            assert sorted(map(repr, got)) == sorted(map(repr, expected))
            before, now = now, now + data.draw(st.integers(0, 30))
        slot.run(Epoch([], watermark_us=10**9))
        assert slot.held() == []


@settings(max_examples=40, deadline=None)
@given(
    streams(NUMBERS), st.sampled_from([None, 2, 5]), st.integers(1, 3), st.booleans(), st.booleans()
)
def test_a_trigger_tells_all_ranks(
    stream: Stream, every: int | None, n: int, reset: bool, away: bool
) -> None:
    operator = TopRows(n, "v desc", window=Global(every, then="reset" if reset else "keep"))
    held: dict[Any, list[Row]] = defaultdict(list)
    new: dict[Any, int] = defaultdict(int)
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in stream.epochs():
            touched = set()
            for row in (row for calls in tasks for call in calls for row in call):
                held[stream.key(row)].append(row)
                new[stream.key(row)] += 1
                touched.add(stream.key(row))
            result = slot.run(Epoch(in_calls(stream, tasks, away)))
            due = [key for key in touched if new[key] >= (every or 1)]
            expected = [
                (*key, rank, *row)
                for key in due
                for rank, row in enumerate(best(held[key], n, True), 1)
            ]
            got = [
                (*(row[k] for k in stream.keys), *told_of(row, False)) for row in result.finished
            ]
            assert sorted(map(repr, got)) == sorted(map(repr, expected))
            for key in due:
                del new[key]
                if reset:
                    del held[key]


def test_rows_in_windows_keep_columns_of_all_kinds_and_their_nulls() -> None:
    rows = pa.schema(
        {
            "v": pa.int32(), "flag": pa.bool_(), "money": pa.decimal128(20, 2), "s": pa.string(),
            "raw": pa.binary(3), "pair": pa.list_(pa.float32(), 2), "some": pa.list_(pa.int16()),
            "day": pa.date32(), "ts": pa.timestamp("ms", "UTC"), "k": pa.string(),
        }
    )  # fmt: skip
    given = [
        {"v": 1, "flag": True, "money": Decimal("1.25"), "s": "", "raw": b"abc",
         "pair": [1.5, 2.5], "some": [], "day": None, "ts": 0, "k": "a"},
        {"v": 2, "flag": None, "money": None, "s": None, "raw": None, "pair": None, "some": None,
         "day": None, "ts": 1, "k": "a"},
        {"v": 3, "flag": False, "money": Decimal("-3.00"), "s": "long " * 9, "raw": b"\0\0\0",
         "pair": [0.0, -1.0], "some": [1, 2, 3], "day": None, "ts": 2, "k": "a"},
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(given, schema=rows)
    with Slot(TopRows(9, "v desc", window=Session("1 minute", "ts")), rows, ["k"]) as slot:
        for row in range(3):
            slot.run(Epoch([[batch.slice(row, 1)]]))
        got = slot.run(Epoch([], watermark_us=10**9)).finished

    wanted = batch.take(pa.array([2, 1, 0])).to_pylist()
    assert [{name: row[name] for name in rows.names} for row in got] == wanted


def test_a_column_that_the_state_cannot_hold_is_refused_by_name() -> None:
    rows = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us"), "deep": pa.list_(pa.string())})
    with pytest.raises(SchemaMismatch, match=r"TopRows.*'deep'"):
        TopRows(1, "ts", window=Tumbling("1 minute", "ts")).state_fields(rows, ["k"])
    TopRows(1, "ts", [], window=Tumbling("1 minute", "ts")).state_fields(rows, ["k"])


ROWS = pa.schema({"k": pa.int64(), "v": pa.float64(), "s": pa.string(), "z": pa.binary()})


def test_ties_are_settled_by_the_other_columns_in_any_order_of_arrival() -> None:
    rows = [(1, 2.0, "b", b"1"), (1, 2.0, "a", b"2"), (1, 2.0, "a", b"1"), (1, None, "a", b"0"),
            (1, float("nan"), None, None), (1, 2.0, None, b"0")]  # fmt: skip
    expected = None
    for turn in range(len(rows)):
        turned = rows[turn:] + rows[:turn]
        columns = dict(zip(ROWS.names, zip(*turned, strict=True), strict=True))
        with Slot(TopRows(6, "v desc"), ROWS, ["k"]) as slot:
            got = slot.run(Epoch([[batch_of(ROWS, **columns)]])).finished
        order = [(row["s"], row["z"]) for row in got]
        expected = expected or order
        assert order == expected
    assert expected == [
        (None, None), ("a", b"1"), ("a", b"2"), ("b", b"1"), (None, b"0"), ("a", b"0"),
    ]  # fmt: skip


def test_the_last_row_of_a_key_is_the_best_by_time() -> None:
    rows = pa.schema({"k": pa.string(), "ts": pa.timestamp("us", "UTC"), "lat": pa.float64()})
    with Slot(TopRows(1, "ts desc", columns=["lat"]), rows, ["k"]) as slot:
        slot.run(Epoch([[batch_of(rows, k=["a", "b"], ts=[5, 5], lat=[0.5, 1.5])]]))
        again = slot.run(Epoch([[batch_of(rows, k=["a", "b"], ts=[4, 6], lat=[7.0, 8.0])]]))

    assert [(row["k"], row["lat"]) for row in again.finished] == [("b", 8.0)]


@pytest.mark.parametrize(
    ("declare", "match"),
    [
        (lambda: TopRows(0, "v"), "n of TopRows"),
        (lambda: TopRows(1, ()), "one or more different columns"),
        (lambda: TopRows(1, ("v", "v desc")), "one or more different columns"),
        (lambda: TopRows(1, "v", emit="rows"), "choose 'updates' or 'changes'"),
        (lambda: TopK("v", 1, Global()).output_schema(ROWS, ["k"]), "TopRows"),
        (lambda: TopRows(1, "x").output_schema(ROWS, ["k"]), "column 'x'"),
        (
            lambda: TopRows(1, "v").output_schema(ROWS.append(pa.field("rank", pa.int8())), ["k"]),
            "'rank'",
        ),
    ],
)
def test_what_cannot_work_is_refused(declare: Any, match: str) -> None:
    with pytest.raises(DeclarationError, match=match):
        declare()
