"""One task of an epoch: a source partition (level 0) or a slot (level 1 and up).

A slot runs every operator that has input, in topological order. Rows whose next key lives in this
slot pass to the next operator in memory; the rest leave as batch tuples for the next level. A task
is a pure function of its input and the plan (invariant 7): the same tuples give the same bytes and
the same file names. Timings are kept apart, in `Services`, because they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import HeadgateError
from headgate.slot import stateful
from headgate.slot.batch_tuple import BatchTuple
from headgate.slot.failure import I64
from headgate.slot.plan import EpochPlan
from headgate.slot.program import ORDER, Program
from headgate.slot.rows import Rows, joined
from headgate.slot.slot_task import SlotTask
from headgate.slot.stateless import WrongOutput, conform
from headgate.slot.task import Services, Task
from headgate.state.seals import WarmCopyDamaged
from headgate.topology.graph import Node

__all__ = ["Services", "run_slot_task", "run_source_task"]

CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 32 << 20


def run_source_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    partition: int,
    batches: Iterable[tuple[int, pa.RecordBatch]],
) -> Iterator[BatchTuple]:
    """Level 0: read one source partition, run what needs no slot, route the rest.

    Rows that are folded here are folded over all chunks, and the partials sent at the end.

    `batches` are (source number, rows) as the engine reads them.
    """
    task = Task(program, plan, services, level=0, producer=partition, slot=None)
    try:
        for source, chunk in _chunks(batches):
            _take_in(task, program.sources[source], chunk)
            yield from task.outbox.drain()
        for node in task.folding:
            task.send_partials(node)
        yield from task.close()
    except HeadgateError as problem:
        yield task.failed(problem)
        return
    yield task.control_tuple()


def _chunks(batches: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Join small input batches, so that routing works on many rows at once."""
    held: dict[int, list[pa.RecordBatch]] = {}
    rows: dict[int, int] = {}
    size: dict[int, int] = {}
    for source, batch in batches:
        if batch.num_rows == 0:
            continue
        held.setdefault(source, []).append(batch)
        rows[source] = rows.get(source, 0) + batch.num_rows
        size[source] = size.get(source, 0) + batch.nbytes
        if rows[source] >= CHUNK_ROWS or size[source] >= CHUNK_BYTES:
            rows[source] = size[source] = 0
            yield source, joined(held.pop(source))
    for source, parts in sorted(held.items()):
        yield source, joined(parts)


def _take_in(task: Task, source: Node, chunk: pa.RecordBatch) -> None:
    start = task.services.clock_ns()
    wanted = task.program.node_schema[source.id]
    try:
        batch = conform(chunk, wanted)
    except (WrongOutput, pa.ArrowException) as problem:

        def attempt(part: I64) -> None:
            conform(chunk.take(pa.array(part)), wanted)

        raise task.dead.blame(source.name, chunk, problem, attempt) from problem
    seen = task.control.source_rows
    lineage = {}
    if ORDER in task.program.lineage:
        first = (task.producer << 40) + sum(seen.values())
        lineage[ORDER] = first + np.arange(batch.num_rows, dtype=np.int64)
    seen[source.name] = seen.get(source.name, 0) + batch.num_rows
    task.guard(source, batch, lambda: _note_event_time(task, source, batch))
    task.dispatch(source, Rows(batch, lineage))
    for node in task.program.order:
        if node.kind != "source":
            task.run_node(node)
    for node in task.folding:
        if task.folds.is_full(node):
            task.send_partials(node)
    task.services.timed(0, task.producer, source.name, batch.num_rows, start)


def _note_event_time(task: Task, source: Node, batch: pa.RecordBatch) -> None:
    if source.spec.event_time is None:
        return
    latest = pc.max(batch.column(source.spec.event_time))
    if latest.is_valid:
        # Windows count in microseconds: of nanoseconds the rest is left out there too.
        kind = pa.timestamp("us", getattr(latest.type, "tz", None))
        in_us = latest.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
        latest_us = in_us.cast(pa.int64()).as_py()
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
    """Level 1 and up: run the slot's operators on what came in; last of all, the control record.

    A task that meets a damaged warm copy starts over from the committed files.
    """
    received, timings = list(tuples), len(services.timings)
    try:
        yield from _attempt(program, plan, services, level, slot, received)
    except WarmCopyDamaged:
        del services.timings[timings:]
        cold = replace(services, store=services.store.cold())
        yield from _attempt(program, plan, cold, level, slot, received)


def _attempt(
    program: Program,
    plan: EpochPlan,
    services: Services,
    level: int,
    slot: int,
    tuples: list[BatchTuple],
) -> Iterator[BatchTuple]:
    task = SlotTask(program, plan, services, level=level, producer=slot, slot=slot)
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
