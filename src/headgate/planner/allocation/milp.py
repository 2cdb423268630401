"""The mixed-integer program of Madsen et al. 2017, solved by HiGHS, never worse than the greedy.

    min  w1 d - w2 (du + dl)                                             x binary; d, du, dl >= 0
    (1)  every unit is on one node
    (2)  sum of mc over units that are not at home <= maxMigrCost
    (3)  load of every node       <= mean + d - du
    (4)  load of nodes that stay  >= mean - d + dl
    (5)  mean - d >= 0

Nodes marked for removal have no (4), so the others draw their load; nothing moves onto them. With
capacities, loads are per capacity. du and dl must not be negative, or d = 0 would always be best.
(5) is left out where the start does not keep it: a unit above twice the mean, or the budget, may
leave no allocation that does. Where there is one, the least d keeps it anyway.
HiGHS may overstay its time limit, so a model is only built as large as the time allows: all of
it, or windows of the fullest and emptiest nodes, one after the other, each a small exact program.
What a solver returns is checked and repaired; what is not better than the greedy is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headgate.arrays import I32, Bools
from headgate.errors import HeadgateError
from headgate.planner.allocation.greedy import greedy_from
from headgate.planner.allocation.milp_program import Blocks, MilpSettings, program

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
    best = greedy_from(
        blocks.home.copy(),
        blocks.home,
        blocks.load,
        blocks.cost,
        blocks.nodes.capacity,
        blocks.nodes.leaving,
        blocks.fixed,
        budget,
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
    while failed < 12 and (seconds := deadline - clock()) > 0.02:
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
        found, _ = program(blocks, best, units, inside, budget, min(seconds / 2, 0.5), settings)
        if found is not None and _better(blocks, found, best, inside):
            best, improved, failed = found, improved + 1, 0
        else:
            failed += 1
    return best, improved


def _better(blocks: Blocks, found: I32, best: I32, inside: Bools) -> bool:
    """Is the worst node of the window better off, and no other node worse?"""
    off = [np.abs(blocks.loads(x) / blocks.nodes.capacity - blocks.mean) for x in (found, best)]
    return bool(off[0][inside].max() < off[1][inside].max() * (1 - 1e-6))
