"""A slot's task: take in what was sent to it, and run its stateful operators.

An operator's state is opened at most once per level, if there is work for it: units that move,
partials to merge, rows to process, or the end of its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import CustodyMismatch
from headgate.operator.base import Output
from headgate.operator.rows import partial_schema
from headgate.slot import stateful
from headgate.slot.batch_tuple import BatchTuple, Kind, digest_of
from headgate.slot.fold import divide, run_absorb
from headgate.slot.plan import Control, add_counts, pair
from headgate.slot.program import ORDER
from headgate.slot.rows import Rows, concat, joined
from headgate.slot.sharing import AT, in_place
from headgate.slot.statistics import STATE_POSITIONS
from headgate.slot.task import MOVING, Task
from headgate.state.session import StateSession
from headgate.state.state_file import Chain, StateFile
from headgate.topology.graph import Edge, Node


class SlotTask(Task):
    """A slot in one level: its rows, its partials, what its earlier levels told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.earlier = Control()
        self.carries: dict[int, list[pa.RecordBatch]] = {}
        self.partials: dict[int, list[pa.RecordBatch]] = {}
        self._arriving: dict[tuple[int, int, int], list[Rows]] = {}  # by edge, level, producer
        assert self.slot is not None
        self.home: int = self.slot

    def receive(self, tuples: Iterable[BatchTuple]) -> None:
        """Sort the input, check every digest, and lay rows out by consumer.

        What the slot's own earlier level told must be there, and nothing may be there twice: a
        task's whole output, lost or doubled with its control record, would balance out.
        """
        before: tuple[int, ...] = ()
        heard_of_itself = self.level == 1
        for item in sorted(tuples, key=lambda t: t.order):
            if item.order == before:
                raise CustodyMismatch(
                    f"a tuple of task {item.producer} of level {item.level} arrived twice in slot "
                    f"{self.slot}, epoch {self.plan.epoch}",
                    slot=self.slot,
                    epoch=self.plan.epoch,
                )
            before = item.order
            if item.slot != self.slot:
                raise CustodyMismatch(
                    f"a tuple for slot {item.slot} reached slot {self.slot} in epoch "
                    f"{self.plan.epoch}, level {self.level}",
                    slot=self.slot,
                    epoch=self.plan.epoch,
                )
            if item.kind == Kind.CONTROL:
                self.earlier.absorb(Control.from_bytes(item.payload))
                heard_of_itself |= item.level == self.level - 1
                continue
            if digest_of(item.payload) != item.digest:
                raise CustodyMismatch(
                    f"a payload from task {item.producer} of level {item.level} arrived changed in "
                    f"slot {self.slot}, epoch {self.plan.epoch}",
                    slot=self.slot,
                    epoch=self.plan.epoch,
                )
            key = pair(item.level, item.producer, self.home)
            counts = [1, item.rows, item.seal, item.payload.size]
            self.control.received[key] = add_counts(self.control.received.get(key), counts)
            self._lay_out(item)
        for place in sorted(self._arriving):
            parts = self._arriving.pop(place)
            for rows in parts if AT not in parts[0].lineage else [in_place(parts)]:
                self._take_in(self.program.graph.edges[place[0]], rows)
        if not heard_of_itself:
            raise CustodyMismatch(
                f"slot {self.slot} of level {self.level} got no record of its level "
                f"{self.level - 1} in epoch {self.plan.epoch}",
                slot=self.slot,
                epoch=self.plan.epoch,
            )

    def _lay_out(self, item: BatchTuple) -> None:
        if item.kind == Kind.CARRY:
            schema = self.program.carry_schema(self.program.graph.nodes[item.channel])
            batch = pa.ipc.read_record_batch(item.payload, schema)
            self.carries.setdefault(item.channel, []).append(batch)
            return
        if item.kind == Kind.PARTIAL:
            schema = partial_schema(self.program.state_schemas[item.channel])
            batch = pa.ipc.read_record_batch(item.payload, schema)
            self.partials.setdefault(item.channel, []).append(batch)
            return
        if item.kind == Kind.SHARED:
            self._lay_out_shared(item)
            return
        batch = pa.ipc.read_record_batch(item.payload, self.program.wire_schemas[item.channel])
        place = (item.channel, item.level, item.producer)
        self._arriving.setdefault(place, []).append(Rows.from_wire(batch, self.program.lineage))

    def _lay_out_shared(self, item: BatchTuple) -> None:
        """The rows wait, for each edge they are for, until all cells of their producer are in."""
        group = self.program.shared_channels[item.channel]
        batch = pa.ipc.read_record_batch(item.payload, self.program.shared_schema(group))
        rows = Rows.from_wire(batch, (*self.program.lineage, AT))
        for edge in group.edges_of(item.channel):
            mine = rows.select(self.program.edge_columns[edge.id])
            self._arriving.setdefault((edge.id, item.level, item.producer), []).append(mine)

    def _take_in(self, edge: Edge, rows: Rows) -> None:
        """Give rows to their consumer, or to a later level if it wants all of them at once."""
        if self.program.waits(edge, self.level):
            self.outbox.hold(edge, rows)
        else:
            self.inbox.setdefault(edge.consumer, []).append(rows)

    def run_stateful(self, node: Node) -> None:
        """Open the operator's state if there is work for it; name its new files if it changed."""
        if self.folds_here(node):
            self.run_node(node)
            self.send_partials(node)
        waiting = self.inbox.pop(node.id, [])
        start = self.services.clock_ns()
        rows = self._in_order(node, concat(waiting)) if waiting else None
        if rows is not None:
            rows, gone = divide(self.plan, node, rows, self.home)
            if gone is not None:
                self._fold_gone(node, gone)
                start = self.services.clock_ns()
        partials = self.partials.pop(node.id, [])
        works = rows is not None or bool(partials)
        dispatch = self.plan.routes[node.name].dispatch
        last = self.level == self.program.end_level(node, dispatch)
        sweeps = node.spec.ends_epochs or node.spec.ttl is not None
        finishes = last and (works or sweeps or self._has_worked(node))
        moves = stateful.moves_of(self.plan, node) if self.level == 1 else None
        if not works and not finishes and moves is None:
            self._pass_on_carry(node)
            return
        chain = self._chain(node)
        with stateful.open_state(
            self.program, self.plan, self.services.store, node, self.home, self.level, chain
        ) as session:
            if moves is not None:
                moving = self.services.clock_ns()
                gained = stateful.migrate(
                    self.program,
                    self.plan,
                    self.services.store,
                    node,
                    self.home,
                    moves,
                    session,
                )
                self.control.moved[node.name] = gained
                self.services.timed(self.level, self.home, MOVING + node.name, gained, moving)
            if partials:
                self._absorb(node, partials, session)
            if rows is not None:
                self._process(node, rows, session)
            if finishes:
                carry = self._carry_of(node)
                made = self.guard(
                    node,
                    rows.batch if rows is not None else None,
                    lambda: stateful.run_finish(self.program, self.plan, node, session, carry),
                )
                self.dispatch(node, made)
            else:
                self._pass_on_carry(node)
            if self.counting is not None and self.counting.counts_units(node.name):
                routes = session.sample_routes(STATE_POSITIONS)
                self.counting.state(node.name, routes, session.rows)
            after = session.commit()
            # Bytes of the files: what the table takes in memory depends on the attempt's past.
            facts = [session.rows, sum(file.bytes for file in after)]
        if after is not chain:
            files = [file.to_json() for file in after]
            self.control.chains.setdefault(node.name, {})[str(self.home)] = files
        self.control.state.setdefault(node.name, {})[str(self.home)] = facts
        count = len(rows) if rows is not None else 0
        self.services.timed(self.level, self.home, node.name, count, start)

    def _process(self, node: Node, rows: Rows, session: Any) -> None:
        if self.counting is not None:
            rows = rows.at(node.name, node.key)
        made, output, keyed = self.guard(
            node,
            rows.batch,
            lambda: stateful.run_process(self.program, self.plan, node, rows, session, self.dead),
        )
        self.count_load(node, len(rows))
        if self.counting is not None:
            self.counting.load(node.name, keyed.groups)
        self.count_late(node, output)
        self._keep_carry(node, output)
        self.dispatch(node, made)

    def _fold_gone(self, node: Node, rows: Rows) -> None:
        """Fold rows that were sent here for their key, though another slot owns it."""
        if self.counting is None:
            self._fold(node, rows)
        else:
            keyed = self._fold(node, rows.at(node.name, node.key))
            self.counting.load(node.name, keyed.groups)
        self.send_partials(node)

    def _absorb(self, node: Node, partials: list[pa.RecordBatch], session: StateSession) -> None:
        """Merge what other tasks made of the rows of this slot's keys."""
        output, merged = self.guard(
            node,
            partials[0],
            lambda: run_absorb(self.program, self.plan, node, partials, session, self.dead),
        )
        self._count_by_slot(self.control.merge_rows, node, len(merged))
        if self.folds_here(node):
            self.count_load(node, len(merged))
            if self.counting is not None:
                self.counting.load(node.name, merged.keys)
        self._keep_carry(node, output)

    def _keep_carry(self, node: Node, output: Output) -> None:
        if output.carry is not None and output.carry.num_rows:
            self.carries.setdefault(node.id, []).append(output.carry)

    def _has_worked(self, node: Node) -> bool:
        """Did an earlier level of this slot have rows or partials of keys that it owns?"""
        slot, told = str(self.home), self.earlier
        at_home = told.loads.get(node.name, {}).get(slot, 0)
        at_home -= told.away_rows.get(node.name, {}).get(slot, 0)
        return at_home > 0 or slot in told.merge_rows.get(node.name, {})

    def _in_order(self, node: Node, rows: Rows) -> Rows:
        if not node.spec.ordered or ORDER not in rows.lineage:
            return rows
        return rows.take(np.argsort(rows.lineage[ORDER], kind="stable").astype(np.int64))

    def _chain(self, node: Node) -> Chain:
        announced = self.earlier.chains.get(node.name, {}).get(str(self.home))
        if announced is not None:
            return tuple(StateFile.from_json(file) for file in announced)
        return self.plan.chains.get(node.name, {}).get(self.home, ())

    def _carry_of(self, node: Node) -> pa.RecordBatch | None:
        parts = self.carries.pop(node.id, None)
        return joined(parts) if parts else None

    def _pass_on_carry(self, node: Node) -> None:
        carry = self._carry_of(node)
        if carry is not None:
            self.outbox.carry(node.id, carry)
