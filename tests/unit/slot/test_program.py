"""Compiled flows: depths, the columns each edge carries, and who has to wait."""

from __future__ import annotations

import pickle
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
from headgate import Count, Flow, Last, Sum, TopK, Tumbling
from headgate.routing.route import TO_OWNER, Stop
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.program import Program
from headgate.testing import ListSource
from headgate.topology.graph import KeyGrouping
from strategies import examples, run_quickly

WIDE = "a string, b bigint, c double, t timestamp, junk string, more_junk binary"


def depths(program: Program) -> dict[str, int]:
    return {n.name: program.depth[n.id] for n in program.graph.nodes}


def carried(program: Program, consumer: str) -> list[tuple[str, ...]]:
    node = program.graph.node(consumer)
    return [program.edge_columns[e.id] for e in program.graph.inputs(node.id)]


# --- depth ------------------------------------------------------------------------------------


def test_depth_counts_the_exchanges_before_an_operator() -> None:
    flow = Flow("f")
    rows = source(flow, WIDE, name="in")
    first = rows.filter(nothing, name="some").key_by("a").process(Count(emit="rows"), name="first")
    first.map(nothing, WIDE, name="same_slot").key_by("b").process(Count(), name="second").to(
        nothing
    )
    first.shuffle().map(nothing, WIDE, name="elsewhere").to(nothing)

    program = compiled(flow)

    told = depths(program)
    assert (told["in"], told["some"], told["first"], told["same_slot"]) == (0, 0, 1, 1)
    assert (told["second"], told["elsewhere"]) == (2, 2)
    assert program.levels == 2


def test_depth_is_the_longest_way() -> None:
    flow = Flow("f")
    rows = source(flow, "a string", name="in")
    detour = rows.key_by("a").process(Count(emit="rows"), name="detour")
    rows.union(detour).key_by("a").process(Count(), name="last")

    assert depths(compiled(flow))["last"] == 2


def test_a_flow_without_exchanges_still_has_one_level() -> None:
    flow = Flow("f")
    source(flow).to_memory("out")

    assert compiled(flow).levels == 1


def test_a_key_in_several_slots_takes_one_level_more_for_its_partials() -> None:
    flow = Flow("f")
    rows = source(flow, WIDE, name="in")
    first = rows.key_by("a", grouping="pkg").process(Count(emit="rows"), name="first")
    first.key_by("b", grouping="cut").process(Count(), name="second").to(nothing)
    first.key_by("b", grouping="dkg").process(Count(), name="third").to(nothing)

    program = compiled(flow)

    told = depths(program)
    assert (told["first"], told["second"], told["third"]) == (2, 3, 2)
    assert program.output_level[program.graph.node("first").id] == 1
    assert program.operators(lambda may: may.be_evened) == ("second", "third")
    assert program.operators(lambda may: may.be_cut) == ("second",)
    assert (program.operators(lambda may: may.be_placed), program.key_pairs) == ((), ())


def test_an_operator_that_may_be_split_has_the_levels_of_one_that_is_not() -> None:
    programs = []
    groupings: tuple[KeyGrouping, ...] = ("hash", "auto")
    for grouping in groupings:
        flow = Flow("f")
        rows = source(flow, WIDE, name="in")
        first = rows.key_by("a", grouping=grouping).process(Count(emit="rows"), name="first")
        first.key_by("b", grouping=grouping).process(Count(), name="second").to(nothing)
        programs.append(compiled(flow))

    plain, auto = programs
    assert (plain.depth, plain.rows_level) == (auto.depth, auto.rows_level)
    assert plain.key_pairs == auto.key_pairs
    assert auto.operators(lambda may: may.be_folded) == ("first", "second")


def test_pairs_are_of_operators_that_have_state() -> None:
    flow = Flow("f")
    first = source(flow, WIDE, name="in").key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b").process(Count(), name="second").to(nothing)
    first.key_by("b").filter(nothing, name="some").key_by("b").process(Count(), name="third").to(
        nothing
    )

    assert compiled(flow).key_pairs == (("first", "second"),)


# --- columns ----------------------------------------------------------------------------------


def test_columns_that_nobody_wants_never_leave_the_source() -> None:
    flow = Flow("f")
    source(flow, WIDE, name="in").key_by("a").process(Sum("b"), name="sum").to_memory("out")

    program = compiled(flow)

    assert program.node_schema[program.sources[0].id].names == ["a", "b"]
    assert carried(program, "sum") == [("a", "b")]
    assert carried(program, "out") == [("a", "sum")]


def test_a_later_operator_decides_what_an_earlier_one_passes_on() -> None:
    flow = Flow("f")
    counted = source(flow, WIDE).key_by("a").process(Count(emit="rows"), name="by_a")
    counted.key_by("b").process(Last("c"), name="by_b").to_memory("out")

    program = compiled(flow)

    assert carried(program, "by_a") == [("a", "b", "c")]
    assert carried(program, "by_b") == [("b", "c")]
    assert program.node_schema[program.graph.node("by_a").id].names == ["a", "b", "c"]


def test_branches_add_up_what_they_want() -> None:
    flow = Flow("f")
    rows = source(flow, WIDE)
    rows.key_by("a").process(Count(), name="count")
    rows.key_by("b").process(Sum("c"), name="sum")

    program = compiled(flow)

    assert program.node_schema[program.sources[0].id].names == ["a", "b", "c"]
    assert carried(program, "count") == [("a",)]
    assert carried(program, "sum") == [("b", "c")]


def test_user_functions_and_sinks_get_every_column() -> None:
    flow = Flow("f")
    source(flow, "a string, b bigint").map(nothing, "a string").to_memory("out")

    program = compiled(flow)

    assert program.node_schema[program.sources[0].id].names == ["a", "b"]


def test_event_time_is_read_even_if_nobody_else_wants_it() -> None:
    flow = Flow("f")
    source(flow, WIDE, event_time="t").key_by("a").process(Count(), name="count").to_memory("out")

    program = compiled(flow)

    assert program.node_schema[program.sources[0].id].names == ["a", "t"]
    assert carried(program, "count") == [("a",)]


def test_a_window_asks_for_its_time_and_its_item() -> None:
    flow = Flow("f")
    window = Tumbling("1 minute", time="t")
    rows = source(flow, WIDE, event_time="t")
    rows.key_by("b").process(TopK("a", k=2, window=window), name="top").to(nothing)

    assert carried(compiled(flow), "top") == [("a", "b", "t")]


def test_a_global_count_needs_no_column_but_the_source_reads_one_to_have_rows() -> None:
    flow = Flow("f")
    source(flow, WIDE).globally().process(Count(), name="count").to_memory("out")

    program = compiled(flow)

    assert carried(program, "count") == [()]
    assert program.node_schema[program.sources[0].id].names == ["a"]


def test_the_key_arrives_even_if_an_operator_forgets_to_ask_for_it() -> None:
    class Modest(Count):
        def needs(self, rows: pa.Schema, key: Any, wanted: set[str]) -> set[str]:
            return set()

    flow = Flow("f")
    source(flow, WIDE).key_by("b").process(Modest(), name="count").to_memory("out")

    assert carried(compiled(flow), "count") == [("b",)]


def test_both_sides_of_a_union_bring_the_same_columns_in_the_same_order() -> None:
    flow = Flow("f")
    one = source(flow, "a string, b bigint, c double", name="one")
    two = source(flow, "c double, b bigint, a string", name="two")
    one.union(two).key_by("b").process(Last("a"), name="last").to_memory("out")

    program = compiled(flow)

    assert carried(program, "last") == [("a", "b"), ("a", "b")]
    edges = program.graph.inputs(program.graph.node("last").id)
    assert program.edge_schemas[edges[0].id] == program.edge_schemas[edges[1].id]


# --- order ------------------------------------------------------------------------------------


def ordered_flow(ordered: bool) -> Program:
    flow = Flow("f")
    rows = source(flow, "a string, b bigint")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    rows.union(first).key_by("b").process(Count(ordered=ordered), name="second").to_memory("out")
    return compiled(flow)


def test_rows_of_an_ordered_operator_wait_for_its_level() -> None:
    program = ordered_flow(True)
    second = program.graph.inputs(program.graph.node("second").id)
    first = program.graph.inputs(program.graph.node("first").id)[0]

    assert [program.waits(edge, 0) for edge in second] == [True, True]
    assert [program.waits(edge, 1) for edge in second] == [True, True]
    assert [program.waits(edge, 2) for edge in second] == [False, False]
    assert not program.waits(first, 0)


def test_order_travels_only_where_somebody_asks_for_it() -> None:
    with_order, without = ordered_flow(True), ordered_flow(False)

    assert with_order.lineage == ("order",)
    assert without.lineage == ()
    assert with_order.wire_schemas[0].names[-1] == "__hg_order"
    assert without.wire_schemas[0] == without.edge_schemas[0]
    assert not any(without.waits(edge, 0) for edge in without.graph.edges)


# --- as data ----------------------------------------------------------------------------------


def test_a_program_pickles_without_frames_and_sink_functions() -> None:
    flow = Flow("f")
    unpicklable: Any = lambda *_: None  # noqa: E731
    rows = flow.source(unpicklable, schema="a string")
    rows.key_by("a").process(Count(), name="count").to(unpicklable, name="out")

    back = pickle.loads(pickle.dumps(compiled(flow)))

    assert back.graph.node("out").spec.target is None
    assert back.sources[0].spec.frame is None
    assert back.depth == compiled(flow).depth


def test_a_description_says_what_stored_state_depends_on() -> None:
    flow = Flow("f")
    window = Tumbling("1 minute", time="t")
    rows = source(flow, WIDE, name="in", event_time="t")
    rows.key_by("a").process(Sum("b", window=window), name="sum").to_memory("out")
    rows.map(nothing, "a string", name="tidy").to(nothing, name="call")

    told = compiled(flow).describe()

    assert told["flow"] == "f"
    assert told["operators"]["sum"]["key"] == ["a"]
    assert told["operators"]["sum"]["state"]["values"] == [["sum", "int64"]]
    assert told["operators"]["sum"]["settings"]["window"]["size_us"] == 60_000_000
    assert told["operators"]["sum"]["ttl_ms"] is None
    assert (told["stateless"], told["sources"]) == (["tidy"], ["in"])
    assert told["sinks"] == {"out": "memory", "call": "function"}


def test_state_schemas_start_with_the_key_of_the_operator() -> None:
    flow = Flow("f")
    source(flow, WIDE).key_by("b", "a").process(Count(), name="count")

    program = compiled(flow)

    schema = program.state_schemas[program.graph.node("count").id]
    assert schema.key == pa.schema({"b": pa.int64(), "a": pa.string()})


# --- Looking ahead: a source row with a new key goes to where its next key lives, as in replay.

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
