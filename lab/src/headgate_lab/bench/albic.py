"""Figure 3 of Madsen et al. 2017: collocation, load distance, load index and migrations.

The airline job (see `airline_job`): five key groups per operator and node, a period is a day of
flights. All planners begin with the same allocation, which is even in numbers and otherwise
random, and see the same loads; those that take a migration budget get the same (in key groups).
After each plan the same day is measured again under the new allocation: units next to their
partners cost less. The load of a period includes the migrations that were made in it: a state row
that moves costs what a row costs that crosses nodes. `bound_pct` and `gap_pct` are of plans with
loads as measured, which is what ALBIC makes; the loads that `cola` and `headgate` plan with depend
on the allocation, and no bound is known for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.arrays import I32
from headgate.demo import Machine
from headgate.planner.allocation.model import Nodes, load_distance
from headgate.planner.allocation.plan import Limits
from headgate_lab.bench.edges import DATA_VARIABLE, data_folder
from headgate_lab.bench.plan_runs import Lines, Runner, means
from headgate_lab.papers.airline_job import (
    FILE,
    Flights,
    flights_of,
    generated_flights,
    read_flights,
    remote_over_row,
    situation_of,
)

Say = Callable[[str], None]
PLANNERS = ("albic", "cola", "headgate")
BOUNDED = ("albic",)
SETTLED = ("collocation", "index")


@dataclass(frozen=True)
class AlbicOptions:
    nodes: int = 20
    groups_per_node: int = 5
    periods: int = 120
    migrations_max: int = 10
    distance_max_pct: float = 5.0
    state_rows_per_group: float = 50.0
    settled: int = 10
    seconds: float = 1.0
    seed: int = 0


QUICK = AlbicOptions(nodes=4, groups_per_node=3, periods=12, migrations_max=4, settled=2)


def run_albic(options: AlbicOptions, say: Say, data: Path | None = None) -> dict[str, Any]:
    """Every planner over all periods.

    `periods_to_collocation` is the first period with at least 99 % of the collocation that ALBIC
    has in the end; null if there is none.
    """
    groups = options.nodes * options.groups_per_node
    name, flights = _read(options, groups, data, say)
    rng = np.random.default_rng(options.seed)
    start = np.concatenate([rng.permutation(groups) % options.nodes for _ in range(3)])
    raw = {p: _follow(p, flights, start.astype(np.int32), options, say) for p in PLANNERS}
    end = {p: {k: float(np.mean(raw[p][k][-options.settled :])) for k in SETTLED} for p in raw}
    goal = 0.99 * end["albic"]["collocation"]
    return {
        "data": name,
        "collocation_factor": {p: end[p]["collocation"] for p in raw},
        "load_distance_pct": {p: float(np.mean(raw[p]["distance"])) for p in raw},
        "load_distance_max_pct": {p: float(np.max(raw[p]["distance"])) for p in raw},
        "planned_load_distance_pct": {p: float(np.mean(raw[p]["planned"])) for p in raw},
        "load_index": {p: end[p]["index"] for p in raw},
        "migrations_per_period": {p: float(np.mean(raw[p]["migrations"])) for p in raw},
        "periods_to_collocation": {p: _first(raw[p]["collocation"], goal) for p in raw},
        "plan_seconds": means(raw, "seconds"),
        "bound_pct": means(raw, "bound"),
        "gap_pct": means(raw, "gap"),
        "raw": raw,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _read(options: AlbicOptions, groups: int, data: Path | None, say: Say) -> tuple[str, Flights]:
    path = data or data_folder() / FILE
    if path.exists():
        return path.stem, read_flights(path, groups)
    say(f"no {FILE} in {path.parent} (set {DATA_VARIABLE}); using generated flights")
    return "generated flights", flights_of(generated_flights(min(options.periods, 60)), groups)


def _follow(name: str, flights: Flights, start: I32, options: AlbicOptions, say: Say) -> Lines:
    """One planner, period by period."""
    planner, home, nodes = Runner(name), start, Nodes.alike(options.nodes)
    limits = Limits(float(options.migrations_max), options.distance_max_pct, options.seconds)
    remote = remote_over_row(flights.delayed_share, options.nodes)
    per_day = len(flights.airplane) / flights.days
    row = 50.0 * options.nodes / (per_day * (2.0 + flights.delayed_share) * 2.0)
    kept = ("collocation", "distance", "planned", "index", "migrations", "seconds", "bound", "gap")
    lines: Lines = {key: [] for key in kept}
    for period in range(options.periods):
        situation = situation_of(flights, period, home, nodes, row, remote)
        plan, seconds = planner.plan(situation, limits)
        after = situation.after(plan.node)
        moved = 2.0 * remote * row * options.state_rows_per_group * plan.migrations
        begin = situation_of(flights, period, start, nodes, row, remote)
        now = float(after.units.load.sum()) + moved
        lines["collocation"].append(plan.collocation)
        lines["distance"].append(load_distance(after, plan.node))
        lines["planned"].append(plan.distance_pct)
        lines["index"].append(100.0 * now / float(begin.units.load.sum()))  # 100: as at the start
        lines["migrations"].append(float(plan.migrations))
        lines["seconds"].append(seconds)
        if name in BOUNDED:
            lines["bound"].append(plan.bound_pct)
            lines["gap"].append(plan.gap_pct)
        home = plan.node
        if period % 20 == 19 or period == options.periods - 1:
            index = lines["index"][-1]
            say(f"{name}, period {period + 1}: {plan.explain()}, load index {index:.0f}")
    return lines


def _first(values: list[float], goal: float) -> int | None:
    reached = np.flatnonzero(np.asarray(values) >= goal)
    return int(reached[0]) + 1 if len(reached) else None
