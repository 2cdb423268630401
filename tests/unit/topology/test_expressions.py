"""Expressions in filter, with_columns and select: checked when declared, vectorised, pruned.

That SQL means what it means in Spark is shown with Spark (`tests/spark/test_expressions.py`).
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import (
    DeclarationError,
    NameClash,
    OperatorFailed,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.slot.compile import compile_flow
from headgate.testing import ListSource, run
from headgate.topology.arrow_expressions import columns_read, values_of
from headgate.topology.expressions import chosen, condition_of
from headgate.topology.schema import to_schema
from headgate.topology.sql import parse
from headgate.topology.sql_meaning import meaning_of

SCHEMA = to_schema("k string, n bigint, x double, at timestamp")
ROWS = [
    {"k": "a", "n": 3, "x": 0.5, "at": None},
    {"k": "b", "n": None, "x": 2.0, "at": None},
    {"k": "a", "n": 5, "x": None, "at": None},
]


def declared() -> tuple[hg.Flow, hg.Stream]:
    flow = hg.Flow("flow")
    return flow, flow.source(ListSource(SCHEMA, [ROWS]), name="rows")


def out(flow: hg.Flow, rows: hg.Stream) -> list[dict[str, Any]]:
    rows.to_memory("out")
    return run(flow).rows("out")


@pytest.mark.parametrize("given", ["n > 3", pc.field("n") > 3, lambda b: pc.greater(b["n"], 3)])
def test_a_null_in_a_filter_is_false(given: Any) -> None:
    flow, rows = declared()

    assert [row["n"] for row in out(flow, rows.filter(given))] == [5]


def test_with_columns_replaces_in_place_and_adds_behind_from_the_columns_as_they_were() -> None:
    flow, rows = declared()

    made = out(flow, rows.with_columns({"name": "upper(k)"}, n="n * 2", before=pc.field("n") + 0))

    assert list(made[0]) == ["k", "n", "x", "at", "name", "before"]
    assert [(r["n"], r["name"], r["before"]) for r in made] == [
        (6, "A", 3), (None, "B", None), (10, "A", 5),
    ]  # fmt: skip


def test_select_takes_names_texts_with_a_name_and_expressions() -> None:
    flow, rows = declared()

    made = out(flow, rows.select("x", "n + 1 AS next", pc.field("k"), half=pc.field("x") / 2))

    assert made[0] == {"x": 0.5, "next": 4, "k": "a", "half": 0.25}


def test_only_columns_that_somebody_reads_leave_the_source() -> None:
    flow, rows = declared()
    wide = rows.filter("x > 0").with_columns(unread="k || k", m="n + 1")
    wide = wide.select("k", "m", "unread")
    wide.key_by("k").process(hg.Sum("m"), name="total").to_memory("out")

    program = compile_flow(flow.graph())

    assert program.node_schema[0].names == ["k", "n", "x"]
    assert program.node_schema[1].names == ["k", "n", "x"]
    assert program.node_schema[2].names == ["k", "m"]
    assert {r["k"]: r["sum"] for r in run(flow).rows("out")} == {"a": 4, "b": None}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ("nn > 3", UnknownColumn, r"cheap: 'nn > 3' reads column 'nn', but .* k, n, x, at"),
        (pc.field("nn") > 3, UnknownColumn, "not in a stream of k string, n int64"),
        (pc.field(1) > 3, SchemaMismatch, "names a column by its number"),
        ("n", SchemaMismatch, "is int64 and no condition"),
        ("n > 'x'", SchemaMismatch, "int64 > string; cast one side"),
        ("at > 'noon'", SchemaMismatch, "'noon' as a timestamp"),
        ("n >", DeclarationError, "needs a name in place of 'its end'"),
        ("n > 3 )", DeclarationError, r"cannot be read from '\)' on"),
        ("lenght(k) > 3", DeclarationError, r"did you mean length\(\)"),
        ("upper(k, k) = 'A'", DeclarationError, "with 2 arguments; it takes 1"),
        ("cast(x as string) = '1'", SchemaMismatch, "compute it in map"),
        ("k like n", DeclarationError, "something computed"),
    ],
)
def test_a_wrong_expression_is_refused_where_it_is_declared(
    given: Any, error: type[Exception], says: str
) -> None:
    _, rows = declared()

    with pytest.raises(error, match=says) as caught:
        rows.filter(given, name="cheap")

    assert caught.value.operator == "cheap"  # type: ignore[attr-defined]


def test_columns_need_a_name_a_type_and_no_rival() -> None:
    _, rows = declared()

    with pytest.raises(DeclarationError, match="has no name; write total='n \\* 2'"):
        rows.select("n * 2")
    with pytest.raises(NameClash, match="twice"):
        rows.select("n", n="x")
    with pytest.raises(SchemaMismatch, match="of no type"):
        rows.with_columns(y="null")
    with pytest.raises(DeclarationError, match="3 is no expression"):
        rows.with_columns(y=3)
    with pytest.raises(DeclarationError, match=r"with_columns\(\.\.\.\) and select\(\.\.\.\) take"):
        rows.map("n * 2", "n bigint")


def test_an_expression_that_fails_names_operator_expression_and_row() -> None:
    flow, rows = declared()
    rows.with_columns(share="1 / (n - 3)", name="shares").to_memory("out")

    with pytest.raises(OperatorFailed, match=r"'shares' failed.*1 / \(n - 3\).*divide by zero"):
        run(flow)


def test_rows_that_an_expression_fails_on_become_dead_letters() -> None:
    flow, rows = declared()
    rows.filter("1 / (n - 3) > 0", name="shares").to_memory("out")
    flow.dead_letters().to_memory("dead")

    done = run(flow)

    assert [row["n"] for row in done.rows("out")] == [5]
    assert [row["operator"] for row in done.rows("dead")] == ["shares"]


def test_what_does_not_matter_does_not_fail() -> None:
    batch = pa.RecordBatch.from_pylist([{"n": 0}, {"n": 2}, {"n": None}])
    for text, wanted in (
        ("case when n <> 0 then 10 / n else -1.0D end", [-1, 5, -1]),
        ("n <> 0 and 10 / n > 1", [False, True, None]),
        ("n = 0 or 10 / n > 1", [True, True, None]),
        ("coalesce(if(n = 0, 7D, null), 10 / n)", [7, 5, None]),
        ("if(n = 0, 0D, case when true then 10 / n end)", [0, 5, None]),
    ):
        expression = meaning_of(parse(text)[0], batch.schema)
        assert values_of([expression], batch)[0].to_pylist() == wanted, text


def test_expressions_travel_pickled() -> None:
    condition = condition_of("n in (3, 4) and k like 'a%' and at is null", SCHEMA, "f")
    columns = chosen(SCHEMA, ("k",), {"day": "date_trunc('day', at)", "m": "n % 2"}, "select")
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)

    for one in (condition, columns):
        assert pickle.loads(pickle.dumps(one))(batch).equals(one(batch))


NAMES = [f"c{i}" for i in range(9)]


@given(st.sets(st.sampled_from(NAMES)))
def test_the_columns_that_an_expression_reads_are_found(wanted: set[str]) -> None:
    schema = pa.schema([(name, pa.int64()) for name in NAMES])
    expression = pc.scalar(1)
    for name in sorted(wanted):
        expression = expression + pc.field(name)

    assert columns_read(expression, schema) == wanted


numbers = st.integers(-9, 9)
leaves = st.one_of(
    numbers.map(lambda n: str(n) if n >= 0 else f"({n})"), st.sampled_from(["a", "b"])
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from("+ - *".split()), inner).map(" ".join)
    return st.one_of(
        two, inner.map(lambda text: f"({text})"), inner.map(lambda text: f"- ({text})")
    )


@given(st.recursive(leaves, grown, max_leaves=8), numbers, numbers)
def test_arithmetic_binds_as_in_python(text: str, a: int, b: int) -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([a]), "b": pa.array([b])})
    expression = meaning_of(parse(text)[0], batch.schema)

    assert values_of([expression], batch)[0].to_pylist() == [eval(text, {"a": a, "b": b})]


@given(
    st.recursive(
        st.sampled_from(["p", "q", "r"]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
            inner.map(lambda text: f"not ({text})"),
            inner.map(lambda text: f"({text})"),
        ),
        max_leaves=6,
    ),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_logic_binds_as_in_python(text: str, values: list[bool]) -> None:
    names = dict(zip("pqr", values, strict=True))
    batch = pa.RecordBatch.from_pylist([names])
    expression = meaning_of(parse(text)[0], batch.schema)

    assert values_of([expression], batch)[0].to_pylist() == [eval(text, dict(names))]
