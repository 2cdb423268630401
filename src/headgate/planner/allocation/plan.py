"""What a planner gives back: a node for every unit, what it is worth, and why, one line a move.

A plan is checked against the situation and the limits it was made for (invariant 4). One that
breaks a limit is refused; planners that cannot be trusted, such as solvers, are repaired before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np

from headgate.arrays import F64, I32
from headgate.errors import HeadgateError
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.model import (
    Balance,
    Situation,
    balance_classes,
    class_loads,
    class_room,
    load_distance,
)
from headgate.planner.distance import CLASSES
from headgate.planner.registry import load, registered, why_unknown

REASONS_MAX = 1_000  # lines that a plan explains its moves with
CLEARLY = 1.05  # rows are a reason to move if they are so many times as many as before
KEPT = ("stay on its node", "stay on its host", "stay in its rack")
ROUNDING = 1e-9  # share of a budget that sums of costs may be off by


@dataclass(frozen=True)
class Limits:
    """What one plan may cost and should reach."""

    migration_cost_max: float = np.inf  # sum of mc over all units that move (maxMigrCost)
    distance_max_pct: float = 1.0  # load distance that is good enough (maxLD), in percent
    seconds: float = 1.0  # the planner is back after that time
    noise_pct: float = 0.0  # of that, by squares, what chance gives: three standard deviations

    @property
    def aim_pct(self) -> float:
        """What a plan should come to: loads just within are beyond it again by chance.

        No nearer than one standard deviation, below which it would follow chance itself.
        """
        allowed = math.sqrt(max(self.distance_max_pct**2 - self.noise_pct**2, 0.0))
        return max(allowed, self.noise_pct / 3.0)

    def __post_init__(self) -> None:
        if not (self.migration_cost_max >= 0 and self.distance_max_pct >= 0 and self.seconds > 0):
            raise HeadgateError(f"{self}: give limits of at least 0, and some time")


Extent = Literal["whole", "window"]
"""How much of it a solver had in one program: all units and nodes, or a few nodes at a time."""
EXTENTS: Mapping[Extent, str] = {"whole": "whole program", "window": "windows of it"}


@dataclass(frozen=True)
class Plan:
    """An allocation and its worth. Distances are in percent of the mean load.

    `reasons` has a line for each move, heaviest units first, at most 1,000 and then how many more.
    `loads` is what it makes of the nodes. `as_measured`: the distance is that of loads as they are,
    without what collocation saves. `extent` is of plans that a solver made.
    """

    node: I32
    method: str
    distance_pct: float
    bound_pct: float
    collocation: float
    migrations: int
    migration_cost: float
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    loads: F64 = field(default_factory=lambda: np.empty(0))
    as_measured: bool = False
    extent: Extent | None = None

    def __repr__(self) -> str:
        return f"<Plan of {self.explain()}>"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in (*self.notes, *self.reasons))
        return f"<b>{escape(self.explain())}</b><ul>{lines}</ul>"

    @property
    def places(self) -> frozenset[int]:
        """Nodes that have a unit."""
        return frozenset(np.unique(self.node).tolist())

    @property
    def gap_pct(self) -> float:
        """How far the load distance is above the proven lower bound."""
        return max(0.0, self.distance_pct - self.bound_pct)

    def explain(self) -> str:
        solved = (
            "" if self.extent is None else f"{EXTENTS[self.extent]}, gap {self.gap_pct:.2f} %, "
        )
        return (
            f"{self.method}: {self.migrations} units move; load distance "
            f"{self.distance_pct:.2f} % ({solved}bound {self.bound_pct:.2f} %), "
            f"collocation {self.collocation:.3f}"
        )

    def check(self, situation: Situation, limits: Limits) -> None:
        """Every unit has one node that exists, new ones stay and may have it; the budget holds."""
        wrong = None
        moved = self.node != situation.home if self.node.shape == situation.home.shape else None
        if moved is None:
            wrong = f"{len(self.node)} places for {len(situation.home)} units"
        elif len(self.node) and not (
            self.node.min() >= 0 and self.node.max() < len(situation.nodes)
        ):
            wrong = f"a node outside 0..{len(situation.nodes) - 1}"
        elif situation.nodes.leaving[self.node[moved]].any():
            wrong = "a unit that moves to a node marked for removal"
        elif situation.reach is not None and not (
            situation.reach.allows(np.flatnonzero(moved), self.node[moved]).all()
        ):
            wrong = "a unit that moves to a node without an instance of its operator"
        elif situation.cost_of(self.node) > limits.migration_cost_max * (1 + ROUNDING):
            wrong = (
                f"moves that cost {situation.cost_of(self.node):g} of "
                f"{limits.migration_cost_max:g} allowed"
            )
        if wrong:
            raise HeadgateError(f"the plan ({self.method}) has {wrong}; nothing was installed")


class Planner(Protocol):
    """Any way to allocate units."""

    @property
    def name(self) -> str: ...

    @property
    def collocates(self) -> bool:
        """Does it mean to bring partners together, or does that happen by chance?"""
        ...

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        """Where units should be. Never fails on a valid situation; staying put is a plan too."""


def describe(
    situation: Situation,
    node: I32,
    method: str,
    limits: Limits,
    *,
    seconds: float = 0.0,
    notes: tuple[str, ...] = (),
    bound_pct: float | None = None,
    as_measured: bool = False,
    for_rows: bool | None = None,
    balance: Balance = "total",
    extent: Extent | None = None,
) -> Plan:
    """A plan with its figures worked out, and why every unit moves.

    Planners of loads as measured are taken not to move units for their rows, unless they say so.
    """
    moved = situation.moved(node)
    bound = lower_bound(situation, limits.migration_cost_max) if bound_pct is None else bound_pct
    reasons = reasons_for(
        situation,
        node,
        balance=balance,
        as_measured=as_measured,
        for_rows=not as_measured if for_rows is None else for_rows,
    )
    return Plan(
        node,
        method,
        load_distance(situation, node, as_measured=as_measured, balance=balance),
        bound,
        situation.collocation(node),
        len(moved),
        float(situation.migration_cost[moved].sum()),
        reasons,
        seconds,
        notes,
        loads=situation.node_loads(node),
        as_measured=as_measured,
        extent=extent,
    )


Clock = Callable[[], float]
OWN = ("headgate",)


def make_allocator(
    name: str = "headgate",
    clock: Clock = time.perf_counter,
    balance: Balance = "total",
    own: Mapping[str, float] = MappingProxyType({}),
) -> Planner:
    """A planner, with settings of its `own`; only "headgate" can even every operator by itself.

    Imported late: kernels are compiled, and only a manager needs them.
    """
    if name == "headgate":
        from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings

        return IntegratedPlanner(IntegratedSettings(balance=balance), clock)
    if name not in registered("units"):
        raise HeadgateError(why_unknown(name, OWN, "units"), planner=name)
    if balance != "total":
        raise HeadgateError(f"{name!r} evens the total load; take 'headgate' for every operator's")
    planner: Planner = load("units", name)(clock=clock, **own)
    return planner


def reasons_for(
    situation: Situation,
    node: I32,
    *,
    balance: Balance = "total",
    as_measured: bool = False,
    for_rows: bool = True,
) -> tuple[str, ...]:
    """Why units move: a line for each of the REASONS_MAX heaviest, and one that counts the rest.

    In this order: its node leaves; more of its rows stay on its node, its host or in its rack;
    loads are more even with it than without it, all other moves made; it makes room for others.
    `for_rows` is false of planners that look at loads alone: where rows go is chance then.
    """
    moved = situation.moved(node)
    moved = moved[np.argsort(-situation.units.load[moved], kind="stable")]
    if not len(moved):
        return ()
    by_loads = _by_loads(situation, node, balance, as_measured=as_measured)
    if for_rows:
        before, after = _rows_within(situation, situation.home), _rows_within(situation, node)
    lines = []
    for u in moved[:REASONS_MAX].tolist():
        source, target = int(situation.home[u]), int(node[u])
        why = f"node {source} is to be removed" if situation.nodes.leaving[source] else None
        if why is None and for_rows:
            why = _by_rows(before[u], after[u])
        lines.append(f"{situation.units.name(u)}: node {source} -> {target}, {why or by_loads(u)}")
    if len(moved) > REASONS_MAX:
        lines.append(f"and {len(moved) - REASONS_MAX:,} more")
    return tuple(lines)


def _by_rows(before: F64, after: F64) -> str | None:
    """The nearest class of distances in which a unit has clearly more rows than before."""
    for words, old, new in zip(KEPT, before, after, strict=False):
        if new > old * CLEARLY:
            rows = [f"{x:,.0f}" if x >= 10 else f"{x:.2g}" for x in (new, old)]
            return f"{rows[0]} rows of it {words}, {rows[1]} before"
    return None


def _rows_within(situation: Situation, node: I32) -> F64:
    """[unit, class]: rows of each unit that go no further than a node, a host, a rack."""
    t, distances = situation.traffic, situation.nodes.distances
    a, b = node[t.sender], node[t.receiver]
    far = (a != b).astype(np.int64) if distances is None else distances.near[a, b]
    classes = 2 if distances is None else len(CLASSES)
    rows = np.zeros(len(node) * classes)
    for end in (t.sender, t.receiver):
        rows += np.bincount(end * classes + far, t.rate, len(rows))
    return np.cumsum(rows.reshape(-1, classes), axis=1)[:, :-1]


def _by_loads(
    situation: Situation, node: I32, balance: Balance, *, as_measured: bool
) -> Callable[[int], str]:
    """Why a unit moves, if not for its rows: loads of nodes with and without that single move."""
    units, capacity, home = situation.units, situation.nodes.capacity, situation.home
    kinds = balance_classes(situation, balance)
    load = units.load if as_measured else situation.unit_loads(node)
    loads = class_loads(situation, node, balance, as_measured=as_measured)
    means = loads.sum(axis=1) / class_room(situation, balance)
    percent = 100.0 / np.maximum(means, 1e-300)
    comes_to = np.bincount(node[node != home], minlength=len(capacity))

    def why(unit: int) -> str:
        kind, source, target = kinds[unit], home[unit], node[unit]
        stayed = percent[kind] * (loads[kind, source] + load[unit]) / capacity[source]
        without = percent[kind] * (loads[kind, target] - load[unit]) / capacity[target]
        if stayed > without:
            of = f" of {units.operators[units.operator[unit]]}" if balance == "operator" else ""
            return (
                f"evens loads{of}: without it node {source} would have {stayed:.1f} % of the mean, "
                f"node {target} {without:.1f} %"
            )
        if comes_to[source]:
            return f"in exchange for what comes to node {source}"
        return "part of the plan as a whole"

    return why
