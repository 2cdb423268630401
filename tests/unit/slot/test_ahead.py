"""Looking ahead: a source row with a new key goes to where its next key lives, as in replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routes import may_be_local
from tests.scenario.born_local import born_local
from tests.scenario.like_replay import chain, expected, schema_of, told
from tests.unit.slot.parts import compiled, nothing, source

import headgate as hg
from headgate import Count, Flow, Sum
from headgate.routing.route import TO_OWNER, Stop
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.program import Program
from headgate.testing import ListSource
from strategies import examples, run_quickly

SLOTS = 3
KEYS = ("a", "b", "c")


def ahead(program: Program) -> dict[str, list[Stop]]:
    nodes, edges = program.graph.nodes, program.graph.edges
    return {
        nodes[edges[e].consumer].name: list(stops)
        for may in program.dispatches.values()
        if may.local is not None
        for e, stops in may.local.stops.items()
    }


def pins_of(drawn: dict[int, int]) -> RoutingTable:
    keys = pa.array(list(drawn), pa.int64())
    return hash_table(SLOTS).pin([keys], list(drawn.values())) if drawn else hash_table(SLOTS)


# --- what can be seen -------------------------------------------------------------------------
def test_stops_are_those_whose_key_the_row_has_already_next_ones_first() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint, c bigint, d bigint", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    second = first.filter(nothing).key_by("b").process(Sum("d", emit="rows"), name="second")
    second.key_by("c", "a").process(Count(), name="third").key_by("count").process(
        Count(name="n"), name="fourth"
    ).to_memory("out")
    first.key_by("d").process(Count(), name="other").to_memory("out2")

    program = compiled(flow)

    assert ahead(program) == {
        "first": [Stop("other", ("d",)), Stop("second", ("b",)), Stop("third", ("c", "a"))],
        "second": [Stop("third", ("c", "a"))],
    }
    assert may_be_local(program) == {"first", "second", "third", "fourth", "other"}


def test_columns_that_a_function_makes_cannot_be_seen() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    made = first.map(nothing, "a bigint, b bigint")
    made.key_by("b").process(Count(), name="second").to_memory("out")

    assert ahead(compiled(flow)) == {}


@pytest.mark.parametrize(
    "operator",
    [
        Count(),  # makes rows at the end of the epoch, in the slot that owns the key
        Count(emit="running"),  # every row gets what only the owner knows
        Sum("x", emit="rows"),  # floats do not add up in any order
        hg.Deduplicate(),
    ],
)
def test_operators_that_need_the_owner_do_not_look_ahead(operator: Any) -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint, x double", name="in")
    first = rows.key_by("a").process(operator, name="first")
    key = "b" if "b" in first.schema.names else "a"
    first.key_by(key).process(Count(name="n"), name="second").to_memory("out")
    program = compiled(flow)

    assert ahead(program) == {}
    assert "first" not in may_be_local(program)


def test_an_operator_ends_later_only_in_epochs_that_look_ahead() -> None:
    program = compiled(chain(ListSource(schema_of(KEYS), []), KEYS))
    by_name = {n.name: n for n in program.stateful}
    may = program.dispatches

    assert [program.end_level(by_name[k], may[k].usual) for k in KEYS] == [1, 2, 3]
    assert [program.end_level(by_name[k], may[k].local or TO_OWNER) for k in KEYS] == [2, 2, 3]
    assert program.levels == 3


# --- rows go where replay says ----------------------------------------------------------------
PINS = st.dictionaries(st.integers(0, 7), st.integers(0, SLOTS - 1), max_size=8)


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 7)] * 3), min_size=1, max_size=40),
    pins=st.tuples(PINS, PINS, PINS),
    columns=st.integers(2, 3),
    partitions=st.integers(1, 3),
    local=st.booleans(),
)
@examples(40)
def test_a_flow_sends_rows_where_replay_does(rows, pins, columns, partitions, local):
    keys = KEYS[:columns]
    given_rows = [dict(zip(keys, row, strict=False)) for row in rows]
    tables = {key: pins_of(drawn) for key, drawn in zip(keys, pins, strict=False)}
    flow = chain(ListSource(schema_of(keys), [given_rows]), keys)

    with born_local(
        (lambda program, _: may_be_local(program)) if local else lambda *_: frozenset()
    ):
        done = run_quickly(flow, slots=SLOTS, partitions=partitions, tables=tables)

    assert told(done.records[0], keys) == expected(given_rows, tables, born_local=local)
    for key in keys:
        counts = {row[key]: row["count"] for row in done.state(key)}
        values, count = np.unique([row[key] for row in given_rows], return_counts=True)
        assert counts == dict(zip(values.tolist(), count.tolist(), strict=True))


def test_the_owner_of_the_next_key_gets_the_row_even_if_that_key_cannot_be_born_local() -> None:
    """An operator that cannot be merged has an owner for every key: its hash slot."""
    flow = Flow("f")
    rows = [{"a": n, "b": n % 7, "x": 1.0} for n in range(50)]
    given_rows = flow.source(ListSource("a long, b long, x double", [rows]))
    first = given_rows.key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b").process(Sum("x"), name="second").to_memory("out")

    with born_local():
        done = run_quickly(flow, slots=SLOTS)

    assert done.records[0]["edges"]["first->second"]["remote_rows"] == 0
    assert sum(row["sum"] for row in done.state("second")) == 50
