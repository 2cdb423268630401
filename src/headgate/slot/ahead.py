"""Looking ahead: where a row with a new first key should go, by the keys it will need later.

A row straight from a source is in no slot yet. If its key is new, and the operator's state can be
merged (born local), any slot will do; the best is the one that owns the next key of the row. A
source task can know that key if the row has its column already and the operator passes rows on
unchanged. A wrong guess would cost an exchange, never a result: who owns a key does not change.

Such rows are away in level 1, so their partials arrive in level 2. The operator then ends one level
later, which exists anyway: what it looks ahead to lies behind an exchange.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headgate.routing.route import Stop
from headgate.topology.graph import Edge, FlowGraph, Node


def stops_ahead(graph: FlowGraph, schemas: Mapping[int, pa.Schema]) -> dict[int, tuple[Stop, ...]]:
    """For each edge whose consumer may look ahead: the stops its rows will make, next ones first.

    `schemas` is what each edge carries.
    """
    found = {}
    for edge in graph.edges:
        consumer = graph.nodes[edge.consumer]
        if consumer.kind != "stateful" or not _goes_to_owners(edge):
            continue
        if _may_look_ahead(graph, consumer, schemas):
            stops = _stops(graph, edge, schemas)
            if stops:
                found[edge.id] = stops
    return found


def _goes_to_owners(edge: Edge) -> bool:
    return edge.grouping.kind == "fields" and edge.grouping.by == "hash"


def _may_look_ahead(graph: FlowGraph, node: Node, schemas: Mapping[int, pa.Schema]) -> bool:
    """Can any slot process its rows, and do they go on as they came?"""
    return (
        not (node.split or node.auto)
        and not node.spec.emits_at_end
        and node.spec.mergeable(schemas[graph.inputs(node.id)[0].id], node.key)
    )


def _stops(graph: FlowGraph, edge: Edge, schemas: Mapping[int, pa.Schema]) -> tuple[Stop, ...]:
    """Walk on from the consumer through operators that pass rows on, breadth first."""
    here, found = schemas[edge.id], []
    waiting, seen = [edge.consumer], {edge.consumer}
    while waiting:
        for out in graph.outputs(waiting.pop(0)):
            node = graph.nodes[out.consumer]
            if node.id in seen:
                continue
            passes = node.kind == "filter" or (
                node.kind == "stateful" and not node.spec.emits_at_end
            )
            if node.kind == "stateful" and _goes_to_owners(out) and graph.exchanges(out):
                key = out.grouping.key
                if not all(_is_in(here, schemas[out.id].field(name)) for name in key):
                    continue
                found.append(Stop(node.name, key))
            if passes:
                seen.add(node.id)
                waiting.append(node.id)
    return tuple(found)


def _is_in(rows: pa.Schema, field: pa.Field) -> bool:
    return field.name in rows.names and rows.field(field.name).type == field.type
