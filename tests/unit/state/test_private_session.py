"""A private state keeps its first write aside: nobody can tell, whatever is done to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operator.rows import Groups, KeyedRows
from headgate.state.layout import StateSchema
from headgate.state.session import PrivateSession
from strategies import examples

SCHEMA = StateSchema(
    pa.schema({"k": pa.string()}),
    pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("maybe", pa.int64()),
            pa.field("text", pa.string()),
        ]
    ),
    pa.schema([]),
)


def groups_of(keys: list[str | None]) -> Groups:
    return KeyedRows(pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.string())}), ["k"]).groups


def eager() -> PrivateSession:
    """One whose table is built from the start."""
    session = PrivateSession(SCHEMA)
    real = session._write

    def write(*given: Any) -> None:
        real(*given)
        session._make_ready()

    session._write = write  # type: ignore[method-assign]
    return session


def told(session: PrivateSession) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.all().batch().to_pylist()
    return rows


KEYS = st.lists(st.none() | st.sampled_from("abcdef"), min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "note", "mark", "undo", "remove", "drop", "look"]), KEYS),
    max_size=8,
)


@examples(150)
@given(STEPS)
def test_it_behaves_as_if_it_had_a_table_from_the_start(steps: list[tuple[str, Any]]) -> None:
    one, other = PrivateSession(SCHEMA), eager()
    marks = 0
    for number, (step, keys) in enumerate(steps):
        for session in (one, other):
            groups = groups_of(keys)
            if step == "add":
                held = session.read(groups)
                session.write(groups, {"n": held["n"] + groups.sizes})
            elif step == "note":
                some = groups.take(np.arange(len(groups)) % 2 == 0)
                texts = pa.array([f"{number}" if i % 3 else None for i in range(len(some))])
                numbers = pa.array([None if i % 2 else i for i in range(len(some))], pa.int64())
                session.write(some, {"text": texts, "maybe": numbers})
            elif step == "mark":
                session.mark()
            elif step == "undo" and marks:
                session.rollback()
            elif step == "remove":
                session.remove(groups)
            elif step == "drop":
                session.remove_rows(session.select("n", below=2))
            session.forget_changes() if not marks and step == "look" else None
        marks += step == "mark"
        assert one.rows == other.rows
    assert told(one) == told(other)
    assert one.bytes >= 0


def test_the_table_is_not_built_for_one_call() -> None:
    session = PrivateSession(SCHEMA)
    groups = groups_of(["b", "a", "b", None])
    values = session.read(groups)["n"] + groups.sizes
    session.write(groups, {"n": values})
    values[:] = 0  # the caller's array is the caller's again

    assert session._table.live == 0 and session.rows == 3 and session.bytes > 0
    assert sorted((r["n"], str(r["k"])) for r in told(session)) == [(1, "None"), (1, "a"), (2, "b")]
    assert session._table.live == 0


def test_there_is_nothing_to_commit() -> None:
    with pytest.raises(AssertionError, match="nothing to commit"):
        PrivateSession(SCHEMA).commit()
