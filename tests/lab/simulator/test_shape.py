"""Shapes become wiring: predecessors, successors, roots and trails."""

from __future__ import annotations

import random

import pytest

from headgate.errors import DeclarationError
from headgate_lab.simulator.shape import SHAPES, Address, Edge, Operator, Shape, Wiring, draw_shape


def shape(*operators: Operator) -> Wiring:
    return Wiring(Shape("test", operators))


def fields(*upstream: str) -> tuple[Edge, ...]:
    return tuple(Edge(name, "fields") for name in upstream)


def test_a_keyed_edge_connects_every_pair_of_instances() -> None:
    wiring = shape(Operator("S", 2, False, ()), Operator("A", 3, True, fields("S")))

    assert wiring.predecessors[Address("A", 1)] == {Address("S", 0), Address("S", 1)}
    assert wiring.successors[Address("S", 0)] == tuple(Address("A", i) for i in range(3))
    assert wiring.roots == (Address("S", 0), Address("S", 1))


def test_a_local_edge_connects_slots_and_leaves_a_root_where_nobody_feeds_it() -> None:
    local = (Edge("S", "local"),)
    wiring = shape(Operator("S", 2, False, ()), Operator("P", 3, False, local))

    assert wiring.successors[Address("S", 1)] == (Address("P", 1),)
    assert wiring.roots == (Address("S", 0), Address("S", 1), Address("P", 2))


def test_a_tuple_meets_the_end_of_a_diamond_once_per_way() -> None:
    diamond = draw_shape("diamond", random.Random(1))

    assert diamond.trails["D"] == ("SABD", "SACD")


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_in_topological_order(name: str) -> None:
    for seed in range(50):
        drawn = draw_shape(name, random.Random(seed))
        seen: set[str] = set()
        for operator in drawn.operators:
            assert {edge.upstream for edge in operator.inputs} <= seen
            assert (
                all(edge.grouping == "fields" for edge in operator.inputs) or not operator.stateful
            )
            seen.add(operator.name)
        assert drawn.stateful


def test_an_unknown_topology_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(DeclarationError, match="diamond"):
        draw_shape("ring", random.Random(1))
