"""Promises that all aggregates make, each written once: against a plain fold, on any stream."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tests.unit.operator.harness import Epoch, Slot

from headgate.operator import StatefulOperator

Oracle = Callable[[list[Any]], Any]
EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")

KEY_SHAPES: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
    "text": (pa.schema({"k": pa.string()}), [(None,), ("",), ("a",), ("long enough " * 3,)]),
    "number": (pa.schema({"k": pa.int64()}), [(None,), (0,), (-1,), (2**40,)]),
    "both": (
        pa.schema({"k": pa.string(), "j": pa.int32()}),
        [("a", 1), ("a", None), (None, 1), (None, None)],
    ),
    "none": (pa.schema([]), [()]),
}


@dataclass(frozen=True)
class Stream:
    """Rows (key, value, second) with, before each, a break: 1 call, 2 task, 3 epoch."""

    shape: str
    rows: list[tuple[int, Any, int, int]]

    @property
    def keys(self) -> list[str]:
        return list(KEY_SHAPES[self.shape][0].names)

    def schema(self, kind: pa.DataType) -> pa.Schema:
        fields = [*KEY_SHAPES[self.shape][0], pa.field("v", kind), pa.field("ts", TIME)]
        return pa.schema(fields)

    def key(self, row: tuple[int, Any, int, int]) -> tuple[Any, ...]:
        choices = KEY_SHAPES[self.shape][1]
        return choices[row[0] % len(choices)]

    def epochs(self) -> list[list[list[list[tuple[int, Any, int, int]]]]]:
        """Epochs of tasks of calls of rows."""
        result: list[list[list[list[Any]]]] = [[[[]]]]
        for row in self.rows:
            if row[3] == 3:
                result.append([[[]]])
            elif row[3] == 2:
                result[-1].append([[]])
            elif row[3] == 1:
                result[-1][-1].append([])
            result[-1][-1][-1].append(row)
        return result

    def batch(self, rows: Sequence[tuple[int, Any, int, int]], kind: pa.DataType) -> pa.RecordBatch:
        names = self.keys
        made = [
            dict(zip(names, self.key(row), strict=True)) | {"v": row[1], "ts": _time(row[2])}
            for row in rows
        ]
        return pa.RecordBatch.from_pylist(made, schema=self.schema(kind))


def streams(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Stream]:
    breaks = st.sampled_from([0, 0, 0, 0, 1, 2, 3])
    row = st.tuples(st.integers(0, 3), values, st.integers(-30, 90), breaks)
    return st.builds(Stream, st.sampled_from(list(KEY_SHAPES)), st.lists(row, max_size=40))


def _time(second: int) -> datetime:
    return EPOCH_START + timedelta(seconds=second)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return type(one) is type(other) and one == other


def check_updates(
    operator: StatefulOperator, stream: Stream, kind: pa.DataType, oracle: Oracle, name: str
) -> None:
    """One row per key touched in the epoch, with the value of all its rows so far."""
    seen: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in stream.epochs():
            touched = set()
            for row in (row for calls in tasks for call in calls for row in call):
                seen[stream.key(row)].append(row[1])
                touched.add(stream.key(row))
            result = slot.run(Epoch(_batches(stream, tasks, kind)))
            got = [(tuple(row[k] for k in stream.keys), row[name]) for row in result.finished]
            assert sorted(map(repr, (key for key, _ in got))) == sorted(map(repr, touched))
            for key, value in got:
                assert same(value, oracle(seen[key])), (key, value, seen[key])
            assert not result.passed


def check_running(
    operator: StatefulOperator, stream: Stream, kind: pa.DataType, oracle: Oracle, name: str
) -> None:
    """Every row passes, in order, with the value of its key's rows up to and including it."""
    seen: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in stream.epochs():
            rows = [row for calls in tasks for call in calls for row in call]
            result = slot.run(Epoch(_batches(stream, tasks, kind)))
            assert len(result.passed) == len(rows)
            plain = stream.batch(rows, kind).to_pylist()
            for row, before, after in zip(rows, plain, result.passed, strict=True):
                key = stream.key(row)
                seen[key].append(row[1])
                assert same(after.pop(name), oracle(seen[key])), (key, seen[key])
                assert repr(after) == repr(before)
            assert not result.finished


def check_windows(
    operator: StatefulOperator,
    stream: Stream,
    kind: pa.DataType,
    oracle: Oracle,
    name: str,
    seconds: int,
) -> None:
    """Each window once, when the watermark reaches its end; later rows dropped and counted."""
    open_: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    before, watermark = -(10**6), -20
    with Slot(operator, stream.schema(kind), stream.keys) as slot:
        for tasks in [*stream.epochs(), []]:
            late = 0
            for row in (row for calls in tasks for call in calls for row in call):
                start = row[2] // seconds * seconds
                if start + seconds <= before:
                    late += 1
                else:
                    open_[(*stream.key(row), _time(start))].append(row[1])
            batches = _batches(stream, tasks, kind)
            result = slot.run(Epoch(batches, watermark_us=watermark * 1_000_000))
            size = timedelta(seconds=seconds)
            closed = {key for key in open_ if key[-1] + size <= _time(watermark)}
            got = [
                ((*(row[k] for k in stream.keys), row["window_start"].astimezone(UTC)), row)
                for row in result.finished
            ]
            assert result.late == late
            assert sorted(map(repr, (key for key, _ in got))) == sorted(map(repr, closed))
            for key, row in got:
                assert row["window_end"] == key[-1] + size
                assert same(row[name], oracle(open_.pop(key)))
            before, watermark = watermark, watermark + 25
        assert len(slot.held()) == len(open_)


def _batches(stream: Stream, tasks: Any, kind: pa.DataType) -> list[list[pa.RecordBatch]]:
    return [[stream.batch(call, kind) for call in calls] for calls in tasks]
