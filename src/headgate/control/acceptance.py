"""Is a plan worth its moves? Judged by what it comes to, not by what its planner thinks.

Loads are never the same in two periods; a plan that only follows their noise moves state for
nothing. So a plan is applied if, against staying, it

    takes a unit, or load, off slots that leave
    evens loads that are further apart than allowed, by a tenth at least
    brings rows nearer to where they go, and leaves loads even enough

Invariant: under constant loads every plan applied is better than staying in this order. So the loop
never comes back to an allocation it has left, and a planner that does not foresee what collocation
saves cannot undo in every period what it did in the last.

ALBIC is such a planner: it keeps loads as measured within the limit, and what they come to is often
several times as far apart. Judged like the others it would stall. So its own test counts, and what
loads come to only has to stay within `UNFORESEEN` times the limit. Below that rows come first: what
evens loads must not cost any. The order is strict again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.arrays import I32
from headgate.planner.allocation.model import Balance, Situation, far_rows, load_distance
from headgate.planner.allocation.plan import ROUNDING, Plan

EVENS = 0.9  # of the load distance there is; a plan that evens must come below it
UNFORESEEN = 4.0  # times the load distance allowed, for plans that do not foresee theirs
SAVES = 0.0005  # share of the traffic that a plan must bring together; ALBIC adds a pair a call


@dataclass(frozen=True)
class Standing:
    """What an allocation comes to; each part is better if smaller.

    Args:
        left: Units on slots that leave, with and without load.
        left_load: Their load.
        distance_pct: Load distance, in percent of the mean.
        far: Share of the rows that leave their slot; with known distances, near ones in part.
    """

    left: int
    left_load: float
    distance_pct: float
    far: float

    @classmethod
    def of(cls, situation: Situation, node: I32, balance: Balance) -> Standing:
        behind = situation.nodes.leaving[node]
        rows = situation.traffic.total
        return cls(
            int(behind.sum()),
            float(situation.unit_loads(node)[behind].sum()),
            load_distance(situation, node, balance=balance),
            far_rows(situation, node) / rows if rows else 0.0,
        )

    def empties(self, now: Standing) -> bool:
        if self.left != now.left:
            return self.left < now.left
        return self.left_load < now.left_load * (1 - ROUNDING) - ROUNDING

    def evens(self, now: Standing, limit_pct: float) -> bool:
        return now.distance_pct > limit_pct and self.distance_pct < EVENS * now.distance_pct

    def even_enough(self, now: Standing, limit_pct: float) -> bool:
        return self.distance_pct <= max(limit_pct, now.distance_pct) + ROUNDING


def is_worth_applying(
    situation: Situation, plan: Plan, limit_pct: float, balance: Balance, *, collocates: bool
) -> bool:
    """`collocates`: the planner means to bring rows nearer; else that happens by chance."""
    now = Standing.of(situation, situation.home, balance)
    then = Standing.of(situation, plan.node, balance)
    if then.empties(now):
        return True
    saves = collocates and now.far - then.far >= SAVES
    if collocates and plan.as_measured:
        saves = saves and plan.distance_pct <= max(limit_pct, now.distance_pct) + ROUNDING
        if then.evens(now, limit_pct) and then.far <= now.far:
            return True
        limit_pct *= UNFORESEEN
    if then.evens(now, limit_pct):
        return True
    return saves and then.even_enough(now, limit_pct)
