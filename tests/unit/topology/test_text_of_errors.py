"""Errors tell the line of user code on which they arose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import OperatorFailed, SinkFailed
from headgate.testing import ListSource, run
from headgate.topology.text import LINE_CHARACTERS_MAX, describe, reason_of

HERE = "test_text_of_errors.py"
ROWS = [{"k": k % 3, "v": k} for k in range(10)]
SCHEMA = "k bigint, v bigint"


def broken_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.column("missing")


def broken_row(row: dict[str, Any]) -> Any:
    return {"k": row["k"] // 0, "v": 1}


def broken_update(key: int, rows: Any, state: Any) -> Any:
    return json.loads("{"), None


def broken_sink(rows: Any, epoch: int) -> None:
    raise OSError("no database")


class Broken(hg.StatefulOperator):
    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> hg.StateFields:
        return hg.StateFields(pa.schema({"n": pa.int64()}))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        return state.read(rows.groups)["missing"]


DECLARED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "map": (
        lambda rows: rows.map(broken_batch, SCHEMA),
        'broken_batch: return batch.column("missing")',
    ),
    "filter": (
        lambda rows: rows.filter(broken_batch),
        'broken_batch: return batch.column("missing")',
    ),
    "map_rows": (lambda rows: rows.map_rows(broken_row, SCHEMA), "broken_row: return"),
    "flat_map_rows": (lambda rows: rows.flat_map_rows(broken_row, SCHEMA), "broken_row: return"),
    "filter_rows": (lambda rows: rows.filter_rows(broken_row), "broken_row: return"),
    "Update": (
        lambda rows: rows.key_by("k").process(hg.Update(broken_update, output=SCHEMA)),
        'broken_update: return json.loads("{"), None',
    ),
    "process": (lambda rows: rows.key_by("k").process(Broken()), "process: return state.read"),
}


def failing(declare: Callable[[Any], Any], sink: Any = None) -> Any:
    flow = hg.Flow("f")
    rows = declare(flow.source(ListSource(SCHEMA, [ROWS])))
    rows.to(sink, name="out") if sink else rows.to_memory("out")
    with pytest.raises((OperatorFailed, SinkFailed)) as caught:
        run(flow)
    return caught.value


@pytest.mark.parametrize("kind", DECLARED)
def test_the_innermost_line_of_the_user_is_told(kind: str) -> None:
    declare, line = DECLARED[kind]

    error = failing(declare)

    place, _, told = error.where.partition(" in ")
    assert place.startswith(f"{HERE}:") and told.startswith(line)
    assert f"({error.where})" in str(error)
    assert f'{__file__}", line {place.partition(":")[2]}' in error.trace
    assert error.trace.endswith(f"{error.reason}\n") and "headgate/slot" not in error.trace


def test_a_sink_that_fails_tells_its_line() -> None:
    error = failing(lambda rows: rows, broken_sink)

    assert error.where.endswith('in broken_sink: raise OSError("no database")')
    assert error.where in str(error) and __file__ in error.trace
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("answer", [7, None, (1, 2, 3)])
def test_an_answer_that_is_wrong_tells_where_the_function_begins(answer: Any) -> None:
    def answers(key: int, rows: Any, state: Any) -> Any:
        return answer

    error = failing(lambda rows: rows.key_by("k").process(hg.Update(answers, output=SCHEMA)))

    line = answers.__code__.co_firstlineno
    assert error.where == f"{HERE}:{line} in answers"
    assert f"it must return (new_state, output_rows), not {answer!r}" in str(error)


def test_installed_code_is_named_by_the_function_that_was_called() -> None:
    source = "def outer(x):\n    return inner(x)\ndef inner(x):\n    return 1 / x\n"
    names: dict[str, Any] = {}
    exec(compile(source, "/venv/lib/site-packages/theirs/app.py", "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["outer"](0)
    stack = caught.value.__traceback__
    assert stack is not None

    assert reason_of(caught.value.with_traceback(stack.tb_next)).where == "app.py:2 in outer"


def test_what_is_told_is_short_and_the_same_in_every_process() -> None:
    java = "An error occurred while calling o1.jdbc.\n: java.sql.SQLException: No driver"
    stack = "\n\tat java.sql.DriverManager.getDriver(DriverManager.java:299)\n\t... 34 more"

    assert describe(OSError(java + stack)) == f"OSError: {java}"
    assert describe(ValueError(object())) == "ValueError: <object object at 0x…>"
    long = compile(
        "def f():\n    return 1 / 0 " + "+ 1" * 99, __file__.replace(HERE, "x.py"), "exec"
    )
    names: dict[str, Any] = {}
    exec(long, names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["f"]()
    assert len(reason_of(caught.value).where) <= LINE_CHARACTERS_MAX
