"""A declared flow as its tasks see it. Picklable: no DataFrame, no sink function inside.

Depth of an operator = the level at which it has everything and ends its epoch (`route.end_level`).
The flow needs as many levels (shuffles) as its greatest depth. Rows that are folded away from home
are processed before that, at `rows_level`, and those that are only passed on do not wait for the
partials. What a plan may choose instead of the usual dispatch never needs more levels than there
are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.operator.base import StatefulOperator, state_schema
from headgate.operator.timers import timer_schema
from headgate.routing.route import (
    TO_OWNER,
    Choose,
    Dispatch,
    Here,
    HereUnlessPinned,
    Shares,
    Stop,
    end_level,
)
from headgate.slot.held_back import TIMERS, WAITING, table_of, waiting_schema
from headgate.slot.parked_columns import ParkedColumns, parked_columns
from headgate.slot.rows import PARKED, Rows, wire_schema
from headgate.slot.sharing import AT, ShareGroup, share_groups
from headgate.state.layout import StateSchema, Stored
from headgate.topology import arguments
from headgate.topology.graph import TO_OWNERS, Edge, FlowGraph, KeyGrouping, Node
from headgate.topology.schema import merged

ORDER = "order"
Kept = tuple[tuple[Stored, ...], tuple[str, ...]]  # how columns are found in files; names given up


@dataclass(frozen=True)
class Dispatches:
    """What a plan may do with the rows of one operator.

    `usual` holds unless it says otherwise. `local`: rows of keys without a pin may stay where they
    are. `be_folded`: rows may stay whoever owns their key. `grouping` is how its keys are grouped.
    """

    usual: Dispatch
    local: HereUnlessPinned | None
    be_folded: bool
    grouping: KeyGrouping

    @property
    def be_placed(self) -> bool:
        """May a plan give its keys other owners, so that rows stay where they are?"""
        return self.grouping in (*TO_OWNERS, "partial")

    @property
    def be_evened(self) -> bool:
        """May a plan give its keys other owners by their load alone?"""
        return self.grouping in ("dkg", "cut")

    @property
    def be_cut(self) -> bool:
        """May several slots share a key, in shares that a plan says?"""
        return self.grouping == "cut"


@dataclass(frozen=True)
class Program:
    """What every task needs to know of the flow; made once (`compile_flow`), sent once.

    Levels are by node: `home_level` is where rows are with the owners of their keys, `rows_level`
    where the last are processed, `depth` where the operator ends its epoch, `output_level` where it
    may put out its last rows. `kept` says, by state table, what files of before the flow changed
    call its columns.
    """

    graph: FlowGraph
    home_level: dict[int, int]
    depth: dict[int, int]
    rows_level: dict[int, int]
    output_level: dict[int, int]
    edge_columns: dict[int, tuple[str, ...]]
    node_schema: dict[int, pa.Schema]
    lineage: tuple[str, ...]
    kept: Mapping[str, Kept] = field(default_factory=dict)

    @property
    def levels(self) -> int:
        """How many shuffles an epoch takes; at least one, so that every slot has a task."""
        return max(1, *self.depth.values())

    @cached_property
    def order(self) -> tuple[Node, ...]:
        return tuple(self.graph.nodes[i] for i in self.graph.order)

    @cached_property
    def outputs(self) -> dict[int, list[Edge]]:
        return {n.id: self.graph.outputs(n.id) for n in self.graph.nodes}

    @cached_property
    def sources(self) -> tuple[Node, ...]:
        return tuple(self.graph.of_kind("source"))

    @cached_property
    def stateful(self) -> tuple[Node, ...]:
        return tuple(self.graph.of_kind("stateful"))

    @cached_property
    def dispatches(self) -> dict[str, Dispatches]:
        """For every stateful operator, how its rows may find their slots."""
        stops = stops_ahead(self.graph, self.edge_schemas)
        return {node.name: self._dispatches(node, stops) for node in self.stateful}

    def operators(self, chosen: Callable[[Dispatches], bool]) -> tuple[str, ...]:
        """The stateful operators of which this is true, in the order they were declared."""
        return tuple(op for op, may in self.dispatches.items() if chosen(may))

    @cached_property
    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """Operators that follow each other, (producer, consumer), with no exchange in between.

        Only between these can a placement keep a row in its slot. Rows that an operator with
        grouping "partial" passes on are not where its key lives, but where the operator before it
        had them; those it makes at the end of its epoch are. An operator without state, or with a
        grouping for hot keys, is in no pair: its keys are not a planner's to place.
        """
        placed = self.operators(lambda may: may.be_placed)
        last: dict[int, set[str]] = {}
        found: set[tuple[str, str]] = set()
        for node in self.order:
            arriving: set[str] = set()
            for edge in self.graph.inputs(node.id):
                before = self.graph.nodes[edge.producer]
                if not edge.exchanges:
                    arriving |= last[before.id]
                elif edge.grouping.kind == "fields" and node.name in placed:
                    found |= {(origin, node.name) for origin in last[before.id]}
            if self.graph.key_grouping(node.id) == "partial":
                last[node.id] = arriving | ({node.name} if node.spec.emits_at_end else set())
            elif node.kind == "stateful":
                last[node.id] = {node.name} if node.name in placed else set()
            else:
                last[node.id] = arriving
        return tuple(sorted(found))

    @cached_property
    def sinks(self) -> tuple[Node, ...]:
        return tuple(self.graph.of_kind("sink"))

    @cached_property
    def edge_schemas(self) -> dict[int, pa.Schema]:
        """What an edge carries, without lineage: the same on all edges of a consumer's side."""
        return {
            e.id: side_schema(self.graph, e.consumer, e.side, self.edge_columns, self.node_schema)
            for e in self.graph.edges
        }

    @cached_property
    def wire_schemas(self) -> dict[int, pa.Schema]:
        return {i: wire_schema(s, self.lineage) for i, s in self.edge_schemas.items()}

    def parked_schema(self, edge: int) -> pa.Schema:
        """What rows of an edge look like on the wire if some of their columns wait in files."""
        return wire_schema(self.edge_schemas[edge], (*self.lineage, *PARKED))

    @cached_property
    def parked(self) -> ParkedColumns:
        """The columns that wait in files until somebody reads them."""
        shared = {edge.id for group in self.share_groups.values() for edge in group.edges}
        return parked_columns(self.graph, self.edge_schemas, shared)

    @cached_property
    def share_groups(self) -> dict[int, ShareGroup]:
        """By producer, the edges that may share batches."""
        return {group.producer: group for group in share_groups(self.graph, self.edge_columns)}

    @cached_property
    def shared_channels(self) -> tuple[ShareGroup, ...]:
        """The share group of every channel of shared batches."""
        return tuple(g for g in self.share_groups.values() for _ in range(g.channels))

    def shared_schema(self, group: ShareGroup) -> pa.Schema:
        """What shared batches of a group look like on the wire."""
        fields = [self.node_schema[group.producer].field(name) for name in group.columns]
        return wire_schema(pa.schema(fields), (*self.lineage, AT))

    @cached_property
    def state_schemas(self) -> dict[int, StateSchema]:
        return {
            n.id: self._as_kept(n.name, state_schema(n.spec, self.input_schema(n.id), n.key))
            for n in self.stateful
        }

    @cached_property
    def side_schemas(self) -> dict[int, dict[str, StateSchema]]:
        """Of every stateful operator, the state tables beside its own, by part."""
        schemas: dict[int, dict[str, StateSchema]] = {}
        for node in self.stateful:
            mine = schemas.setdefault(node.id, {})
            if node.order_by is not None:
                waiting = waiting_schema(self.input_schema(node.id), node.key)
                mine[WAITING] = self._as_kept(table_of(node.name, WAITING), waiting)
            if node.spec.uses_timers:
                mine[TIMERS] = timer_schema(self.state_schemas[node.id].key)
            for part, own in node.spec.beside(self.input_schema(node.id), node.key).items():
                mine[part] = self._as_kept(table_of(node.name, part), own)
        return schemas

    @cached_property
    def tables(self) -> tuple[tuple[str, Node], ...]:
        """All state tables with their operators: one of its own name each, and those beside it."""
        return tuple(
            (table, node)
            for node in self.stateful
            for table in (node.name, *(table_of(node.name, p) for p in self.side_schemas[node.id]))
        )

    @cached_property
    def input_schemas(self) -> dict[int, pa.Schema]:
        """What stateful operators get."""
        return {
            node.id: arriving(self.graph, node.id, self.edge_columns, self.node_schema)
            for node in self.stateful
        }

    def input_schema(self, node: int) -> pa.Schema:
        return self.input_schemas[node]

    def received(self, edge: Edge, rows: Rows) -> Rows:
        """Rows of an edge as its consumer gets them: of two sides, in the columns of both."""
        consumer = self.graph.nodes[edge.consumer]
        if consumer.kind != "stateful" or consumer.spec.sides is None:
            return rows
        batch = consumer.spec.sides.widened(edge.side, rows.batch, self.input_schema(consumer.id))
        hashed = rows.hashed
        if hashed is not None:  # under the names that the key has on the left
            same = hashed.key == edge.grouping.key
            hashed = hashed._replace(key=consumer.key) if same else None
        return replace(rows, batch=batch, hashed=hashed)

    def carry_schema(self, node: Node) -> pa.Schema | None:
        operator: StatefulOperator = node.spec
        return operator.carry_schema(self.input_schema(node.id), node.key)

    def _as_kept(self, table: str, schema: StateSchema) -> StateSchema:
        stored, retired = self.kept.get(table, ((), ()))
        return replace(schema, stored=stored, retired=retired)

    def _dispatches(self, node: Node, stops: Mapping[int, tuple[Stop, ...]]) -> Dispatches:
        usual, inputs = usual_dispatch(self.graph, node), self.graph.inputs(node.id)
        by = self.graph.key_grouping(node.id)
        mergeable = node.spec.mergeable(self.input_schema(node.id), node.key)
        mergeable = mergeable and not node.holds_back
        local = None
        if by in TO_OWNERS and mergeable:
            mine = {edge.id: stops[edge.id] for edge in inputs if edge.id in stops}
            # Rows stay in the slot that made them, or a source sends them on to a later stop.
            has_slots = mine or any(self.output_level[edge.producer] > 0 for edge in inputs)
            if has_slots:
                local = HereUnlessPinned(mine)
        be_folded = by == "auto" and mergeable and not is_ordered(node)
        return Dispatches(usual, local, be_folded, grouping=by)

    def end_level(self, node: Node, dispatch: Dispatch) -> int:
        """The level in which an operator has everything, if its rows are dispatched so."""
        return end_level(dispatch, self.home_level[node.id])

    def waits(self, edge: Edge, level: int) -> bool:
        """Must rows of this edge wait, as the consumer takes them all at its depth?"""
        consumer = self.graph.nodes[edge.consumer]
        return takes_all_at_once(consumer) and level < self.depth[edge.consumer]

    def describe(self) -> dict[str, Any]:
        """What a checkpoint remembers of the flow, to tell compatible changes from others."""
        operators = {node.name for node in self.graph.nodes if node.kind != "sink"}
        names = [
            f"{node.name} (sink)" if node.kind == "sink" and node.name in operators else node.name
            for node in self.graph.nodes
        ]
        return {
            "flow": self.graph.name,
            "operators": {
                n.name: {
                    "key": list(n.key),
                    "state": self.state_schemas[n.id].describe(),
                    "settings": n.spec.describe(),
                    "ttl_ms": ttl_ms(n.spec),
                }
                | ({"order_by": n.order_by} if n.order_by is not None else {})
                | ({"timers": True} if n.spec.uses_timers else {})
                | self._side_tables(n)
                for n in self.stateful
            },
            "stateless": [
                n.name for n in self.graph.nodes if n.kind in ("map", "filter", "flat_map")
            ],
            "sources": [n.own_name for n in self.sources],
            "sinks": {n.name: n.spec.kind for n in self.sinks},
            "published_columns": {
                n.name: [[f.name, str(f.type)] for f in n.schema]
                for n in self.sinks
                if n.spec.kind in ("parquet", "table")
            },
            "edges": [
                {"producer": names[e.producer], "consumer": names[e.consumer]}
                for e in self.graph.edges
            ],
        }

    def _side_tables(self, node: Node) -> dict[str, Any]:
        sides = self.side_schemas[node.id]
        return {"tables": {part: s.describe() for part, s in sides.items()}} if sides else {}


def is_ordered(node: Node) -> bool:
    """Do all its rows of an epoch have to be there, in source order, before it gets any?"""
    return node.kind == "stateful" and bool(node.spec.ordered or node.order_by)


def takes_all_at_once(node: Node) -> bool:
    """Do all its rows of an epoch have to be there before it gets any?"""
    return is_ordered(node) or (node.kind == "stateful" and bool(node.spec.whole_epochs))


def ttl_ms(operator: StatefulOperator) -> int | None:
    return arguments.ttl_ms(operator.ttl)


def usual_dispatch(graph: FlowGraph, node: Node) -> Dispatch:
    """How rows of an operator find their slots while no plan says otherwise."""
    match graph.key_grouping(node.id):
        case "partial":
            return Here()
        case "cut":
            return Shares()
        case "pkg" | "d_choices" | "w_choices" as candidates:
            return Choose(candidates)
    return TO_OWNER


def arriving(
    graph: FlowGraph,
    node: int,
    edge_columns: Mapping[int, tuple[str, ...]],
    known: Mapping[int, pa.Schema],
) -> pa.Schema:
    """What a node gets; an operator that joins two sides, in the columns of both."""
    spec = graph.nodes[node].spec
    if graph.nodes[node].kind != "stateful" or spec.sides is None:
        return side_schema(graph, node, 0, edge_columns, known)
    left, right = (side_schema(graph, node, side, edge_columns, known) for side in (0, 1))
    wide: pa.Schema = spec.sides.wide(left, right)
    return wide


def side_schema(
    graph: FlowGraph,
    node: int,
    side: int,
    edge_columns: Mapping[int, tuple[str, ...]],
    known: Mapping[int, pa.Schema],
) -> pa.Schema:
    """What comes to a node on one side; of a union, nullable where one stream is."""
    streams = [
        pa.schema([known[edge.producer].field(name) for name in edge_columns[edge.id]])
        for edge in graph.inputs(node)
        if edge.side == side
    ]
    return merged(streams)


# --- looking ahead -------------------------------------------------------------------------------
# A source row of a new key is in no slot yet. If the operator's state can be merged, any slot will
# do: best the one that owns the row's next key. A source task knows that key if the row has its
# column already and the operator passes rows on unchanged. A wrong guess costs an exchange, never a
# result. The partials arrive in level 2, which exists anyway: the next key lies behind an exchange.


def stops_ahead(graph: FlowGraph, schemas: Mapping[int, pa.Schema]) -> dict[int, tuple[Stop, ...]]:
    """For each edge whose consumer may look ahead: the stops its rows will make, next ones first.

    `schemas` is what each edge carries.
    """
    found = {}
    for edge in graph.edges:
        node = graph.nodes[edge.consumer]
        if node.kind != "stateful" or not _goes_to_owners(edge) or node.spec.emits_at_end:
            continue
        if node.spec.sides is not None:
            continue  # a join is not mergeable
        if node.spec.mergeable(schemas[graph.inputs(node.id)[0].id], node.key):
            stops = _stops(graph, edge, schemas)
            if stops:
                found[edge.id] = stops
    return found


def _goes_to_owners(edge: Edge) -> bool:
    return edge.grouping.kind == "fields" and edge.grouping.by in TO_OWNERS


def _stops(graph: FlowGraph, edge: Edge, schemas: Mapping[int, pa.Schema]) -> tuple[Stop, ...]:
    """Walk on from the consumer through operators that pass rows on, breadth first."""
    found: list[Stop] = []
    waiting, seen = [edge.consumer], {edge.consumer}
    while waiting:
        for out in graph.outputs(waiting.pop(0)):
            node = graph.nodes[out.consumer]
            if node.id in seen:
                continue
            if node.kind == "stateful" and _goes_to_owners(out):
                key = out.grouping.key
                if not all(_is_in(schemas[edge.id], schemas[out.id].field(name)) for name in key):
                    continue
                found.append(Stop(node.name, key))
            if node.kind == "filter" or (node.kind == "stateful" and not node.spec.emits_at_end):
                seen.add(node.id)
                waiting.append(node.id)
    return tuple(found)


def _is_in(rows: pa.Schema, field: pa.Field) -> bool:
    return field.name in rows.names and rows.field(field.name).type == field.type
