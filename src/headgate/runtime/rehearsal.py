"""Epochs without rows, so that new executors and slots are warm before rows depend on them.

A cold executor has loaded no class, compiled no stage and started no Python worker: its first
tasks take many times what others take, and Spark gives it source tasks as soon as it is there.
So a new executor is taken at once, before the next epoch begins, by tasks that prefer it to all
others and keep its cores busy until it is warm. Then whole rehearsals run on the slots to be. Both
run beside the epochs and tell nobody what they measured; no state is read or written.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from headgate.runtime.anchor import anchored, rows_on_hosts, slot_labels
from headgate.runtime.engine import SparkEngine
from headgate.runtime.exchange import TUPLE_TYPE, apply_stage
from headgate.runtime.worker import PLAN_PROPERTY, pack_plan
from headgate.slot.batch_tuple import anchor_row
from headgate.slot.plan import EpochPlan

TAKEN_WITHIN_S = 3.0
POLL_SECONDS = 0.01


class Rehearsal:
    """Runs the stages of an engine without rows."""

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine

    def play(self, plan: EpochPlan) -> float:
        """All levels of a plan, on its slots; returns the seconds it took."""
        started = time.perf_counter()
        engine = self._engine
        anchor = engine.anchor(plan.slots)
        tuples = engine.own_session.createDataFrame([], TUPLE_TYPE)
        for stage in engine.silent_stages():
            tuples = apply_stage(anchored(tuples, anchor), stage)
        self._collect(tuples, plan, f"rehearsing {plan.slots} slots")
        return time.perf_counter() - started

    def warm(self, plan: EpochPlan, places: Sequence[str]) -> float:
        """One task on each of these places, before the next epoch can have any there."""
        started = time.perf_counter()
        labels = slot_labels(plan.slots)
        slots = [i % plan.slots for i in range(len(places))]
        rows = [anchor_row(slot, labels[slot]) for slot in slots]
        frame = rows_on_hosts(self._engine.own_session, rows, places, TUPLE_TYPE)
        tuples = apply_stage(frame, self._engine.silent_stages()[0])
        tuples = tuples.repartition(plan.slots, "label")  # the way into a shuffle is cold too
        group = uuid.uuid4().hex
        failures: list[BaseException] = []

        def run() -> None:
            try:
                self._collect(tuples, plan, f"warming {len(places)} cores", group)
            except BaseException as problem:
                failures.append(problem)

        job = threading.Thread(target=run, name="headgate-warming", daemon=True)
        idle = self._engine.between_epochs.acquire(blocking=False)  # else an epoch is under way
        try:
            job.start()
            _wait_for(lambda: not job.is_alive() or self._running(group) >= len(places))
        finally:
            if idle:
                self._engine.between_epochs.release()
        job.join()
        if failures:
            raise failures[0]
        return time.perf_counter() - started

    def _collect(
        self, tuples: DataFrame, plan: EpochPlan, what: str, group: str | None = None
    ) -> None:
        context = self._engine.spark.sparkContext
        context.setLocalProperty(PLAN_PROPERTY, pack_plan(plan))
        if group is not None:
            context.setJobGroup(group, what)
        context.setJobDescription(f"{self._engine.program.graph.name}: {what}")
        tuples.collect()

    def _running(self, group: str) -> int:
        tracker = self._engine.spark.sparkContext.statusTracker()
        jobs: list[Any] = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages: list[Any] = [
            tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
        ]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _wait_for(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + TAKEN_WITHIN_S
    while not reached() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
