"""Test a flow without a JVM: list source, list sink, hand-moved clock.

The flow runs through the same operator, routing, slot, state and commit code as on Spark, and what
tasks send each other is packed and read as it is there; only the carrier is a Python list. Every
task is run twice and compared, so an operator that is not a pure function of its rows, state and
clock is caught here and not by a failing cluster.

    >>> import headgate as hg
    >>> from headgate.testing import ListSource, run
    >>> flow = hg.Flow("words")
    >>> epochs = [[{"word": "a"}, {"word": "b"}], [{"word": "a"}]]
    >>> words = flow.source(ListSource("word string", epochs))
    >>> words.key_by("word").process(hg.Count(), name="count").to_memory("counts")
    >>> sorted((r["word"], r["count"]) for r in run(flow, slots=2).rows("counts"))
    [('a', 1), ('a', 2), ('b', 1)]
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator
from headgate.commit.epoch_record import EpochResult
from headgate.commit.inspection import check_known, read_state
from headgate.commit.ownership import signer_of
from headgate.commit.planning import Decides
from headgate.commit.settings import Settings
from headgate.control.loop import plan_with
from headgate.control.settings import Manager, Scaling
from headgate.errors import DeclarationError, HeadgateError
from headgate.routing.table import RoutingTable
from headgate.slot.compile import check_travels, compile_flow
from headgate.slot.file_rows import files_of, read_pieces
from headgate.slot.plan import WARM_OFF, Control, EpochPlan
from headgate.slot.program import Program, ttl_ms
from headgate.slot.rows import SourceRows
from headgate.slot.sink_files import with_folder_columns
from headgate.slot.slot_task import run_slot_task
from headgate.slot.statistics import TaskStatistics
from headgate.slot.task import Services, run_source_task
from headgate.slot.wire import BatchTuple, Kind, decode, encode
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.topology.arguments import absolute, check_count
from headgate.topology.builder import FlowBuilder
from headgate.topology.files import Files, InputFile, pieces_of
from headgate.topology.graph import Node
from headgate.topology.schema import SchemaLike, to_schema

__all__ = ["ImpureTask", "ListSource", "LocalRun", "ManualClock", "run"]


class ImpureTask(HeadgateError):
    """A task run twice on the same input did not send the same bytes."""


class ListSource:
    """Rows for each epoch, as lists of dicts or Arrow tables."""

    def __init__(self, schema: SchemaLike, epochs: Sequence[Any]) -> None:
        self.schema = to_schema(schema)
        self.epochs = [self._table(rows) for rows in epochs]

    def _table(self, rows: Any) -> pa.Table:
        if isinstance(rows, pa.Table):
            return rows
        return pa.Table.from_pylist(list(rows), schema=self.schema)


@dataclass
class ManualClock:
    """Processing time that moves only when told to."""

    now_ms: int = 0

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class LocalRun:
    """A finished run: sink rows, state, journal records."""

    coordinator: Coordinator
    outputs: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    statistics: list[TaskStatistics] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(out)} rows of {sink}" for sink, out in self.outputs.items())
        epochs = sum(record.get("kind") == "epoch" for record in self.journal)
        flow = self.coordinator.program.graph.name
        return f"<LocalRun of {flow!r}: {epochs} epochs; {rows or 'no sink got rows'}>"

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """All rows a sink got, in order of epochs."""
        program = self.coordinator.program
        check_known(program.graph.name, "sink", sink, [node.name for node in program.sinks])
        return [row for _, row in self.outputs.get(sink, [])]

    def state(self, operator: str) -> list[dict[str, Any]]:
        """Every live state row of an operator after the last epoch, over all slots."""
        flow = self.coordinator.program.graph.name
        check_known(flow, "stateful operator", operator, self.states)
        return self.states[operator]

    def _read_state(self, node: Node) -> list[dict[str, Any]]:
        at = self.coordinator
        schema, ttl = at.program.state_schemas[node.id], ttl_ms(node.spec)
        found = read_state(
            at.checkpoint, at.last, node.name, schema, buckets=at.buckets, ttl_ms=ttl
        )
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def run(
    flow: FlowBuilder,
    *,
    slots: int = 2,
    partitions: int = 2,
    checkpoint: str | Path | None = None,
    clock: Callable[[], int] | None = None,
    tables: dict[str, RoutingTable] | None = None,
    check_purity: bool = True,
    seed: int = 0,
    before_epoch: Callable[[int], None] | None = None,
    manager: Manager | Decides | None = None,
    scaling: Scaling | None = None,
    input_ends: bool = False,
    ticks: int = 0,
    parallelism: Mapping[str, int] | None = None,
    **settings: Any,
) -> LocalRun:
    """Run all epochs of the flow's list sources and files; goes on after those of the checkpoint.

    A `manager` plans between two epochs here, not beside them, so that a run can be repeated. It
    may change `slots` within `scaling`, if it places units.
    `input_ends`: the last epoch closes all windows, as a batch DataFrame does on Spark.
    `ticks`: so many epochs without rows follow, as on a stream that falls idle; the first of them
    closes the windows that the last rows completed. `parallelism` is that of `Flow.start`,
    `settings` are those of `hg.Options`.
    """
    partitions = check_count(partitions, "partitions=")
    flow.check_outlet()
    graph = flow.graph(parallelism or {})
    sources = graph.of_kind("source")
    for node in sources:
        if not isinstance(node.spec.frame, ListSource | Files):
            raise DeclarationError(
                f"source {node.own_name!r} is neither a ListSource nor Files; run() needs those"
            )
    program = compile_flow(graph)
    check_travels(program)
    given_epochs = [_epochs(number, node) for number, node in enumerate(sources)]
    epochs = max(map(len, given_epochs), default=0)
    if input_ends:
        settings["last_epoch"] = epochs - 1
    settings.setdefault("durable", checkpoint is not None)  # a scratch folder need not survive
    given = Settings(slots=slots, tables=tables or {}, **settings)
    functions = {n.name: n.spec.target for n in graph.of_kind("sink") if n.spec.kind == "function"}
    with tempfile.TemporaryDirectory() as scratch:
        signer = signer_of(given.key, trust_unsigned=given.trust_unsigned)
        place = Checkpoint(absolute(checkpoint or Path(scratch) / "checkpoint"), signer)
        outputs: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        sink_uris = {n.name: place.sinks.child(n.name).uri for n in program.sinks}

        def deliver(sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
            kept = [x for x in outputs.get(sink.name, []) if x[0] != epoch]
            for file in files:
                written = _written(Storage.at(sink_uris[sink.name]), file["name"], sink)
                kept += [(epoch, row) for row in written]
            outputs[sink.name] = kept
            if sink.name in functions:
                functions[sink.name]([row for at, row in kept if at == epoch], epoch)

        coordinator = Coordinator(
            program,
            place,
            given,
            deliver,
            clock_ms=clock or ManualClock(),
            sink_uris=sink_uris,
            planning=plan_with(manager, program, slots, scaling=scaling, beside=False),
        )
        done = LocalRun(coordinator, outputs)
        program = coordinator.program

        def run_tasks(plan: EpochPlan, inputs: Any = ()) -> EpochResult:
            engine = LocalEngine(program, check_purity=check_purity, seed=seed + plan.epoch)
            result = engine.run(plan, inputs)
            done.statistics += result.statistics
            return result

        coordinator.settle()
        first = 0 if coordinator.last is None else coordinator.last.batch
        for batch in range(first, epochs):
            if before_epoch is not None:
                before_epoch(batch)
            feed = partial(run_tasks, inputs=_partitions(program, given_epochs, batch, partitions))
            done.records.append(coordinator.run_epoch(batch, "local", feed).to_json())
        for _ in range(ticks if epochs else 0):
            done.records.append(coordinator.tick(run_tasks, silent=True).to_json())
        done.journal = coordinator.journal.read()
        done.states = {n.name: done._read_state(n) for n in program.stateful}
        return done


class LocalEngine:
    """The shuffle as a list: source tasks, then one round of slot tasks per level."""

    def __init__(self, program: Program, *, check_purity: bool = True, seed: int = 0) -> None:
        self.program = program
        self.check_purity = check_purity
        self.random = random.Random(seed)

    def run(
        self, plan: EpochPlan, inputs: Sequence[list[tuple[int, pa.RecordBatch]]]
    ) -> EpochResult:
        store = StateStore(
            Storage.at(plan.storage_uri),
            warm_dir=None if plan.warm_dir == WARM_OFF else plan.warm_dir,
            buckets=plan.buckets,
            strong_digests=plan.signed,
            identity=plan.identity,
        )
        services = Services(store)
        sent: list[BatchTuple] = []
        for partition, batches in enumerate(inputs):
            sent += self._task(
                partial(run_source_task, self.program, plan, services, partition, batches)
            )
        for level in range(1, self.levels(plan) + 1):
            by_slot: dict[int, list[BatchTuple]] = {slot: [] for slot in plan.slots_at(level)}
            for item in self._arrived(plan, sent):
                by_slot[item.slot].append(item)
            sent = []
            for slot, received in by_slot.items():
                self.random.shuffle(received)
                sent += self._task(
                    partial(run_slot_task, self.program, plan, services, level, slot, received)
                )
        last = self._arrived(plan, sent)
        controls = [Control.from_bytes(t.payload) for t in last if t.kind == Kind.CONTROL]
        counted = [TaskStatistics.from_bytes(d) for _, d in sorted(services.statistics.items())]
        return EpochResult(controls, services.timings, statistics=counted)

    def levels(self, plan: EpochPlan) -> int:
        """How many rounds of slot tasks the epoch takes."""
        return len(plan.at_work) or self.program.levels

    def _task(self, attempt: Callable[[], Iterable[BatchTuple]]) -> list[BatchTuple]:
        sent = list(attempt())
        again = list(attempt()) if self.check_purity else sent
        if [(t.order, t.payload) for t in sent] != [(t.order, t.payload) for t in again]:
            level, producer = sent[0].level, sent[0].producer
            raise ImpureTask(
                f"a task (level {level}, task {producer}) run twice on the same input sent "
                "different bytes: an operator depends on something other than its rows, state and "
                "clock",
                level=level,
                producer=producer,
            )
        return sent

    def _arrived(self, plan: EpochPlan, sent: list[BatchTuple]) -> list[BatchTuple]:
        """What arrives of what all tasks of a level sent, read back from Spark's own rows."""
        labels = list(range(plan.slots))
        return [item for batch in encode(sent, labels) for item in decode(batch)]


def _written(storage: Storage, name: str, sink: Node) -> list[dict[str, Any]]:
    """The rows of a file, with the columns that its folders tell."""
    table = pq.read_table(pa.py_buffer(storage.read(name)))
    if "/" in name:
        table = with_folder_columns(table, name, sink.spec.written(sink.schema))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _epochs(number: int, node: Node) -> Sequence[Any]:
    """What each epoch takes in: a table, or files; of those that are there, oldest first."""
    source = node.spec.frame
    if isinstance(source, ListSource):
        return source.epochs
    files, limit = source.list(number), source.max_files
    step = limit or max(1, len(files))
    if source.max_bytes is None:
        return [files[at : at + step] for at in range(0, len(files), step)]
    epochs: list[list[InputFile]] = []
    for file in files:
        held = sum(f.size for f in epochs[-1]) if epochs else source.max_bytes
        if held + file.size > source.max_bytes:
            epochs.append([])
        epochs[-1].append(file)
    return epochs


def _partitions(
    program: Program, epochs: Sequence[Sequence[Any]], epoch: int, partitions: int
) -> list[list[SourceRows]]:
    """Deal each source's rows of an epoch into partitions, in consecutive pieces."""
    dealt: list[list[SourceRows]] = [[] for _ in range(partitions)]
    sources = files_of(program)
    for number, given in enumerate(epochs):
        for rows in given[epoch : epoch + 1]:
            if number in sources:
                pieces = pieces_of(rows, sources, partitions, least_bytes=1)
                for into, part in zip(dealt, pieces, strict=False):
                    into += read_pieces(program, part)
                continue
            step = max(1, -(-rows.num_rows // partitions))
            for partition, into in enumerate(dealt):
                piece = rows.slice(partition * step, step).combine_chunks()
                into += [SourceRows(number, batch) for batch in piece.to_batches()]
    return dealt
