"""The mixed-integer program of Madsen et al. 2017, solved by HiGHS, never worse than the greedy.

    min  w1 d - w2 (du + dl)                                             x binary; d, du, dl >= 0
    (1)  every unit is on one node
    (2)  sum of mc over units that are not at home <= maxMigrCost
    (3)  load of every node       <= mean + d - du
    (4)  load of nodes that stay  >= mean - d + dl
    (5)  mean - d >= 0

Nodes marked for removal have no (4), so the others draw their load; nothing moves onto them. With
capacities, loads are per capacity. du and dl must not be negative, or d = 0 would always be best.
Where operators have instances on some nodes only, there is an x for these alone, and for staying.
(5) is left out where the start does not keep it: a unit above twice the mean, or the budget, may
leave no allocation that does. Where there is one, the least d keeps it anyway. Loads are divided by
the mean, and the variable is z = 1 + d: a relative gap of the solver is then a share of the mean.

HiGHS may overstay its time limit, so a model is only built as large as the time allows: all of it,
or windows of the fullest and emptiest nodes, one after the other, each a small exact program. What
comes back is rounded, and repaired if over the budget; what is not better than the greedy is
dropped, as is what is not better than staying: under constant loads the load distance falls or
nothing moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csc_array

from headgate.arrays import F64, I32, I64, Bools
from headgate.errors import HeadgateError
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.greedy import FREE, even_out
from headgate.planner.allocation.model import Nodes, Reach, Situation, distance_of
from headgate.planner.allocation.plan import Limits, Plan, describe

W1, W2 = 1.0, 1e-3  # the paper gives none: the distance first, then what lies below it


@dataclass(frozen=True)
class Blocks:
    """What the program moves: units, or sets of units that stay together, on one node each.

    `fixed` is the node that a block must have, or -1. `mean` is that of all loads. `reach` says
    where blocks may go, if not everywhere.
    """

    load: F64
    cost: F64
    home: I32
    fixed: I32
    nodes: Nodes
    mean: float
    reach: Reach | None = None

    @classmethod
    def of(cls, situation: Situation) -> Blocks:
        load, nodes = situation.units.load, situation.nodes
        free = np.full(len(load), FREE, np.int32)
        mean = float(load.sum()) / nodes.staying_capacity
        home = situation.home.astype(np.int32)
        cost = situation.migration_cost
        return cls(load, cost, home, free, nodes, mean, situation.reach)

    def loads(self, node: I32) -> F64:
        return np.bincount(node, self.load, len(self.nodes)).astype(np.float64, copy=False)

    def distance(self, node: I32) -> float:
        return distance_of(self.loads(node), self.nodes)

    def cost_of(self, node: I32) -> float:
        """What it costs to get from home to an allocation."""
        return float(self.cost[node != self.home].sum())


@dataclass(frozen=True)
class MilpSettings:
    """How hard the solver tries. Set by hand, for a HiGHS that ends within its time."""

    good_enough_pct: float = 0.1  # stop this close to the proven bound, in percent of the mean
    variables_per_second: int = 4_000  # size of a model that HiGHS is given, per second it has
    window_nodes: int = 4  # of a reduced model, half of them the fullest, half the emptiest
    windows_failed: int = 12  # in a row, then no more are tried
    window_seconds: float = 0.5  # at most, for one
    branches_max: int | None = (
        None  # of one program's tree; then plans do not depend on the machine
    )


@dataclass(frozen=True)
class Cells:
    """The binary variables x: unit k on node i, for every pair that is allowed."""

    unit: I64
    place: I64
    units: I64
    rows: I64

    @classmethod
    def of(cls, blocks: Blocks, start: I32, movable: I64, targets: Bools) -> Cells:
        """Movable units on the target nodes that stay, or at home, which may be leaving.

        What the start has taken off a leaving node does not go back: such a node must come to be
        empty, even if loads would be more even otherwise.
        """
        units = movable[blocks.fixed[movable] < 0]
        places = np.flatnonzero(targets & blocks.nodes.staying)
        at_home = start[units] == blocks.home[units]
        goes_back = at_home | blocks.nodes.staying[blocks.home[units]]
        away = units[~np.isin(blocks.home[units], places) & goes_back]
        unit = np.concatenate([np.repeat(units, len(places)), away]).astype(np.int64)
        place = np.concatenate([np.tile(places, len(units)), blocks.home[away]]).astype(np.int64)
        if blocks.reach is not None:
            stays = (place == start[unit]) | (place == blocks.home[unit])
            can = stays | blocks.reach.allows(unit, place)
            unit, place = unit[can], place[can]
        return cls(unit, place, units, np.unique(place))

    def __len__(self) -> int:
        return len(self.unit)


def program(
    blocks: Blocks,
    start: I32,
    movable: I64,
    targets: Bools,
    budget: float,
    seconds: float,
    settings: MilpSettings,
) -> tuple[I32 | None, float]:
    """One MILP over some units and nodes; all others stay as in `start`. None: nothing found.

    The number is a proven lower bound of the load distance of these nodes, in percent.
    """
    cells = Cells.of(blocks, start, movable, targets)
    if not len(cells):
        return None, 0.0
    result = _run(blocks, start, cells, budget, seconds, settings)
    proven = 0.0
    if result.mip_dual_bound is not None and np.isfinite(result.mip_dual_bound):
        proven = 100.0 * max(float(result.mip_dual_bound) - 1.0, 0.0)
    if result.x is None:
        return None, proven if result.status == 1 else 0.0
    node = start.copy()
    chosen = result.x[: len(cells)] > 0.5
    node[cells.unit[chosen]] = cells.place[chosen]
    return _affordable(blocks, node, start, budget), proven


def _run(
    blocks: Blocks, start: I32, cells: Cells, budget: float, seconds: float, settings: MilpSettings
) -> OptimizeResult:
    nodes, mean, rows = blocks.nodes, blocks.mean, cells.rows
    now = np.abs(blocks.loads(start)[rows] / nodes.capacity[rows] - mean)[nodes.staying[rows]]
    count = len(cells)
    rest = np.ones(len(blocks.load), np.bool_)
    rest[cells.units] = False
    left = budget - float(blocks.cost[rest & (start != blocks.home)].sum())
    base = np.bincount(start[rest], blocks.load[rest], len(nodes)).astype(np.float64, copy=False)
    return milp(
        np.concatenate([np.zeros(count), [W1, -W2, -W2]]),
        integrality=np.concatenate([np.ones(count), np.zeros(3)]),
        bounds=Bounds(
            np.concatenate([np.zeros(count), [1.0, 0.0, 0.0]]),
            np.concatenate([np.ones(count), [1.0 + now.max() / mean, 1.0, 1.0]]),
        ),
        constraints=_constraints(blocks, cells, base, left),
        options={
            "time_limit": max(seconds, 0.01),
            "mip_rel_gap": settings.good_enough_pct / 200.0,
            **({} if settings.branches_max is None else {"node_limit": settings.branches_max}),
        },
    )


def _constraints(blocks: Blocks, cells: Cells, base: F64, left: float) -> list[LinearConstraint]:
    """Constraints (1) to (4); "not worse than the start", and so (5), is a bound of z."""
    nodes, count, rows = blocks.nodes, len(cells), cells.rows
    z, du, dl = count, count + 1, count + 2
    each, own = np.arange(count), np.arange(len(rows))
    row = np.searchsorted(rows, cells.place)
    share = blocks.load[cells.unit] / (nodes.capacity[cells.place] * blocks.mean)
    already = base[rows] / (nodes.capacity[rows] * blocks.mean)
    stays = nodes.staying[rows]
    price = np.where(cells.place != blocks.home[cells.unit], blocks.cost[cells.unit], 0.0)

    def table(at: list[I64], column: list[I64], value: list[F64], size: int) -> csc_array:
        places = np.concatenate(at), np.concatenate(column)
        return csc_array((np.concatenate(value), places), (size, count + 3))

    ones, k = np.ones(len(rows)), len(rows)
    one = table(
        [np.searchsorted(cells.units, cells.unit)], [each], [np.ones(count)], len(cells.units)
    )
    upper = table([row, own, own], [each, np.full(k, z), np.full(k, du)], [share, -ones, ones], k)
    lower = table([row, own, own], [each, np.full(k, z), np.full(k, dl)], [share, ones, -ones], k)
    found = [
        LinearConstraint(one, 1.0, 1.0),
        LinearConstraint(upper, -np.inf, -already),
        LinearConstraint(lower, np.where(stays, 2.0 - already, -np.inf), np.inf),
    ]
    if np.isfinite(left):
        scale = max(left, 1e-300)
        share_paid = np.minimum(price, 2.0 * scale) / scale  # twice what is left is too much too
        paid = table([np.zeros(count, np.int64)], [each], [share_paid], 1)
        found.append(LinearConstraint(paid, -np.inf, 1.0 if left > 0 else 0.0))
    return found


def _affordable(blocks: Blocks, node: I32, start: I32, budget: float) -> I32:
    """Take back what a solver's tolerance let slip over the budget, the lightest first."""
    if blocks.cost_of(node) <= budget:
        return node
    moved = np.flatnonzero((node != start) & (node != blocks.home))
    for u in moved[np.argsort(blocks.load[moved], kind="stable")]:
        node[u] = start[u]
        if blocks.cost_of(node) <= budget:
            return node
    return start.copy()


Clock = Callable[[], float]
SOLVER_SHARE = 0.85  # of the time; HiGHS looks at its clock only now and then


def solve(
    blocks: Blocks,
    budget: float,
    bound: float,
    deadline: float,
    settings: MilpSettings,
    clock: Clock,
) -> tuple[I32, float, tuple[str, ...]]:
    """The best allocation found by the deadline, the proven bound (percent), and what to tell.

    A fixed block that the budget cannot pay is an error: ask before.
    """
    if float(blocks.cost[(blocks.fixed >= 0) & (blocks.fixed != blocks.home)].sum()) > budget:
        raise HeadgateError("fixed units cost more to move than the budget allows", budget=budget)
    best = even_out(
        blocks.load, blocks.cost, blocks.home, blocks.fixed, blocks.nodes, budget, blocks.reach
    )
    notes: list[str] = []
    distance = blocks.distance(best)
    everything = np.arange(len(blocks.load))
    seconds = deadline - clock()
    if distance <= bound + settings.good_enough_pct or blocks.mean <= 0:
        return best, bound, ("the greedy is as near to the bound as asked",)
    targets, near = int(blocks.nodes.staying.sum()), bound
    if len(everything) * targets <= settings.variables_per_second * seconds:
        found, proven = program(
            blocks, best, everything, blocks.nodes.staying, budget, seconds / 2, settings
        )
        near = max(bound, min(proven, distance))
        if not blocks.nodes.leaving[blocks.home].any():
            bound = near  # else it is only that of allocations that empty what leaves
        if found is not None and blocks.distance(found) < distance:
            best, distance = found, blocks.distance(found)
        told = "HiGHS on" if found is not None else "HiGHS found nothing in time for"
        notes.append(f"{told} all {len(everything)} units")
    windows = _windows(blocks, best, budget, near, deadline, settings, clock)
    if windows[1]:
        best = windows[0]
        notes.append(f"{windows[1]} windows of {settings.window_nodes} nodes improved it")
    return best, bound, tuple(notes)


def _windows(
    blocks: Blocks,
    best: I32,
    budget: float,
    bound: float,
    deadline: float,
    settings: MilpSettings,
    clock: Clock,
) -> tuple[I32, int]:
    """Solve for a few nodes at a time: the worst with partners that can help, until none can."""
    rng = np.random.default_rng(len(blocks.load))
    improved = failed = 0
    nodes = blocks.nodes
    width = min(settings.window_nodes, int(nodes.staying.sum()))
    while failed < settings.windows_failed and (seconds := deadline - clock()) > 0.02:
        loads = blocks.loads(best)
        off = np.where(nodes.staying, loads / nodes.capacity - blocks.mean, 0.0)
        if 100.0 * np.abs(off).max() / blocks.mean <= bound + settings.good_enough_pct:
            break
        worst = int(np.argmax(np.abs(off)))
        others = np.flatnonzero(nodes.staying & (np.arange(len(nodes)) != worst))
        helps = np.argsort(off[others] * np.sign(off[worst]), kind="stable")
        reach = helps[: width - 1 + failed]
        chosen = others[rng.permutation(reach)[: width - 1]] if failed else others[reach]
        inside = np.zeros(len(nodes), np.bool_)
        inside[chosen] = inside[worst] = True
        units = np.flatnonzero(inside[best] & (blocks.fixed < 0))
        if len(units) * width > settings.variables_per_second * seconds:
            rest = rng.permutation(units)
            units = np.sort(rest[: int(settings.variables_per_second * seconds / width)])
        found, _ = program(
            blocks, best, units, inside, budget, min(seconds / 2, settings.window_seconds), settings
        )
        if found is not None and _better(blocks, found, best, inside):
            best, improved, failed = found, improved + 1, 0
        else:
            failed += 1
    return best, improved


def _better(blocks: Blocks, found: I32, best: I32, inside: Bools) -> bool:
    """Is the worst node of the window better off, and no other node worse?"""
    off = [np.abs(blocks.loads(x) / blocks.nodes.capacity - blocks.mean) for x in (found, best)]
    return bool(off[0][inside].max() < off[1][inside].max() * (1 - 1e-6))


SAME = 1e-9


class MilpPlanner:
    """Balance by mixed-integer programming, under a migration budget."""

    name = "milp"
    collocates = False

    def __init__(
        self, settings: MilpSettings | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self.settings = settings or MilpSettings()
        self._clock = clock

    def plan(self, situation: Situation, limits: Limits) -> Plan:
        began = self._clock()
        bound = lower_bound(situation, limits.migration_cost_max)
        blocks = Blocks.of(situation)
        node, bound, notes = solve(
            blocks,
            limits.migration_cost_max,
            bound,
            began + SOLVER_SHARE * limits.seconds,
            self.settings,
            self._clock,
        )
        if not situation.nodes.leaving[blocks.home].any() and blocks.distance(
            blocks.home
        ) <= blocks.distance(node) * (1 + SAME):
            node, notes = blocks.home, (*notes, "not better than staying")
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=bound,
            notes=notes,
            as_measured=True,
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found
