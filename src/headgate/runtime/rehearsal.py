"""Newcomers are warm before rows depend on them: they read, run and shuffle, and nobody hears it.

A cold executor has loaded no class, compiled no stage and started no Python worker: its first
tasks take many times what others take, and Spark gives it source tasks as soon as it is there.
So a new executor is *taken* at once, before the next epoch begins, by a task for each of its cores.
The task reads a partition of the last micro-batch (a cold source task is slowest at reading), runs
a slot's code without rows, and writes to a shuffle; until it ends Spark can place nothing else
there. Then an epoch without rows is rehearsed on the hosts that are to have their first slots.

Both run beside the epochs. No operator sees a row, no state is read or written, and what is
measured is told to nobody.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from headgate.runtime.engine import SparkEngine
from headgate.runtime.exchange import (
    TUPLE_TYPE,
    Anchor,
    anchored,
    apply_stage,
    arrow_stage,
    rows_on_hosts,
    slot_labels,
)
from headgate.runtime.executors import Executor, Executors
from headgate.runtime.worker import PLAN_PROPERTY, pack_plan, warming_stage
from headgate.slot.plan import EpochPlan
from headgate.slot.wire import anchor_row

log = logging.getLogger("headgate")

TAKEN_WITHIN_S = 3.0  # to give new executors their first task; then an epoch may begin anyway
POLL_SECONDS = 0.005  # an epoch waits for this
# What the JVM compiles comes in steps: play again while a round takes under 0.7 of the one before.
ROUNDS_MAX, MUCH_FASTER = 6, 0.7
REHEARSALS = 2  # the second shows what the first has warmed
PLACE_TYPE = StructType([StructField("__hg_place", IntegerType(), nullable=False)])


class Warming:
    """Executors on their way to be warm; `read_source` says whether they have read rows too."""

    def __init__(self, new: Sequence[Executor], work: Callable[[], bool]) -> None:
        self.new, self.read_source = new, False
        self.seconds = 0.0
        self._failure: BaseException | None = None

        def run() -> None:
            started = time.perf_counter()
            try:
                self.read_source = work()
            except BaseException as problem:
                self._failure = problem
            self.seconds = time.perf_counter() - started

        self._thread = threading.Thread(target=run, name="headgate-warming", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until they are; raises what went wrong."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True)
class Practice:
    """What newcomers are to do, made before they come: every second before they are held counts.

    `part` is a partition of the last micro-batch, `reading` the stage that takes it in; without a
    source to read, `idle` runs on anchor rows alone.
    """

    plan: EpochPlan
    part: DataFrame | None
    reading: Column | None
    idle: Column


class Rehearsal:
    """Runs the stages of an engine without rows."""

    def __init__(self, engine: SparkEngine, executors: Executors) -> None:
        self._engine, self._executors = engine, executors

    def play(self, plan: EpochPlan, hosts: Sequence[str]) -> list[float]:
        """All levels of a plan, with a slot on each of these hosts; returns seconds of each time.

        Hosts that have slots already are left alone: they are warm, and busy with epochs.
        """
        anchor = self._engine.anchor_on(hosts)
        try:
            return [self._play(plan, anchor) for _ in range(REHEARSALS)]
        finally:
            anchor.release()

    def practice(self, plan: EpochPlan) -> Practice:
        function = self._engine.silent_functions()[0]
        idle = arrow_stage(function)
        batch = self._engine.last_batch
        if batch is None:
            return Practice(plan, None, None, idle)
        reading = arrow_stage(warming_stage(function, plan.slots))
        return Practice(plan, _first_partition(batch), reading, idle)

    def take(self, practice: Practice, new: Sequence[Executor]) -> Warming:
        """Returns when all cores of the new executors are busy with being warmed.

        No epoch begins before they are: it could be given one of them.
        """
        places = [executor.place for executor in new for _ in range(executor.cores)]

        def work() -> bool:
            if practice.part is not None:
                try:
                    _until_warm(lambda: self._warm(practice, self._reading(practice, places)))
                    return True
                except Exception:
                    log.warning("new executors cannot read the last batch again", exc_info=True)
            self._warm(practice, self._idle(practice, places))
            return False

        def taken() -> bool:
            busy = self._executors.running_tasks()
            return all(busy.get(executor.id, 0) >= executor.cores for executor in new)

        idle = self._engine.between_epochs.acquire(blocking=False)  # else an epoch is under way
        try:
            warming = Warming(new, work)
            _wait_for(lambda: warming.is_over or taken())
        finally:
            if idle:
                self._engine.between_epochs.release()
        return warming

    # --- inside ----------------------------------------------------------------------------
    def _play(self, plan: EpochPlan, anchor: Anchor) -> float:
        started = time.perf_counter()
        tuples = self._anchor_rows(plan, anchor.hosts)
        for function in self._engine.silent_functions():
            stage = arrow_stage(function)
            tuples = apply_stage(anchored(tuples, anchor), stage)
        self._collect(tuples, plan, f"rehearsing on {plan.slots} slots")
        return time.perf_counter() - started

    def _reading(self, practice: Practice, places: Sequence[str]) -> DataFrame:
        """A task on each place that reads one partition of the batch.

        A source task goes where it likes; a product with rows that have a place prefers theirs.
        """
        assert practice.part is not None and practice.reading is not None
        session = self._engine.own_session
        placed = rows_on_hosts(session, [(0,)] * len(places), places, PLACE_TYPE)
        rows = placed.crossJoin(practice.part).drop(PLACE_TYPE.names[0])
        return apply_stage(rows, practice.reading)

    def _idle(self, practice: Practice, places: Sequence[str]) -> DataFrame:
        """A task on each place that reads nothing."""
        return apply_stage(self._anchor_rows(practice.plan, places), practice.idle)

    def _warm(self, practice: Practice, tuples: DataFrame) -> None:
        shuffled = tuples.repartition(1, "label")  # the way into a shuffle is cold too
        self._collect(shuffled, practice.plan, "warming new executors")

    def _anchor_rows(self, plan: EpochPlan, places: Sequence[str]) -> DataFrame:
        """A row per place, made in the JVM: `createDataFrame` would start Python workers of another
        kind first, which kept the cores of all executors for four seconds.
        """
        labels = slot_labels(plan.slots)
        slots = [i % plan.slots for i in range(len(places))]
        rows = [anchor_row(slot, labels[slot]) for slot in slots]
        return rows_on_hosts(self._engine.own_session, rows, places, TUPLE_TYPE)

    def _collect(self, tuples: DataFrame, plan: EpochPlan, what: str) -> None:
        context = self._engine.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        context.setJobDescription(f"{self._engine.program.graph.name}: {what}")
        tuples.collect()


def _until_warm(play: Callable[[], None]) -> None:
    """Again and again while that makes it much faster; what the JVM compiles comes in steps."""
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


def _wait_for(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + TAKEN_WITHIN_S
    while not reached() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
