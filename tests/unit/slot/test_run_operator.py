"""Stateless operators: what they may return, what they may not, and who pays for a bad row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.slot.parts import batch, compiled, plan_for, source

import headgate as hg
from headgate import Flow, testing
from headgate.errors import OperatorFailed
from headgate.slot.failure import DeadLetters
from headgate.slot.rows import Rows
from headgate.slot.run_operator import WrongOutput, conform, run_stateless
from headgate.testing import ListSource
from headgate.topology.stream import Stream

ROWS = Rows(batch(k=[1, 2, 3, 4], v=["a", "b", None, "d"]), {"order": np.array([10, 20, 30, 40])})
OUT = "k bigint, w string"


def run(
    declare: Callable[[Stream], Stream], dead: bool = False, rows: Rows = ROWS
) -> tuple[Rows, Any]:
    """Run the one operator that `declare` adds; its output, and the dead letters."""
    flow = Flow("f")
    declare(source(flow, "k bigint, v string")).to_memory("out")
    program = compiled(flow)
    letters = DeadLetters(plan_for(program), 0, wanted=dead)
    return run_stateless(program.graph.nodes[1], rows, letters), letters


def told(rows: Rows) -> list[tuple[Any, ...]]:
    orders = rows.lineage["order"].tolist()
    return [(o, *row.values()) for o, row in zip(orders, rows.batch.to_pylist(), strict=True)]


def shout(rows: pa.RecordBatch) -> dict[str, Any]:
    return {"w": pc.utf8_upper(rows.column("v")), "k": rows.column("k")}


def double(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
    origins = np.repeat(np.arange(rows.num_rows), 2)[::-1]
    taken = rows.take(pa.array(origins))
    return taken.rename_columns(["k", "w"]), origins


# --- what they do -----------------------------------------------------------------------------


def test_map_makes_a_row_of_every_row_in_the_declared_columns() -> None:
    made, _ = run(lambda s: s.map(shout, OUT))

    assert made.batch.schema == pa.schema({"k": pa.int64(), "w": pa.string()})
    assert told(made) == [(10, 1, "A"), (20, 2, "B"), (30, 3, None), (40, 4, "D")]


@pytest.mark.parametrize("wrap", [pa.Table.from_batches, lambda batches: batches[0]])
def test_map_may_return_a_table_or_a_batch(wrap: Any) -> None:
    made, _ = run(lambda s: s.map(lambda b: wrap([b]), "v string, k bigint"))

    assert told(made) == [(10, "a", 1), (20, "b", 2), (30, None, 3), (40, "d", 4)]


def test_types_that_differ_are_cast_to_the_declared_ones() -> None:
    made, _ = run(lambda s: s.map(lambda b: {"k": b["k"].cast("int32")}, "k double"))

    assert made.batch.column("k").to_pylist() == [1.0, 2.0, 3.0, 4.0]
    assert made.batch.schema.field("k").type == pa.float64()


@pytest.mark.parametrize(
    "predicate",
    [
        lambda b: pc.greater(b["k"], 2),
        lambda b: pa.chunked_array([pc.greater(b["k"], 2)]),
        lambda b: b["k"].to_numpy() > 2,
        lambda b: [False, False, True, True],
        pc.field("k") > 2,
    ],
)
def test_filter_keeps_the_rows_that_are_true(predicate: Any) -> None:
    made, _ = run(lambda s: s.filter(predicate))

    assert told(made) == [(30, 3, None), (40, 4, "d")]


@pytest.mark.parametrize("predicate", [lambda b: pc.not_equal(b["v"], "a"), pc.field("v") != "a"])
def test_a_filter_that_cannot_say_drops_the_row(predicate: Any) -> None:
    made, _ = run(lambda s: s.filter(predicate))

    assert [row[1] for row in told(made)] == [2, 4]


@pytest.mark.parametrize("column", ["__row", "row", "k_"])
def test_an_expression_filters_whatever_the_columns_are_called(column: str) -> None:
    flow = Flow("f")
    declared = source(flow, f"{column} bigint, v bigint").filter(pc.field("v") > 1)
    declared.to_memory("out")
    program = compiled(flow)
    rows = Rows(pa.RecordBatch.from_pydict({column: [7, 8, 9], "v": [1, 2, 3]}))

    made = run_stateless(
        program.graph.nodes[1], rows, DeadLetters(plan_for(program), 0, wanted=False)
    )

    assert made.batch.to_pylist() == [{column: 8, "v": 2}, {column: 9, "v": 3}]


def test_a_filter_that_keeps_all_copies_nothing() -> None:
    made, _ = run(lambda s: s.filter(lambda b: [True] * 4))

    assert made is ROWS


def test_flat_map_says_where_its_rows_come_from() -> None:
    made, _ = run(lambda s: s.flat_map(double, OUT))

    assert [row[:2] for row in told(made)] == [
        (40, 4), (40, 4), (30, 3), (30, 3), (20, 2), (20, 2), (10, 1), (10, 1),
    ]  # fmt: skip


def test_row_functions_do_the_same_one_row_at_a_time() -> None:
    mapped, _ = run(lambda s: s.map_rows(lambda r: {"k": r["k"], "w": r["v"]}, OUT))
    kept, _ = run(lambda s: s.filter_rows(lambda r: r["k"] % 2 == 0))
    flat, _ = run(
        lambda s: s.flat_map_rows(lambda r: [{"k": r["k"], "w": "x"}] * (r["k"] - 2), OUT)
    )

    assert told(mapped) == [(10, 1, "a"), (20, 2, "b"), (30, 3, None), (40, 4, "d")]
    assert told(kept) == [(20, 2, "b"), (40, 4, "d")]
    assert told(flat) == [(30, 3, "x"), (40, 4, "x"), (40, 4, "x")]


# --- what they may not ------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "fewer rows from map": (
        lambda s: s.map(lambda b: b.slice(1).select(["k"]), "k bigint"),
        "returned 3",
    ),
    "a missing column": (lambda s: s.map(lambda b: {"k": b["k"]}, OUT), "'w'"),
    "no column at all": (lambda s: s.map(lambda b: {}, OUT), "'k'"),
    "a type that does not cast": (
        lambda s: s.map(lambda b: {"k": b["v"], "w": b["v"]}, OUT),
        "'k' is declared int64",
    ),
    "something that is no rows": (lambda s: s.map(lambda b: 5, OUT), "returned int"),
    "a filter of numbers": (lambda s: s.filter(lambda b: np.ones(4)), "4 booleans"),
    "a filter of the wrong length": (lambda s: s.filter(lambda b: [True]), "4 booleans, not 1"),
    "flat_map without origins": (lambda s: s.flat_map(lambda b: b, "k bigint"), "(batch, origins)"),
    "a dict with a column too many": (
        lambda s: s.map(lambda b: {"k": b["k"], "w": b["v"], "x": b["v"], "y": b["v"]}, OUT),
        "returned column 'x', 'y', which is not declared (declared are k, w)",
    ),
    "a batch with a column too many": (
        lambda s: s.map(lambda b: b, "k bigint"),
        "returned column 'v', which is not declared",
    ),
    "a table with a column too many": (
        lambda s: s.flat_map(lambda b: (pa.table(b), [0, 1, 2, 3]), "v string"),
        "returned column 'k', which is not declared",
    ),
    "too few origins": (
        lambda s: s.flat_map(lambda b: (b.select(["k"]), [0]), "k bigint"),
        "1 origins",
    ),
    "an origin that is no row": (
        lambda s: s.flat_map(lambda b: (b.select(["k"]), [0, 1, 2, 4]), "k bigint"),
        "outside 0..3",
    ),
    "a negative origin": (
        lambda s: s.flat_map(lambda b: (b.select(["k"]), [0, 1, 2, -1]), "k bigint"),
        "outside 0..3",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_answer_is_refused_with_a_reason(mistake: str) -> None:
    declare, reason = WRONG[mistake]

    with pytest.raises(OperatorFailed) as caught:
        run(declare)

    assert isinstance(caught.value.__cause__, WrongOutput)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"k": 1}, "without column 'w'"),
        ({"k": 1, "w": "a", "x": 2}, "with column 'x', which is not declared"),
        ({"k": "one", "w": "a"}, "ArrowInvalid"),
        (17, "returned int, not a dict"),
    ],
)
def test_a_wrong_row_stops_the_flow_and_is_shown(answer: Any, reason: str) -> None:
    def answers(row: dict[str, Any]) -> Any:
        return answer if row["k"] == 3 else {"k": 1, "w": "a"}

    with pytest.raises(OperatorFailed) as caught:
        run(lambda s: s.map_rows(answers, OUT))

    assert reason in caught.value.reason
    assert caught.value.sample == "{'k': 3, 'v': None}"


def test_an_exception_without_dead_letters_stops_the_flow_and_shows_a_row_it_comes_from() -> None:
    def fails(rows: pa.RecordBatch) -> Any:
        if 3 in rows.column("k").to_pylist():
            raise ZeroDivisionError
        return shout(rows)

    with pytest.raises(OperatorFailed, match="ZeroDivisionError") as caught:
        run(lambda s: s.map(fails, OUT))

    assert caught.value.sample == "{'k': 3, 'v': None}"


# --- dead letters -----------------------------------------------------------------------------


def picky(rows: pa.RecordBatch) -> dict[str, Any]:
    if None in rows.column("v").to_pylist() or 1 in rows.column("k").to_pylist():
        raise ValueError("cannot have that")
    return shout(rows)


def test_bad_rows_go_to_the_dead_letters_and_the_rest_goes_on() -> None:
    made, letters = run(lambda s: s.map(picky, OUT), dead=True)

    assert told(made) == [(20, 2, "B"), (40, 4, "D")]
    assert [row["row"] for row in letters.batch().to_pylist()] == [
        '{"k": 1, "v": "a"}', '{"k": 3, "v": null}',
    ]  # fmt: skip
    assert letters.counts == {"map_1": 2}


def test_a_bad_row_function_loses_only_its_row() -> None:
    made, letters = run(
        lambda s: s.map_rows(lambda r: {"k": 6 // (r["k"] - 2), "w": ""}, OUT), dead=True
    )

    assert told(made) == [(10, -6, ""), (30, 6, ""), (40, 3, "")]
    assert letters.batch().to_pylist()[0]["reason"].startswith("ZeroDivisionError")


@pytest.mark.parametrize("kind", ["map", "flat_map", "filter"])
def test_when_every_row_is_bad_the_function_is_not_asked_about_none(kind: str) -> None:
    def hopeless(rows: pa.RecordBatch) -> Any:
        assert rows.num_rows, "an empty batch is not the function's problem"
        raise ValueError

    def declare(stream: Stream) -> Stream:
        arguments = (hopeless,) if kind == "filter" else (hopeless, OUT)
        return getattr(stream, kind)(*arguments)  # type: ignore[no-any-return]

    made, letters = run(declare, dead=True)

    assert len(made) == 0
    assert letters.counts == {f"{kind}_1": 4}


def test_a_function_that_is_wrong_about_all_rows_together_still_stops_the_flow() -> None:
    def hates_company(rows: pa.RecordBatch) -> Any:
        if rows.num_rows > 1:
            raise ValueError("one at a time")
        return shout(rows)

    with pytest.raises(ValueError, match="one at a time"):
        run(lambda s: s.map(hates_company, OUT), dead=True)


def test_an_operator_with_state_may_put_out_what_it_declares_and_no_more() -> None:
    class Passes(hg.StatefulOperator):
        def state_fields(self, rows: pa.Schema, key: Any) -> hg.StateFields:
            return hg.StateFields(pa.schema({"n": pa.int64()}))

        def output_schema(self, rows: pa.Schema, key: Any) -> pa.Schema:
            return pa.schema([rows.field("k")])

        def process(self, rows: hg.KeyedRows, state: Any, clock: Any) -> Any:
            return rows.batch

    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, v string", [[{"k": 1, "v": "a"}]]))
    rows.key_by("k").process(Passes(), name="passes").to_memory("out")
    with pytest.raises(OperatorFailed, match=r"'passes'.*column 'v', which is not declared"):
        testing.run(flow)


# --- conform ----------------------------------------------------------------------------------


def test_conform_leaves_what_fits_alone() -> None:
    fits = batch(k=[1])

    assert conform(fits, fits.schema) is fits


def test_conform_takes_an_empty_table() -> None:
    schema = pa.schema({"k": pa.int64()})

    assert conform(schema.empty_table(), schema).num_rows == 0


def test_conform_decodes_dictionaries() -> None:
    made = conform(
        {"v": pa.array(["a", "b", "a"]).dictionary_encode()}, pa.schema({"v": pa.string()})
    )

    assert made.column("v").type == pa.string()
    assert made.column("v").to_pylist() == ["a", "b", "a"]
