"""Deduplicate: the first row of every key, once."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of

from headgate.errors import DeclarationError
from headgate.operator import Deduplicate, EpochClock, KeyedRows

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
