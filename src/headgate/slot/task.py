"""A task: run operators, pass rows on, answer with a record. The source tasks of level 0.

A task is a pure function of its input and the plan (invariant 7): the same tuples give the same
bytes and the same file names. Timings and statistics are not; they are kept apart, in `Services`,
and never cross an exchange.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64
from headgate.errors import HeadgateError
from headgate.operator.base import Output
from headgate.operator.rows import KeyedRows, Partials
from headgate.slot.cost_memory import Place, tell
from headgate.slot.cost_timing import COST, CostTiming, without_cost
from headgate.slot.failure import DeadLetters, from_exception, to_record
from headgate.slot.latency import ages_in_bins
from headgate.slot.outbox import Outbox
from headgate.slot.parking import Parking
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import ORDER, Program
from headgate.slot.report import Moment, Timing, moment, spent_between
from headgate.slot.rows import Rows, SourceRows, by_origin, joined
from headgate.slot.run_operator import StatefulRunner, WrongOutput, conform, run_stateless
from headgate.slot.side_table import bound
from headgate.slot.sink_files import SinkFiles
from headgate.slot.statistics import Counting, TaskStatistics
from headgate.slot.wire import BatchTuple, Kind, digest_of
from headgate.state.session import PrivateSession, StateSession
from headgate.state.store import StateStore
from headgate.topology.graph import Edge, Node
from headgate.topology.late import LateRows
from headgate.topology.lookup import Lookup

# A source task may read without end: it sends its partials when it has so many.
KEYS_MAX = 1_000_000
BYTES_MAX = 256 << 20
# Its small input batches are joined up to here: routing costs less on many rows at once.
CHUNK_ROWS = 1 << 19
CHUNK_BYTES = 32 << 20


@dataclass
class Services:
    """What a task needs from its process, and what it reports apart from rows."""

    store: StateStore
    clock_ns: Callable[[], int] = time.perf_counter_ns
    timings: list[Timing] = field(default_factory=list)
    statistics: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def now(self) -> Moment:
        return moment(self.clock_ns())

    def timed(self, level: int, producer: int, name: str, rows: int, start: Moment) -> None:
        spent = spent_between(start, self.now())
        self.timings.append(Timing(level, producer, name, rows, *spent))


class Task:
    """One task of an epoch; `slot` is None in a source task, which lives in no slot."""

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
        self.counting: Counting | None = None
        if slot is not None and plan.statistics_bytes:
            self.counting = Counting(
                slot,
                plan.statistics_bytes,
                operators=len(program.stateful),
                edges=len(program.key_pairs),
                units={op: plan.routes[op].table for op in plan.unit_statistics},
                by_key=frozenset(program.operators(lambda may: may.be_cut)),
            )
        self.parking = Parking(program, plan, slot)
        self.outbox = Outbox(
            program,
            plan,
            self.control,
            self.counting,
            self.parking,
            level=level,
            producer=producer,
            slot=slot,
        )
        self.sinks = SinkFiles(
            {sink.name: sink.spec for sink in program.sinks}, plan, level, producer
        )
        takes_dead = program.graph.dead_letters is not None
        self.dead = DeadLetters(plan, producer, wanted=takes_dead)
        self.stateful = StatefulRunner(program, plan, self.dead)
        self.inbox: dict[int, list[Rows]] = {}
        self._folded: dict[int, StateSession] = {}  # by operator, of rows folded away from home
        self._timing = CostTiming(program, plan, services.clock_ns, slot)
        self._bound: dict[int, Node] = {}  # lookups, with the tables that the plan names

    def dispatch(self, node: Node, rows: Rows | None) -> None:
        """Hand an operator's output to all its consumers."""
        if rows is None or not len(rows):
            return
        group = rows.lineage.get(COST)
        if group is not None:
            rows = without_cost(rows)
        for edge, staying in self.outbox.dispatch(node.id, rows):
            mine = self.program.received(edge, staying)
            if group is not None and self._timing.goes_on(edge):
                mine = replace(mine, lineage={**mine.lineage, COST: group})
            self.take_in(edge, staying, mine)

    def take_in(self, edge: Edge, rows: Rows, mine: Rows) -> None:
        """Lay rows of an edge, as its consumer gets them, before the consumer."""
        self.inbox.setdefault(edge.consumer, []).append(mine)

    def run_node(self, node: Node) -> None:
        """Run a sink, an operator without state, or one whose rows are folded here."""
        waiting = self.inbox.pop(node.id, None)
        if not waiting:
            return
        if node.kind == "sink":
            for rows in waiting:
                self.sinks.add(node.name, self.parking.whole(node, rows))
            return
        run = self.fold if self.plan.folds_here(node.name) else self._run_stateless
        for rows in by_origin(waiting):
            run(node, self.parking.whole(node, rows))

    def _run_stateless(self, node: Node, rows: Rows) -> None:
        start = self.services.now()
        if isinstance(node.spec.function, Lookup):
            node = self._with_table(node, node.spec.function)
        elif isinstance(node.spec.function, LateRows):
            late = node.spec.function.at(self.plan.clock_of(node.spec.function.of))
            node = replace(node, spec=replace(node.spec, function=late))
        run = self._timing.run if self._timing.measures(node) else run_stateless
        with self.guard(node, rows.batch):
            made = run(node, rows, self.dead)
        self.timed(node.name, len(rows), start)
        self.count_load(node, len(rows))
        self.dispatch(node, made)

    def _with_table(self, node: Node, lookup: Lookup) -> Node:
        if node.id not in self._bound:
            plan = self.plan
            table = plan.side_tables[node.name]
            function = bound(lookup, plan.side_tables_uri, table, node.name)
            self._bound[node.id] = replace(node, spec=replace(node.spec, function=function))
        return self._bound[node.id]

    # --- rows folded away from home ----------------------------------------------------------
    # A task keeps one private state per operator and folds into it whatever rows of that operator
    # come by. What it holds at the end goes to the owners, one partial per key: at most as many as
    # the task saw keys, whatever the number of rows.

    @property
    def folding(self) -> list[Node]:
        """The operators whose rows are folded where they are, whoever owns their keys."""
        return [node for node in self.program.stateful if self.plan.folds_here(node.name)]

    def fold(self, node: Node, rows: Rows) -> KeyedRows:
        """Fold rows into the task's own state; pass on what is made of them."""
        start = self.services.now()
        if node.id not in self._folded:
            schema = self.program.state_schemas[node.id]
            self._folded[node.id] = PrivateSession(schema, self.plan.identity)
        with self.guard(node, rows.batch):
            made, output, keyed = self.stateful.process(node, rows, self._folded[node.id])
        self.count_load(node, len(rows))
        self.count_by_slot(self.control.away_rows, node, len(rows))
        self.count_late(node, output)
        self.timed(node.name, len(rows), start)
        self.dispatch(node, made)
        return keyed

    def send_full_partials(self) -> None:
        """After a chunk: send what has grown too large, and make the others ready for the next."""
        for node in self.folding:
            session = self._folded.get(node.id)
            if session is None:
                continue
            session.forget_changes()  # they refer to the chunk's rows
            if session.rows > KEYS_MAX or session.bytes > BYTES_MAX:
                self.send_partials(node)

    def send_partials(self, node: Node) -> None:
        """What an operator's rows have come to in this task, to the owners of the keys."""
        session = self._folded.pop(node.id, None)
        if session is None:
            return
        with session:
            batch = session.all().batch()
        if batch.num_rows:
            h = Partials(batch, self.program.state_schemas[node.id]).route
            self.outbox.partials(node.id, batch, self.plan.routes[node.name].table.route(h))

    # --- what the task tells ------------------------------------------------------------------

    def timed(self, name: str, rows: int, start: Moment) -> None:
        self.services.timed(self.level, self.producer, name, rows, start)

    def count_late(self, node: Node, output: Output) -> None:
        if output.late:
            self.control.late[node.name] = self.control.late.get(node.name, 0) + output.late

    def count_load(self, node: Node, rows: int) -> None:
        if self.slot is not None:
            self.count_by_slot(self.control.loads, node, rows)

    def count_by_slot(self, counts: dict[str, dict[str, int]], node: Node, rows: int) -> None:
        by_slot = counts.setdefault(node.name, {})
        slot = "source" if self.slot is None else str(self.slot)
        by_slot[slot] = by_slot.get(slot, 0) + rows

    @contextmanager
    def guard(self, node: Node, sample: pa.RecordBatch | None) -> Iterator[None]:
        """Runs user code; whatever it raises becomes an error that names operator and place."""
        try:
            yield
        except Exception as problem:
            raise from_exception(problem, node.name, self.plan, self.producer, sample) from problem

    def close(self) -> Iterator[BatchTuple]:
        """Write sink files and send what is left; the control record is the last to leave."""
        letters = self.dead.batch()
        if letters is not None and self.program.graph.dead_letters is not None:
            sink = self.program.graph.nodes[self.program.graph.dead_letters]
            self.sinks.add(sink.name, Rows(letters))
            self.control.dead = dict(self.dead.counts)
        if self.counting is not None or self._timing.spent:
            counted = TaskStatistics(self.producer)
            if self.counting is not None:
                counted = self.counting.statistics
            self._tell_costs(counted)
            self.services.statistics[self.level, self.producer] = counted.to_bytes()
        for sink_name, files in self.sinks.write().items():
            self.control.sinks.setdefault(sink_name, []).extend(files)
        yield from self.outbox.close()

    def _tell_costs(self, counted: TaskStatistics) -> None:
        """What rows took; the sketches of it only if they are due to be sent."""
        counted.spent |= self._timing.spent
        if self.slot is None:
            return
        for operator, sketch in self._timing.sketches.items():
            place = Place(self.plan, operator, self.slot, self.level)
            told = tell(self.services.store, place, sketch)
            if told.sent is not None:
                counted.costs[operator] = told.sent
            if not told.settled:
                counted.unsettled.add(operator)

    def answer(self, problem: HeadgateError | None = None) -> BatchTuple:
        """The control record; of a task that hit bad input only the error."""
        if problem is not None:
            return failed_task(self.plan, self.level, self.producer, self.slot, problem)
        return _control_tuple(self.plan, self.level, self.producer, self.control)


def failed_task(
    plan: EpochPlan, level: int, producer: int, slot: int | None, problem: HeadgateError
) -> BatchTuple:
    """The answer of a task that cannot do its work: only the error, no rows."""
    tasks = [] if slot is None else [[level, slot]]
    control = Control(error=to_record(problem), tasks=tasks, versions=[plan.routing_version])
    return _control_tuple(plan, level, producer, control)


def _control_tuple(plan: EpochPlan, level: int, producer: int, control: Control) -> BatchTuple:
    home = plan.record_goes_to(level, producer)
    payload = pa.py_buffer(control.to_bytes())
    digest = digest_of(payload)
    return BatchTuple(home, Kind.CONTROL, 0, level, producer, 0, 0, digest, payload)


# --- level 0: read one source partition, run what needs no slot, route the rest -------------------


def run_source_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    partition: int,
    batches: Iterable[SourceRows | tuple[int, pa.RecordBatch]],
) -> Iterator[BatchTuple]:
    """Send the rows of one partition on their way; last of all, the control record.

    `batches` are (source number, rows) as the engine reads them. Rows that are folded here are
    folded over all chunks, and the partials sent at the end.
    """
    task = Task(program, plan, services, level=0, producer=partition, slot=None)
    try:
        for source, chunk, places in _chunks(batches, ORDER in program.lineage):
            _take_in(task, program.sources[source], chunk, places)
            yield from task.outbox.drain()
        for node in task.folding:
            task.send_partials(node)
        yield from task.close()
    except HeadgateError as problem:
        yield task.answer(problem)
        return
    yield task.answer()


def _chunks(
    batches: Iterable[SourceRows | tuple[int, pa.RecordBatch]], ordered: bool
) -> Iterator[tuple[int, pa.RecordBatch, I64 | None]]:
    """(source number, rows, their places in the epoch if pieces have numbers)."""
    held: dict[int, list[pa.RecordBatch]] = {}
    places: dict[int, list[I64]] = {}
    in_piece: Counter[int] = Counter()
    rows: dict[int, int] = {}
    size: dict[int, int] = {}

    def chunk(source: int) -> tuple[int, pa.RecordBatch, I64 | None]:
        known = np.concatenate(places.pop(source)) if source in places else None
        return source, joined(held.pop(source)), known

    for source, batch, number in (SourceRows(*given) for given in batches):
        if batch.num_rows == 0:
            continue
        held.setdefault(source, []).append(batch)
        if ordered and number is not None:
            at = (number << 32) + in_piece[number] + np.arange(batch.num_rows, dtype=np.int64)
            places.setdefault(source, []).append(at)
            in_piece[number] += batch.num_rows
        rows[source] = rows.get(source, 0) + batch.num_rows
        size[source] = size.get(source, 0) + batch.nbytes
        if rows[source] >= CHUNK_ROWS or size[source] >= CHUNK_BYTES:
            rows[source] = size[source] = 0
            yield chunk(source)
    for source in sorted(held):
        yield chunk(source)


def _take_in(task: Task, source: Node, chunk: pa.RecordBatch, places: I64 | None) -> None:
    start = task.services.now()
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
        if places is None:
            places = first + np.arange(batch.num_rows, dtype=np.int64)
        lineage[ORDER] = places
    seen[source.own_name] = seen.get(source.own_name, 0) + batch.num_rows
    with task.guard(source, batch):
        _note_event_time(task, source, batch)
    _note_ages(task, source, batch)
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
        before = task.control.event_time.get(source.own_name, latest_us)
        task.control.event_time[source.own_name] = max(before, latest_us)


def _note_ages(task: Task, source: Node, batch: pa.RecordBatch) -> None:
    if source.spec.arrival is not None:
        arrivals, ages = batch.column(source.spec.arrival), task.control.ages
        for name, rows in ages_in_bins(arrivals, task.plan.clock.now_ms).items():
            ages[name] = ages.get(name, 0) + rows
