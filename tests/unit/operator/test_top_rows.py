"""The best rows of every key against a plain sort of all rows so far."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Away, Epoch, Slot, batch_of
from tests.unit.operator.test_fixed_windows import second_of

from headgate.errors import DeclarationError
from headgate.operator import Sliding, TopRows, Tumbling

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
        (lambda: TopRows(1, "v", window=Sliding("2 seconds", "1 second", "ts")), "tumbling"),
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
