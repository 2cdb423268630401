"""Shared batches: one buffer matrix for the consumers of an operator that have different keys.

A *cell* of the matrix is a combination of target slots, one for each consumer. A shared batch holds
the columns that any of them needs and goes once to every slot of its cell, for those consumers that
have it there. Rows of one producer lie in several cells then, so each has its place in the
producer's output with it, and the receiver puts them back in order: per-upstream order is kept.

Rows whose target is the slot they are in take no part for that consumer (target `STAYS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.arrays import I32, I64
from headgate.slot.narrow import narrowed
from headgate.slot.plan import Batching, Control, EpochPlan
from headgate.slot.rows import Rows
from headgate.slot.wire import PAYLOAD_BYTES_MAX, Buffers
from headgate.topology.graph import TO_OWNERS, Edge, FlowGraph

if TYPE_CHECKING:
    from headgate.slot.program import Program

STAYS = -1
AT = "at"  # hidden column: a row's place in its producer's output
AT_BYTES = 8
EDGES_MAX = 4  # the matrix has a dimension for each consumer
CELLS_MAX = 1 << 16  # larger matrices would hold hardly a row in a cell


@dataclass(frozen=True)
class ShareGroup:
    """Edges of one producer that may share batches; `columns` are those any of them needs.

    Its channels are numbered from `first`, one for every choice of edges that a tuple is for.
    """

    producer: int
    edges: tuple[Edge, ...]
    columns: tuple[str, ...]
    first: int

    def channel(self, edges: Sequence[bool]) -> int:
        return self.first - 1 + sum(1 << i for i, wanted in enumerate(edges) if wanted)

    def edges_of(self, channel: int) -> tuple[Edge, ...]:
        mask = channel - self.first + 1
        return tuple(edge for i, edge in enumerate(self.edges) if mask >> i & 1)

    @property
    def channels(self) -> int:
        return (1 << len(self.edges)) - 1


def share_groups(graph: FlowGraph, edge_columns: dict[int, tuple[str, ...]]) -> list[ShareGroup]:
    """Operators with two to four keyed consumers, each of which sends a key to its one owner."""
    groups: list[ShareGroup] = []
    first = 0
    for node in graph.nodes:
        edges = tuple(e for e in graph.outputs(node.id) if _may_share(e))
        if not 2 <= len(edges) <= EDGES_MAX:
            continue
        needed = {column for edge in edges for column in edge_columns[edge.id]}
        columns = tuple(name for name in node.schema.names if name in needed)
        groups.append(ShareGroup(node.id, edges, columns, first))
        first += groups[-1].channels
    return groups


def _may_share(edge: Edge) -> bool:
    """Rows go to the owner of their key, and no null key drops some on one edge only."""
    grouping = edge.grouping
    to_owners = grouping.kind == "fields" and grouping.by in (*TO_OWNERS, "dkg")
    return to_owners and grouping.nulls == "key"


Cell = tuple[int, ...]  # a target for each consumer


def cells_of(targets: Sequence[I32], slots: int) -> tuple[I64, dict[Cell, int]] | None:
    """Rows sorted by cell, as their numbers, and the rows of each cell in that order.

    `targets` has an array for each consumer. None if the matrix would be too large.
    """
    base = slots + 1
    if base ** len(targets) > CELLS_MAX:
        return None
    code = np.zeros(len(targets[0]), np.int64)
    for target in reversed(targets):
        code = code * base + (target + 1)
    counts = np.bincount(code)
    cells = {
        tuple(c // base**i % base - 1 for i in range(len(targets))): int(counts[c])
        for c in np.flatnonzero(counts).tolist()
    }
    return np.argsort(code.astype(np.uint16), kind="stable").astype(np.int64), cells


def shared_is_cheaper(
    group: ShareGroup,
    batching: Batching,
    targets: Sequence[I32],
    widths: Sequence[float],
    shared_width: float,
    cells: Mapping[Cell, int],
) -> bool:
    """Compare messages and bytes of both schemes for these rows; `widths` are bytes of a row."""

    def cost_s(counts: I64, copies: I64 | int, rows_max: int | None, width: float) -> float:
        """Of buffers of so many rows, each sent `copies` times."""
        fit = max(1.0, PAYLOAD_BYTES_MAX / max(width, 1.0))
        messages = np.ceil(counts / min(fit, rows_max or fit)) * copies
        size = counts * copies * width
        return float(messages.sum() * batching.message_s + size.sum() * batching.byte_s)

    distinct = sum(
        cost_s(np.bincount(target[target != STAYS]), 1, batching.rows_max(edge), width)
        for edge, target, width in zip(group.edges, targets, widths, strict=True)
    )
    counts = np.array([*cells.values()])
    copies = np.array([len({*cell} - {STAYS}) for cell in cells])
    rows_max = batching.rows_max(*group.edges)
    return cost_s(counts, copies, rows_max, shared_width + AT_BYTES) < distinct


class BufferMatrix:
    """Buffers by producer and cell; `emit` gets what leaves: channel, slot, rows, payload, widths.

    Whether a task shares the batches of a group is decided by its first rows for it, once, so that
    a producer's rows of an edge are all shared or all distinct. The payload of a cell is made once,
    however many slots it goes to.
    """

    def __init__(
        self,
        program: Program,
        plan: EpochPlan,
        control: Control,
        slot: int | None,
        emit: Callable[[int, int, int, pa.Buffer, bytes], None],
    ) -> None:
        self._groups, self._plan, self._control = program.share_groups, plan, control
        self._slot, self._emit = slot, emit
        self._buffers = Buffers[Cell](self._send)
        self._shares: dict[int, bool] = {}
        self._places: dict[int, int] = {}

    def put(
        self, group: ShareGroup, rows: Rows, parts: Sequence[Rows], targets: Sequence[I32]
    ) -> bool:
        """Take in what leaves of these rows, if this task shares the group's batches.

        `parts` are the rows as each consumer would get them alone; `targets` their slots.
        """
        producer, batching = group.producer, self._plan.batching
        if self._shares.get(producer) is False:
            return False
        found = cells_of(targets, self._plan.slots)
        if found is None:
            self._shares[producer] = False
            return False
        order, cells = found
        if producer not in self._shares:
            widths = [part.bytes / len(part) for part in parts]
            self._shares[producer] = batching.scheme == "shared" or shared_is_cheaper(
                group, batching, targets, widths, rows.bytes / len(rows), cells
            )
            if not self._shares[producer]:
                return False
        first = self._places.get(producer, 0)
        self._places[producer] = first + len(rows)
        places = first + np.arange(len(rows), dtype=np.int64)
        rows = Rows(rows.batch, {**rows.lineage, AT: places}).take(order)
        start = 0
        for cell, count in cells.items():
            part = rows.slice(start, count)
            start += count
            if {*cell} != {STAYS}:
                self._buffers.put((producer, *cell), part, batching.rows_max(*group.edges))
                self._account(group, cell, part)
        return True

    def close(self) -> None:
        """All that is left, in a fixed order."""
        batching = self._plan.batching
        self._buffers.close(lambda cell: batching.rows_max(*self._groups[cell[0]].edges))

    def _account(self, group: ShareGroup, cell: Cell, part: Rows) -> None:
        """Rows count on every edge; bytes once per slot, on the first edge that leads there."""
        counted: set[int] = set()
        for edge, target in zip(group.edges, cell, strict=True):
            if target == STAYS:
                continue
            size = 0 if target in counted else part.bytes
            counted.add(target)
            self._control.count_edge(edge.id, len(part), size, local=target == self._slot)

    def _send(self, place: Cell, batch: pa.RecordBatch) -> None:
        """The batch of a cell, once to every slot of it."""
        producer, *targets = place
        sent, widths = narrowed(batch)
        payload = sent.serialize()
        for slot in sorted({*targets} - {STAYS}):
            channel = self._groups[producer].channel([target == slot for target in targets])
            self._emit(channel, slot, batch.num_rows, payload, widths)
