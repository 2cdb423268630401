"""Run one epoch: plan, execute, check, commit, deliver. The same for every engine.

The steps and their order are the exactly-once protocol; each is a named crash point (`faults`).
The manifest is the commit point: before it nothing of the epoch exists, after it nothing of the
epoch is computed again, sinks are called until each is marked. Only the driver that holds the
checkpoint's newest generation goes on (`generation`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from headgate.arrays import I64
from headgate.commit import faults
from headgate.commit.changed_state import Changes
from headgate.commit.checkpoint import Checkpoint, Collector
from headgate.commit.continuity import check_epoch, check_sinks, newest_plan, spark_offsets
from headgate.commit.costs_in_use import CostsInUse
from headgate.commit.epoch_record import EpochResult, epoch_facts, settle
from headgate.commit.facts import DamageFacts, EpochFacts, PlanFacts, RetryFacts, ScaleFacts
from headgate.commit.instances import Instances, InstancesInUse
from headgate.commit.journal import Journal
from headgate.commit.manifest import BEFORE, Manifest, epoch_time, next_manifest
from headgate.commit.planning import Decision, Observed, Planning
from headgate.commit.publishing import Deliver, SinkCalls
from headgate.commit.renumbering import Resize, renumbered
from headgate.commit.routing_in_use import TablesInUse
from headgate.commit.settings import Settings
from headgate.commit.side_tables import SideTablesInUse
from headgate.errors import CustodyMismatch, EngineError, HeadgateError, Overtaken
from headgate.operator.rows import EpochClock
from headgate.planner.leaving import new_order
from headgate.routing.route import Dispatch, Shares
from headgate.routing.table import RoutingTable
from headgate.slot.compile import clocks_behind_windows
from headgate.slot.held_back import is_due
from headgate.slot.levels import levels_of
from headgate.slot.parking import SLOTS_MAX
from headgate.slot.plan import WARM_OFF, Control, EpochPlan, batching_of
from headgate.slot.program import Program
from headgate.slot.unit_times import rows_of_parts
from headgate.topology.arguments import check_count

ATTEMPTS_MAX = 4  # at an epoch, as many as Spark makes at a task by default


class EngineAborted(Exception):
    """The engine gave up on an epoch for a reason that is not the user's code; it is run again."""


RunTasks = Callable[[EpochPlan], EpochResult]


class Coordinator:
    """Owns the checkpoint of one running flow and takes it from epoch to epoch.

    `check` is the engine's word on the last manifest: what it raises refuses the start, before any
    driver that runs is overtaken.
    """

    def __init__(
        self,
        program: Program,
        checkpoint: Checkpoint,
        settings: Settings,
        deliver: Deliver,
        *,
        clock_ms: Callable[[], int],
        sink_uris: Mapping[str, str],
        planning: Planning | None = None,
        check: Callable[[Manifest | None], None] = lambda last: None,
    ) -> None:
        self.checkpoint, self.settings = checkpoint, settings
        self._planning = planning
        self._dispatch: Mapping[str, Dispatch] = {}
        self.slots = settings.slots
        self._wanted: deque[Resize] = deque(maxlen=1)  # other threads ask
        self._parallelism: deque[Mapping[str, int]] = deque()  # so do they for this
        self.carry_out: Callable[[Decision], None] = self._resize_as_decided
        self.is_changing: Callable[[], bool] = lambda: False
        self._clock_ms, self._sink_uris = clock_ms, sink_uris
        changes = Changes(settings.drop_state, settings.renamed, settings.reset)
        self.buckets = checkpoint.adopt(program, settings.buckets, changes, settings.identity)
        self.identity = checkpoint.keys()
        self.journal = Journal(checkpoint.journal, settings.keep_journal)
        last = checkpoint.last_manifest()
        check_sinks(checkpoint, last, program, changes.drops("sink"))
        check(last)
        self._side_tables = SideTablesInUse(
            program,
            checkpoint.lookups,
            (last or BEFORE).side_tables,
            epoch_time(clock_ms(), last)[0],
        )
        # A start that is refused must not stop a flow that runs: claim last, then look again.
        self.generation = checkpoint.claim(clock_ms())
        checkpoint.tables.generation = self.generation.number
        last = checkpoint.last_manifest()
        carried = checkpoint.carried(program, last, changes)
        self.last = carried.of(last)
        self.program = program = replace(program, kept=carried.kept)
        self._batch(settings.chosen_batch_rows)
        self._sinks = SinkCalls(
            program,
            checkpoint,
            deliver,
            sink_uris,
            self.journal,
            self.generation,
            found=(self.last or BEFORE).epoch,
            may_lose=changes.drops("sink"),
        )
        self._settled = self.last is None
        self._observed: Observed | None = None  # what the manager gets when the sinks are done
        self._collector = Collector(checkpoint, settings.keep_manifests)
        stored = (self.last or BEFORE).instances
        kept = {op: slots for op, slots in stored.items() if op not in settings.tables}
        placed = InstancesInUse(
            program,
            settings.slots,
            kept,
            keep=planning is not None,
            chosen=settings.chosen_instances if self.last is None else {},
        )
        self._routing = TablesInUse(
            program,
            checkpoint.tables,
            slots=settings.slots,
            buckets=self.buckets,
            chosen=settings.tables,
            stored=(self.last or BEFORE).tables,
            placed=placed,
            stored_instances=stored,
            share_pins=planning is None,
        )
        self._costs = CostsInUse(program, checkpoint.costs, (self.last or BEFORE).costs)
        for op, lost in self._costs.damaged.items():
            done = "costs are measured anew"
            self.journal.append(DamageFacts(lost.file, str(lost), done, operator=op))
        self._collector.sweep()
        self._save_side_tables((self.last or BEFORE).epoch + 1)

    @property
    def tables(self) -> dict[str, RoutingTable]:
        """Who owns which key, by operator, in the coming epoch."""
        return self._routing.tables

    def resize(
        self,
        slots: int,
        why: str = "asked for",
        instances: Instances = MappingProxyType({}),
        gone: Sequence[int] = (),
    ) -> None:
        """Run with so many slots from the next epoch on, and with instances of operators in these
        of them, if mentioned; state moves with that epoch. Of fewer slots the last ones leave, or
        those that are named as `gone`: then others take their numbers.
        """
        slots = check_count(slots, "slots=", error=EngineError)
        self._wanted.append(Resize(slots, why, instances, tuple(gone)))

    @property
    def instances(self) -> dict[str, tuple[int, ...]]:
        """The slots of every operator behind an exchange, in the coming epoch."""
        return self._routing.placed.all()

    def set_parallelism(self, counts: Mapping[str, int], slots: int) -> None:
        """Give operators so many instances, of so many slots, from the next epoch on.

        State moves with that epoch.
        """
        self._routing.placed.check(counts, slots)
        self._parallelism.append(counts)

    def run_epoch(self, batch: int, query_id: str, run: RunTasks) -> EpochFacts:
        """Bring a batch of the input to its end, whatever of it happened before; its facts.

        Its epoch has the same number, and one more for every tick before it.
        """
        last = self.last
        epoch = batch + (last or BEFORE).ticks
        with self._holding(f"epoch {epoch}"):
            faults.reach("epoch-begun", epoch)
            offsets = spark_offsets(self.checkpoint.storage, batch)
            check_epoch(self.checkpoint, last, batch, query_id, offsets)
            if last is None or epoch > last.epoch:
                self._compute(epoch, query_id, offsets, run)
            return self._settle()

    def tick(self, run: RunTasks, *, silent: bool) -> EpochFacts:
        """Run an epoch without input after the last one: time goes on, complete windows close.

        `silent`: it counts as one in which the sources were silent (see `idle_after`).
        """
        last = self.last
        assert last is not None, "before the first epoch there is nothing that time could change"
        epoch = last.epoch + 1
        with self._holding(f"epoch {epoch}, a tick"):
            faults.reach("epoch-begun", epoch)
            self._compute(epoch, last.query_id, last.offsets, run, tick=True, silent=silent)
            return self._settle()

    def settle(self) -> None:
        """Do what is left to do for the last epoch that was committed.

        A start does it too: the engine is told of a batch again, and nobody of a tick.
        """
        if self.last is not None:
            with self._holding("calling sinks"):
                self._settle()

    def _settle(self) -> EpochFacts:
        assert self.last is not None
        manifest, called = self._sinks.call_all(self.last)
        facts = manifest.record or EpochFacts(manifest.epoch)
        if facts.latency is not None and facts.latency.commit_ms is None:
            after_ms = self._clock_ms() - facts.now_ms
            # When the sinks of an earlier driver were done, nobody knows.
            facts = replace(facts, latency=facts.latency.committed(after_ms) if called else None)
            manifest = replace(manifest, record=facts)
        self.last = manifest
        self._observe(facts)
        self.generation.hold(f"noting epoch {manifest.epoch} in the journal")
        if manifest.record is not None:
            self.journal.append_epoch(manifest.record)
        faults.reach("journal-written", manifest.epoch)
        self.generation.hold("deleting files that are no longer needed")
        self._collector.after_commit(manifest)
        faults.reach("files-collected", manifest.epoch)
        self._settled = True
        return facts

    def _observe(self, facts: EpochFacts) -> None:
        observed, self._observed = self._observed, None
        if observed is not None and self._planning is not None:
            self._planning.observe(replace(observed, facts=facts), self.tables)

    def plan(self, epoch: int, attempt: int = 0) -> EpochPlan:
        """The epoch as its tasks will see it: a function of the last manifest and the clock."""
        last = self.last or BEFORE
        now_ms, clock_behind = epoch_time(self._clock_ms(), self.last)
        clock = EpochClock(
            epoch,
            now_ms,
            watermark_us=last.watermark_us,
            previous_watermark_us=last.used_watermark_us,
            previous_now_ms=None if self.last is None else self.last.now_ms,
            input_ends=epoch == self.settings.last_epoch,
        )
        self._costs.fit(self.slots)
        planning = self._planning
        manager = None if planning is None else planning.manager
        born_local = frozenset[str]() if manager is None else manager.born_local
        statistics_bytes = 0 if manager is None else manager.statistics_bytes
        units = frozenset[str]() if planning is None else planning.units_of
        routes = self._routing.routes(self._dispatch, born_local)
        levels = levels_of(self.program, routes, self.slots, self._routing.moves)
        return EpochPlan(
            epoch=epoch,
            slots=self.slots,
            clock=clock,
            clock_behind=clock_behind,
            clocks=clocks_behind_windows(self.program, clock),
            routes=routes,
            moves=self._routing.moves,
            at_work=levels.at_work,
            ends=levels.ends,
            due=last.due,
            table_files=dict(self._routing.names),
            tables_uri=self.checkpoint.tables.storage.uri,
            statistics_bytes=max(self.settings.statistics_bytes, statistics_bytes),
            unit_statistics=units,
            part_rows=self._part_rows(epoch, units),
            racks=self.settings.racks,
            costs=dict(self._costs.models),
            cost_files=dict(self._costs.names),
            costs_uri=self.checkpoint.costs.storage.uri,
            beside_ms=dict(self._costs.beside_ms),
            unmeasured=self._costs.unmeasured,
            side_tables=self._side_tables.names,
            side_tables_uri=self.checkpoint.lookups.uri,
            parking_uri=self._parking_uri,
            park_bytes=self.settings.park_bytes or 0,
            batching=self.batching,
            chains=last.chains,
            storage_uri=self.checkpoint.state.uri,
            warm_dir=self.settings.warm_dir,
            buckets=self.buckets,
            sink_uris=self._sink_uris,
            signed=self.checkpoint.signed,
            identity=self.identity,
            attempt=attempt,
        )

    @property
    def _parking_uri(self) -> str:
        """Where columns may wait, in files of 64-bit digests on a disk; "" if they may not."""
        parked, wanted = self.checkpoint.parked, self.settings.park_bytes is not None
        may = wanted and not self.checkpoint.signed and self.slots <= SLOTS_MAX
        return parked.uri if may and self.program.parked.on and parked.is_local else ""

    def _part_rows(self, epoch: int, operators: Collection[str]) -> dict[str, int]:
        """The parts in which operators are timed in an epoch, from what the last one took."""
        record = (self.last or BEFORE).record
        if record is None:
            return {}
        rows = {op: by for op, by in record.loads.items() if op in operators}
        return rows_of_parts(epoch, rows, record.operator_ms)

    def is_held_due(self) -> bool:
        """Would an epoch without rows hand over rows that wait, or have timers fire?"""
        last = self.last or BEFORE
        now_ms, _ = epoch_time(self._clock_ms(), self.last)
        clock = EpochClock(last.epoch + 1, now_ms, last.watermark_us, last.used_watermark_us)
        clocks = clocks_behind_windows(self.program, clock)
        return any(
            is_due((at[0], at[1]), clocks.get(operator, clock))
            for operator, by_slot in last.due.items()
            for at in by_slot.values()
        )

    def rehearsal(self, slots: int) -> EpochPlan:
        """The coming epoch with so many slots, without state: for an engine to warm up with."""
        plan = self.plan((self.last or BEFORE).epoch + 1)
        return replace(
            plan,
            slots=slots,
            routes=self._routing.usual_routes(slots),
            table_files={},
            moves={},
            at_work=(),
            ends={},
            chains={},
            warm_dir=WARM_OFF,
            statistics_bytes=0,
            unit_statistics=frozenset(),
            part_rows={},
            costs={},
            cost_files={},
        )

    def close(self) -> None:
        """Let the planning thread go; what it was thinking about is forgotten."""
        if self._planning is not None:
            self._planning.close()

    # --- inside ----------------------------------------------------------------------------
    @contextmanager
    def _holding(self, what: str) -> Iterator[None]:
        """Do something only as the newest driver, and say so if it fails because another is newer.

        Who was overtaken fails in many ways: files are gone, Spark's offsets are others.
        """
        self.generation.hold(f"running {what}")
        try:
            yield
        except Overtaken:
            raise
        except Exception:
            self.generation.hold(f"{what} was done")
            raise

    def _compute(
        self,
        epoch: int,
        query_id: str,
        offsets: str | None,
        run: RunTasks,
        *,
        tick: bool = False,
        silent: bool = True,
    ) -> None:
        if not self._settled:
            self._settle()  # the epoch before may be a tick, of which nobody tells us again
        self._install_decision(epoch)
        self._side_tables.read(epoch_time(self._clock_ms(), self.last)[0])
        self._save_side_tables(epoch)
        try:
            plan, total, result, attempts = self._attempt(epoch, run)
        except Exception:  # whatever it was, what waited for this epoch's tasks is of no use now
            self.generation.hold(f"epoch {epoch} was run")
            self.checkpoint.leave_parked(epoch)
            raise
        faults.reach("custody-checked", epoch)
        costs = self._costs.record(plan, total, result.statistics)
        # The next plan knows them.
        self._costs.observe(result.statistics, plan.slots, result.timings)
        self._costs.judge(plan, costs, result.statistics)
        facts = epoch_facts(self.program, plan, total, result, (self.last or BEFORE).record)
        facts = replace(facts, costs=costs, attempts=attempts, tick=tick)
        manifest = next_manifest(
            self.program,
            plan,
            total,
            query_id=query_id,
            before=self.last,
            record=facts,
            costs=self._costs.names,
            side_tables=self._side_tables.versions,
            offsets=offsets,
            tick=tick,
            silent=silent,
            generation=self.generation.number,
        )
        if self.settings.durable:
            plan_of_spark = newest_plan(self.checkpoint.storage, manifest.batch)
            self.checkpoint.flush(manifest, self._sink_uris, plan_of_spark)
        self.checkpoint.commit(manifest)
        faults.reach("manifest-written", epoch)
        self.generation.hold(f"showing anybody the rows of epoch {epoch}")
        self.last, self._settled = manifest, False
        self._routing.committed()
        if self._planning is not None:
            by_unit = bool(plan.unit_statistics)
            self._observed = Observed(facts, result.statistics, self.is_changing(), by_unit)

    def _install_decision(self, epoch: int) -> None:
        """Take the manager's tables if it has new ones, and save all before an epoch uses them."""
        self._take_size(epoch)
        decision = (
            None
            if self._planning is None
            else self._planning.take(self.slots, self._routing.placed.slots_of)
        )
        if decision is not None:
            if decision.instances:
                self._routing.placed.choose(decision.instances)
                self._resize()
            if decision.tuning is not None and decision.tuning.batch_rows:
                self._batch(decision.tuning.batch_rows)
            strays = self._routing.use(decision.tables)
            if strays:
                why = f"tables of {', '.join(strays)} name slots without an instance of it"
                decision = replace(decision, plan=replace(decision.plan or PlanFacts(), failed=why))
            self._dispatch = self._dispatch if decision.dispatch is None else decision.dispatch
        self._routing.save()
        if decision is not None:
            self._tell(epoch, decision)
            self.carry_out(decision)
        faults.reach("tables-saved", epoch)

    def _save_side_tables(self, epoch: int) -> None:
        """Have lookups find what was read of their tables, from this epoch on."""
        for told in self._side_tables.save(epoch, self.generation.number):
            self.journal.append(told)

    def _resize_as_decided(self, decision: Decision) -> None:
        """What an engine without executors of its own does about a decision."""
        if decision.slots is not None:
            self.resize(decision.slots, decision.scaling, decision.instances_then, decision.gone)

    def _batch(self, chosen: Mapping[str, int]) -> None:
        """Send batches of so many rows from the next epoch on, where the user says nothing."""
        settings, given = self.settings, self.settings.batch_rows
        self.batching = batching_of(
            self.program.graph,
            given if isinstance(given, int) else {**chosen, **(given or {})},
            settings.sharing,
            message_s=settings.message_s,
            byte_s=settings.byte_s,
        )

    def _tell(self, epoch: int, decision: Decision) -> None:
        if decision.tuning is not None:
            self.journal.append(decision.tuning)
        if decision.outcome is not None:
            self.journal.append(replace(decision.outcome, epoch=epoch))
        if decision.plan is not None:
            moves = {op: len(m.routes) + len(m.buckets) for op, m in self._routing.moves.items()}
            self.journal.append(replace(decision.plan, epoch=epoch, moves=moves))

    def _take_size(self, epoch: int) -> None:
        """Change the number of slots or instances if that was asked for.

        A plan for the old number of slots is void, and one for slots that an operator no longer has
        too.
        """
        wanted = self._wanted.pop() if self._wanted else Resize(self.slots)
        if wanted.slots != self.slots:
            gone = wanted.leaving(self.slots)
            self.journal.append(ScaleFacts(epoch, self.slots, wanted.slots, wanted.why, gone))
            if gone is not None:
                self._renumber(new_order(self.slots, gone))
            self.slots = wanted.slots
            self._resize(wanted.slots)
            if wanted.instances:
                self._routing.placed.choose(wanted.instances)
                self._resize()
        while self._parallelism:
            self._routing.placed.ask(self._parallelism.popleft())
            self._resize()

    def _renumber(self, order: I64) -> None:
        """Slots get other numbers, so that those that leave are the last ones."""
        self._routing.renumber(order)
        self._costs.renumber(order)
        if self.last is not None:
            self.last = renumbered(self.last, order)

    def _resize(self, slots: int | None = None) -> None:
        """Let keys have their owners where operators have their instances, of so many slots."""
        record = (self.last or BEFORE).record
        hosts = () if record is None else record.engine.hosts
        by_unit = self._planning is not None and bool(self._planning.units_of)
        self._routing.resize(slots, hosts=hosts, fill=not by_unit)
        self._dispatch = {
            op: chosen for op, chosen in self._dispatch.items() if not isinstance(chosen, Shares)
        }

    def _attempt(self, epoch: int, run: RunTasks) -> tuple[EpochPlan, Control, EpochResult, int]:
        """Run the tasks until an attempt settles; errors of user code are never retried."""
        for attempt in range(ATTEMPTS_MAX):
            plan = self.plan(epoch, attempt)
            faults.reach("planned", epoch)
            try:
                result = run(plan)
                faults.reach("tasks-done", epoch)
                return plan, settle(plan, result.controls), result, attempt + 1
            except (CustodyMismatch, EngineAborted) as problem:
                self.journal.append(RetryFacts(epoch, attempt, str(problem)[:2000]))
                if attempt + 1 == ATTEMPTS_MAX:
                    if isinstance(problem, HeadgateError):
                        raise
                    raise EngineError(
                        f"epoch {epoch} failed {ATTEMPTS_MAX} times; last reason: {problem}. "
                        "Nothing of it was committed",
                        epoch=epoch,
                    ) from problem
        raise AssertionError("unreachable")
