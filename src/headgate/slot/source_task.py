"""Level 0: read one source partition, run what needs no slot, route the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64
from headgate.errors import HeadgateError
from headgate.slot.plan import EpochPlan
from headgate.slot.program import ORDER, Program
from headgate.slot.rows import Rows, joined
from headgate.slot.run_operator import WrongOutput, conform
from headgate.slot.task import Services, Task
from headgate.slot.wire import BatchTuple
from headgate.topology.graph import Node

# Small input batches are joined up to here: routing costs less on many rows at once.
CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 32 << 20


def run_source_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    partition: int,
    batches: Iterable[tuple[int, pa.RecordBatch]],
) -> Iterator[BatchTuple]:
    """Send the rows of one partition on their way; last of all, the control record.

    `batches` are (source number, rows) as the engine reads them. Rows that are folded here are
    folded over all chunks, and the partials sent at the end.
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
    task.send_full_partials()
    task.timed(source.name, batch.num_rows, start)


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
