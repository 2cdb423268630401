"""One task of an epoch: a source partition (level 0) or a slot (level 1 and up).

A slot runs every operator that has input, in topological order. Rows whose next key lives in this
slot pass to the next operator in memory; the rest leave as batch tuples for the next level. A task
is a pure function of its input and the plan (invariant 7): the same tuples give the same bytes and
the same file names. Timings are kept apart, in `Services`, because they are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import CustodyMismatch, HeadgateError
from headgate.operator.base import Output
from headgate.operator.partial import partial_schema
from headgate.operator.rows import KeyedRows
from headgate.slot import away, stateful
from headgate.slot.batch_tuple import BatchTuple, Kind, digest_of
from headgate.slot.failure import DeadLetters, from_exception, to_record
from headgate.slot.outbox import Outbox
from headgate.slot.plan import Control, EpochPlan, add_counts, pair
from headgate.slot.program import ORDER, Program
from headgate.slot.rows import Rows, by_origin, concat
from headgate.slot.sink_files import SinkFiles
from headgate.slot.stateless import WrongOutput, conform, run_stateless
from headgate.slot.statistics import Counting
from headgate.state.chain import Chain, StateFile
from headgate.state.session import StateSession
from headgate.state.store import StateStore
from headgate.topology.graph import Node

CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 32 << 20


@dataclass
class Services:
    """What a task needs from its process, and what it reports apart from rows."""

    store: StateStore
    clock_ns: Callable[[], int] = time.perf_counter_ns
    timings: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    statistics: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def timed(self, level: int, slot: int, name: str, rows: int, start_ns: int) -> None:
        self.timings.append((level, slot, name, rows, self.clock_ns() - start_ns))


class _Task:
    """What source tasks and slot tasks share: running operators and passing rows on."""

    def __init__(
        self,
        program: Program,
        plan: EpochPlan,
        services: Services,
        *,
        level: int,
        producer: int,
        slot: int | None,
    ) -> None:
        self.program, self.plan, self.services = program, plan, services
        self.level, self.producer, self.slot = level, producer, slot
        self.control = Control(versions=[plan.routing_version])
        self.counting = self._start_counting()
        self.outbox = Outbox(
            program,
            plan,
            self.control,
            level=level,
            producer=producer,
            slot=slot,
            counting=self.counting,
        )
        self.sinks = SinkFiles(plan, level, producer)
        takes_dead = program.graph.dead_letters is not None
        self.dead = DeadLetters(plan, producer, wanted=takes_dead)
        self.inbox: dict[int, list[Rows]] = {}

    def _start_counting(self) -> Counting | None:
        if self.slot is None or not self.plan.statistics_bytes:
            return None
        return Counting(
            self.slot,
            self.plan.statistics_bytes,
            operators=len(self.program.stateful),
            edges=len(self.program.key_pairs),
        )

    def dispatch(self, node: Node, rows: Rows | None) -> None:
        """Hand an operator's output to all its consumers."""
        if rows is None or not len(rows):
            return
        for edge in self.program.outputs[node.id]:
            staying = self.outbox.send(edge, rows)
            if staying is None or not len(staying):
                continue
            self.inbox.setdefault(edge.consumer, []).append(staying)

    def run_node(self, node: Node) -> None:
        """Run a stateless operator or sink on what has come in."""
        waiting = self.inbox.pop(node.id, None)
        if not waiting:
            return
        if node.kind == "sink":
            for rows in waiting:
                self.sinks.add(node.name, rows)
            return
        for rows in by_origin(waiting):
            self._run_stateless(node, rows)

    def _run_stateless(self, node: Node, rows: Rows) -> None:
        start = self.services.clock_ns()
        made = self.guard(node, rows.batch, lambda: run_stateless(node, rows, self.dead))
        self.services.timed(self.level, self.producer, node.name, len(rows), start)
        self.count_load(node, len(rows))
        self.dispatch(node, made)

    def count_load(self, node: Node, rows: int) -> None:
        if self.slot is not None:
            self._count_by_slot(self.control.loads, node, rows)

    def _count_by_slot(self, counts: dict[str, dict[str, int]], node: Node, rows: int) -> None:
        by_slot, slot = counts.setdefault(node.name, {}), str(self.slot)
        by_slot[slot] = by_slot.get(slot, 0) + rows

    def guard(self, node: Node, sample: pa.RecordBatch | None, run: Callable[[], Any]) -> Any:
        """Run user code; whatever it raises becomes an error that names operator and place."""
        try:
            return run()
        except Exception as problem:
            raise from_exception(problem, node.name, self.plan, self.producer, sample) from problem

    def close(self) -> Iterator[BatchTuple]:
        """Write sink files, send what is left, then the control record."""
        letters = self.dead.batch()
        if letters is not None and self.program.graph.dead_letters is not None:
            sink = self.program.graph.nodes[self.program.graph.dead_letters]
            self.sinks.add(sink.name, Rows(letters))
            self.control.dead = dict(self.dead.counts)
        if self.counting is not None:
            counted = self.counting.statistics.to_bytes()
            self.services.statistics[self.level, self.producer] = counted
        for sink_name, files in self.sinks.write().items():
            self.control.sinks.setdefault(sink_name, []).extend(files)
        yield from self.outbox.close()

    def control_tuple(self) -> BatchTuple:
        home = self.producer % self.plan.slots if self.slot is None else self.slot
        payload = pa.py_buffer(self.control.to_bytes())
        digest = digest_of(payload)
        return BatchTuple(home, Kind.CONTROL, 0, self.level, self.producer, 0, 0, digest, payload)

    def failed(self, problem: HeadgateError) -> BatchTuple:
        """The answer of a task that hit bad input: only the error, no rows."""
        slots = [] if self.slot is None else [self.slot]
        self.control = Control(
            error=to_record(problem), slots=slots, versions=[self.plan.routing_version]
        )
        return self.control_tuple()


def run_source_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    partition: int,
    batches: Iterable[tuple[int, pa.RecordBatch]],
) -> Iterator[BatchTuple]:
    """Level 0: read one source partition, run what needs no slot, route the rest.

    `batches` are (source number, rows) as the engine reads them.
    """
    task = _Task(program, plan, services, level=0, producer=partition, slot=None)
    try:
        for source, chunk in _chunks(batches):
            _take_in(task, program.sources[source], chunk)
            yield from task.outbox.drain()
        yield from task.close()
    except HeadgateError as problem:
        yield task.failed(problem)
        return
    yield task.control_tuple()


def _chunks(batches: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Join small input batches, so that routing works on many rows at once."""
    held: dict[int, list[pa.RecordBatch]] = {}
    for source, batch in batches:
        if batch.num_rows == 0:
            continue
        parts = held.setdefault(source, [])
        parts.append(batch)
        if (
            sum(p.num_rows for p in parts) >= CHUNK_ROWS
            or sum(p.nbytes for p in parts) >= CHUNK_BYTES
        ):
            yield source, pa.concat_batches(held.pop(source))
    for source, parts in sorted(held.items()):
        yield source, pa.concat_batches(parts)


def _take_in(task: _Task, source: Node, chunk: pa.RecordBatch) -> None:
    start = task.services.clock_ns()
    wanted = task.program.node_schema[source.id]
    try:
        batch = conform(chunk, wanted)
    except (WrongOutput, pa.ArrowException) as problem:
        raise from_exception(problem, source.name, task.plan, task.producer, chunk) from problem
    seen = task.control.source_rows
    lineage = {}
    if ORDER in task.program.lineage:
        first = (task.producer << 40) + sum(seen.values())
        lineage[ORDER] = first + np.arange(batch.num_rows, dtype=np.int64)
    seen[source.name] = seen.get(source.name, 0) + batch.num_rows
    _note_event_time(task, source, batch)
    task.dispatch(source, Rows(batch, lineage))
    for node in task.program.order:
        if node.kind != "source":
            task.run_node(node)
    task.services.timed(0, task.producer, source.name, batch.num_rows, start)


def _note_event_time(task: _Task, source: Node, batch: pa.RecordBatch) -> None:
    if source.spec.event_time is None:
        return
    latest = pc.max(batch.column(source.spec.event_time))
    if latest.is_valid:
        kind = pa.timestamp("us", getattr(latest.type, "tz", None))
        latest_us = latest.cast(kind).cast(pa.int64()).as_py()
        before = task.control.event_time.get(source.name, latest_us)
        task.control.event_time[source.name] = max(before, latest_us)


def run_slot_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    level: int,
    slot: int,
    tuples: Iterable[BatchTuple],
) -> Iterator[BatchTuple]:
    """Level 1 and up: run the slot's operators on what came in; last of all, the control record."""
    task = _SlotTask(program, plan, services, level=level, producer=slot, slot=slot)
    try:
        task.receive(tuples)
        if level == 1:
            stateful.drop_departed(plan, services.store)
        if task.earlier.error is None:
            for node in program.order:
                if node.kind == "stateful":
                    task.run_stateful(node)
                elif node.kind != "source":
                    task.run_node(node)
            yield from task.close()
    except HeadgateError as problem:
        yield task.failed(problem)
        return
    task.control.slots = [slot]
    task.earlier.slots = []
    task.control.absorb(task.earlier)
    yield task.control_tuple()


class _SlotTask(_Task):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.earlier = Control()
        self.carries: dict[int, list[pa.RecordBatch]] = {}
        self.partials: dict[int, list[pa.RecordBatch]] = {}
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
        edge = self.program.graph.edges[item.channel]
        batch = pa.ipc.read_record_batch(item.payload, self.program.wire_schemas[edge.id])
        rows = Rows.from_wire(batch, self.program.lineage)
        if self.program.waits(edge, self.level):
            self.outbox.hold(edge, rows)
        else:
            self.inbox.setdefault(edge.consumer, []).append(rows)

    def run_stateful(self, node: Node) -> None:
        """Open the operator's state if there is work for it; name its new files if it changed."""
        waiting = self.inbox.pop(node.id, [])
        start = self.services.clock_ns()
        rows = self._in_order(node, concat(waiting)) if waiting else None
        if rows is not None and node.name in self.plan.away:
            rows = self._process_away(node, rows)
            start = self.services.clock_ns()
        partials = self.partials.pop(node.id, [])
        works = rows is not None or bool(partials)
        last = self.level == self.program.depth[node.id]
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
        self._processed(node, rows, made, output, keyed)

    def _process_away(self, node: Node, rows: Rows) -> Rows | None:
        """Fold the rows that are away into partials and send these; returns the rows at home."""
        home, gone = away.divide(self.plan, node, rows, self.home)
        if gone is None:
            return home
        start = self.services.clock_ns()
        if self.counting is not None:
            gone = gone.at(node.name, node.key)
        made, output, keyed, partial = self.guard(
            node,
            gone.batch,
            lambda: away.run_away(self.program, self.plan, node, gone, self.dead),
        )
        if partial is not None and partial.num_rows:
            owners = away.owners_of(self.program, self.plan, node, partial)
            self.outbox.partials(node.id, partial, owners)
        self._count_by_slot(self.control.away_rows, node, len(gone))
        self._processed(node, gone, made, output, keyed)
        self.services.timed(self.level, self.home, node.name, len(gone), start)
        return home

    def _processed(
        self, node: Node, rows: Rows, made: Rows | None, output: Output, keyed: KeyedRows
    ) -> None:
        self.count_load(node, len(rows))
        if self.counting is not None:
            self.counting.load(node.name, keyed.groups)
        if output.late:
            self.control.late[node.name] = self.control.late.get(node.name, 0) + output.late
        self._keep_carry(node, output)
        self.dispatch(node, made)

    def _absorb(self, node: Node, partials: list[pa.RecordBatch], session: StateSession) -> None:
        """Merge what other slots made of the rows of this slot's keys."""
        output = self.guard(
            node,
            partials[0],
            lambda: away.run_absorb(self.program, self.plan, node, partials, session, self.dead),
        )
        count = sum(part.num_rows for part in partials)
        self._count_by_slot(self.control.merge_rows, node, count)
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
        return pa.concat_batches(parts) if parts else None

    def _pass_on_carry(self, node: Node) -> None:
        carry = self._carry_of(node)
        if carry is not None:
            self.outbox.carry(node.id, carry)
