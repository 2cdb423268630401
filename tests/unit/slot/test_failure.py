"""Bad rows are found exactly; errors name operator, place and row, and travel as data."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import batch, compiled, plan_for, source

from headgate import Flow
from headgate.errors import CustodyMismatch, HeadgateError, OperatorFailed, SchemaMismatch
from headgate.slot.failure import (
    DeadLetters,
    bad_rows,
    from_exception,
    from_record,
    sample_row,
    to_record,
)
from headgate.slot.plan import EpochPlan
from strategies import examples


@pytest.fixture
def plan() -> EpochPlan:
    flow = Flow("f")
    source(flow).to_memory("out")
    return plan_for(compiled(flow))


@examples(100)
@given(count=st.integers(0, 70), data=st.data())
def test_halving_finds_exactly_the_bad_rows(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=6)) if count else set()
    calls, undone = 0, 0

    def attempt(rows: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        hit = bad & set(rows.tolist())
        if hit:
            raise ValueError(f"row {min(hit)}")

    def undo() -> None:
        nonlocal undone
        undone += 1

    found = dict(bad_rows(count, attempt, undo))

    assert found == {row: f"ValueError: row {row}" for row in sorted(bad)}
    assert undone == calls
    assert calls <= 1 + 2 * len(bad) * (1 + max(1, count).bit_length())


def test_a_sample_may_have_no_columns_or_times_that_python_cannot_hold() -> None:
    far = pa.RecordBatch.from_pydict({"t": pa.array([2**62], pa.timestamp("s")), "k": [1]})
    bare = pa.RecordBatch.from_pydict({"k": [1, 2]}).select([])

    assert str(2**62) in sample_row(far)
    assert "'k': 1" in sample_row(far)
    assert sample_row(bare) == "{}"


def test_rows_that_fail_only_together_are_not_blamed() -> None:
    def attempt(rows: np.ndarray) -> None:
        if len(rows) > 3:
            raise MemoryError

    assert dict(bad_rows(8, attempt)) == {}


def test_an_empty_batch_ends_the_search_even_if_nothing_works() -> None:
    def attempt(rows: np.ndarray) -> None:
        raise ValueError

    assert dict(bad_rows(0, attempt)) == {}


def test_a_refused_row_becomes_a_dead_letter(plan: EpochPlan) -> None:
    letters = DeadLetters(plan, slot=2, wanted=True)
    rows = batch(k=[1, 2, 3], v=["a", None, "c"])

    letters.refuse("parse", rows, {1: "bad", 2: "x" * 2000})
    letters.refuse("other", rows, {})

    made = letters.batch()
    assert made is not None
    first, second = made.to_pylist()
    assert (first["operator"], first["slot"], first["epoch"], first["reason"]) == (
        "parse", 2, 4, "bad",
    )  # fmt: skip
    assert json.loads(first["row"]) == {"k": 2, "v": None}
    assert json.loads(second["row"]) == {"k": 3, "v": "c"}
    assert len(second["reason"]) == 500
    assert letters.counts == {"parse": 2}


def test_the_row_of_a_dead_letter_is_json_whatever_its_numbers_are(plan: EpochPlan) -> None:
    letters = DeadLetters(plan, slot=2, wanted=True)
    rows = batch(x=[float("nan")], y=[[1.5, float("-inf")]])

    letters.refuse("parse", rows, {0: "bad"})

    made = letters.batch()
    assert made is not None
    text = made["row"][0].as_py()
    assert json.loads(text, parse_constant=pytest.fail) == {"x": "NaN", "y": [1.5, "-Infinity"]}


def test_where_objects_lie_in_memory_is_not_told(plan: EpochPlan) -> None:
    """It differs between attempts, and what a task sends must not."""
    letters = DeadLetters(plan, slot=2, wanted=True)
    problem = ValueError(f"no {object()}, only 0xff")
    want = "no <object object at 0x…>, only 0xff"

    letters.refuse("parse", batch(k=[1]), {0: str(problem)})
    error = from_exception(problem, "parse", plan, 1, batch(k=[1]))
    record = to_record(error)
    placed = to_record(CustodyMismatch(str(problem), place=object()))

    made = letters.batch()
    assert made is not None and made["reason"].to_pylist() == [want]
    assert error.reason == f"ValueError: {want}"
    assert want in record["message"] and want in record["fields"]["trace"]
    assert placed["message"] == want
    assert placed["fields"]["place"] == "<object object at 0x…>"


def test_without_a_dead_letter_sink_a_refused_row_stops_the_flow(plan: EpochPlan) -> None:
    letters = DeadLetters(plan, slot=2, wanted=False)
    letters.refuse("parse", batch(k=[1]), {})

    with pytest.raises(OperatorFailed) as caught:
        letters.refuse("parse", batch(k=[1, 2]), {1: "ValueError: no"})

    error = caught.value
    assert (error.operator, error.slot, error.epoch) == ("parse", 2, 4)
    assert error.reason == "ValueError: no"
    assert error.sample == "{'k': 2}"
    assert letters.batch() is None


def test_an_exception_of_user_code_is_reported_with_place_sample_and_trace(plan: EpochPlan) -> None:
    try:
        raise KeyError("price")
    except KeyError as problem:
        error = from_exception(problem, "parse", plan, 1, batch(k=[7]))

    assert isinstance(error, OperatorFailed)
    assert (error.operator, error.slot, error.epoch) == ("parse", 1, 4)
    assert "KeyError: 'price'" in str(error) and "{'k': 7}" in str(error)
    assert 'raise KeyError("price")' in error.trace


def test_an_error_of_headgate_keeps_its_type_and_learns_where_it_happened(plan: EpochPlan) -> None:
    placed = from_exception(CustodyMismatch("lost", epoch=3), "parse", plan, 1, None)

    assert type(placed) is CustodyMismatch
    assert placed.fields == {"operator": "parse", "slot": 1, "epoch": 3}
    assert str(placed) == "lost (operator 'parse', slot 1)"
    assert from_exception(placed, "other", plan, 2, None) is placed


@pytest.mark.parametrize("kind", [SchemaMismatch, OperatorFailed])
def test_an_error_that_user_code_has_caused_is_reported_as_its_operators(
    plan: EpochPlan, kind: type[HeadgateError]
) -> None:
    error = from_exception(kind("no such column", column="n"), "parse", plan, 1, batch(k=[7]))

    assert type(error) is OperatorFailed
    assert (error.operator, error.slot, error.epoch, error.sample) == ("parse", 1, 4, "{'k': 7}")
    assert "no such column" in error.reason
    assert from_exception(error, "other", plan, 2, None) is error


@examples(100)
@given(count=st.integers(0, 70), data=st.data())
def test_two_more_passes_find_the_first_row_that_fails_alone(
    count: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=6)) if count else set()
    calls, seen, undone = 0, 0, 0

    def attempt(rows: np.ndarray) -> None:
        nonlocal calls, seen
        calls, seen = calls + 1, seen + len(rows)
        if bad & set(rows.tolist()):
            raise ValueError

    def undo() -> None:
        nonlocal undone
        undone += 1

    found = next(bad_rows(count, attempt, undo), None)

    assert (None if found is None else found[0]) == min(bad, default=None)
    assert seen <= 3 * count and calls <= 2 * count.bit_length() + 1 and undone == calls


def test_a_batch_that_fails_only_as_a_whole_blames_no_row() -> None:
    def attempt(rows: np.ndarray) -> None:
        if len(rows) > 3:
            raise MemoryError

    assert next(bad_rows(8, attempt), None) is None


def test_a_sample_is_short() -> None:
    assert sample_row(None) == "none"
    assert sample_row(batch(k=pa.array([], pa.int64()))) == "none"
    assert len(sample_row(batch(k=["x" * 9999]))) == 501


def test_an_error_travels_as_data_and_comes_back_with_its_type_and_fields() -> None:
    error = OperatorFailed("broken", operator="parse", slot=3, epoch=None, share=0.5, keys=["a"])

    back = from_record(json.loads(json.dumps(to_record(error))))

    assert type(back) is OperatorFailed
    assert str(back) == "broken"
    assert back.fields == {
        "operator": "parse", "slot": 3, "epoch": None, "share": 0.5, "keys": "['a']",
    }  # fmt: skip


def test_an_error_of_an_unknown_type_is_still_an_error_of_headgate() -> None:
    back = from_record({"type": "ErrorOfTheFuture", "message": "hm", "fields": {}})

    assert type(back) is HeadgateError
