"""Level 1 and up: a slot takes in what was sent to it and runs its operators.

Every operator that has input runs, in topological order. Rows whose next key lives in this slot
pass to the next operator in memory; the rest leave as batch tuples for the next level. An
operator's state is opened at most once per level, if there is work for it: units that move,
partials to merge, rows to process, or the end of its epoch.

State that changes owner is fetched by the slot that gains it, from the committed files of the slot
that loses it, before the first row is processed; the loser drops it in the same epoch. Both follow
from the two tables alone, so every attempt does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.arrays import Bools
from headgate.errors import CustodyMismatch, HeadgateError
from headgate.operator.base import Output
from headgate.operator.rows import EpochClock, partial_schema
from headgate.operator.timers import Timers
from headgate.routing.hashing import bucket_of
from headgate.routing.route import Route, ToOwner
from headgate.slot.held_back import (
    NEVER,
    TIMERS,
    WAITING,
    Due,
    HeldBack,
    Waiting,
    is_due,
    table_of,
)
from headgate.slot.narrow import read
from headgate.slot.plan import Control, EpochPlan, add_counts, pair
from headgate.slot.program import ORDER, Program, is_ordered, ttl_ms
from headgate.slot.report import MOVING
from headgate.slot.rows import PARKED, Rows, concat, in_order, joined
from headgate.slot.run_operator import WrongOutput
from headgate.slot.sharing import AT
from headgate.slot.statistics import STATE_POSITIONS
from headgate.slot.task import Services, Task
from headgate.slot.unit_times import UnitTimes
from headgate.slot.wire import BatchTuple, Kind, digest_of
from headgate.state.layout import StateSchema
from headgate.state.seals import WarmCopyDamaged
from headgate.state.session import StateSession
from headgate.state.state_file import Chain, StateFile
from headgate.topology.graph import Edge, Node

ROUNDS_MAX = 10_000  # of timers that set timers that are due already


def run_slot_task(
    program: Program,
    plan: EpochPlan,
    services: Services,
    level: int,
    slot: int,
    tuples: Iterable[BatchTuple],
) -> Iterator[BatchTuple]:
    """Run the slot's operators on what came in; last of all, the control record.

    A task that meets a damaged warm copy starts over from the committed files.
    """
    received, timings = list(tuples), len(services.timings)
    try:
        yield from SlotTask(program, plan, services, level, slot).run(received)
    except WarmCopyDamaged:
        del services.timings[timings:]
        cold = replace(services, store=services.store.cold())
        yield from SlotTask(program, plan, cold, level, slot).run(received)


class SlotTask(Task):
    """A slot in one level: its rows, its partials, and the records of its earlier levels."""

    def __init__(
        self, program: Program, plan: EpochPlan, services: Services, level: int, slot: int
    ) -> None:
        super().__init__(program, plan, services, level=level, producer=slot, slot=slot)
        self.home = slot
        self.earlier = Control()
        self.carries: dict[int, list[pa.RecordBatch]] = {}
        self.partials: dict[int, list[pa.RecordBatch]] = {}
        self._arriving: dict[tuple[int, int, int], list[Rows]] = {}  # by edge, level, producer
        self._unit_times: UnitTimes | None = None
        if self.counting is not None:
            self._unit_times = UnitTimes(plan, self.counting, services.clock_ns)

    def run(self, tuples: Iterable[BatchTuple]) -> Iterator[BatchTuple]:
        """One attempt at the task: what it sends."""
        try:
            self.receive(tuples)
            if self.level == 1:
                self._drop_departed()
            if self.earlier.error is None:
                for node in self.program.order:
                    if node.kind == "stateful":
                        self.run_stateful(node)
                    elif node.kind != "source":
                        self.run_node(node)
                if self._unit_times is not None and self.level == 1:
                    self._unit_times.measure_host()
                yield from self.close()
        except HeadgateError as problem:
            yield self.answer(problem)
            return
        self.control.tasks = [[self.level, self.home]]
        self.control.absorb(self.earlier)
        yield self.answer()

    # --- input ---------------------------------------------------------------------------------

    def receive(self, tuples: Iterable[BatchTuple]) -> None:
        """Sort the input, check every digest, and lay rows out by consumer.

        The record of the slot's own earlier level must be there, and nothing may arrive twice: if a
        task's whole output were lost or doubled together with its record, the sums would still
        agree. (Records of slots that have no task here any more are missed by the driver.)
        """
        before: tuple[int, ...] = ()
        heard_of_itself = self.level == 1 or self.home not in self.plan.slots_at(self.level - 1)
        for item in sorted(tuples, key=lambda t: t.order):
            sender = f"task {item.producer} of level {item.level}"
            if item.order == before:
                raise self._mismatch(f"a tuple of {sender} arrived twice")
            before = item.order
            if item.slot != self.slot:
                raise self._mismatch(f"a tuple for slot {item.slot} of {sender} arrived")
            if item.kind == Kind.CONTROL:
                self.earlier.absorb(Control.from_bytes(item.payload))
                heard_of_itself |= (item.level, item.producer) == (self.level - 1, self.home)
                continue
            if digest_of(item.payload, item.widths) != item.digest:
                raise self._mismatch(f"a payload from {sender} arrived changed")
            key = pair(item.level, item.producer, self.home)
            counts = [1, item.rows, item.seal, item.payload.size]
            add_counts(self.control.received, key, counts)
            self._lay_out(item)
        for place in sorted(self._arriving):
            parts = self._arriving.pop(place)
            edge = self.program.graph.edges[place[0]]
            for rows in parts if AT not in parts[0].lineage else [in_order(parts, AT)]:
                if self.program.waits(edge, self.level):
                    self.outbox.put(edge, self.home, rows)
                else:
                    self.take_in(edge, rows, self.program.received(edge, rows))
        if not heard_of_itself:
            raise self._mismatch(f"no record of its own level {self.level - 1} arrived")

    def _mismatch(self, what: str) -> CustodyMismatch:
        return CustodyMismatch(
            f"{what} in slot {self.slot}, level {self.level}, epoch {self.plan.epoch}",
            slot=self.slot,
            epoch=self.plan.epoch,
        )

    def _lay_out(self, item: BatchTuple) -> None:
        program, place = self.program, (item.level, item.producer)
        match item.kind:
            case Kind.CARRY:
                schema = program.carry_schema(program.graph.nodes[item.channel])
                batch = pa.ipc.read_record_batch(item.payload, schema)
                self.carries.setdefault(item.channel, []).append(batch)
            case Kind.PARTIAL:
                schema = partial_schema(program.state_schemas[item.channel])
                batch = read(item.payload, schema, item.widths)
                self.partials.setdefault(item.channel, []).append(batch)
            case Kind.SHARED:
                # These wait, for each edge they are for, until all cells of their producer are in.
                group = program.shared_channels[item.channel]
                batch = read(item.payload, program.shared_schema(group), item.widths)
                rows = Rows.from_wire(batch, (*program.lineage, AT))
                for edge in group.edges_of(item.channel):
                    mine = rows.select(program.edge_columns[edge.id])
                    self._arriving.setdefault((edge.id, *place), []).append(mine)
            case Kind.PARKED:
                batch = read(item.payload, program.parked_schema(item.channel), item.widths)
                rows = Rows.from_wire(batch, (*program.lineage, *PARKED))
                self._arriving.setdefault((item.channel, *place), []).append(rows)
            case _:
                batch = read(item.payload, program.wire_schemas[item.channel], item.widths)
                rows = Rows.from_wire(batch, program.lineage)
                self._arriving.setdefault((item.channel, *place), []).append(rows)

    def take_in(self, edge: Edge, rows: Rows, mine: Rows) -> None:
        """Lay rows before their consumer; those that may wait for its last level are sent there."""
        waits = self._may_wait(edge, rows)
        if waits is not None and waits.any():
            self.outbox.put(edge, self.home, rows.take(np.flatnonzero(waits)))
            if waits.all():
                return
            mine = self.program.received(edge, rows.take(np.flatnonzero(~waits)))
        super().take_in(edge, rows, mine)

    def _may_wait(self, edge: Edge, rows: Rows) -> Bools | None:
        node = self.program.graph.nodes[edge.consumer]
        if node.kind != "stateful" or self.level >= self._end_of(node):
            return None
        if PARKED[0] in rows.lineage:
            return None  # what it goes by may be in a file
        with self.guard(node, rows.batch):
            clock = self.plan.clock_of(node.name)
            waits: Bools | None = node.spec.may_wait(rows.batch, edge.side, clock)
            return waits

    def _end_of(self, node: Node) -> int:
        """The level in which an operator has all of its epoch."""
        usual = self.program.end_level(node, self.plan.routes[node.name].dispatch)
        return self.plan.ends.get(node.name, usual)

    # --- a stateful operator -------------------------------------------------------------------

    def run_stateful(self, node: Node) -> None:
        """Open the operator's state if there is work for it; name its new files if it changed."""
        route = self.plan.routes[node.name]
        if self.plan.folds_here(node.name):
            self.run_node(node)
            self.send_partials(node)
        if route.slots and self.home not in route.slots:
            assert not self.inbox.get(node.id) and node.id not in self.partials, node.name
            return  # it has no instance here
        start = self.services.now()
        rows, away = self._arrived(node, route)
        if away is not None:
            self._fold_away(node, away)
            start = self.services.now()
        partials = self.partials.pop(node.id, [])
        works = rows is not None or bool(partials)
        last = self.level == self._end_of(node)
        sweeps = node.spec.ends_epochs or node.spec.ttl is not None
        sweeps |= node.holds_back and is_due(self._due_before(node), self._clock_of(node))
        finishes = last and (works or sweeps or self._has_worked(node))
        moves = self.plan.moves.get(node.name) if self.level == 1 else None
        if not works and not finishes and not moves:
            self._pass_on_carry(node)
            return
        chain = self._chain_of(node.name)
        with ExitStack() as opened:
            session = opened.enter_context(self._open_state(node, chain))
            held = self._open_beside(node, opened)
            session.beside = {} if held is None else held.own
            if moves:
                moving = self.services.now()
                gained = self._migrate(
                    node, node.name, self.program.state_schemas[node.id], session
                )
                for table, schema, beside in self._beside(node, held):
                    gained += self._migrate(node, table, schema, beside)
                self.control.moved[node.name] = gained
                self.timed(MOVING + node.name, gained, moving)
            if partials:
                self._absorb(node, partials, session)
            if held is not None and held.waiting is not None:
                rows = self._in_order(node, rows, held, finishes)
            if rows is not None:
                session.timers = None if held is None else held.timers
                self._process(node, rows, session, is_last=last)
            if finishes and held is not None:
                self._fire(node, held, session)
            if finishes:
                with self.guard(node, None if rows is None else rows.batch):
                    made = self.stateful.finish(node, session, self._carry_of(node))
                self.dispatch(node, made)
            else:
                self._pass_on_carry(node)
            if self.counting is not None and self.counting.counts_units(node.name):
                routes = session.sample_routes(STATE_POSITIONS)
                self.counting.state(node.name, routes, session.rows)
            after = session.commit()
            if held is not None:
                self._commit_beside(node, held)
            # Bytes of the files: what the table takes in memory depends on the attempt's past.
            facts = [session.rows, sum(file.bytes for file in after)]
        if after is not chain:
            files = [file.to_json() for file in after]
            self.control.chains.setdefault(node.name, {})[str(self.home)] = files
        self.control.state.setdefault(node.name, {})[str(self.home)] = facts
        self.timed(node.name, 0 if rows is None else len(rows), start)

    def _arrived(self, node: Node, route: Route) -> tuple[Rows | None, Rows | None]:
        """Rows to process on this slot's state, and rows to fold away from home; None for none."""
        waiting = self.inbox.pop(node.id, [])
        if not waiting:
            return None, None
        rows = self.parking.whole(node, concat(waiting))
        if is_ordered(node) and ORDER in rows.lineage:
            rows = rows.take(np.argsort(rows.lineage[ORDER], kind="stable").astype(np.int64))
        if isinstance(route.dispatch, ToOwner):
            return rows, None
        rows = rows.hashed_by(node.key)
        owned = route.table.route(rows.hashes_by(node.key)) == self.home
        if owned.all():
            return rows, None
        if not owned.any():
            return None, rows
        return rows.take(np.flatnonzero(owned)), rows.take(np.flatnonzero(~owned))

    def _fold_away(self, node: Node, rows: Rows) -> None:
        """Fold rows that were sent here for their key, though another slot owns it."""
        if self.counting is None:
            self.fold(node, rows)
        else:
            keyed = self.fold(node, rows.at(node.name, node.key))
            self.counting.load(node.name, keyed.groups)
        self.send_partials(node)

    def _process(self, node: Node, rows: Rows, session: StateSession, *, is_last: bool) -> None:
        def work(part: Rows) -> Rows | None:
            return self._process_part(node, part, session, is_last=is_last)

        if self._unit_times is None:
            made = work(rows)
        else:
            made = self._unit_times.run(node, rows.at(node.name, node.key), work)
        self.dispatch(node, made)

    def _process_part(
        self, node: Node, rows: Rows, session: StateSession, *, is_last: bool
    ) -> Rows | None:
        with self.guard(node, rows.batch):
            made, output, keyed = self.stateful.process(node, rows, session, is_last=is_last)
        self.count_load(node, len(rows))
        if self.counting is not None:
            self.counting.load(node.name, keyed.groups)
        self.count_late(node, output)
        self._keep_carry(node, output)
        return made

    def _absorb(self, node: Node, partials: list[pa.RecordBatch], session: StateSession) -> None:
        """Merge what other tasks made of the rows of this slot's keys."""
        with self.guard(node, partials[0]):
            output, merged = self.stateful.absorb(node, partials, session)
        self.count_by_slot(self.control.merge_rows, node, len(merged))
        if self.plan.folds_here(node.name):
            self.count_load(node, len(merged))
            if self.counting is not None:
                self.counting.load(node.name, merged.keys)
        self._keep_carry(node, output)

    def _has_worked(self, node: Node) -> bool:
        """Did an earlier level of this slot have rows or partials of keys that it owns?"""
        slot, earlier = str(self.home), self.earlier
        at_home = earlier.loads.get(node.name, {}).get(slot, 0)
        at_home -= earlier.away_rows.get(node.name, {}).get(slot, 0)
        return at_home > 0 or slot in earlier.merge_rows.get(node.name, {})

    def _keep_carry(self, node: Node, output: Output) -> None:
        if output.carry is not None and output.carry.num_rows:
            self.carries.setdefault(node.id, []).append(output.carry)

    def _carry_of(self, node: Node) -> pa.RecordBatch | None:
        parts = self.carries.pop(node.id, None)
        return joined(parts) if parts else None

    def _pass_on_carry(self, node: Node) -> None:
        carry = self._carry_of(node)
        if carry is not None:
            self.outbox.carry(node.id, carry)

    # --- its state -----------------------------------------------------------------------------

    def _chain_of(self, table: str) -> Chain:
        announced = self.earlier.chains.get(table, {}).get(str(self.home))
        if announced is not None:
            return tuple(StateFile.from_json(file) for file in announced)
        return self.plan.chains.get(table, {}).get(self.home, ())

    def _open_state(self, node: Node, chain: Chain) -> StateSession:
        return self._open_table(
            node.name, self.program.state_schemas[node.id], chain, ttl_ms(node.spec)
        )

    def _open_table(
        self, table: str, schema: StateSchema, chain: Chain, ttl: int | None = None
    ) -> StateSession:
        return self.services.store.open(
            table,
            self.home,
            schema,
            chain,
            epoch=self.plan.epoch,
            level=self.level,
            now_ms=self.plan.clock.now_ms,
            ttl_ms=ttl,
        )

    def _migrate(self, node: Node, table: str, schema: StateSchema, session: StateSession) -> int:
        """Take in what this slot gains and drop what it loses; returns the rows gained."""
        moves, new, slot = self.plan.moves[node.name], self.plan.routes[node.name].table, self.home
        gained = 0
        for owner, chain in sorted(self.plan.chains.get(table, {}).items()):
            if owner == slot or not chain:
                continue
            buckets, routes = moves.between(owner, slot)
            if not len(buckets) and not len(routes):
                continue
            rows = self.services.store.moved_rows(
                table, owner, schema, chain, buckets=buckets, routes=routes
            )
            mine = np.flatnonzero(new.route(rows.route) == slot)
            if len(mine) < len(rows):
                rows = rows.take(mine)
            if len(rows):
                session.absorb(rows)
                gained += len(rows)
        if slot < moves.old_slots:
            buckets, routes = moves.leaving(slot)
            stays = new.pinned_h[new.pinned_slots == slot]
            stays = stays[np.isin(bucket_of(stays, new.buckets), buckets)]
            if len(buckets) or len(routes):
                session.drop_units(buckets, routes, stays)
        return gained

    # --- what it holds back ----------------------------------------------------------------------

    def _clock_of(self, node: Node) -> EpochClock:
        return self.plan.clock_of(node.name)

    def _due_before(self, node: Node) -> Due | None:
        """When this slot has something to do, by an earlier level or the last manifest.

        None: unknown, as units have moved. A slot that nothing is known of holds nothing.
        """
        slot = str(self.home)
        told: Sequence[int | None] | None = self.earlier.due.get(node.name, {}).get(slot)
        if told is None and node.name in self.plan.moves:
            return None
        told = told or self.plan.due.get(node.name, {}).get(slot)
        return NEVER if told is None else (told[0], told[1])

    def _open_beside(self, node: Node, opened: ExitStack) -> HeldBack | None:
        """Open the tables beside the operator's own, if it has any."""
        schemas = self.program.side_schemas[node.id]
        if not schemas:
            return None
        sessions = {}
        for part, schema in schemas.items():
            table = table_of(node.name, part)
            session = self._open_table(table, schema, self._chain_of(table))
            sessions[part] = opened.enter_context(session)
        waiting = timers = None
        if WAITING in sessions:
            rows = self.program.input_schema(node.id)
            waiting = Waiting(sessions[WAITING], str(node.order_by), rows)
        if TIMERS in sessions:
            timers = Timers(sessions[TIMERS], node.key, self.plan.identity)
        own = {part: sessions[part] for part in schemas if part not in (WAITING, TIMERS)}
        return HeldBack(waiting, timers, self._due_before(node), own=own)

    def _beside(
        self, node: Node, held: HeldBack | None
    ) -> Iterator[tuple[str, StateSchema, StateSession]]:
        if held is not None:
            schemas = self.program.side_schemas[node.id]
            for part, session in held.sessions.items():
                yield table_of(node.name, part), schemas[part], session

    def _in_order(
        self, node: Node, rows: Rows | None, held: HeldBack, finishes: bool
    ) -> Rows | None:
        """Keep the rows that came; those whose time has come, in their order (None: none)."""
        assert held.waiting is not None
        clock, fresh = self._clock_of(node), None
        if rows is not None:
            with self.guard(node, rows.batch):
                batch, times, arrivals, late, without = held.waiting.take_in(
                    rows.batch, node.key, self.plan.identity, clock
                )
                why = f"no event time: column {node.order_by!r} is null"
                self.dead.refuse(node.name, rows.batch, dict.fromkeys(without.tolist(), why))
            self.count_late(node, Output(late=late))
            fresh = batch, times, arrivals
        assert finishes or fresh is None, "rows that are ordered come in the operator's last level"
        if not finishes:
            return None
        if not is_due(held.before, clock) and (fresh is None or not fresh[0].num_rows):
            return None
        held.is_over = True
        released = held.waiting.released(clock, fresh)
        return None if released is None else self.stateful.without_origin(released)

    def _fire(self, node: Node, held: HeldBack, session: StateSession) -> None:
        """Have the operator's timers fire that are due, also those that others set as they fire."""
        timers, clock = held.timers, self._clock_of(node)
        if timers is None or not is_due(held.due_after(), clock):
            return
        session.timers, held.is_over = timers, True
        for _ in range(ROUNDS_MAX):
            fired = timers.take_due(clock)
            if fired is None:
                return
            with self.guard(node, fired.batch):
                made = self.stateful.fire(node, fired, session)
            self.dispatch(node, made)
        with self.guard(node, None):
            raise WrongOutput(
                f"timers that fire set others that are due at once, {ROUNDS_MAX} times in a row; "
                "set them to a later time"
            )

    def _commit_beside(self, node: Node, held: HeldBack) -> None:
        if node.holds_back:
            due = list(held.due_after())
            self.control.due.setdefault(node.name, {})[str(self.home)] = due
        for part, after in held.commit().items():
            table = table_of(node.name, part)
            if after is not self._chain_of(table):
                files = [file.to_json() for file in after]
                self.control.chains.setdefault(table, {})[str(self.home)] = files

    def _drop_departed(self) -> None:
        """Forget the warm copies of slots that have no instance of an operator any more."""
        for table, node in self.program.tables:
            moves = self.plan.moves.get(node.name)
            for slot in {*range(moves.old_slots if moves else 0)} - {
                *self.plan.slots_of(node.name)
            }:
                self.services.store.drop(table, slot)
