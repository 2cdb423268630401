"""Shared batches: one buffer matrix for the consumers of an operator that have different keys.

A *cell* of the matrix is a combination of target slots, one for each consumer. A shared batch holds
the columns that any of them needs and goes once to every slot of its cell, for those consumers that
have it there. Rows of one producer lie in several cells then, so each has its place in the
producer's output with it, and the receiver puts them back in order: per-upstream order is kept.

Rows whose target is the slot they are in take no part for that consumer (target `STAYS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.arrays import I32, I64
from headgate.slot.plan import Batching, Control, EpochPlan, add_counts
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


@dataclass(frozen=True)
class Cells:
    """Rows sorted by cell: `order` of the rows, then per cell its targets and row count."""

    order: I64
    targets: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int]]:
        return iter(zip(self.targets, self.counts, strict=True))


def cells_of(targets: Sequence[I32], slots: int) -> Cells | None:
    """The matrix for these targets (one array per consumer); None if it would be too large."""
    base = slots + 1
    size = base ** len(targets)
    if size > CELLS_MAX:
        return None
    code = np.zeros(len(targets[0]), np.int64)
    for target in reversed(targets):
        code = code * base + (target + 1)
    counts = np.bincount(code, minlength=size)
    used = np.flatnonzero(counts)
    named = [tuple(int(c // base**i % base) - 1 for i in range(len(targets))) for c in used]
    order = np.argsort(code.astype(np.uint16), kind="stable").astype(np.int64)
    return Cells(order, tuple(named), tuple(counts[used].tolist()))


def shared_is_cheaper(
    group: ShareGroup,
    batching: Batching,
    targets: Sequence[I32],
    widths: Sequence[float],
    shared_width: float,
    cells: Cells,
) -> bool:
    """Compare messages and bytes of both schemes for these rows; `widths` are bytes of a row."""
    distinct = 0.0
    for edge, target, width in zip(group.edges, targets, widths, strict=True):
        counts = np.bincount(target[target != STAYS])
        distinct += _cost(batching, counts, batching.rows_max(edge), width)
    copies = np.array([len({t for t in cell if t != STAYS}) for cell in cells.targets])
    counts, rows_max = np.array(cells.counts), batching.rows_max(*group.edges)
    shared = _cost(batching, counts, rows_max, shared_width + AT_BYTES, copies)
    return shared < distinct


def _cost(
    batching: Batching,
    counts: I64,
    rows_max: int | None,
    width: float,
    copies: I64 | int = 1,
) -> float:
    """Seconds for buffers of so many rows, each sent `copies` times."""
    fit = max(1.0, PAYLOAD_BYTES_MAX / max(width, 1.0))
    messages = np.ceil(counts / min(fit, rows_max or fit)) * copies
    size = counts * copies * width
    return float(messages.sum() * batching.message_s + size.sum() * batching.byte_s)


Cell = tuple[int, ...]  # the producer, then a target for each consumer
Emit = Callable[[int, int, int, pa.Buffer], None]


class BufferMatrix:
    """Buffers by cell; `emit` gets channel, slot, rows and payload of what leaves.

    Whether a task shares the batches of a group is decided by its first rows for it, once, so that
    a producer's rows of an edge are all shared or all distinct. The payload of a cell is made once,
    however many slots it goes to.
    """

    def __init__(
        self, program: Program, plan: EpochPlan, control: Control, slot: int | None, emit: Emit
    ) -> None:
        self._program, self._plan, self._control, self._slot = program, plan, control, slot
        self._emit = emit
        self._buffers = Buffers[Cell](self._send)
        self._shares: dict[int, bool] = {}
        self._places: dict[int, int] = {}

    def put(
        self, group: ShareGroup, rows: Rows, parts: Sequence[Rows], targets: Sequence[I32]
    ) -> bool:
        """Take in what leaves of these rows, if this task shares the group's batches.

        `parts` are the rows as each consumer would get them alone; `targets` their slots.
        """
        if self._shares.get(group.producer) is False:
            return False
        cells = cells_of(targets, self._plan.slots)
        if group.producer not in self._shares:
            self._shares[group.producer] = self._decide(group, rows, parts, targets, cells)
        if cells is None or not self._shares[group.producer]:
            return False
        first = self._places.get(group.producer, 0)
        self._places[group.producer] = first + len(rows)
        places = first + np.arange(len(rows), dtype=np.int64)
        self._fill(group, Rows(rows.batch, {**rows.lineage, AT: places}).take(cells.order), cells)
        return True

    def close(self) -> None:
        """All that is left, in a fixed order."""
        groups, batching = self._program.share_groups, self._plan.batching
        self._buffers.close(lambda cell: batching.rows_max(*groups[cell[0]].edges))

    def _decide(
        self,
        group: ShareGroup,
        rows: Rows,
        parts: Sequence[Rows],
        targets: Sequence[I32],
        cells: Cells | None,
    ) -> bool:
        if cells is None:
            return False
        widths = [part.bytes / len(part) for part in parts]
        batching = self._plan.batching
        return batching.scheme == "shared" or shared_is_cheaper(
            group, batching, targets, widths, rows.bytes / len(rows), cells
        )

    def _fill(self, group: ShareGroup, rows: Rows, cells: Cells) -> None:
        batch_rows = self._plan.batching.rows_max(*group.edges)
        start = 0
        for cell, count in cells:
            part = rows.slice(start, count)
            start += count
            if any(target != STAYS for target in cell):
                self._buffers.put((group.producer, *cell), part, batch_rows)
                self._account(group, cell, part)

    def _account(self, group: ShareGroup, cell: Cell, part: Rows) -> None:
        """Rows count on every edge; bytes once per slot, on the first edge that leads there."""
        counted: set[int] = set()
        for edge, target in zip(group.edges, cell, strict=True):
            if target == STAYS:
                continue
            size = 0 if target in counted else part.bytes
            counted.add(target)
            counts = [len(part), 0, size, 0] if target == self._slot else [0, len(part), 0, size]
            add_counts(self._control.edges, str(edge.id), counts)

    def _send(self, cell: Cell, batch: pa.RecordBatch) -> None:
        """The batch of a cell, once to every slot of it."""
        producer, *targets = cell
        group = self._program.share_groups[producer]
        payload = batch.serialize()
        for slot in sorted({*targets} - {STAYS}):
            channel = group.channel([target == slot for target in targets])
            self._emit(channel, slot, batch.num_rows, payload)
