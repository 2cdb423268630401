"""A column is parked if nobody on the way reads it, two exchanges or more, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.slot.parts import compiled, nothing, source

from headgate import Count, Deduplicate, Flow, Max, Sum
from headgate.operator.base import StateFields, StatefulOperator
from headgate.slot.parked_columns import may_be_long
from headgate.slot.program import Program

ROWS = "a bigint, b bigint, v bigint, w string, y binary"
WIDE = ("w", "y")


def chain(second: Callable[[Any], Any] = lambda s: s.key_by("b")) -> tuple[Flow, Any]:
    """Rows counted by `a`, which go on; then grouped once more."""
    flow = Flow("f")
    counted = source(flow, ROWS).key_by("a").process(Count(emit="rows"), name="first")
    return flow, second(counted)


def by_nodes(program: Program) -> dict[str, tuple[str, ...]]:
    """The parked columns of every edge, by its consumer."""
    nodes, on = program.graph.nodes, program.parked.on
    return {nodes[edge.consumer].name: on[edge.id] for edge in program.graph.edges if edge.id in on}


def passing(program: Program) -> set[str]:
    return {program.graph.nodes[node].name for node in program.parked.passed}


def test_what_only_the_last_of_a_chain_reads_waits_for_it() -> None:
    flow, rows = chain()
    rows.process(Sum("v", emit="rows"), name="second").to_memory("out")

    program = compiled(flow)

    assert by_nodes(program) == dict.fromkeys(("first", "second", "out"), WIDE)
    assert passing(program) == {"first", "second"}


def test_one_exchange_does_not_pay() -> None:
    flow = Flow("f")
    source(flow, ROWS).key_by("a").process(Count(emit="rows"), name="first").to_memory("out")

    assert by_nodes(compiled(flow)) == {}


def test_dead_letters_show_whole_rows() -> None:
    flow, rows = chain()
    rows.process(Count(emit="rows"), name="second").to_memory("out")
    flow.dead_letters().to_memory("dead")

    assert by_nodes(compiled(flow)) == {}


def test_a_column_that_is_read_on_the_way_is_back_there() -> None:
    """`first` reads w, after one exchange; y goes on."""
    flow = Flow("f")
    first = source(flow, ROWS).key_by("a").process(Max("w", emit="rows"), name="first")
    first.key_by("b").process(Count(emit="rows"), name="second").to_memory("out")

    assert by_nodes(compiled(flow)) == dict.fromkeys(("first", "second", "out"), ("y",))


def test_what_is_read_behind_two_exchanges_waits_that_far() -> None:
    flow, rows = chain()
    second = rows.process(Max("w", emit="rows"), name="second")
    second.key_by("a").process(Deduplicate(), name="third").to_memory("out")

    assert by_nodes(compiled(flow)) == {
        "first": WIDE, "second": WIDE, "third": ("y",), "out": ("y",),
    }  # fmt: skip


def test_keys_travel() -> None:
    flow, rows = chain(lambda s: s.key_by("w"))
    rows.process(Count(emit="rows"), name="second").to_memory("out")

    assert by_nodes(compiled(flow)) == dict.fromkeys(("first", "second", "out"), ("y",))


def test_an_expression_passes_on_what_it_does_not_read_and_a_function_reads_all() -> None:
    for condition, expected in (
        (pc.field("v") > 0, {"some": WIDE, "second": WIDE, "out": WIDE}),
        (pc.field("w") != "x", {"some": ("y",), "second": ("y",), "out": ("y",)}),
        (nothing, {}),
    ):
        flow, rows = chain(lambda s, by=condition: s.filter(by, name="some").key_by("b"))
        rows.process(Count(emit="rows"), name="second").to_memory("out")

        first = {"first": expected["some"]} if expected else {}
        assert by_nodes(compiled(flow)) == first | expected


@pytest.mark.parametrize("way", ["broadcast", "shared batches", "join", "cost"])
def test_rows_without_values_take_only_ways_that_know_them(way: str) -> None:
    """What lies behind one of the others has its values back before."""
    flow = Flow("f")
    behind(flow, way).to_memory("out")

    assert by_nodes(compiled(flow)) == {}


def behind(flow: Flow, way: str) -> Any:
    """A stream behind one exchange, and a second one of another kind."""
    counted = source(flow, ROWS, name="in").key_by("b").process(Count(emit="rows"), name="counted")
    if way == "broadcast":
        return counted.broadcast().map(nothing, ROWS, name="all")
    if way == "join":
        return counted.key_by("a").join(source(flow, "a bigint, z string").key_by("a"))
    if way == "cost":
        return counted.shuffle(grouping="cost", attribute="a").map(nothing, ROWS, name="dear")
    counted.key_by("v").process(Count(emit="rows"), name="two").to_memory("other")
    return counted.key_by("a").process(Count(emit="rows"), name="one")


@dataclass
class Renews(StatefulOperator):
    """Says that it passes y on, and makes a new w."""

    def state_fields(self, rows: pa.Schema, key: Any) -> StateFields:
        return StateFields(pa.schema([]))

    def output_schema(self, rows: pa.Schema, key: Any) -> pa.Schema:
        return rows

    def needs(self, rows: pa.Schema, key: Any, wanted: set[str]) -> set[str]:
        return {*key, "w"} | wanted

    def passes(self, rows: pa.Schema) -> set[str]:
        return {*rows.names} - {"w"}


def test_who_makes_a_column_of_a_parked_name_passes_nothing_on() -> None:
    """One file has the old w and y: behind the new w nobody may look for w there."""
    flow, rows = chain()
    renewed = rows.process(Renews(), name="renews")
    renewed.key_by("a").process(Count(emit="rows"), name="third").to_memory("out")

    program = compiled(flow)

    assert by_nodes(program)["renews"] == WIDE
    assert "renews" not in passing(program)


class Loud(Deduplicate):
    """It looks at what the operator that it inherits from passes on unread."""

    def process(self, rows: Any, state: Any, clock: Any) -> Any:
        output = super().process(rows, state, clock)
        loud = pc.utf8_upper(output.rows["w"])
        return replace(output, rows=output.rows.set_column(3, "w", loud))


def test_a_users_class_speaks_for_itself() -> None:
    flow, rows = chain()
    changed = rows.process(Loud(), name="loud")
    changed.key_by("a").process(Count(emit="rows"), name="third").to_memory("out")

    assert "loud" not in passing(compiled(flow))


@pytest.mark.parametrize(
    ("kind", "may"),
    [
        (pa.string(), True),
        (pa.large_binary(), True),
        (pa.list_(pa.int64()), True),
        (pa.map_(pa.string(), pa.int8()), True),
        (pa.struct({"s": pa.string()}), True),
        (pa.struct({"s": pa.int8()}), False),
        (pa.binary(1000), False),  # a null takes as much room
        (pa.list_(pa.int64(), 100), False),
        (pa.dictionary(pa.int32(), pa.string()), False),
        (pa.timestamp("us"), False),
    ],
    ids=str,
)
def test_columns_of_these_types_may_wait(kind: pa.DataType, may: bool) -> None:
    assert may_be_long(kind) == may
