"""A paper's job under each planner, run on Spark: what its journal says, period by period.

A period is a file: an epoch, and where windows close by it another one without rows. The next file
comes when all is committed and a plan had time to be made, so it holds from the next period on, as
in the paper. All figures are read from the journal:

    distance   load distance of the slots in this period, in percent of the mean. The load of a slot
               is the time that operators took, shared out by the rows that slots processed:
               single times of such small tasks say little. The same for every planner
    timed      the same by the times of operators in each slot, as they were
    measured   load distance that the manager has measured before it planned (None: it did not)
    planned    load distance under its plan, by the loads it was made with, right after the moves
    moves      key groups (or pinned keys) that move after this period
    locality   share of rows that stayed in their slot, which is the collocation factor
    seconds    that the planner took
    task_ms    of all tasks together, per thousand rows
    moved_rows state rows that came with this period
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.commit.facts import EpochFacts, OutcomeFacts, PlanFacts, facts_of
from headgate.commit.planning import Decides
from headgate.commit.settings import Options
from headgate.control.loop import DecisionLoop
from headgate.control.settings import Manager, PlannerSettings
from headgate.control.units import UnitPlacement
from headgate.demo import EpochFiles
from headgate.errors import EngineError
from headgate.flow import Flow
from headgate.routing.table import RoutingTable
from headgate.runtime.query import FlowQuery
from headgate_lab.bench.plan_runs import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = "headgate-keys"  # as `hg.Manager()` comes: it places single keys, as many as pay
_FIRST_FILE_S = 1_600_000_000
_SLOW = ("milp", "albic", "headgate", KEYS)  # planners that may take the seconds they are given
Line = dict[str, float | None]


@dataclass(frozen=True)
class Budget:
    """What a plan may cost, and what is even enough."""

    units_max: int
    distance_max_pct: float
    seconds: float

    def manager(self, planner: str, operators: Sequence[str], every: int) -> Manager | Decides:
        """The manager of a planner. Ours is given units to place, under the papers' budget."""
        tuning = PlannerSettings(
            planner_seconds=self.seconds,
            migration_units_max=self.units_max,
            load_distance_max_pct=self.distance_max_pct,
        )
        name = "headgate" if planner == KEYS else planner
        manager = Manager(
            name, every=every, warm_up_epochs=every, migration_seconds_max=10.0, tuning=tuning
        )
        if planner != "headgate":
            return manager
        return DecisionLoop(placing=UnitPlacement(operators, manager))


@dataclass(frozen=True)
class Placed:
    """A job and how it is run: its flow over a folder of files, and where its keys begin."""

    flow: Callable[[Path, Path], Flow]  # folder of files, folder for results
    files: EpochFiles
    tables: Mapping[str, RoutingTable]
    epochs_per_period: int = 1
    wait_s: float = 0.3

    @property
    def slots(self) -> int:
        return next(iter(self.tables.values())).slots

    @property
    def buckets(self) -> int:
        return next(iter(self.tables.values())).buckets

    def run(
        self, spark: SparkSession, planner: str, budget: Budget, work: Path
    ) -> tuple[FlowQuery, list[Line]]:
        """The query, which has ended, and a line for every period."""
        Runner("headgate" if planner == KEYS else planner)  # loads and compiles what it needs
        live = work / "live"
        live.mkdir(parents=True)
        query = self.flow(live, work / "out").start(
            spark,
            slots=self.slots,
            checkpoint=str(work / "checkpoint"),
            manager=budget.manager(planner, tuple(self.tables), self.epochs_per_period),
            options=Options(tables=self.tables, buckets=self.buckets),
        )
        wait_s = self.wait_s + (budget.seconds if planner in _SLOW else 0.0)
        try:
            for number, path in enumerate(self.files.paths):
                when = _FIRST_FILE_S + number
                os.utime(path, (when, when))
                hidden = live / f".{path.name}"
                shutil.copy2(path, hidden)
                hidden.rename(live / path.name)
                query.processAllAvailable()
                time.sleep(wait_s)
        finally:
            query.stop()
        return query, lines_of(query.journal())


@dataclass
class _Period:
    epochs: list[EpochFacts]
    plans: list[PlanFacts] = field(default_factory=list)
    outcome: OutcomeFacts | None = None


def lines_of(journal: Sequence[Mapping[str, Any]]) -> list[Line]:
    """A line per period, in their order."""
    periods: list[_Period] = []
    said: list[PlanFacts | OutcomeFacts] = []
    for facts in facts_of(journal):
        if isinstance(facts, EpochFacts):
            if facts.rows:
                periods.append(_Period([]))
            periods[-1].epochs.append(facts)
        elif isinstance(facts, PlanFacts | OutcomeFacts):
            said.append(facts)
    for facts in said:
        # It names the epoch that begins with it; it was made of the period before.
        begun = [period for period in periods if period.epochs[0].epoch < facts.epoch]
        if not begun:
            continue
        if isinstance(facts, OutcomeFacts):
            begun[-1].outcome = facts
        elif facts.failed or facts.overtaken:
            raise EngineError(f"planning failed: {facts.failed or facts.overtaken}")
        else:
            begun[-1].plans.append(facts)
    return [_line(period) for period in periods]


def _line(period: _Period) -> Line:
    plans = period.plans
    rows = sum(facts.rows for facts in period.epochs)
    planned = [p.predicted_distance_pct for p in plans if p.predicted_distance_pct is not None]
    measured = None if period.outcome is None else period.outcome.achieved_distance_pct
    local, remote = _crossing(period.epochs)
    tasks = sum(sum(facts.engine.task_ms.values()) for facts in period.epochs)
    return {
        "distance": distance_of_slots(period.epochs, timed=False),
        "timed": distance_of_slots(period.epochs, timed=True),
        "measured": measured,
        "planned": planned[-1] if planned else measured,
        "bound": next((p.bound_pct for p in plans if p.bound_pct is not None), None),
        "moves": float(sum(sum(plan.moves.values()) for plan in plans)),
        "locality": local / (local + remote) if local + remote else None,
        "seconds": max((p.seconds for p in plans if p.seconds is not None), default=None),
        "task_ms": 1e3 * tasks / rows,
        "moved_rows": float(sum(sum(facts.moved_rows.values()) for facts in period.epochs)),
        "epoch_s": sum(facts.engine.seconds for facts in period.epochs),
    }


def _crossing(epochs: Sequence[EpochFacts]) -> tuple[int, int]:
    """Rows between operators that stayed in their slot, and that did not."""
    edges = [edge for facts in epochs for edge in facts.edges.values() if edge.between_slots]
    return sum(edge.local_rows for edge in edges), sum(edge.remote_rows for edge in edges)


def distance_of_slots(epochs: Sequence[EpochFacts], *, timed: bool) -> float:
    """How far the busiest or idlest slot is from the mean, in percent of it.

    By the time of operators in each slot, or by all of their time, shared out by rows.
    """
    load = np.zeros(max(facts.slots for facts in epochs))
    for facts in epochs:
        for operator, by_slot in facts.loads.items():
            rows = np.asarray(by_slot, np.float64)
            none = np.zeros(len(rows))
            spent = np.asarray(facts.operator_ms.get(operator, none))
            took = np.maximum(0.0, spent - np.asarray(facts.moving_ms.get(operator, none)))
            load += took if timed else took.sum() * rows / max(1.0, rows.sum())
    mean = float(load.mean())
    return 100.0 * float(np.abs(load - mean).max()) / mean if mean else 0.0


def means_of(lines: Sequence[Line], name: str) -> float | None:
    """The mean of what there is; None if there is nothing."""
    known = [value for line in lines if (value := line[name]) is not None]
    return float(np.mean(known)) if known else None


def state_of(query: FlowQuery, operator: str) -> dict[Any, Any]:
    """The state of an operator, its last column by its key, to compare with a plain fold."""
    found = {}
    for row in query.state(operator).to_pylist():
        *key, value = row.values()
        found[tuple(key)] = value
    return found
