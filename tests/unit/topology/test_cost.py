"""A cost-aware shuffle is checked where it is declared."""

from __future__ import annotations

import pytest

from headgate import Count, Flow
from headgate.errors import DeclarationError, MissingKey, SchemaMismatch, UnknownColumn
from headgate.topology.stream import Stream


def stream(flow: Flow | None = None) -> Stream:
    schema = "author bigint, text string, tags array<string>"
    return (flow or Flow("f")).source(lambda: None, schema=schema)


def same(rows):
    return rows


def test_the_edge_says_what_was_declared():
    flow = Flow("f")
    shuffled = stream(flow).shuffle(
        grouping="cost", attribute="author", schedule="online", epsilon=0.01, delta=0.1
    )
    shuffled.map(same, "author bigint", name="reach").to_memory("out")
    edge = flow.graph().inputs(flow.graph().node("reach").id)[0]
    assert (edge.grouping.kind, edge.grouping.key) == ("cost", ("author",))
    assert edge.grouping.cost is not None
    assert edge.grouping.cost.schedule == "online"
    assert (edge.grouping.cost.epsilon, edge.grouping.cost.delta) == (0.01, 0.1)
    assert edge.grouping.exchanges and not edge.grouping.keyed


def test_several_columns_make_one_attribute():
    assert stream().shuffle(grouping="cost", attribute=["author", "text"]).grouping.key == (
        "author",
        "text",
    )


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, MissingKey, "needs attribute="),
        ({"attribute": "auhtor"}, UnknownColumn, "auhtor.*stream has author, text"),
        ({"attribute": "tags"}, SchemaMismatch, "cannot be a key"),
        ({"attribute": "author", "schedule": "lpt"}, DeclarationError, "'online' or 'paper'"),
        ({"attribute": "author", "epsilon": 0.0}, DeclarationError, "epsilon=0.0"),
        ({"attribute": "author", "delta": 1.5}, DeclarationError, "delta=1.5"),
    ],
)
def test_mistakes_are_told_at_once(options, error, says):
    with pytest.raises(error, match=says):
        stream().shuffle(grouping="cost", **options)


def test_only_stateless_operators_can_follow():
    with pytest.raises(MissingKey, match="not keyed"):
        stream().shuffle(grouping="cost", attribute="author").process(Count())
    with pytest.raises(DeclarationError, match="drop the grouping"):
        stream().shuffle(grouping="cost", attribute="author").to_memory("out")


def test_round_robin_takes_no_attribute_and_other_words_are_refused():
    with pytest.raises(DeclarationError, match="attribute= is for"):
        stream().shuffle(attribute="author")
    with pytest.raises(DeclarationError, match="'round_robin' or 'cost'"):
        stream().shuffle(grouping="costs")  # type: ignore[arg-type]
