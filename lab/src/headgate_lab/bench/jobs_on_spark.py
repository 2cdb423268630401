"""Figures 1 to 3 of Madsen et al. 2017 as running jobs: `bench balance --spark`, `albic --spark`.

The edits and the airline job run embedded in Spark, with more slots than there are cores, once
under each planner. Nobody counts rows for a planner: the flow's manager plans from what slots have
measured, and the figures are those of the flow's journal (`placed_runs`). In the end the results
are compared with a plain fold. The bench without Spark is the quick mode: it has the paper's sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.demo import Machine, write_epochs
from headgate.errors import HeadgateError
from headgate.routing.table import hash_table
from headgate.runtime.query import FlowQuery
from headgate_lab.bench.edges import DATA_VARIABLE, data_folder
from headgate_lab.bench.placed_runs import KEYS, Budget, Line, Placed, means_of, state_of
from headgate_lab.papers import airline_flow, airline_job, edits_flow, edits_job
from headgate_lab.record import work_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
MEANS = (
    "distance",
    "timed",
    "measured",
    "planned",
    "bound",
    "moves",
    "locality",
    "seconds",
    "epoch_s",
)


@dataclass(frozen=True)
class JobOptions:
    """Sizes; `groups` is a power of two, as buckets are."""

    planners: tuple[str, ...]
    slots: int
    groups: int
    periods: int
    warm_up: int  # periods left out of the means
    settled: int  # the last ones, which the end is the mean of
    units_max: int
    distance_max_pct: float
    seconds: float
    k: int = 10
    speed: float = 48.0
    period_minutes: int = 11
    seed: int = 0

    @property
    def budget(self) -> Budget:
        return Budget(self.units_max, self.distance_max_pct, self.seconds)


BALANCE = JobOptions(
    ("milp", "headgate", "flux", KEYS, "hash"), 20, 128, 20, 5, 10, 20, 0.2, seconds=1.0
)
ALBIC = JobOptions(
    ("albic", "cola", "headgate", KEYS, "hash"), 12, 64, 60, 0, 10, 10, 5.0, seconds=0.5
)
QUICK_BALANCE = JobOptions(
    ("milp", "hash"), 3, 16, 4, 1, 2, 10, 0.2, seconds=0.2, speed=480.0, period_minutes=2
)
QUICK_ALBIC = JobOptions(("headgate", "hash"), 3, 16, 4, 0, 2, 10, 5.0, seconds=0.2)


def run_balance_on_spark(
    options: JobOptions, say: Say, data: Path | None = None, spark: SparkSession | None = None
) -> dict[str, Any]:
    """The edits job: load distance and migrations."""
    name, day = _read(data, edits_job.FILE, edits_job.generated_day, say)
    how = edits_flow.Played(options.speed, options.period_minutes, options.periods, options.groups)
    periods = edits_flow.played_periods(day, how)
    editors, ranked = edits_flow.fold(periods, options.groups, options.k)
    starts = {op: np.arange(options.groups) for op in edits_flow.OPERATORS}

    def flow(folder: Path, out: Path) -> Any:
        return edits_flow.edits_flow(folder, options.groups, options.k, out)

    def differs(query: FlowQuery, out: Path) -> str:
        if state_of(query, "geohash") != {(editor,): n for editor, n in editors.items()}:
            return "the edits of editors"
        return "" if edits_flow.read_top(out) == ranked else "the titles of a minute"

    return _run_all(options, periods, starts, flow, differs, say, spark, 2) | {"data": name}


def run_albic_on_spark(
    options: JobOptions, say: Say, data: Path | None = None, spark: SparkSession | None = None
) -> dict[str, Any]:
    """The airline job: collocation, load distance, load index and migrations."""
    columns = ["ts", "tail", "origin", "dest", "arr_delay"]

    def generated() -> pa.Table:
        return airline_job.generated_flights(min(options.periods, 60))

    name, flights = _read(data, airline_job.FILE, generated, say, columns)
    days = airline_flow.days_of(flights, options.periods)
    folded = airline_flow.fold(days)
    rng = np.random.default_rng(options.seed)
    starts = {op: rng.permutation(options.groups) for op in airline_job.OPERATORS}

    def flow(folder: Path, out: Path) -> Any:
        return airline_flow.airline_flow(folder)

    def differs(query: FlowQuery, out: Path) -> str:
        wrong = [op for op, sums in folded.items() if state_of(query, op) != dict(sums)]
        return f"the state of {', '.join(wrong)}" if wrong else ""

    found = _run_all(options, days, starts, flow, differs, say, spark, 1) | {"data": name}
    ends = {p: means_of(raw[-options.settled :], "locality") for p, raw in found["raw"].items()}
    return found | {"collocation_factor": ends}


def _run_all(
    options: JobOptions,
    periods: Sequence[pa.Table],
    starts: dict[str, Any],
    flow: Callable[[Path, Path], Any],
    differs: Callable[[FlowQuery, Path], str],
    say: Say,
    spark: SparkSession | None,
    epochs_per_period: int,
) -> dict[str, Any]:
    """Every planner from the same allocation over the same files; raises if a result is wrong."""
    from headgate.runtime.session import local_session

    given = spark is not None
    spark = spark or local_session("headgate-lab bench", conf={"spark.master": "local[*]"})
    table = hash_table(options.slots, options.groups)
    tables = {op: table.with_owners(order % options.slots) for op, order in starts.items()}
    raw: dict[str, list[Line]] = {}
    seconds = {}
    with work_folder() as folder:
        work = Path(folder)
        files = write_epochs(periods, work / "in")
        job = Placed(flow, files, tables, epochs_per_period)
        for planner in options.planners:
            begun, place = time.perf_counter(), work / planner
            query, lines = job.run(spark, planner, options.budget, place)
            if wrong := differs(query, place / "out"):
                raise HeadgateError(f"{planner}: {wrong} are not those of a plain fold")
            raw[planner] = lines[: options.periods]
            seconds[planner] = time.perf_counter() - begun
            say(_told(planner, raw[planner][options.warm_up :], seconds[planner]))
    if not given:
        spark.stop()
    settled = {p: lines[options.warm_up :] for p, lines in raw.items()}
    return {
        **{name: {p: means_of(lines, name) for p, lines in settled.items()} for name in MEANS},
        "load_index": _indexes(raw, options.settled),
        "rows_per_period": float(np.mean([len(p) for p in periods[: options.periods]])),
        "equal_to_a_plain_fold": True,
        "run_seconds": seconds,
        "raw": raw,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _indexes(raw: dict[str, list[Line]], settled: int) -> dict[str, float]:
    """Time of all tasks per row in the last periods; 100: under the allocation of the start."""
    took = {p: means_of(lines[-settled:], "task_ms") or 0.0 for p, lines in raw.items()}
    start = took.get("hash", 0.0)
    return {p: 100.0 * ms / start for p, ms in took.items()} if start else {}


def _told(planner: str, lines: Sequence[Line], seconds: float) -> str:
    said = {name: means_of(lines, name) for name in ("distance", "planned", "moves", "locality")}
    texts = (f"{name} {value:.3g}" for name, value in said.items() if value is not None)
    return f"{planner}: a period has {', '.join(texts)}; {seconds:.0f} s, equal to a plain fold"


def _read(
    data: Path | None,
    name: str,
    generated: Callable[[], pa.Table],
    say: Say,
    columns: list[str] | None = None,
) -> tuple[str, pa.Table]:
    path = data or data_folder() / name
    if path.exists():
        return path.stem, pq.read_table(path, columns=columns)
    say(f"no {name} in {path.parent} (set {DATA_VARIABLE}); using generated rows")
    return "generated rows", generated()
