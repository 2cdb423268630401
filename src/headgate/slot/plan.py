"""What an epoch's tasks are told (the plan) and what they answer (control records).

The plan is frozen before the first task starts: every attempt sees the same clock, watermark,
routing and state files. A control record is what a task did; it travels with the data, level by
level, and the driver merges the last ones. Both sides of every transfer are in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from headgate.arrays import I32
from headgate.errors import DeclarationError
from headgate.operator.rows import EpochClock
from headgate.routing.costs import CostModel
from headgate.routing.identity import Identity
from headgate.routing.route import Here, Route
from headgate.routing.table import Moves
from headgate.state.state_file import Chain
from headgate.topology.arguments import check_count
from headgate.topology.graph import Edge, FlowGraph
from headgate.typical import BYTE_S, MESSAGE_S

MASK = (1 << 64) - 1
# The fields of a control record that add up, whatever their shape.
_ADDED = (
    *("sent", "received", "edges", "batches", "loads", "away_rows", "merge_rows", "estimated_us"),
    *("merge_bytes", "moved", "late", "dead", "source_rows", "ages"),
)
WARM_OFF = "off"  # the warm folder of who wants none
Scheme = Literal["auto", "distinct", "shared"]
BatchRows = int | Mapping[str, int] | None


@dataclass(frozen=True)
class Batching:
    """How rows become batch tuples. No operator sees it, and no result depends on it.

    `rows[edge]` is how many rows a tuple of an edge holds (absent: all that fit). The scheme is for
    consumers with different keys (Sax et al. 2013). "distinct": a row goes into one buffer for each
    consumer. "shared": into one cell of a matrix, whose batch is sent once to every slot of it.
    "auto" takes the cheaper, if a message costs `message_s` and a byte `byte_s`.
    """

    rows: Mapping[int, int] = field(default_factory=dict)
    scheme: Scheme = "auto"
    message_s: float = MESSAGE_S
    byte_s: float = BYTE_S

    def __post_init__(self) -> None:
        if self.scheme not in get_args(Scheme):
            known = ", ".join(map(repr, get_args(Scheme)))
            raise DeclarationError(f"sharing={self.scheme!r}; choose one of {known}")
        for rows in self.rows.values():
            check_count(rows, "rows of a batch")

    def rows_max(self, *edges: Edge) -> int | None:
        """Rows of a batch for all of these edges."""
        return min((self.rows[e.id] for e in edges if e.id in self.rows), default=None)


def batching_of(
    graph: FlowGraph,
    batch: BatchRows,
    sharing: Scheme = "auto",
    *,
    message_s: float = MESSAGE_S,
    byte_s: float = BYTE_S,
) -> Batching:
    """What was declared on the edges, then what is asked for: one number, or one per
    "producer->consumer".
    """
    rows = {e.id: e.grouping.batch_rows for e in graph.edges if e.grouping.batch_rows is not None}
    edges = {edge_name(graph, e): e for e in graph.edges if e.exchanges}
    if isinstance(batch, Mapping):
        for name, count in batch.items():
            if name not in edges:
                raise DeclarationError(
                    f"batch_rows= names {name!r}; edges that send batches are {', '.join(edges)}"
                )
            rows[edges[name].id] = count
    elif batch is not None:
        rows = {e.id: batch for e in edges.values()}
    return Batching(rows, sharing, message_s, byte_s)


def edge_name(graph: FlowGraph, edge: Edge) -> str:
    return f"{graph.nodes[edge.producer].name}->{graph.nodes[edge.consumer].name}"


@dataclass(frozen=True)
class EpochPlan:
    """One epoch, as every task of it sees it.

    `routes` says, for every operator with a key, who owns what and where rows are processed; an
    operator that is not in it has no key, and an instance in every slot. Of one without a key that
    is in it only the slots count. `moves` holds, for every
    operator whose table changes with this epoch, which units go from where to where.
    `chains[operator][slot]` are the committed state files. `statistics_bytes` is what a slot may
    spend on counting keys and pairs (0: it counts none); operators in `unit_statistics` count
    buckets and pinned keys instead. `table_files` names where the tables are stored, for engines
    that do not send large ones along. `costs` holds, for operators with a cost-aware input, what
    rows take in each slot, and `cost_files` where that is stored; there is none before the first
    measurements. `beside_ms` is what each slot will have to do besides, in one scheduling task's
    share; rows of operators in `unmeasured` are not measured by value. `batching` says how rows
    become batch tuples. `clocks` holds the clocks of operators behind windows, whose event time is
    not the flow's. `signed`: the checkpoint has a key, so that digests of files must be strong.
    `identity` is how the checkpoint tells keys apart,
    `clock_behind` for how many epochs the wall clock has been behind `clock`. `at_work` holds, for
    each level from the first on, the slots that get a task (none given: all slots in all levels),
    `ends` the level in which each stateful operator has all of the epoch (see `slot/levels.py`),
    `due` when each slot has something to do that an operator holds back (`slot/held_back.py`).
    `part_rows` holds how many rows of an operator are timed together, if its units are (see
    `slot/unit_times.py`).
    `side_tables` names the version of its table that each lookup has, a file at `side_tables_uri`.
    Columns that nobody on the way reads wait in files at `parking_uri` (""; they travel), if they
    have `park_bytes` a row (see `slot/parking.py`).
    """

    epoch: int
    slots: int
    clock: EpochClock
    routes: Mapping[str, Route]
    chains: Mapping[str, Mapping[int, Chain]]
    storage_uri: str
    warm_dir: str | None
    buckets: int
    sink_uris: Mapping[str, str]
    identity: Identity
    moves: Mapping[str, Moves] = field(default_factory=dict)
    table_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tables_uri: str = ""
    statistics_bytes: int = 0
    unit_statistics: frozenset[str] = frozenset()
    part_rows: Mapping[str, int] = field(default_factory=dict)
    racks: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, CostModel] = field(default_factory=dict)
    cost_files: Mapping[str, str] = field(default_factory=dict)
    costs_uri: str = ""
    beside_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    unmeasured: frozenset[str] = frozenset()
    batching: Batching = field(default_factory=Batching)
    clocks: Mapping[str, EpochClock] = field(default_factory=dict)
    clock_behind: int = 0
    signed: bool = False
    attempt: int = 0
    at_work: tuple[tuple[int, ...], ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    due: Mapping[str, Mapping[str, Sequence[int | None]]] = field(default_factory=dict)
    side_tables: Mapping[str, str] = field(default_factory=dict)
    side_tables_uri: str = ""
    parking_uri: str = ""
    park_bytes: int = 0

    @property
    def routing_version(self) -> int:
        return sum(route.table.version for route in self.routes.values())

    def slots_of(self, operator: str) -> tuple[int, ...]:
        """The slots that have an instance of this operator."""
        route = self.routes.get(operator)
        return route.slots if route is not None and route.slots else tuple(range(self.slots))

    def slots_at(self, level: int) -> tuple[int, ...]:
        """The slots that get a task in a level, from the first on."""
        return self.at_work[level - 1] if self.at_work else tuple(range(self.slots))

    def record_goes_to(self, level: int, producer: int) -> int:
        """The slot that gets a task's control record in the next level: its own, if it has a task.

        Those of the last level go to the driver.
        """
        if self.at_work and level == len(self.at_work):
            return producer
        next_slots = self.slots_at(level + 1)
        if level > 0 and producer in next_slots:
            return producer
        return next_slots[producer % len(next_slots)]

    def in_slots(self, operator: str, instances: I32) -> I32:
        """The slots of an operator's instances, which are numbered from 0."""
        slots = self.slots_of(operator)
        return instances if len(slots) == self.slots else np.array(slots, np.int32)[instances]

    def folds_here(self, operator: str) -> bool:
        """Are this operator's rows folded where they are, whoever owns their keys?"""
        route = self.routes.get(operator)
        return route is not None and isinstance(route.dispatch, Here)

    def clock_of(self, operator: str) -> EpochClock:
        """Time as an operator sees it."""
        return self.clocks.get(operator, self.clock)


@dataclass
class Control:
    """Counts and file names; JSON on the wire, byte for byte the same in every attempt.

    sent and received: (producer level, producer, slot) -> [tuples, rows, sum of seals, bytes].
    batches: edge, or "s" and the channel of shared ones -> [tuples, rows, bytes].
    loads: rows processed, by operator and slot; away_rows: those of them whose key another slot
    owns (of a split operator: all), under "source" what source tasks did; merge_rows: partials
    merged, by operator and owner, which for a split operator are part of its load; merge_bytes:
    bytes of partials that left their task. estimated_us: what the rows that a cost-aware shuffle
    gave to each slot should take there. ages: source rows by how old they were when the epoch
    began, in bins (see `slot/latency.py`). tasks: level and slot of every task it tells of.
    """

    sent: dict[str, list[int]] = field(default_factory=dict)
    received: dict[str, list[int]] = field(default_factory=dict)
    chains: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    sinks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    loads: dict[str, dict[str, int]] = field(default_factory=dict)
    away_rows: dict[str, dict[str, int]] = field(default_factory=dict)
    merge_rows: dict[str, dict[str, int]] = field(default_factory=dict)
    estimated_us: dict[str, dict[str, int]] = field(default_factory=dict)
    merge_bytes: dict[str, int] = field(default_factory=dict)
    edges: dict[str, list[int]] = field(default_factory=dict)
    batches: dict[str, list[int]] = field(default_factory=dict)
    state: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    due: dict[str, dict[str, list[int | None]]] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    source_rows: dict[str, int] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    event_time: dict[str, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    tasks: list[list[int]] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        filled = {name: value for name, value in vars(self).items() if value}
        return json.dumps(filled, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: Any) -> Control:
        return Control(**json.loads(bytes(data)))

    def count_edge(self, edge: int, rows: int, size: int, *, local: bool) -> None:
        """Rows that were sent along an edge: within a slot, or to another."""
        add_counts(self.edges, str(edge), [rows, 0, size, 0] if local else [0, rows, 0, size])

    def absorb(self, other: Control) -> None:
        """Add what an earlier level, or another task, did. A later level's chain wins."""
        for name in _ADDED:
            _add(getattr(self, name), getattr(other, name))
        later_wins: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (self.chains, other.chains),
            (self.state, other.state),
            (self.due, other.due),
        ]
        for mine, earlier in later_wins:
            for operator, by_slot in earlier.items():
                mine[operator] = by_slot | mine.get(operator, {})
        for sink, files in other.sinks.items():
            self.sinks.setdefault(sink, []).extend(files)
        for source, latest in other.event_time.items():
            self.event_time[source] = max(latest, self.event_time.get(source, latest))
        self.versions = sorted({*self.versions, *other.versions})
        self.tasks = [*self.tasks, *other.tasks]
        self.error = self.error or other.error


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _add(totals.setdefault(key, {}), value)
        elif isinstance(value, list):
            add_counts(totals, key, value)
        else:
            totals[key] = totals.get(key, 0) + value


def add_counts(totals: dict[str, list[int]], key: str, more: list[int]) -> None:
    """Add numbers to those under this key, modulo 2^64."""
    before = totals.get(key, [0] * len(more))
    totals[key] = [(a + b) & MASK for a, b in zip(before, more, strict=True)]


def pair(level: int, producer: int, slot: int) -> str:
    return f"{level}:{producer}>{slot}"


def parse_pair(name: str) -> tuple[int, int, int]:
    """Level, producer and slot of a transfer's name."""
    level, _, rest = name.partition(":")
    producer, _, slot = rest.partition(">")
    return int(level), int(producer), int(slot)
