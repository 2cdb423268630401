"""Last: by arrival or by time, whole rows, nulls included."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, check_updates, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn
from headgate.operator import Last

ROWS = pa.schema({"k": pa.string(), "v": pa.int64(), "w": pa.string(), "t": pa.float64()})


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
    batch = batch_of(ROWS, k=["a", "a", "b"], v=[1, None, 3], w=["x", "y", None], t=[2.0, 1.0, 0])
    by_arrival = run_once(Last("v", "w"), batch, ["k"]).finished
    assert by_arrival == [{"k": "a", "v": None, "w": "y"}, {"k": "b", "v": 3, "w": None}]
    by_time = run_once(Last("v", "w", by="t"), batch, ["k"]).finished
    assert by_time == [{"k": "a", "v": 1, "w": "x"}, {"k": "b", "v": 3, "w": None}]


def test_rows_pass_unchanged() -> None:
    batch = batch_of(ROWS, k=["a"], v=[1], w=["x"], t=[2.0])
    assert run_once(Last("v", emit="rows"), batch, ["k"]).passed == batch.to_pylist()


def test_only_needed_columns_are_asked_for() -> None:
    assert Last("v", by="t").needs(ROWS, ["k"], {"v"}) == {"k", "v", "t"}


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(UnknownColumn, match="'nope'"):
        Last("v", by="nope").state_fields(ROWS, ["k"])
    with pytest.raises(NameClash, match="part of the key"):
        Last("k").state_fields(ROWS, ["k"])
    with pytest.raises(DeclarationError, match="order by column 'w'"):
        Last("v", by="w").state_fields(ROWS, ["k"])
    with pytest.raises(DeclarationError, match="one or more"):
        Last()
    with pytest.raises(DeclarationError, match="running"):
        Last("v", emit="running")
    nested = pa.schema({"k": pa.int64(), "v": pa.struct({"x": pa.int64()})})
    with pytest.raises(SchemaMismatch, match="'v'"):
        Last("v").declared(nested, ["k"])
