"""The program of Madsen et al. 2017 over some units and nodes: built, handed to HiGHS, read back.

    min  w1 d - w2 (du + dl)                                             x binary; d, du, dl >= 0
    (1)  every unit is on one node
    (2)  sum of mc over units that are not at home <= maxMigrCost
    (3)  load of every node       <= mean + d - du
    (4)  load of nodes that stay  >= mean - d + dl
    (5)  mean - d >= 0

Nodes marked for removal have no (4), so the others draw their load; nothing moves onto them. With
capacities, loads are per capacity. du and dl must not be negative, or d = 0 would always be best.
Where operators have instances on some nodes only, there is an x for these alone, and for staying.
(5) gives way to the start's d where the start does not keep it: a unit above twice the mean, or the
budget, may leave no allocation that does. Where there is one, the least d keeps it anyway. Loads
are divided by the mean, and the variable is z = 1 + d: a relative gap of the solver is then a share
of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, vstack

from headgate.arrays import F64, I32, I64, Bools
from headgate.planner.allocation.greedy import FREE
from headgate.planner.allocation.model import Nodes, Reach, Situation, distance_of
from headgate_lab.planner.highs import Program, minimise

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


@dataclass(frozen=True)
class Effort:
    """How long HiGHS may take, and how near to its bound (a share of the mean) it may stop."""

    seconds: float
    gap: float
    branches_max: int | None = None


def improve_part(
    blocks: Blocks, start: I32, movable: I64, targets: Bools, budget: float, effort: Effort
) -> tuple[I32 | None, float]:
    """One program over some units and nodes; all others stay as in `start`. None: nothing found.

    The number is a proven lower bound of the load distance of these nodes, in percent.
    """
    cells = Cells.of(blocks, start, movable, targets)
    if not len(cells):
        return None, 0.0
    built = _build(blocks, start, cells, budget)
    begun = _as_x(blocks, start, cells)
    found = minimise(built, begun, effort.seconds, effort.gap, effort.branches_max)
    proven = 100.0 * max(found.bound - 1.0, 0.0)
    if found.x is None:
        return None, proven
    node = start.copy()
    chosen = found.x[: len(cells)] > 0.5
    node[cells.unit[chosen]] = cells.place[chosen]
    return _affordable(blocks, node, start, budget), proven


def _build(blocks: Blocks, start: I32, cells: Cells, budget: float) -> Program:
    """The columns are x of every cell, then z, du and dl; the rows are constraints (1) to (5)."""
    nodes, mean, rows, count = blocks.nodes, blocks.mean, cells.rows, len(cells)
    rest = np.ones(len(blocks.load), np.bool_)
    rest[cells.units] = False
    left = budget - float(blocks.cost[rest & (start != blocks.home)].sum())
    base = np.bincount(start[rest], blocks.load[rest], len(nodes)).astype(np.float64, copy=False)
    share = blocks.load[cells.unit] / (nodes.capacity[cells.place] * mean)
    already = base[rows] / (nodes.capacity[rows] * mean)
    one, k = np.ones(count), len(rows)
    tables, lower, upper = [], [], []

    def add(at: I64, x: F64, ends: tuple[float, float, float], low: F64, high: F64) -> None:
        """Rows: numbers of the cells' rows, their factors, those of z, du, dl, and the limits."""
        own, sides = np.arange(len(low)), np.flatnonzero(ends)
        places = (
            np.concatenate([at, *(own for _ in sides)]),
            np.concatenate([np.arange(len(at)), *(np.full(len(low), count + s) for s in sides)]),
        )
        values = np.concatenate([x, *(np.full(len(low), ends[s]) for s in sides)])
        tables.append(csc_array((values, places), (len(low), count + 3)))
        lower.append(low)
        upper.append(high)

    each = np.ones(len(cells.units))
    row = np.searchsorted(rows, cells.place)
    free = np.full(k, np.inf)
    add(np.searchsorted(cells.units, cells.unit), one, (0.0, 0.0, 0.0), each, each)  # (1)
    if np.isfinite(left):  # (2); twice what is left is too much, and easier for the solver
        scale = max(left, 1e-300)
        price = np.where(cells.place != blocks.home[cells.unit], blocks.cost[cells.unit], 0.0)
        paid = np.minimum(price, 2.0 * scale) / scale
        most = np.array([1.0 if left > 0 else 0.0])
        add(np.zeros(count, np.int64), paid, (0.0, 0.0, 0.0), np.array([-np.inf]), most)
    add(row, share, (-1.0, 1.0, 0.0), -free, -already)  # (3)
    low = np.where(nodes.staying[rows], 2.0 - already, -np.inf)
    add(row, share, (1.0, 0.0, -1.0), low, free)  # (4)
    none = np.empty(0, np.int64)
    worst = _worst(blocks, start, rows)
    most = np.array([max(2.0, worst)])
    add(none, np.empty(0), (1.0, 0.0, 0.0), np.array([-np.inf]), most)  # (5)
    return Program(
        np.concatenate([np.zeros(count), [W1, -W2, -W2]]),
        np.concatenate([np.zeros(count), [1.0, 0.0, 0.0]]),
        np.concatenate([one, [worst, 1.0, 1.0]]),
        np.concatenate([one > 0, [False, False, False]]),
        csc_array(vstack(tables)),
        np.concatenate(lower),
        np.concatenate(upper),
    )


def _worst(blocks: Blocks, node: I32, rows: I64) -> float:
    """Z of an allocation, over nodes that stay: nothing worse is looked for."""
    rows = rows[blocks.nodes.staying[rows]]
    off = np.abs(blocks.loads(node)[rows] / blocks.nodes.capacity[rows] - blocks.mean)
    return 1.0 + float(off.max(initial=0.0)) / blocks.mean


def _as_x(blocks: Blocks, start: I32, cells: Cells) -> F64:
    """An allocation as columns of the program, du and dl as large as they may be."""
    level = blocks.loads(start)[cells.rows] / (blocks.nodes.capacity[cells.rows] * blocks.mean)
    stays = level[blocks.nodes.staying[cells.rows]]
    z = _worst(blocks, start, cells.rows)
    du, dl = z - level.max(), stays.min(initial=np.inf) - (2.0 - z)
    return np.concatenate(
        [cells.place == start[cells.unit], [z, np.clip(du, 0.0, 1.0), np.clip(dl, 0.0, 1.0)]]
    ).astype(np.float64)


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
