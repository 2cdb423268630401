"""A declared flow as inert, frozen data: nodes, edges and how each edge picks a slot.

The same object is validated, drawn, compiled for an engine and compared with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headgate.errors import CyclicFlow, NameClash
from headgate.topology.cost import CostOptions

GroupingKind = Literal["fields", "shuffle", "cost", "local", "all", "global"]
NullKeys = Literal["key", "drop", "error"]
KeyGrouping = Literal["hash", "auto", "partial", "dkg", "pkg", "d_choices", "w_choices", "cut"]
TO_OWNERS = ("hash", "auto")  # rows go to the one owner of their key, unless a plan keeps them
SEVERAL_SLOTS = ("pkg", "d_choices", "w_choices", "cut")
NodeKind = Literal["source", "map", "filter", "flat_map", "stateful", "sink"]


@dataclass(frozen=True)
class Grouping:
    """How an edge picks the slot of a row.

    fields: by the hash of the key (or the operator's routing table); shuffle: round robin;
    cost: to the slot that is done with it first, by what rows of equal `key` have taken;
    local: stays where it is; all: a copy to every slot; global: everything to one slot.
    `nulls` says what a null key column means: a key of its own, a dropped row, or an error.
    `by` says how rows of a keyed edge find the slot of their key: "hash", "auto" and "dkg" send
    them to its one owner, `SEVERAL_SLOTS` to one of several slots, which send partials to the
    owner; "partial" leaves them in their task, which does the same, and so does "auto" in epochs
    whose plan says so.
    `batch_rows` says how many rows travel in one batch tuple (None: all that fit).
    """

    kind: GroupingKind
    key: tuple[str, ...] = ()
    nulls: NullKeys = "key"
    by: KeyGrouping = "hash"
    cost: CostOptions | None = None
    batch_rows: int | None = None

    @property
    def keyed(self) -> bool:
        return self.kind in ("fields", "global")

    @property
    def exchanges(self) -> bool:
        """May rows of this edge leave their slot?"""
        return self.kind != "local"


@dataclass(frozen=True)
class Edge:
    id: int
    producer: int
    consumer: int
    grouping: Grouping

    @property
    def exchanges(self) -> bool:
        """May rows leave the task they are in? Those folded into partials there do not."""
        return self.grouping.exchanges and self.grouping.by != "partial"


@dataclass(frozen=True)
class SourceSpec:
    """Where rows come from: a DataFrame, or a function SparkSession -> DataFrame."""

    frame: Any
    event_time: str | None = None
    delay_us: int = 0
    idle_after: int = 3


@dataclass(frozen=True)
class StatelessSpec:
    """A user function and whether it sees Arrow batches or one dict at a time."""

    function: Any
    per_row: bool = False


@dataclass(frozen=True)
class SinkSpec:
    """Where rows go; `target` is a function, a path, or nothing, by `kind`."""

    kind: Literal["function", "parquet", "console", "memory", "table"]
    target: Any = None
    rows_shown: int = 20


@dataclass(frozen=True)
class Node:
    """One operator, source or sink; `schema` is what it puts out (a sink: what it takes)."""

    id: int
    name: str
    kind: NodeKind
    schema: pa.Schema
    spec: Any = None
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlowGraph:
    """A validated flow: acyclic, names unique, every edge between existing nodes."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    dead_letters: int | None = None
    order: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise NameClash(
                    f"two operators of flow {self.name!r} are called {node.name!r}; "
                    "give one of them another name=",
                    name=node.name,
                )
            seen.add(node.name)
        object.__setattr__(self, "order", _topological_order(self))

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def key_grouping(self, node: int) -> KeyGrouping:
        """How rows of an operator's keys find their slots; the same on all its inputs."""
        return next((e.grouping.by for e in self.edges if e.consumer == node), "hash")

    def inputs(self, node: int) -> list[Edge]:
        return [e for e in self.edges if e.consumer == node]

    def outputs(self, node: int) -> list[Edge]:
        return [e for e in self.edges if e.producer == node]

    def of_kind(self, kind: NodeKind) -> list[Node]:
        return [n for n in self.nodes if n.kind == kind]


def _topological_order(graph: FlowGraph) -> tuple[int, ...]:
    waiting = {n.id: len(graph.inputs(n.id)) for n in graph.nodes}
    ready = [n for n, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for edge in graph.outputs(node):
            waiting[edge.consumer] -= 1
            if waiting[edge.consumer] == 0:
                ready.append(edge.consumer)
    if len(order) < len(graph.nodes):
        names = [n.name for n in graph.nodes if n.id not in order]
        raise CyclicFlow(
            f"flow {graph.name!r} feeds back into itself through {', '.join(names)}; "
            "a flow must be acyclic",
            operators=names,
        )
    return tuple(order)


SinkFunction = Callable[[Any, int], None]
