"""More or fewer slots while the flow runs, without a restart and without a cold epoch.

Growing: executors are asked for and each is warmed up as it comes, the new slots get their hosts,
and epochs without rows are rehearsed on them, all beside the running epochs; only then the slot
count changes, at an epoch boundary. Shrinking: the slot count changes first, and state moves off
the leaving slots with that epoch; when it is committed, executors that host no slot any more are
given back, between two epochs, so that no task of one is lost with them. Where chosen slots leave,
the others keep their hosts.

On clusters executors are ours to change (`executors`). In local mode only slots change. What fails
on the way (no executors to be had, say) is in the journal; the flow goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from headgate.commit.coordinator import Coordinator
from headgate.commit.facts import ElasticFacts
from headgate.commit.instances import Instances
from headgate.commit.renumbering import Resize, in_order
from headgate.errors import EngineError
from headgate.planner.leaving import new_order
from headgate.runtime.engine import SparkEngine
from headgate.runtime.exchange import (
    TUPLE_TYPE,
    Executor,
    anchored,
    apply_stage,
    arrow_stage,
    build_anchor,
    executors,
    rows_on_hosts,
    slot_labels,
)
from headgate.runtime.executors import (
    are_ours_to_change,
    ask_for,
    cores_in,
    enough_for,
    give_back,
    is_dynamic,
)
from headgate.runtime.worker import PLAN_PROPERTY, pack_plan, warming_stage
from headgate.slot.plan import EpochPlan
from headgate.slot.wire import anchor_row
from headgate.topology.arguments import check_count

log = logging.getLogger("headgate")

WAIT_FOR_EXECUTORS_S = 120.0  # for each round of them; they take seconds to come
LOOK_FOR_EXECUTORS_S = 0.05  # between two looks, each a few py4j calls
ASK_AGAIN_S = 1.0  # where Spark's dynamic allocation asks for other numbers meanwhile
TAKEN_WITHIN_S = 3.0  # to give new executors their first task; then an epoch may begin anyway
LOOK_FOR_TASKS_S = 0.005  # between two looks; an epoch waits for this
# What the JVM compiles comes in steps: play again while a round takes under 0.7 of the one before.
ROUNDS_MAX, MUCH_FASTER = 6, 0.7
REHEARSALS = 2  # the second shows what the first has warmed up
PLACE_TYPE = StructType([StructField("__hg_place", IntegerType(), nullable=False)])


class Elastic:
    """Changes the slot count, one change at a time; of several wishes the last one counts."""

    def __init__(self, coordinator: Coordinator, engine: SparkEngine) -> None:
        self._coordinator, self._engine = coordinator, engine
        self._lock = threading.Lock()
        self._wish: Resize | None = None
        self._thread: threading.Thread | None = None
        self._epoch_over = threading.Condition()
        self._closed = False

    def request(
        self,
        slots: int,
        why: str,
        instances: Instances = MappingProxyType({}),
        gone: Sequence[int] = (),
    ) -> None:
        """Run with so many slots as soon as can be, and instances of operators in these of them;
        returns at once. Of fewer slots the last ones leave, or those `gone`.
        """
        slots = check_count(slots, "slots=", error=EngineError)
        with self._lock:
            self._wish = Resize(slots, why, instances, tuple(gone))
            if self._thread is None:
                name = f"headgate-elastic-{self._coordinator.program.graph.name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    @property
    def is_changing(self) -> bool:
        """Is a change under way? Once it is not, an epoch planned from then on has the slots."""
        with self._lock:
            return self._thread is not None

    def epoch_committed(self) -> None:
        with self._epoch_over:
            self._epoch_over.notify_all()

    def close(self) -> None:
        """Stop waiting for epochs that will not come."""
        self._closed = True
        self.epoch_committed()

    # --- inside ----------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._lock:
                wish, self._wish = self._wish, None
                if wish is None or self._closed:
                    self._thread = None
                    return
            try:
                self._change(wish)
            except Exception as problem:
                if self._closed:
                    continue
                log.exception("changing to %s slots failed; the flow goes on as it is", wish.slots)
                reason = f"{type(problem).__name__}: {problem}"[:500]
                self._coordinator.journal.append(ElasticFacts(wish.slots, failed=reason))

    def _change(self, wish: Resize) -> None:
        coordinator, before, slots = self._coordinator, self._coordinator.slots, wish.slots
        if slots == before:
            return
        facts = ElasticFacts(slots, before)
        try:
            if slots > before:
                facts = self._make_room(facts)
                facts = replace(facts, rehearsed_s=self._rehearse(slots, before))
            self._engine.anchor(slots, self._homes_of_those_who_stay(wish, before))
        finally:
            self._engine.source_tasks_max = None
        coordinator.resize(slots, wish.why, wish.instances, wish.gone)
        if slots < before:
            facts = replace(facts, released=self._release(slots))
        coordinator.journal.append(facts)

    def _homes_of_those_who_stay(self, wish: Resize, before: int) -> tuple[str, ...]:
        """Where slots stay if some that were chosen leave; empty: as is even over all hosts."""
        gone = wish.leaving(before)
        if gone is None:
            return ()
        hosts = in_order(self._engine.anchor(before).hosts, new_order(before, gone))
        return hosts[: wish.slots] if all(hosts) else ()

    def _make_room(self, facts: ElasticFacts) -> ElasticFacts:
        """Ask for a core per slot, and warm up the executors that come.

        Each round asks for at most half as many again as there are, and ends when they are warm:
        JVMs that start all at once would be felt where hosts are shared. Until then source tasks
        are no more than the cores there are: one that waited for a core would be given to a cold
        executor in the moment it comes.
        """
        spark, started = self._engine.spark, time.monotonic()
        live = executors(spark)
        if not are_ours_to_change(spark) or not live:
            return replace(facts, cores=cores_in(live))
        self._engine.source_tasks_max = cores_in(live)
        warm_up = WarmUp(self._engine, self._coordinator.rehearsal(facts.slots))
        known = before = {executor.id for executor in live}
        warmed: list[tuple[float, bool]] = []
        wanted = -(-facts.slots // live[0].cores)
        while len(live) < wanted:
            total = min(wanted, len(live) + max(1, len(live) // 2))
            total = ask_for(spark, total)
            if total <= len(live):
                break  # there may be no more
            until, warming = time.monotonic() + WAIT_FOR_EXECUTORS_S, []
            again = time.monotonic() + ASK_AGAIN_S
            while len(live) < total and time.monotonic() < until:
                time.sleep(LOOK_FOR_EXECUTORS_S)
                if is_dynamic(spark) and time.monotonic() > again:
                    ask_for(spark, total)  # its manager asks too: for fewer, as tasks end
                    again = time.monotonic() + ASK_AGAIN_S
                live = executors(spark)
                new = [executor for executor in live if executor.id not in known]
                if new:
                    known = known | {executor.id for executor in new}
                    warming.append(warm_up.take(new))
            warmed += [future.result() for future in warming]
            live = executors(spark)  # a newcomer's host is known once it has run a task
            if len(live) < total:
                break  # no executor comes any more
        return replace(
            facts,
            cores=cores_in(live),
            ready_s=round(time.monotonic() - started, 2),
            arrived=tuple(executor.name for executor in live if executor.id not in before),
            warmed_s=tuple(round(seconds, 2) for seconds, _ in warmed),
            read_source=all(has_read for _, has_read in warmed),
        )

    def _rehearse(self, slots: int, before: int) -> tuple[float, ...]:
        """Run epochs without rows on the hosts that get their first slots; seconds of each.

        Hosts that have slots already are left alone: they are warm, and busy with epochs.
        """
        known = set(self._engine.anchor(before).hosts)
        first = [host for host in self._engine.anchor(slots).hosts if host not in known]
        if not first:
            return ()
        plan = self._coordinator.rehearsal(len(first))
        anchor = build_anchor(self._engine.own_session, first)
        seconds = []
        try:
            for _ in range(REHEARSALS):
                started = time.perf_counter()
                tuples = _anchor_rows(self._engine, plan, first)
                for function in self._engine.functions()[1:]:
                    tuples = apply_stage(anchored(tuples, anchor), arrow_stage(function))
                _collect(self._engine, tuples, plan, f"rehearsing on {plan.slots} slots")
                seconds.append(round(time.perf_counter() - started, 2))
        finally:
            anchor.release()
        return tuple(seconds)

    def _release(self, slots: int) -> tuple[str, ...]:
        """Give back what hosts no slot, once an epoch with the new slots is committed."""

        def is_committed() -> bool:
            last = self._coordinator.last
            return last is not None and last.slots == slots

        with self._epoch_over:
            self._epoch_over.wait_for(lambda: self._closed or is_committed())
        if self._closed:
            return ()
        with self._engine.between_epochs:
            slots_on = Counter(self._engine.anchor(slots).hosts)
            self._engine.forget_anchors_but(slots)  # they would keep executors that idle
            stay = enough_for(slots_on, executors(self._engine.spark))
            leaving = give_back(self._engine.spark, stay)
        return tuple(executor.name for executor in leaving)


# --- executors are warm before rows depend on them ------------------------------------------
class WarmUp:
    """Keeps new executors busy until they are as fast as the others.

    A cold executor has loaded no class, compiled no stage and started no Python worker: its first
    tasks take many times what others take, and Spark gives it source tasks as soon as it is there.
    So a new executor is *taken* at once, before the next epoch begins, by a task for each of its
    cores. The task reads a partition of the last micro-batch (a cold source task is slowest at
    reading), runs a slot's code without rows, and writes to a shuffle; until it ends Spark can
    place nothing else there. No operator sees a row, no state is read or written, and what is
    measured is dropped.

    Stages are made before executors come: every second before they are taken counts.
    """

    def __init__(self, engine: SparkEngine, plan: EpochPlan) -> None:
        self._engine, self._plan = engine, plan
        level_1, batch = engine.functions()[1], engine.last_batch
        self._idle = arrow_stage(level_1)
        self._reading = arrow_stage(warming_stage(level_1, plan.slots))
        self.partition = None if batch is None else _first_partition(batch)

    def take(self, new: Sequence[Executor]) -> Future[tuple[float, bool]]:
        """Returns when all cores of the new executors are busy with warming up: no epoch begins
        before they are, as it could be given one of them.

        The result comes when they are warm: in how many seconds, and whether they have read rows.
        """
        places = [executor.place for executor in new for _ in range(executor.cores)]
        warming: Future[tuple[float, bool]] = Future()

        def work() -> None:
            started = time.perf_counter()
            try:
                has_read = self._warm(places)
                warming.set_result((time.perf_counter() - started, has_read))
            except BaseException as problem:
                warming.set_exception(problem)

        idle = self._engine.between_epochs.acquire(blocking=False)  # else an epoch is under way
        try:
            threading.Thread(target=work, name="headgate-warming", daemon=True).start()
            until = time.monotonic() + TAKEN_WITHIN_S
            while not (warming.done() or self._are_busy(new)) and time.monotonic() < until:
                time.sleep(LOOK_FOR_TASKS_S)
        finally:
            if idle:
                self._engine.between_epochs.release()
        return warming

    def _warm(self, places: Sequence[str]) -> bool:
        """Have they read rows, too?"""
        if self.partition is not None:
            try:
                # A source task goes where it likes; a product with rows that have a place prefers
                # theirs.
                session = self._engine.own_session
                placed = rows_on_hosts(session, [(0,)] * len(places), places, PLACE_TYPE)
                rows = placed.crossJoin(self.partition).drop(PLACE_TYPE.names[0])
                _until_warm(lambda: self._shuffle(apply_stage(rows, self._reading)))
                return True
            except Exception:
                log.warning("new executors cannot read the last batch again", exc_info=True)
        self._shuffle(apply_stage(_anchor_rows(self._engine, self._plan, places), self._idle))
        return False

    def _shuffle(self, tuples: DataFrame) -> None:
        shuffled = tuples.repartition(1, "label")  # the way into a shuffle is cold too
        _collect(self._engine, shuffled, self._plan, "warming new executors")

    def _are_busy(self, new: Sequence[Executor]) -> bool:
        """As the scheduler counts tasks: Spark's status may lag by seconds."""
        context: Any = self._engine.spark.sparkContext
        running = context._jsc.sc().taskScheduler().runningTasksByExecutors()
        tasks = dict(context._jvm.scala.jdk.javaapi.CollectionConverters.asJava(running))
        return all(int(tasks.get(executor.id, 0)) >= executor.cores for executor in new)


def _anchor_rows(engine: SparkEngine, plan: EpochPlan, places: Sequence[str]) -> DataFrame:
    """A row per place, made in the JVM: `createDataFrame` would start Python workers of another
    kind first, which kept the cores of all executors for four seconds.
    """
    labels = slot_labels(plan.slots)
    slots = [i % plan.slots for i in range(len(places))]
    rows = [anchor_row(slot, labels[slot]) for slot in slots]
    return rows_on_hosts(engine.own_session, rows, places, TUPLE_TYPE)


def _collect(engine: SparkEngine, tuples: DataFrame, plan: EpochPlan, what: str) -> None:
    context = engine.spark.sparkContext
    context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
    context.setJobDescription(f"{engine.program.graph.name}: {what}")
    tuples.collect()


def _until_warm(play: Callable[[], None]) -> None:
    last_s = math.inf
    for _ in range(ROUNDS_MAX):
        started = time.perf_counter()
        play()
        seconds = time.perf_counter() - started
        if seconds > MUCH_FASTER * last_s:
            return
        last_s = seconds


def _first_partition(frame: DataFrame) -> DataFrame:
    """A frame of the first partition alone; the others are not read."""
    context: Any = frame.sparkSession.sparkContext
    jvm = context._jvm
    rows = frame._jdf.queryExecution().toRdd()
    wanted = jvm.java.util.ArrayList()
    for partition in range(rows.getNumPartitions()):
        wanted.add(partition == 0)
    pruning = jvm.org.apache.spark.rdd.PartitionPruningRDD  # a Scala Seq is a function of positions
    first = pruning.create(rows, jvm.PythonUtils.toSeq(wanted))
    session: Any = frame.sparkSession._jsparkSession
    return DataFrame(
        session.internalCreateDataFrame(first, frame._jdf.schema(), False), frame.sparkSession
    )
