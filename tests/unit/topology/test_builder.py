"""Declaring a flow: mistakes show on the line that makes them, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate import Count, Flow, Last, StateFields, StatefulOperator, Sum
from headgate.errors import (
    CyclicFlow,
    DeclarationError,
    EngineError,
    MissingKey,
    NameClash,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.slot.compile import compile_flow
from headgate.testing import ListSource, run
from headgate.topology.builder import FlowBuilder
from headgate.topology.graph import Edge, FlowGraph, Grouping, Node
from headgate.topology.stream import Stream

SCHEMA = "k string, v bigint, t timestamp, l array<int>"


def never(*_: Any) -> Any:
    raise AssertionError("declaring must not call this")


class Untouchable(StatefulOperator):
    def state_fields(self, rows: pa.Schema, key: Any) -> StateFields:
        return StateFields(pa.schema([]))

    def output_schema(self, rows: pa.Schema, key: Any) -> pa.Schema:
        return rows

    process = never
    finish = never


def stream(flow: Flow | None = None, schema: str = SCHEMA, **options: Any) -> Stream:
    return (flow or Flow("f")).source(never, schema=schema, **options)


def edges(flow: FlowBuilder) -> list[tuple[str, str, str]]:
    graph = flow.graph()
    name = [node.name for node in graph.nodes]
    return [(name[e.producer], e.grouping.kind, name[e.consumer]) for e in graph.edges]


# --- what is refused --------------------------------------------------------------------------

WRONG: dict[str, tuple[type[DeclarationError], Callable[[], Any]]] = {
    "key_by an unknown column": (UnknownColumn, lambda: stream().key_by("x")),
    "select an unknown column": (UnknownColumn, lambda: stream().select("k", "x")),
    "event time of an unknown column": (UnknownColumn, lambda: stream(event_time="x")),
    "an operator on an unknown column": (
        UnknownColumn,
        lambda: stream().key_by("k").process(Sum("x")),
    ),
    "event time that is no time": (SchemaMismatch, lambda: stream(event_time="v")),
    "watermark without event time": (DeclarationError, lambda: stream(watermark="1 second")),
    "watermark that is no duration": (
        DeclarationError,
        lambda: stream(event_time="t", watermark="soon"),
    ),
    "key of a nested type": (SchemaMismatch, lambda: stream().key_by("l")),
    "key of a view type": (
        SchemaMismatch,
        lambda: Flow("f").source(never, schema={"s": pa.string_view()}).key_by("s"),
    ),
    "key_by nothing": (MissingKey, lambda: stream().key_by()),
    "near no column": (UnknownColumn, lambda: stream().key_by("k", "v", near="x")),
    "near a column that is not in the key": (
        DeclarationError,
        lambda: stream().key_by("k", near="v"),
    ),
    "near all columns of the key": (DeclarationError, lambda: stream().key_by("k", near="k")),
    "near a column twice": (NameClash, lambda: stream().key_by("k", "v", near=["v", "v"])),
    "an unknown policy for nulls": (
        DeclarationError,
        lambda: stream().key_by("k", nulls="ignore"),  # type: ignore[arg-type]
    ),
    "a stateful operator without a key": (MissingKey, lambda: stream().process(Count())),
    "a stateful operator after shuffle": (MissingKey, lambda: stream().shuffle().process(Count())),
    "a stateful operator after broadcast": (
        MissingKey,
        lambda: stream().broadcast().process(Count()),
    ),
    "a stateful operator after a map of keyed rows": (
        MissingKey,
        lambda: stream().key_by("k").map(never, "k string").process(Count()),
    ),
    "map without a function": (DeclarationError, lambda: stream().map("upper", "k string")),
    "filter without a predicate": (DeclarationError, lambda: stream().filter(17)),
    "map by an expression": (DeclarationError, lambda: stream().map(pc.field("k"), "k string")),
    "map to a schema that cannot be read": (SchemaMismatch, lambda: stream().map(never, "k")),
    "a sink after key_by": (DeclarationError, lambda: stream().key_by("k").to_memory("out")),
    "a sink after shuffle": (DeclarationError, lambda: stream().shuffle().to(never)),
    "a function sink without a function": (DeclarationError, lambda: stream().to("out")),  # type: ignore[arg-type]
    "a source without a schema": (DeclarationError, lambda: Flow("f").source(never)),
    "a source that is neither DataFrame nor function": (
        DeclarationError,
        lambda: Flow("f").source(17),
    ),
    "an empty flow": (DeclarationError, lambda: Flow("f").graph()),
    "a flow that nobody can see": (
        DeclarationError,
        lambda: stream(name="in").map(never, "k string").flow.graph(),  # noqa: PLW0108
    ),
    "key_by on dead letters": (
        DeclarationError,
        lambda: Flow("f").dead_letters().key_by("operator"),
    ),
    "map on dead letters": (
        DeclarationError,
        lambda: Flow("f").dead_letters().map(never, "a string"),
    ),
    "process on dead letters": (
        DeclarationError,
        lambda: Flow("f").dead_letters().process(Count()),
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_refused_where_it_is_made(mistake: str) -> None:
    kind, declare = WRONG[mistake]

    with pytest.raises(DeclarationError) as caught:
        declare()

    assert type(caught.value) is kind


def test_an_unknown_column_is_named_together_with_the_known_ones() -> None:
    with pytest.raises(UnknownColumn) as caught:
        stream().key_by("w")

    assert caught.value.column == "w"
    assert "k, v, t, l" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "a b", "-a", "ä", "a\n", "../up", 3, "x" * 91, "x-" * 46]
)
def test_names_that_cannot_name_a_file_are_refused(name: Any) -> None:
    with pytest.raises(DeclarationError):
        Flow(name)
    with pytest.raises(DeclarationError):
        stream().key_by("k").process(Count(), name=name)
    with pytest.raises(DeclarationError):
        stream().to_memory(name)


def test_two_operators_of_one_name_clash() -> None:
    rows = stream().key_by("k")
    rows.process(Count(), name="same")

    with pytest.raises(NameClash) as caught:
        rows.process(Count(), name="same")
    assert caught.value.name == "same"
    with pytest.raises(NameClash, match="an operator called 'same'"):
        rows.map(never, "a string", name="same")


def test_two_sources_of_one_name_clash() -> None:
    flow = stream(name="same").flow

    with pytest.raises(NameClash, match="a source called 'same'"):
        flow.source(ListSource("k string", []), name="same")


@pytest.mark.parametrize("source_first", [True, False])
def test_a_source_may_be_called_as_an_operator(source_first: bool) -> None:
    flow = Flow("f")
    name = "same" if source_first else "other"
    rows = flow.source(ListSource("k string", []), name=name).filter("k > ''", name="same")
    if not source_first:
        rows = rows.union(flow.source(ListSource("k string", []), name="same"))
    rows.to_memory("same")

    graph = flow.graph()
    assert graph.node("same").kind == "filter"
    found = graph.node("same (source)")
    assert (found.kind, found.own_name) == ("source", "same")
    assert graph.of_kind("sink")[0].own_name == "same"
    assert compile_flow(graph).describe()["sources"] == [
        n.own_name for n in graph.of_kind("source")
    ]


def test_sinks_have_names_of_their_own() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k string", [[{"k": "a"}]]), name="same")
    counted = rows.key_by("k").process(Count(), name="counts")
    counted.to_memory("counts")
    rows.to_memory("same")

    with pytest.raises(NameClash, match="a sink called 'counts'"):
        rows.to_memory("counts")
    done = run(flow)
    assert done.rows("counts") == [{"k": "a", "count": 1}] and done.rows("same") == [{"k": "a"}]
    assert done.state("counts") == [{"k": "a", "count": 1}]
    edges = compile_flow(flow.graph()).describe()["edges"]
    assert {"producer": "counts", "consumer": "counts (sink)"} in edges


def test_a_flow_without_a_sink_is_refused_at_start_unless_that_is_meant() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k string", []), name="in").key_by("k").process(Count())
    flow.dead_letters().to_memory("dead")

    with pytest.raises(DeclarationError, match=r"'f' has no sink.*\.discard\(\)"):
        flow.start(None, checkpoint="nowhere")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"'f' has no sink.*\.discard\(\)"):
        run(flow)
    rows.discard()
    run(flow)
    with pytest.raises(EngineError):  # it gets as far as to look at the session
        flow.start(None, checkpoint="nowhere")  # type: ignore[arg-type]


def test_generated_names_avoid_the_given_ones() -> None:
    flow = Flow("f")
    rows = stream(flow, name="map_1")
    rows.map(never, "a string").map(never, "a string").to(never)
    rows.key_by("k").process(Count())

    assert [node.name for node in flow.graph().nodes] == [
        "map_1", "map_2", "map_3", "sink_1", "count_1",
    ]  # fmt: skip


def test_a_flow_has_one_dead_letter_sink() -> None:
    flow = Flow("f")
    stream(flow).to_memory("out")
    flow.dead_letters().to_memory("dead")

    with pytest.raises(NameClash):
        flow.dead_letters().to_memory("dead_again")

    graph = Flow("g")
    stream(graph).to_memory("out")
    assert graph.graph().dead_letters is None


def test_the_dead_letter_sink_has_no_input_edge() -> None:
    flow = Flow("f")
    stream(flow).to_memory("out")
    flow.dead_letters().to_memory("dead")
    graph = flow.graph()

    assert graph.dead_letters == graph.node("dead").id
    assert graph.inputs(graph.node("dead").id) == []
    assert graph.node("dead").schema.names == ["operator", "slot", "epoch", "reason", "row"]


# --- union ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", ["k string, v int, t timestamp, l array<int>", "k string", f"{SCHEMA}, more int"]
)
def test_union_needs_equal_columns(other: str) -> None:
    flow = Flow("f")

    with pytest.raises(SchemaMismatch):
        stream(flow).union(stream(flow, other))


@pytest.mark.parametrize("strict_first", [True, False])
def test_union_may_be_null_where_one_side_may(strict_first: bool) -> None:
    flow = Flow("f")
    strict = pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.int64(), False)])
    loose = pa.schema([pa.field("b", pa.int64(), False), pa.field("a", pa.int64())])
    sides = [flow.source(lambda s: s, schema=schema) for schema in (strict, loose)]

    schema = (sides[0].union(sides[1]) if strict_first else sides[1].union(sides[0])).schema

    assert (schema.field("a").nullable, schema.field("b").nullable) == (True, False)
    with pytest.raises(SchemaMismatch, match="a int64, b int64, the other a string, b int64"):
        sides[0].union(flow.source(lambda s: s, schema="a string, b bigint"))


def test_union_goes_by_names_and_takes_the_order_of_its_first_side() -> None:
    flow = Flow("f")
    merged = stream(flow, "a string, b int").union(stream(flow, "b int, a string"))

    assert merged.schema.names == ["a", "b"]


@pytest.mark.parametrize("side", ["first", "second"])
def test_a_grouping_comes_after_a_union_and_not_before(side: str) -> None:
    flow = Flow("f")
    plain, grouped = stream(flow), stream(flow).key_by("k")

    with pytest.raises(DeclarationError):
        grouped.union(plain) if side == "first" else plain.union(grouped)


def test_dead_letters_join_no_union() -> None:
    letters = Flow("f").dead_letters()

    with pytest.raises(DeclarationError):
        letters.union(letters)


def test_union_stays_inside_one_flow() -> None:
    with pytest.raises(DeclarationError):
        stream().union(stream())


# --- a graph made by hand ---------------------------------------------------------------------


def test_a_flow_that_feeds_back_into_itself_is_refused() -> None:
    schema = pa.schema({"k": pa.string()})
    nodes = tuple(Node(i, name, "map", schema) for i, name in enumerate(["in", "loop", "back"]))
    local = Grouping("local")
    loop = (Edge(0, 0, 1, local), Edge(1, 1, 2, local), Edge(2, 2, 1, local))

    with pytest.raises(CyclicFlow) as caught:
        FlowGraph("f", nodes, loop)

    assert caught.value.operators == ["loop", "back"]
    assert FlowGraph("f", nodes, loop[:2]).order == (0, 1, 2)


def test_a_graph_made_by_hand_keeps_names_unique_too() -> None:
    schema = pa.schema({"k": pa.string()})

    with pytest.raises(AssertionError, match="two operators or two sinks of one name"):
        FlowGraph("f", (Node(0, "a", "map", schema), Node(1, "a", "map", schema)), ())


def test_nodes_are_found_by_name() -> None:
    flow = Flow("f")
    stream(flow).to_memory("out")

    assert flow.graph().node("out").kind == "sink"
    with pytest.raises(KeyError):
        flow.graph().node("nobody")


# --- what is declared -------------------------------------------------------------------------


def test_a_stream_used_twice_branches() -> None:
    flow = Flow("f")
    rows = stream(flow, name="in")
    rows.key_by("k").process(Count(), name="by_k")
    rows.key_by("v").process(Count(), name="by_v")
    rows.to_memory("copy")

    assert edges(flow) == [
        ("in", "fields", "by_k"),
        ("in", "fields", "by_v"),
        ("in", "local", "copy"),
    ]


def test_a_union_is_one_edge_per_producer_and_no_operator() -> None:
    flow = Flow("f")
    one, two = stream(flow, name="one"), stream(flow, name="two")
    merged = one.union(two).union(one.filter(never, name="some"))
    merged.key_by("k").process(Count(), name="count").to_memory("out")

    assert edges(flow) == [
        ("one", "local", "some"),
        ("one", "fields", "count"),
        ("two", "fields", "count"),
        ("some", "fields", "count"),
        ("count", "local", "out"),
    ]


def test_every_grouping_marks_the_next_edge_and_only_that() -> None:
    flow = Flow("f")
    rows = stream(flow, name="in")
    for name, grouped in {
        "a": rows.shuffle(),
        "b": rows.broadcast(),
        "c": rows.local_or_shuffle(),
        "d": rows.globally(),
        "e": rows.key_by("k"),
    }.items():
        grouped.map(never, SCHEMA, name=name).to(never, name=f"{name}_sink")

    kinds = ["all", "fields", "global", "local", "shuffle"]
    assert sorted(kind for producer, kind, _ in edges(flow) if producer == "in") == kinds
    assert {kind for producer, kind, _ in edges(flow) if producer != "in"} == {"local"}


def test_a_key_belongs_to_the_operator_behind_it() -> None:
    flow = Flow("f")
    stream(flow).key_by("v", "k", nulls="drop").process(Count(), name="count")
    graph = flow.graph()

    assert graph.node("count").key == ("v", "k")
    assert graph.edges[0].grouping == Grouping("fields", ("v", "k"), "drop", "auto")
    assert graph.node("count").schema.names == ["v", "k", "count"]


def test_declaring_calls_no_user_function() -> None:
    flow = Flow("f")
    rows = stream(flow)
    (
        rows.map(never, SCHEMA)
        .map_rows(never, SCHEMA)
        .filter(never)
        .filter_rows(never)
        .flat_map(never, SCHEMA)
        .flat_map_rows(never, SCHEMA)
        .key_by("k")
        .process(Untouchable())
        .to(never)
    )

    assert len(flow.graph().nodes) == 9


def test_expressions_can_filter() -> None:
    flow = Flow("f")
    stream(flow).filter(pc.field("v") > 1, name="positive").to_memory("out")

    assert flow.graph().node("positive").kind == "filter"


def test_a_source_learns_its_schema_from_a_dataframe() -> None:
    class Schema:
        def jsonValue(self) -> dict[str, Any]:
            return {"type": "struct", "fields": [{"name": "a", "type": "long"}]}

    class Frame:
        schema = Schema()

    class ArrowFrame:
        schema = pa.schema({"b": pa.string()})

    assert Flow("f").source(Frame()).schema == pa.schema({"a": pa.int64()})
    assert Flow("f").source(ArrowFrame()).schema == pa.schema({"b": pa.string()})
    assert Flow("f").source(Frame(), schema="c int").schema == pa.schema({"c": pa.int32()})


def test_a_source_keeps_its_event_time_settings() -> None:
    flow = Flow("f")
    stream(flow, event_time="t", watermark="1.5 minutes", idle_after=7, name="in").to_memory("out")
    spec = flow.graph().node("in").spec
    assert (spec.event_time, spec.delay_us, spec.idle_after) == ("t", 90_000_000, 7)


def test_a_stream_does_not_merge_with_itself() -> None:
    """Silently keeping one copy would lose rows that SQL's UNION ALL keeps."""
    one = stream()

    with pytest.raises(DeclarationError, match="with itself"):
        one.union(one)


def test_a_source_must_wait_at_least_one_epoch_before_it_is_idle() -> None:
    with pytest.raises(DeclarationError, match="idle_after"):
        FlowBuilder("f").source(lambda spark: spark, schema="a string", idle_after=0)


# --- hot keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("grouping", ["partial", "pkg", "d_choices", "w_choices", "cut"])
def test_a_grouping_over_several_slots_needs_state_that_can_be_merged(grouping: Any) -> None:
    rows = Flow("f").source(ListSource("k bigint, x double", []))

    with pytest.raises(DeclarationError, match=rf"exact=False.*leave out grouping='{grouping}'"):
        rows.key_by("k", grouping=grouping).process(Sum("x"))
    with pytest.raises(DeclarationError, match="ordered=True"):
        rows.key_by("k", grouping=grouping).process(Last("x", by="x", ordered=True))
    rows.key_by("k", grouping=grouping).process(Sum("x", exact=False))


def test_one_owner_a_key_is_good_for_all_operators() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, x double", []))

    for number, grouping in enumerate(("auto", "hash", "dkg")):
        rows.key_by("k", grouping=grouping).process(Sum("x"), name=f"sums{number}")
    rows.globally(grouping="hash").process(Sum("x"), name="all")

    assert [edge.grouping.by for edge in flow.graph().edges] == ["auto", "hash", "dkg", "hash"]
    assert flow.graph().edges[2].grouping.key == ("k",)
    assert flow.graph().edges[2].grouping.kind == "fields"


@pytest.mark.parametrize(
    ("split", "instead"),
    [
        (True, r"give key_by\(..., grouping='partial'\) or globally\(grouping='partial'\)"),
        (False, r"give key_by\(..., grouping='hash'\)"),
        ("auto", r"give key_by\(..., grouping='auto'\)"),
    ],
)
def test_words_that_other_words_replaced_say_so(split: Any, instead: str) -> None:
    rows = Flow("f").source(ListSource("k bigint, x double", []))

    with pytest.raises(DeclarationError, match=rf"process takes no split=; {instead}"):
        rows.key_by("k").process(Count(), split=split)
    with pytest.raises(DeclarationError, match="process takes no nam=; did you mean name="):
        rows.key_by("k").process(Count(), nam=split)
    old: Any = "split"
    with pytest.raises(DeclarationError, match=r"give grouping='cut' .* or 'partial'"):
        rows.key_by("k", grouping=old)


def test_groupings_that_make_no_sense_are_refused() -> None:
    rows = Flow("f").source(ListSource("k bigint, x double", []))
    unknown: Any = "three"

    with pytest.raises(DeclarationError, match="choose 'auto', 'hash', 'partial', 'dkg'"):
        rows.key_by("k", grouping=unknown)
    with pytest.raises(DeclarationError, match="only one key; choose auto, hash, partial"):
        rows.globally(grouping="pkg")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="for keys with state, and map keeps none"):
        rows.key_by("k", grouping="pkg").map(lambda batch: batch, "k bigint, x double")
