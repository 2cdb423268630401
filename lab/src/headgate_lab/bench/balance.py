"""Figures 1 and 2 of Madsen et al. 2017: load distance after each period, and migrations.

The edits job (see `edits_job`): 3 operators x 100 key groups on 20 nodes. All planners begin with
the same hash placement, see the same loads, and have the same migration budget, which is counted in
key groups, as the paper's maxMigrations. The load distance is that right after the migrations of
a period, in percent of the mean load, as in the paper; `next` is that of the period after, whose
loads no planner has seen. Figures leave out the first periods, in which the budget is too small.
`bound_pct` is the load distance that no plan of these loads, homes and budget can go below, as
proven by the planner's solver or by counting; `gap_pct` is how far a plan is above it. PoTC (see
`both_choices`) allocates nothing, so there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headgate.demo import Machine
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.model import (
    Nodes,
    Situation,
    Units,
    distance_of,
    load_distance,
)
from headgate.planner.allocation.plan import Limits
from headgate_lab.bench.edges import DATA_VARIABLE, data_folder
from headgate_lab.bench.plan_runs import Lines, Runner, means
from headgate_lab.papers.both_choices import BothChoices
from headgate_lab.papers.edits_job import (
    FILE,
    OPERATORS,
    Edits,
    edits_of,
    generated_day,
    loads,
    loop,
    read_edits,
)

Say = Callable[[str], None]
PLANNERS = ("milp", "headgate", "flux", "hash")


@dataclass(frozen=True)
class BalanceOptions:
    nodes: int = 20
    groups: int = 100
    k: int = 10
    speed: float = 48.0
    period_minutes: int = 11
    periods: int = 30
    warm_up: int = 3
    migrations_max: int = 20
    distance_max_pct: float = 0.2
    seconds: float = 1.5


QUICK = BalanceOptions(nodes=5, groups=20, periods=3, warm_up=1, migrations_max=10, seconds=0.2)


def run_balance(options: BalanceOptions, say: Say, data: Path | None = None) -> dict[str, Any]:
    """Every planner over all periods, with the budget and once more without."""
    name, edits = _read(options, data, say)
    periods = _periods(edits, options)
    limited = _compare(periods, options, float(options.migrations_max), say)
    free = _compare(periods, options, np.inf, say)
    both = _both_choices(edits, options)
    limited["potc"] = free["potc"] = both
    say(f"potc: load distance {np.mean(both['distance']):.2f} %")
    return {
        "data": name,
        "rows_per_period": float(np.mean([p[0].sum() for p in periods])),
        **_summary(limited, options),
        "unlimited": _summary(free, options),
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _read(options: BalanceOptions, data: Path | None, say: Say) -> tuple[str, Edits]:
    path = data or data_folder() / FILE
    if path.exists():
        found = read_edits(path, speed=options.speed, groups=options.groups, k=options.k)
        return path.stem, found
    say(f"no {FILE} in {path.parent} (set {DATA_VARIABLE}); using a generated day")
    day = generated_day()
    return "generated day", edits_of(day, speed=options.speed, groups=options.groups, k=options.k)


def _minutes(edits: Edits, period: int, options: BalanceOptions) -> list[range]:
    each = options.period_minutes
    return loop(edits, range(period * each, (period + 1) * each))


def _periods(edits: Edits, options: BalanceOptions) -> list[Any]:
    return [
        sum(loads(edits, part, options.groups) for part in _minutes(edits, period, options))
        for period in range(options.periods + 1)
    ]


def _both_choices(edits: Edits, options: BalanceOptions) -> Lines:
    potc, nodes = BothChoices(options.nodes), Nodes.alike(options.nodes)
    found = []
    for period in range(options.periods):
        parts = [potc.loads(edits, part) for part in _minutes(edits, period, options)]
        found.append(distance_of(np.sum(parts, axis=0), nodes))
    still = [0.0] * len(found)
    return {"distance": found, "next": found, "migrations": still, "seconds": still}


def _compare(
    periods: list[Any], options: BalanceOptions, budget: float, say: Say
) -> dict[str, Lines]:
    count = len(OPERATORS) * options.groups
    operator = np.repeat(np.arange(len(OPERATORS), dtype=np.int32), options.groups)
    start = (np.arange(count) % options.groups % options.nodes).astype(np.int32)
    scale = 50.0 * options.nodes / float(np.mean([p.sum() for p in periods]))
    limits = Limits(budget, options.distance_max_pct, options.seconds)
    found = {}
    for name in PLANNERS:
        planner, home = Runner(name), start
        kept = ("distance", "next", "migrations", "seconds", "bound", "gap")
        lines: Lines = {key: [] for key in kept}
        for period in range(options.periods):
            units = Units(OPERATORS, operator, scale * periods[period].ravel(), np.ones(count))
            situation = Situation(units, Nodes.alike(options.nodes), home, period=period)
            plan, seconds = planner.plan(situation, limits)
            home = plan.node
            seen = replace(units, load=scale * periods[period + 1].ravel())
            distance = load_distance(situation, home)
            bound = max(plan.bound_pct, lower_bound(situation, budget))
            lines["distance"].append(distance)
            lines["next"].append(load_distance(replace(situation, units=seen, home=home), home))
            lines["migrations"].append(float(plan.migrations))
            lines["seconds"].append(seconds)
            lines["bound"].append(bound)
            lines["gap"].append(max(0.0, distance - bound))
        found[name] = lines
        say(
            f"{name}: load distance {np.mean(lines['distance']):.2f} %, at most "
            f"{max(lines['distance'][options.warm_up :]):.2f} % after {options.warm_up} periods, "
            f"{np.mean(lines['migrations']):.1f} migrations a period"
        )
    return found


def _summary(found: dict[str, Lines], options: BalanceOptions) -> dict[str, Any]:
    def spread(values: list[float]) -> dict[str, float]:
        settled = values[options.warm_up :]
        return {"mean": float(np.mean(settled)), "max": float(np.max(settled))}

    return {
        "load_distance_pct": {n: spread(x["distance"]) for n, x in found.items()},
        "next_load_distance_pct": {n: spread(x["next"]) for n, x in found.items()},
        "migrations": means(found, "migrations"),
        "plan_seconds": means(found, "seconds"),
        "bound_pct": means(found, "bound", options.warm_up),
        "gap_pct": means(found, "gap", options.warm_up),
        "raw": found,
    }
