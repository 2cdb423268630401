"""Which columns need not travel with their rows, as nobody on the way reads them.

A column is parked where rows leave the source tasks, if two exchanges or more lie between there and
the first operator that reads it. Operators on the way pass it on without its values: filters by an
expression, and operators with state that say so (`StatefulOperator.passes`). Every other way to go
on (a join, a broadcast, shared batches, a function of the user) has the values put back before it.

A name stands for one column all the way. So an operator that makes a column of the name of a parked
one passes nothing on: whoever meets such a name further on could not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headgate.operator.base import StatefulOperator
from headgate.topology.expressions import Condition
from headgate.topology.graph import Edge, FlowGraph, Node

EXCHANGES_MIN = 2  # fewer between a source and the reader do not pay
KINDS = ("local", "fields", "global", "shuffle")  # groupings that rows without values may take

Names = frozenset[str]


@dataclass(frozen=True)
class ParkedColumns:
    """By edge, the columns whose values its rows may have left in a file; by node, those of them
    that it passes on without their values. All others it has to get back.
    """

    on: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    passed: Mapping[int, Names] = field(default_factory=dict)


def parked_columns(
    graph: FlowGraph, schemas: Mapping[int, pa.Schema], shared: Collection[int]
) -> ParkedColumns:
    """What may be parked in a flow: nothing if it has dead letters, which show whole rows.

    `schemas` is what each edge carries, `shared` the edges that may share batches.
    """
    if graph.dead_letters is not None:
        return ParkedColumns()
    return _Search(graph, schemas, shared).found()


class _Search:
    """Backwards, how far each column's first reader is; then forwards, from the source tasks on."""

    def __init__(
        self, graph: FlowGraph, schemas: Mapping[int, pa.Schema], shared: Collection[int]
    ) -> None:
        self._graph, self._schemas = graph, schemas
        place = {node: at for at, node in enumerate(graph.order)}
        self._edges = sorted(graph.edges, key=lambda edge: place[edge.consumer])
        keys = {name for edge in graph.edges for name in edge.grouping.key}
        keys |= {node.order_by for node in graph.nodes if node.order_by is not None}
        self._may = {
            edge.id: {f.name for f in schemas[edge.id] if may_be_long(f.type)} - keys
            for edge in graph.edges
            if edge.id not in shared and self._carries(edge)
        }

    def found(self) -> ParkedColumns:
        way, at_source = self._ways(), self._in_source_tasks()
        on: dict[int, set[str]] = {edge.id: set() for edge in self._edges}
        passed: dict[int, set[str]] = {}
        for edge in self._edges:
            if edge.exchanges and edge.producer in at_source:
                may = self._may.get(edge.id, ())
                on[edge.id] |= {name for name in may if way[edge.id, name] >= EXCHANGES_MIN}
            for name in on[edge.id]:
                for after in self._goes_on(edge.consumer, name):
                    on[after].add(name)
                    passed.setdefault(edge.consumer, set()).add(name)
        names: Names = frozenset().union(*on.values())
        return ParkedColumns(
            {
                edge: tuple(name for name in self._schemas[edge].names if name in parked)
                for edge, parked in on.items()
                if parked
            },
            {
                node: frozenset(unread)
                for node, unread in passed.items()
                if names.isdisjoint(self._made(self._graph.nodes[node]))
            },
        )

    def _ways(self) -> dict[tuple[int, str], int]:
        """By edge and column, the exchanges up to the operator that is the last to pass it on."""
        way: dict[tuple[int, str], int] = {}
        for edge in reversed(self._edges):
            for name in self._may.get(edge.id, ()):
                on = self._goes_on(edge.consumer, name)
                further = max((way[after, name] for after in on), default=0)
                way[edge.id, name] = edge.exchanges + further
        return way

    def _carries(self, edge: Edge) -> bool:
        """May rows of this edge be without some of their values?"""
        consumer = self._graph.nodes[edge.consumer]
        joins = consumer.kind == "stateful" and consumer.spec.sides is not None
        return edge.grouping.kind in KINDS and not joins

    def _goes_on(self, node: int, name: str) -> list[int]:
        """The edges behind an operator on which a column goes on unread; none if it is read."""
        if name not in self._unread(self._graph.nodes[node]):
            return []
        after = [e.id for e in self._graph.outputs(node) if name in self._schemas[e.id].names]
        return after if all(name in self._may.get(edge, ()) for edge in after) else []

    def _unread(self, node: Node) -> set[str]:
        """What an operator passes on as it came, without looking at it."""
        if node.kind == "filter" and isinstance(node.spec.function, Condition):
            return {*self._given(node).names} - {*node.spec.function.reads}
        if node.kind == "stateful" and node.spec.sides is None and not node.holds_back:
            given = self._given(node)
            operator: StatefulOperator = node.spec
            return _passes(operator, given) - operator.needs(given, node.key, set())
        return set()

    def _made(self, node: Node) -> set[str]:
        """The columns that an operator puts out other than as they came."""
        if node.kind != "stateful":
            return set()
        given = self._given(node)
        operator: StatefulOperator = node.spec
        return {*operator.output_schema(given, node.key).names} - _passes(operator, given)

    def _given(self, node: Node) -> pa.Schema:
        return self._schemas[self._graph.inputs(node.id)[0].id]

    def _in_source_tasks(self) -> set[int]:
        """The nodes that put rows out in level 0, or do in epochs whose plan says so."""
        found: set[int] = set()
        for node in self._graph.order:
            inputs = [e for e in self._graph.inputs(node) if e.producer in found]
            stays = (not edge.exchanges or edge.grouping.by == "auto" for edge in inputs)
            if self._graph.nodes[node].kind == "source" or any(stays):
                found.add(node)
        return found


def may_be_long(kind: pa.DataType) -> bool:
    """May a value be long, and a null of it short? Those of a fixed size are never short."""
    types = pa.types
    if types.is_struct(kind):
        return any(may_be_long(field.type) for field in kind)
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    return bool(lists or is_text_or_bytes(kind))


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Is it a type of offsets and bytes?"""
    types = pa.types
    short = types.is_string(kind) or types.is_binary(kind)
    return bool(short or types.is_large_string(kind) or types.is_large_binary(kind))


def _passes(operator: StatefulOperator, rows: pa.Schema) -> set[str]:
    """What an operator says it passes on. A user's class that inherits from one of ours may change
    what that one passes on, so it has to say so itself.
    """
    own = type(operator)
    says = "passes" in vars(own) or own.__module__.startswith("headgate.")
    return operator.passes(rows) if says else set()
