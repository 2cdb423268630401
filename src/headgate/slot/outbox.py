"""Send rows on: to the next operator of this slot in memory, to another slot as batch tuples.

Rows are ordered by target slot once (a radix sort of small integers and one Arrow take), then
every target gets a slice. What stays in the slot never becomes bytes. Whether the consumers of an
operator share batches is decided by the task's first rows for them, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I32, U64
from headgate.routing.hashing import hash_columns
from headgate.routing.route import Choose, HereUnlessPinned, Shares, Stop
from headgate.slot.cost_shuffle import CostRouting, round_robin
from headgate.slot.failure import operator_failed
from headgate.slot.narrow import narrowed
from headgate.slot.parking import Parking
from headgate.slot.plan import Control, EpochPlan, add_counts, pair
from headgate.slot.program import Program
from headgate.slot.rows import PARKED, Hashed, Rows, is_parked
from headgate.slot.sharing import STAYS, BufferMatrix, ShareGroup
from headgate.slot.statistics import Counting
from headgate.slot.wire import BatchTuple, Buffers, Kind, digest_of, pieces
from headgate.topology.graph import Edge


class Outbox:
    """Everything one task sends. `slot` is None in a source task, which lives in no slot."""

    def __init__(
        self,
        program: Program,
        plan: EpochPlan,
        control: Control,
        counting: Counting | None = None,
        parking: Parking | None = None,
        *,
        level: int,
        producer: int,
        slot: int | None,
    ) -> None:
        self.program, self.plan, self.control = program, plan, control
        self._counting = counting
        self._parking = Parking(program, plan, slot) if parking is None else parking
        self.level, self.producer, self.slot = level, producer, slot
        self._buffers = Buffers[tuple[int, int]](self._emit_batch)
        self._matrix = BufferMatrix(program, plan, control, slot, self._emit_shared)
        self._ready: list[BatchTuple] = []
        self._sequence = 0
        self._turn: dict[int, int] = {}
        self._costs = CostRouting(program, plan, control, producer)
        self._dispatchers: dict[int, Dispatcher] = {}

    def dispatch(self, node: int, rows: Rows) -> Iterator[tuple[Edge, Rows]]:
        """Route an operator's rows to all its consumers; yields those that stay in this task."""
        group = self.program.share_groups.get(node)
        shared: tuple[Edge, ...] = ()
        # Not in an epoch in which rows of one of the edges are folded in this task.
        if group is not None and self.plan.batching.scheme != "distinct":
            folded = any(self.plan.folds_here(self._consumer(edge)) for edge in group.edges)
            shared = () if folded else group.edges
        for edge in self.program.outputs[node]:
            if edge not in shared:
                staying = self.send(edge, rows)
                if staying is not None and len(staying):
                    yield edge, staying
        if group is not None and shared:
            yield from self._send_group(group, rows)

    def send(self, edge: Edge, rows: Rows) -> Rows | None:
        """Route rows of an edge; returns those that stay in this task (None: none do)."""
        rows = rows.select(self.program.edge_columns[edge.id])
        if edge.id not in self.program.parked.on:
            rows = rows.without(PARKED)
        if edge.grouping.kind == "local":
            return rows
        if not edge.exchanges or self.plan.folds_here(self._consumer(edge)):
            rows = self._apply_null_policy(edge, rows)
            self._account(edge, rows, local=True)
            return rows
        if edge.grouping.kind == "all":
            return self._send_to_all(edge, rows)
        if edge.grouping.kind == "cost":
            for scheduled in self._costs.add(edge, rows):
                self._split(*scheduled, keep=False)
            return None
        rows = self._parking.leaving(edge, self._apply_null_policy(edge, rows))
        return self._split(edge, *self._targets(edge, rows)) if len(rows) else None

    def put(self, edge: Edge, target: int, rows: Rows) -> None:
        """Keep rows for a slot until they make a batch."""
        self._check_level(edge)
        self._buffers.put((edge.id, target), rows, self.plan.batching.rows_max(edge))

    def carry(self, node: int, batch: pa.RecordBatch) -> None:
        """Send an operator's carry to the next level of this slot."""
        assert self.slot is not None
        self._emit(Kind.CARRY, node, self.slot, batch.num_rows, batch.serialize())

    def partials(self, node: int, batch: pa.RecordBatch, owners: I32) -> None:
        """Send partial states to the slots that own their keys, in order of slot."""
        name = self.program.graph.nodes[node].name
        sent = self.control.merge_bytes
        batch = batch.take(pa.array(np.argsort(owners, kind="stable")))
        counts = np.bincount(owners, minlength=self.plan.slots)
        starts = np.cumsum(counts) - counts
        for owner in np.flatnonzero(counts).tolist():
            for piece in pieces(batch.slice(int(starts[owner]), int(counts[owner]))):
                narrow, widths = narrowed(piece)
                payload = narrow.serialize()
                self._emit(Kind.PARTIAL, node, owner, piece.num_rows, payload, widths)
                if owner != self.slot:
                    sent[name] = sent.get(name, 0) + payload.size

    def drain(self) -> Iterator[BatchTuple]:
        """Tuples that are full; call between chunks so that memory stays bounded."""
        ready, self._ready = self._ready, []
        yield from ready

    def close(self) -> Iterator[BatchTuple]:
        """All that is left, in a fixed order."""
        for scheduled in self._costs.close():
            self._split(*scheduled, keep=False)
        edges, batching = self.program.graph.edges, self.plan.batching
        self._buffers.close(lambda place: batching.rows_max(edges[place[0]]))
        self._matrix.close()
        yield from self.drain()

    # --- inside ----------------------------------------------------------------------------
    def _apply_null_policy(self, edge: Edge, rows: Rows) -> Rows:
        policy = edge.grouping.nulls
        columns = [rows.batch.column(name) for name in edge.grouping.key]
        if policy == "key" or not any(c.null_count for c in columns):
            return rows
        nulls = np.zeros(len(rows), np.bool_)
        for column in columns:
            nulls |= pc.is_null(column).to_numpy(zero_copy_only=False)
        if policy == "error":
            key = ", ".join(edge.grouping.key)
            raise operator_failed(
                self._consumer(edge),
                self.plan,
                self.producer,
                f"a null in its key ({key}), which key_by(nulls='error') forbids",
                rows.batch.slice(int(np.flatnonzero(nulls)[0]), 1),
                way_out="keep null keys out, or choose nulls='key' or 'drop',",
            )
        return rows.take(np.flatnonzero(~nulls))

    def _consumer(self, edge: Edge) -> str:
        return self.program.graph.nodes[edge.consumer].name

    def _targets(self, edge: Edge, rows: Rows) -> tuple[Rows, I32]:
        """The rows, with their key hashes if they have a key, and a slot for each."""
        consumer = self._consumer(edge)
        if edge.grouping.kind == "shuffle":
            turn = self._turn.get(edge.id, self.producer)
            self._turn[edge.id] = turn + len(rows)
            instances = round_robin(turn, len(rows), len(self.plan.slots_of(consumer)))
            return rows, self.plan.in_slots(consumer, instances)
        h = rows.hashes_by(edge.grouping.key)
        if self._counting is not None and rows.origin is not None:
            operator, origin = rows.origin
            if (operator, consumer) in self.program.key_pairs:
                self._counting.pair(operator, consumer, origin, h)
        if edge.id not in self._dispatchers:  # one per edge: which edge's chunk is first is chance
            self._dispatchers[edge.id] = make_dispatcher(
                self.plan, edge, consumer, self.producer, self.slot
            )
        hashed = Rows(rows.batch, rows.lineage, Hashed(edge.grouping.key, h))
        return hashed, self._dispatchers[edge.id](rows.batch, h)

    def _split(self, edge: Edge, rows: Rows, targets: I32, *, keep: bool = True) -> Rows | None:
        counts = np.bincount(targets, minlength=self.plan.slots)
        used = np.flatnonzero(counts)
        if len(used) > 1:
            small = targets.astype(np.uint8 if self.plan.slots <= 256 else np.uint16)
            rows = rows.take(np.argsort(small, kind="stable").astype(np.int64))
        kept: Rows | None = None
        start = 0
        for target in used.tolist():
            count = int(counts[target])
            part = rows.slice(start, count) if len(used) > 1 else rows
            start += count
            if keep and target == self.slot and not self.program.waits(edge, self.level):
                kept = part
                self._account(edge, part, local=True)
            else:
                self.put(edge, target, part)
                self._account(edge, part, local=target == self.slot)
        return kept

    def _send_group(self, group: ShareGroup, rows: Rows) -> Iterator[tuple[Edge, Rows]]:
        """Rows for several keyed consumers, in distinct batches or in shared ones."""
        columns, rows = self.program.edge_columns, rows.without(PARKED)
        parts: list[Rows] = []
        targets: list[I32] = []
        leaving: list[I32] = []  # with STAYS for rows that pass to the consumer in memory
        for edge in group.edges:
            part, target = self._targets(edge, rows.select(columns[edge.id]))
            parts.append(part)
            targets.append(target)
            if self.slot is not None and not self.program.waits(edge, self.level):
                target = np.where(target == self.slot, np.int32(STAYS), target)
            leaving.append(target)
        is_shared = self._matrix.put(group, rows.select(group.columns), parts, leaving)
        for edge, part, target, going in zip(group.edges, parts, targets, leaving, strict=True):
            kept: Rows | None
            if is_shared:
                self._check_level(edge)
                kept = part.take(np.flatnonzero(going == STAYS))
                self._account(edge, kept, local=True)
            else:
                kept = self._split(edge, part, target)
            if kept is not None and len(kept):
                yield edge, kept

    def _send_to_all(self, edge: Edge, rows: Rows) -> Rows | None:
        kept: Rows | None = None
        for target in self.plan.slots_of(self._consumer(edge)):
            if target == self.slot and not self.program.waits(edge, self.level):
                kept = rows
            else:
                self.put(edge, target, rows)
            self._account(edge, rows, local=target == self.slot)
        return kept

    def _account(self, edge: Edge, rows: Rows, *, local: bool) -> None:
        self.control.count_edge(edge.id, len(rows), rows.bytes, local=local)

    def _check_level(self, edge: Edge) -> None:
        if self.level >= self.program.levels:
            raise AssertionError(f"edge {edge.id} sends rows after the last level")

    def _emit_batch(self, place: tuple[int, int], batch: pa.RecordBatch) -> None:
        edge, slot = place
        sent, widths = narrowed(batch)
        payload = sent.serialize()
        kind = Kind.PARKED if is_parked(batch.schema) else Kind.DATA
        self._emit(kind, edge, slot, batch.num_rows, payload, widths)
        add_counts(self.control.batches, str(edge), [1, batch.num_rows, payload.size])

    def _emit_shared(
        self, channel: int, slot: int, rows: int, payload: pa.Buffer, widths: bytes
    ) -> None:
        self._emit(Kind.SHARED, channel, slot, rows, payload, widths)
        add_counts(self.control.batches, f"s{channel}", [1, rows, payload.size])

    def _emit(
        self,
        kind: Kind,
        channel: int,
        slot: int,
        rows: int,
        payload: pa.Buffer,
        widths: bytes = b"",
    ) -> None:
        item = BatchTuple(
            slot,
            kind,
            channel,
            self.level,
            self.producer,
            self._sequence,
            rows,
            digest_of(payload, widths),
            payload,
            widths,
        )
        self._sequence += 1
        self._ready.append(item)
        key = pair(self.level, self.producer, slot)
        add_counts(self.control.sent, key, [1, rows, item.seal, payload.size])


Dispatcher = Callable[[pa.RecordBatch, U64], I32]


def make_dispatcher(
    plan: EpochPlan, edge: Edge, consumer: str, producer: int, slot: int | None
) -> Dispatcher:
    """Gives rows of an edge, with the hashes of their keys, the slots they go to.

    `slot` is the task's own, `producer` its number; a source task is in no slot. What it returns is
    a function of the edge's rows in order, and of the plan: it may keep counts from chunk to chunk,
    starts from nothing with every task, and does not notice where a chunk ends.
    """
    route = plan.routes[consumer]
    owner_of = route.table.route
    match route.dispatch:
        case HereUnlessPinned(stops):
            if slot is not None:
                if not route.slots or slot in route.slots:  # it keeps all keys without a pin
                    here = np.full(route.table.buckets, slot, np.int32)
                    owner_of = route.table.with_buckets(here).route
            elif edge.id in stops:
                return lambda batch, h: look_ahead(plan, consumer, stops[edge.id], batch, h)
        case Choose() | Shares():
            # Imported late: it is compiled, and few flows need it.
            from headgate.routing.chooser import Chooser

            choose = Chooser(route, producer).choose
            return lambda batch, h: choose(h, owner_of(h))
    return lambda batch, h: owner_of(h)


def look_ahead(
    plan: EpochPlan, consumer: str, stops: tuple[Stop, ...], batch: pa.RecordBatch, h: U64
) -> I32:
    """Where source rows go: those of keys without a pin to the first stop that has an owner.

    Where no key needs a pin, every key has an owner.
    """
    targets, pinned = plan.routes[consumer].table.look_up(h)
    lost = np.flatnonzero(~pinned)
    for stop in stops:
        if not len(lost):
            break
        columns = [batch.column(name).take(pa.array(lost)) for name in stop.key]
        route = plan.routes[stop.operator]
        slots, known = route.table.look_up(hash_columns(columns, len(lost), stop.key.near))
        if not isinstance(route.dispatch, HereUnlessPinned):
            known = np.ones(len(lost), np.bool_)
        mine = plan.slots_of(consumer)
        if len(mine) < plan.slots:  # its instance there, or none
            known &= np.isin(slots, mine)
        targets[lost[known]] = slots[known]
        lost = lost[~known]
    return targets
