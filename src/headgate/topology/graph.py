"""A declared flow as inert, frozen data: nodes, edges and how each edge picks a slot.

The same object is validated, drawn, compiled for an engine and compared with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, get_args

import pyarrow as pa

from headgate.errors import CyclicFlow, DeclarationError, UnknownName
from headgate.topology.arguments import check_choice, check_count
from headgate.topology.expressions import Columns, Condition
from headgate.topology.keys import NO_KEY, Key
from headgate.topology.late import LateRows
from headgate.topology.lookup import Lookup

GroupingKind = Literal["fields", "shuffle", "cost", "local", "all", "global"]
NullKeys = Literal["key", "drop", "error"]
KeyGrouping = Literal["auto", "hash", "partial", "dkg", "pkg", "d_choices", "w_choices", "cut"]
TO_OWNERS = ("hash", "auto")  # rows go to the one owner of their key, unless a plan keeps them
SEVERAL_SLOTS = ("pkg", "d_choices", "w_choices", "cut")
NodeKind = Literal["source", "map", "filter", "flat_map", "stateful", "sink"]
STATELESS = ("map", "filter", "flat_map")
Schedule = Literal["batch", "online", "paper"]
SinkFunction = Callable[[Any, int], None]


@dataclass(frozen=True)
class CostOptions:
    """How a cost-aware shuffle estimates and schedules.

    `schedule`: "batch" places what takes long first, over all rows of a task's window; "online"
    places row after row, each where it will be done first; "paper" is the scheduler of Rivetti et
    al. 2017: row after row to the slot with the least work so far, each slot's times from its own
    sketches alone. `epsilon` and `delta` give the sketches their
    size: a value's frequency is over by more than epsilon of all rows with probability delta.
    """

    schedule: Schedule = "batch"
    epsilon: float = 0.0005
    delta: float = 0.05

    def __post_init__(self) -> None:
        check_choice(self.schedule, "schedule", get_args(Schedule))
        if not (1e-6 <= self.epsilon < 1 and 1e-6 <= self.delta < 1):
            raise DeclarationError(
                f"epsilon={self.epsilon}, delta={self.delta}; both lie between 0.000001 and 1"
            )


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
    key: Key = NO_KEY
    nulls: NullKeys = "key"
    by: KeyGrouping = "hash"
    cost: CostOptions = field(default_factory=CostOptions)
    batch_rows: int | None = None

    @property
    def keyed(self) -> bool:
        return self.kind in ("fields", "global")

    @property
    def exchanges(self) -> bool:
        """May rows of this edge leave their slot?"""
        return self.kind != "local"


LOCAL = Grouping("local")


@dataclass(frozen=True)
class Edge:
    """`side`: of an operator that joins two inputs, which of them this is (0 left, 1 right)."""

    id: int
    producer: int
    consumer: int
    grouping: Grouping
    side: int = 0

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
    arrival: str | None = None


@dataclass(frozen=True)
class StatelessSpec:
    """A user function and whether it sees Arrow batches or one dict at a time.

    Of a function nobody knows what it reads; a `Condition`, `Columns` and a `Lookup` tell.
    """

    function: Any
    per_row: bool = False

    def needs(self, columns: Iterable[str], wanted: Iterable[str]) -> set[str]:
        """Which of the input's columns it takes to make the wanted ones."""
        if isinstance(self.function, Condition | LateRows):
            return {*wanted, *self.function.reads}
        if isinstance(self.function, Columns | Lookup):
            return self.function.needs(wanted)
        return set(columns)


@dataclass(frozen=True)
class SinkSpec:
    """Where rows go; `target` is a function, a path, or nothing, by `kind`.

    A Parquet sink may have a column with the number of the epoch, and a folder per value of some.
    """

    kind: Literal["function", "parquet", "console", "memory", "table"]
    target: Any = None
    rows_shown: int = 20
    partition_by: tuple[str, ...] = ()
    epoch_column: str | None = None

    def written(self, schema: pa.Schema) -> pa.Schema:
        """What readers find of rows of this schema."""
        if self.epoch_column is None:
            return schema
        return schema.append(pa.field(self.epoch_column, pa.int64()))


@dataclass(frozen=True)
class Node:
    """One operator, source or sink; `schema` is what it puts out (a sink: what it takes).

    `parallelism` is how many slots are to have an instance of it (None: nobody said). `order_by`
    is the column of event times by which a stateful operator gets the rows of a key. `called` is
    what the user calls a source that shares its name with an operator (`told_apart`).
    """

    id: int
    name: str
    kind: NodeKind
    schema: pa.Schema
    spec: Any = None
    key: Key = NO_KEY
    parallelism: int | None = None
    order_by: str | None = None
    called: str = ""

    @property
    def own_name(self) -> str:
        """Its name among those of its kind, which checkpoints know sources by."""
        return self.called or self.name

    @property
    def holds_back(self) -> bool:
        """Has it rows or timers that wait for their time, so that a later epoch may emit rows?"""
        return self.order_by is not None or (self.kind == "stateful" and self.spec.uses_timers)


@dataclass(frozen=True)
class FlowGraph:
    """A validated flow: acyclic, names unique, every edge between existing nodes."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    dead_letters: int | None = None
    order: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        known = {(node.name, node.kind == "sink") for node in self.nodes}
        assert len(known) == len(names), f"two operators or two sinks of one name: {names}"
        producers = {node.id: [e.producer for e in self.inputs(node.id)] for node in self.nodes}
        try:
            order = tuple(TopologicalSorter(producers).static_order())
        except CycleError as cycle:
            loop = [names[node] for node in sorted(set(cycle.args[1]))]
            raise CyclicFlow(
                f"flow {self.name!r} feeds back into itself through {', '.join(loop)}; "
                "a flow must be acyclic",
                operators=loop,
            ) from None
        object.__setattr__(self, "order", order)

    @property
    def parallelism(self) -> dict[str, int]:
        """How many instances operators are to have, as far as somebody said."""
        return {n.name: n.parallelism for n in self.nodes if n.parallelism is not None}

    def node(self, name: str) -> Node:
        """The operator or source of that name, else the sink: those may share a name."""
        for node in sorted(self.nodes, key=lambda node: node.kind == "sink"):
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


def check_parallelism(operator: str, count: object, groupings: Iterable[Grouping]) -> int:
    """A number of instances that an operator whose input is grouped so can have."""
    kinds = {grouping.kind for grouping in groupings}
    wanted = check_count(count, f"parallelism= of {operator!r}")
    if not kinds - {"local"}:
        raise DeclarationError(
            f"parallelism={count} of {operator!r}: its rows stay in the slots they are in. Put "
            "shuffle(), key_by(...) or the like before it",
            operator=operator,
        )
    if "global" in kinds and wanted > 1:
        raise DeclarationError(
            f"parallelism={count} of {operator!r}: globally() is one key, and one key has one "
            "instance; leave it out",
            operator=operator,
        )
    return wanted


def with_parallelism(
    nodes: Sequence[Node], edges: Sequence[Edge], given: Mapping[str, int]
) -> tuple[Node, ...]:
    """The nodes, with as many instances as given in place of what was declared."""
    groupings = {
        node.name: [edge.grouping for edge in edges if edge.consumer == node.id]
        for node in nodes
        if node.kind not in ("source", "sink")
    }
    for name in given:
        if name not in groupings:
            known = list(groupings)
            raise UnknownName(
                f"parallelism names {name!r}, which is no operator of the flow; those are "
                f"{', '.join(known)}",
                name=name,
                known=known,
            )
    counts = {name: check_parallelism(name, n, groupings[name]) for name, n in given.items()}
    return tuple(
        replace(node, parallelism=counts.get(node.name, node.parallelism)) for node in nodes
    )


def told_apart(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes; a source that shares its name with an operator is "name (source)" inside.

    No operator can be called so. Checkpoints know sources by their own names: an operator that
    comes or goes does not rename them.
    """
    nodes = tuple(nodes)
    operators = {node.name for node in nodes if node.kind not in ("source", "sink")}
    return tuple(
        replace(node, name=f"{node.name} (source)", called=node.name)
        if node.kind == "source" and node.name in operators
        else node
        for node in nodes
    )


# The two passes below rely on nodes being declared before the ones they feed.


def check_event_time(nodes: Sequence[Node], edges: Iterable[Edge]) -> None:
    """Raise if a window has no source with event times before it: it would never close."""
    timed = {n.id for n in nodes if n.kind == "source" and n.spec.event_time is not None}
    edges = list(edges)
    for edge in sorted(edges, key=lambda e: e.consumer):
        if edge.producer in timed:
            timed.add(edge.consumer)
    for node in nodes:
        if node.order_by is not None and node.id not in timed:
            raise DeclarationError(
                f"{node.name!r} has order_by={node.order_by!r}, but no source before it has event "
                "times: its rows would wait for ever. Give its source event_time='...'",
                operator=node.name,
            )
        if node.kind == "stateful" and node.spec.sides is not None:
            _check_sides_timed(node, [e for e in edges if e.consumer == node.id], timed)
            continue
        if node.kind == "stateful" and node.id not in timed and node.spec.held_from(0) is not None:
            raise DeclarationError(
                f"{node.name!r} has windows, but no source before it has event times: they would "
                "never close. Give its source event_time='...'",
                operator=node.name,
            )


def _check_sides_timed(node: Node, inputs: Sequence[Edge], timed: set[int]) -> None:
    """Raise if a join that goes by event time has a side without: it would never let rows go."""
    if node.spec.held_from(0) is None:
        return
    for side, word in enumerate(("left", "right")):
        if not any(edge.producer in timed for edge in inputs if edge.side == side):
            raise DeclarationError(
                f"{node.name!r} joins by event time, and no source of its {word} side has one: "
                "rows would stay for ever. Give that source event_time='...'",
                operator=node.name,
            )


def without_needless_shuffles(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """The edges, with shuffles of rows that are spread evenly already made local.

    A shuffle deals rows round robin over the slots. Stateless steps behind it keep about even
    numbers in every slot, so a second shuffle would cost an exchange and even out nothing; without
    it the steps run as a chain in one task. It stays an exchange if rows come any other way too, or
    if the user gave it a batch size, or its consumer a parallelism. No result depends on it:
    stateless steps do not know their slot.
    """
    even: set[int] = set()  # nodes whose rows are spread evenly
    for node in nodes:
        inputs = [edge for edge in edges if edge.consumer == node.id]
        evenly = all(
            edge.grouping.kind == "shuffle" or (edge.grouping == LOCAL and edge.producer in even)
            for edge in inputs
        )
        if node.kind in STATELESS and inputs and evenly:
            even.add(node.id)
    return tuple(
        replace(edge, grouping=LOCAL)
        if edge.grouping == Grouping("shuffle")
        and edge.producer in even
        and nodes[edge.consumer].parallelism is None
        else edge
        for edge in edges
    )
