"""The mixed-integer program of Madsen et al. 2017, solved by HiGHS, never worse than the greedy.

`program` has the program. All of it is built and solved for as many units and nodes as the paper
has, and some more: it begins with the greedy's allocation, which windows may have improved, and
ends at a gap or at the deadline. A window is the same program for a few nodes, the fullest and the
emptiest, all others as they are; HiGHS gets further with those in a second than with everything,
and only everything has a bound that holds. Above that size there are windows only. A plan says
which it was, and how far it is from what is proven.

HiGHS may overstay its time limit, so a window is only as large as the time allows. What comes back
is rounded, and repaired if over the budget; what is not better than the greedy is dropped, as is
what is not better than staying: under constant loads the load distance falls or nothing moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import I32, Bools
from headgate.errors import HeadgateError
from headgate.planner.allocation.bound import lower_bound
from headgate.planner.allocation.greedy import even_out
from headgate.planner.allocation.model import Situation
from headgate.planner.allocation.plan import Extent, Limits, Plan, describe
from headgate_lab.planner.program import Blocks, Effort, improve_part


@dataclass(frozen=True)
class MilpSettings:
    """How hard the solver tries. Set by hand, for a HiGHS that ends within its time."""

    good_enough_pct: float = 0.1  # stop this close to the proven bound, in percent of the mean
    limit_share: float = 0.1  # or this close in shares of maxLD: more would move units for noise
    whole_variables_max: int = 30_000  # x of the whole program: 1,000 units on 20 nodes, and more
    whole_share: float = 0.4  # of the time, for the whole program; windows before it have the rest
    variables_per_second: int = 4_000  # size of a window that HiGHS is given, per second it has
    window_nodes: int = 4  # half of them the fullest, half the emptiest
    windows_failed: int = 12  # in a row, then no more are tried
    window_seconds: float = 0.5  # at most, for one
    branches_max: int | None = (
        None  # of one program's tree; then plans do not depend on the machine
    )

    def within(self, limits: Limits) -> MilpSettings:
        """The same, no more exact than the limits ask for."""
        near = max(self.good_enough_pct, self.limit_share * limits.distance_max_pct)
        return replace(self, good_enough_pct=near)

    def effort(self, seconds: float) -> Effort:
        return Effort(seconds, self.good_enough_pct / 200.0, self.branches_max)


Clock = Callable[[], float]
SOLVER_SHARE = 0.85  # of the time; HiGHS looks at its clock only now and then


@dataclass(frozen=True)
class Solved:
    """An allocation of blocks, the proven bound of its load distance (percent), what to tell."""

    node: I32
    bound: float
    extent: Extent | None
    notes: tuple[str, ...]


def solve(
    blocks: Blocks,
    budget: float,
    bound: float,
    deadline: float,
    settings: MilpSettings,
    clock: Clock,
) -> Solved:
    """The best allocation found by the deadline; `bound` is one that is known.

    A fixed block that the budget cannot pay is an error: ask before.
    """
    if float(blocks.cost[(blocks.fixed >= 0) & (blocks.fixed != blocks.home)].sum()) > budget:
        raise HeadgateError("fixed units cost more to move than the budget allows", budget=budget)
    best = even_out(
        blocks.load, blocks.cost, blocks.home, blocks.fixed, blocks.nodes, budget, blocks.reach
    )
    if _is_near(blocks, best, bound, settings) or blocks.mean <= 0:
        return Solved(best, bound, "whole", ("the greedy is as near to the bound as asked",))
    now, notes = clock(), list[str]()
    targets = int(blocks.nodes.staying.sum())
    is_whole = len(blocks.load) * targets <= settings.whole_variables_max
    share = settings.whole_share if targets > settings.window_nodes else 1.0  # one has all nodes
    windows_end = deadline - (deadline - now) * share * is_whole
    best, improved = _windows(blocks, best, budget, bound, windows_end, settings, clock)
    if improved:
        notes.append(f"{improved} windows of {settings.window_nodes} nodes improved it")
    if not is_whole:
        return Solved(best, bound, "window", tuple(notes))
    if not _is_near(blocks, best, bound, settings) and (left := deadline - clock()) > 0:
        found, proven = _whole(blocks, best, budget, settings.effort(left))
        if not blocks.nodes.leaving[blocks.home].any():
            # Else it is only that of allocations that empty what leaves.
            bound = max(bound, min(proven, blocks.distance(best)))
        told = f"all {len(blocks.load)} units on {targets} nodes"
        if found is None:
            notes.append(f"HiGHS found nothing in time for {told}")
        else:
            notes.append(f"HiGHS on {told}")
            best = found if blocks.distance(found) < blocks.distance(best) else best
    return Solved(best, bound, "whole", tuple(notes))


def _whole(blocks: Blocks, start: I32, budget: float, effort: Effort) -> tuple[I32 | None, float]:
    everything, staying = np.arange(len(blocks.load)), blocks.nodes.staying
    return improve_part(blocks, start, everything, staying, budget, effort)


def _is_near(blocks: Blocks, node: I32, bound: float, settings: MilpSettings) -> bool:
    return blocks.distance(node) <= bound + settings.good_enough_pct


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
        effort = settings.effort(min(seconds / 2, settings.window_seconds))
        found, _ = improve_part(blocks, best, units, inside, budget, effort)
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
        solved = solve(
            blocks,
            limits.migration_cost_max,
            bound,
            began + SOLVER_SHARE * limits.seconds,
            self.settings.within(limits),
            self._clock,
        )
        node, notes = solved.node, solved.notes
        if not situation.nodes.leaving[blocks.home].any() and blocks.distance(
            blocks.home
        ) <= blocks.distance(node) * (1 + SAME):
            node, notes = blocks.home, (*notes, "not better than staying")
        found = describe(
            situation,
            node,
            self.name,
            limits,
            bound_pct=solved.bound,
            extent=solved.extent,
            notes=notes,
            as_measured=True,
            seconds=self._clock() - began,
        )
        found.check(situation, limits)
        return found
