"""Update: a function per key, with its state, its output and its failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.checks import Stream, streams
from tests.unit.operator.harness import Epoch, Slot, batch_of, run_once

from headgate.errors import DeclarationError, OperatorFailed
from headgate.operator import Update

ROWS = pa.schema({"k": pa.string(), "v": pa.int64()})
OUT = pa.schema({"key": pa.string(), "values": pa.list_(pa.int64())})


def remember(key: Any, rows: pa.RecordBatch, state: list[int] | None) -> tuple[Any, Any]:
    state = [*(state or []), *rows.column("v").to_pylist()]
    return state, [{"key": repr(key), "values": state}]


def remember_dicts(key: Any, rows: list[dict[str, Any]], state: Any) -> tuple[Any, Any]:
    state = [*(state or []), *(row["v"] for row in rows)]
    return state, pa.RecordBatch.from_pylist([{"values": state, "key": repr(key)}])


def picky(key: str, rows: pa.RecordBatch, state: int | None) -> tuple[Any, Any]:
    value = rows.column("v")[0].as_py()
    answers: dict[int, Any] = {
        1: [{"key": key}],
        2: [{"typo": key}],
        3: [{"key": 12}],
        4: "text",
        5: None,
        6: pa.RecordBatch.from_pylist([{"other": 1}]),
        7: [],
    }
    if value == 0:
        raise ValueError("zero is not for me")
    return value, answers[value]


def forgetful(key: str, rows: pa.RecordBatch, state: int | None) -> tuple[Any, Any]:
    return (None if rows.column("v")[0].as_py() < 0 else 1), None


@settings(max_examples=24, deadline=None)
@given(streams(st.integers(0, 9)), st.booleans())
def test_folds_every_key_in_order(stream: Stream, dicts: bool) -> None:
    seen: dict[Any, list[int]] = {}
    operator = (
        Update(remember_dicts, OUT, rows_as="dicts") if dicts else Update(remember, output=OUT)
    )
    with Slot(operator, stream.schema(pa.int64()), stream.keys) as slot:
        for tasks in stream.epochs():
            expected = []
            for call in (call for calls in tasks for call in calls):
                touched = {}
                for row in call:
                    seen[stream.key(row)] = [*seen.get(stream.key(row), []), row[1]]
                    touched[stream.key(row)] = None
                expected += [(_shown(key), seen[key]) for key in touched]
            batches = [[stream.batch(call, pa.int64()) for call in calls] for calls in tasks]
            result = slot.run(Epoch(batches))
            assert [(row["key"], row["values"]) for row in result.passed] == expected


def _shown(key: tuple[Any, ...]) -> str:
    return repr(key[0] if len(key) == 1 else key)


def test_a_failing_key_is_refused_alone() -> None:
    values = [0, 1, 2, 0, 3, 4, 5, 6, 7]
    batch = batch_of(ROWS, k=["z", "a", "b", "z", "c", "d", "e", "f", "g"], v=values)
    out = pa.schema({"key": pa.string()})
    with Slot(Update(picky, out), ROWS, ["k"]) as slot:
        result = slot.run(Epoch([[batch]]))
        assert result.passed == [{"key": "a"}]
        assert sorted(result.dead) == [0, 2, 3, 4, 5, 7]
        assert result.dead[0] == result.dead[3] == "ValueError: zero is not for me"
        assert "typo" in result.dead[2]
        assert "not a str" in result.dead[5]
        assert sorted(row["k"] for row in slot.held()) == ["a", "e", "g"]


def unkeepable(key: str, rows: pa.RecordBatch, state: Any) -> tuple[Any, Any]:
    return (lambda: None) if key == "bad" else 1, [{"key": key}]


def test_a_key_whose_state_cannot_be_kept_passes_no_rows_on() -> None:
    update = Update(unkeepable, pa.schema({"key": pa.string()}))
    result = run_once(update, batch_of(ROWS, k=["bad", "good"], v=[1, 1]), ["k"])

    assert result.passed == [{"key": "good"}]
    assert list(result.dead) == [0] and "pickle" in result.dead[0]


WRONG: dict[str, Callable[[], Any]] = {
    "not a tuple": lambda: ({"key": "a"},),
    "not a generator": lambda: (row for row in ()),
    "not a ndarray": lambda: np.array([1, 2]),
    "not a Table": lambda: pa.table({"key": ["a"]}),
    "not a list of str": lambda: ["a"],
    "does not declare: 1, z": lambda: [{1: 2, "z": 3}],
    "does not declare: w": lambda: pa.RecordBatch.from_pydict({"key": ["a"], "w": [1]}),
    "a batch has no column 'key'": lambda: pa.RecordBatch.from_pydict({"x": ["a"]}).select([]),
    "has no column 'key', which output= declares": lambda: [{}],
}


def answer_wrong(key: Any, rows: Any, state: Any) -> Any:
    return 1, WRONG[key]() if key in WRONG else [{"key": key}]


@pytest.mark.parametrize("kind", WRONG)
def test_output_rows_of_another_kind_are_refused_by_its_name(kind: str) -> None:
    update = Update(answer_wrong, pa.schema({"key": pa.string()}))
    result = run_once(update, batch_of(ROWS, k=[kind, "b"], v=[1, 1]), ["k"])

    assert result.passed == [{"key": "b"}]
    assert list(result.dead) == [0] and kind in result.dead[0]


def test_a_state_of_none_forgets_the_key() -> None:
    with Slot(Update(forgetful, OUT), ROWS, ["k"]) as slot:
        slot.run(Epoch([[batch_of(ROWS, k=["a", "b"], v=[1, 1])]]))
        assert len(slot.held()) == 2
        slot.run(Epoch([[batch_of(ROWS, k=["a", "c"], v=[-1, -1])]]))
        assert [row["k"] for row in slot.held()] == ["b"]


def test_state_that_cannot_be_read_back_stops_with_a_reason() -> None:
    with Slot(Update(remember, OUT), ROWS, ["k"]) as slot:
        with slot._open(0, 0, None) as state:
            from headgate.operator import KeyedRows

            batch = batch_of(ROWS, k=["a"], v=[1])
            state.write(KeyedRows(batch, ["k"]).groups, {"state": pa.array([b"no pickle"])})
            slot.chain = state.commit()
        with pytest.raises(OperatorFailed, match="state of key 'a'"):
            slot.run(Epoch([[batch]]))


def test_no_output_is_no_batch() -> None:
    batch = batch_of(ROWS, k=["a"], v=[1])
    assert run_once(Update(forgetful, OUT), batch, ["k"]).passed == []


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(DeclarationError, match="function"):
        Update("name", OUT)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="pyarrow schema"):
        Update(remember, 17)
    with pytest.raises(DeclarationError, match="'batch' or 'dicts'"):
        Update(remember, OUT, rows_as="pandas")  # type: ignore[arg-type]
