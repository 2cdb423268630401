"""The adaptation loop of Madsen et al. 2017 (Algorithm 1), pure: a period in, instructions out.

    1  release slots marked for removal that are empty
    2  plan an allocation of units, under the migration budget
    3  decide on scaling from the planned loads; if it changes, plan again with the new slots
    4  apply the plan, if it is worth its moves

Loads are those of the allocation that is *planned*: uneven loads are evened before more slots are
asked for (section III.A). Which slots leave is chosen (`choose_leaving`: slow hosts, whole hosts,
little state); those that stay are numbered anew when all others have gone. A slot that is to leave
is drained over as many periods as the budget takes, then released without anything to move. What
costs more to move than a period may would hold its slot for ever; so when nothing else can be taken
off, one such unit a period moves alone: a drain ends after as many periods as there are units, at
most.
New slots come empty, when the engine has them, and the plan of the period after fills them. Until
slots that were asked for or released have come or gone, units are planned as ever, but nothing else
is scaled.

**Is a plan worth its moves?** Loads are never the same in two periods; a plan that only follows
their noise moves state for nothing. So a plan is applied if, against staying, it

    takes a unit, or load, off slots that leave
    evens loads by a tenth that are further apart than allowed by more than chance
    brings rows nearer to where they go, more than chance would (`chance`), and leaves loads even
        enough

judged by the loads it leads to, not by what its planner thinks. Invariant: under constant loads
every plan applied is better than staying in this order. So the loop never comes back to an
allocation it has left, and a planner that does not foresee what collocation saves cannot undo in
every period what it did in the last. ALBIC is such a planner: it keeps loads as measured within the
limit, and those it leads to are often several times as far apart. Judged like the others it would
stall. So its own test counts, and the loads it leads to only have to stay within `UNFORESEEN` times
the limit, `UNEVEN_PCT` at most. Below that rows come first: what evens loads must not cost any; so
the order is strict.

A plan that is worth its moves for its loads, or as slots leave, may bring rows along that only
chance has put side by side: it is the best of very many. Then it is made again from the rows that
speak (`chance.rows_that_speak`), with fewer moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.arrays import F64, I32
from headgate.control.chance import is_more_than_chance, is_more_than_luck, rows_that_speak
from headgate.control.draining import empty_slots, marked, move_alone, slots_named, units_left
from headgate.control.policy import joined
from headgate.control.settings import Scaling
from headgate.planner.allocation.model import (
    Balance,
    Situation,
    Traffic,
    far_rows,
    load_distance,
)
from headgate.planner.allocation.plan import ROUNDING, Limits, Plan, Planner
from headgate.planner.leaving import choose_leaving, new_order

HELPS_PCT = 5.0  # more slots must take at least this off the busiest one
PATIENCE_PERIODS = 10  # for slots that were asked for and did not come
EVENS = 0.9  # of the present load distance; a plan that evens must come below it
UNFORESEEN = 4.0  # times the load distance allowed, for plans that do not foresee theirs
UNEVEN_PCT = 50.0  # of the mean: uneven whatever was not foreseen; an idle slot is 100 % off
SAVES = 0.0005  # share of the traffic that a plan must bring together; ALBIC adds what it can


@dataclass(frozen=True)
class MeasuredUnits:
    """A period as planners see it. `base` is the load that every slot has besides its units.

    `noise_pct` is a load distance that chance alone may give: rows of a period are a sample.
    `told` says which resource loads are of, and why. `before` are the rows of the periods before,
    the last first, between the same units.
    """

    situation: Situation
    resource: str
    base: float
    timed: bool
    noise_pct: float = 0.0
    told: str = ""
    before: tuple[Traffic, ...] = ()

    @property
    def loads(self) -> F64:
        """Load of every slot as things are, in percent of what it can take."""
        situation = self.situation
        return (situation.node_loads(situation.home) + self.base) / situation.nodes.capacity

    def loads_of(self, plan: Plan) -> F64:
        """The same under a plan."""
        return (plan.loads + self.base) / self.situation.nodes.capacity


@dataclass(frozen=True)
class Adapted:
    """A plan to apply, slots to change to (which are `gone` then), and why, in one line."""

    plan: Plan | None = None
    slots: int | None = None
    why: str = ""
    gone: tuple[int, ...] = ()


class Adaptation:
    """Decides period by period; remembers which slots leave and what it has asked for.

    The slots `leaving` are to be emptied under the budget, and then released.
    """

    def __init__(
        self,
        planner: Planner,
        limits: Limits,
        scaling: Scaling | None,
        balance: Balance = "total",
    ) -> None:
        self._planner, self._limits, self._balance = planner, limits, balance
        self._watch = None if scaling is None else Watch(scaling)
        self.leaving: tuple[int, ...] = ()
        self._to_choose = 0
        self._asked: int | None = None
        self._leave_then: tuple[int, ...] = ()
        self._patience = 0
        self._given = limits
        self._before: tuple[Traffic, ...] = ()

    @property
    def is_draining(self) -> bool:
        return bool(self.leaving or self._to_choose)

    def drain(self, slots: int) -> None:
        """Choose so many slots in the next period, empty them, and ask for their release."""
        self._to_choose = slots

    def slots_changed(self, slots: int) -> None:
        """The engine runs with another number of slots now; some of them may have to go yet."""
        self.leaving = self._leave_then if slots == self._asked else ()
        self._to_choose, self._asked = 0, None
        if self._watch is not None:
            self._watch.begin_anew()

    def step(self, measured: MeasuredUnits, *, scale: bool = True) -> Adapted:
        """One turn. The situation says how many slots there are, and which of them leave.

        Without `scale` slots have just come: they are empty, which is no chance.
        """
        if self._to_choose:
            self.leaving = self._choose(measured.situation, self._to_choose)
            self._to_choose = 0
            measured = replace(measured, situation=marked(measured.situation, self.leaving))
        situation, leaving = measured.situation, self.leaving
        self._before = measured.before
        given, noise = self._given.distance_max_pct, measured.noise_pct if scale else 0.0
        even_pct = math.hypot(given, noise)
        self._limits = replace(self._given, distance_max_pct=even_pct, noise_pct=noise)
        slots, empty = len(situation.nodes), empty_slots(situation, leaving)
        needed = slots - len(empty)
        if self._asked is not None:
            self._patience -= 1
            self._asked = self._asked if self._patience > 0 else None
        released = ""
        if needed < slots and (self._asked is None or self._asked > needed):
            now = new_order(slots, empty).tolist()
            self._ask(needed, sorted(now.index(slot) for slot in {*leaving} - {*empty}))
            released = f"{slots_named(empty)} released: drained, nothing lives there"
        plan = self._planner.plan(situation, self._limits)
        adapted = Adapted(plan)
        if scale and self._watch is not None and measured.timed and self._asked is None:
            adapted = self._scale(self._watch, measured, plan, slots)
        worth = self._worth_applying(marked(situation, self.leaving), adapted.plan)
        adapted = replace(adapted, plan=worth)
        if leaving and leaving == self.leaving:
            adapted = self._draining(adapted, situation, empty)
        if not released:
            return adapted
        why = joined(released, adapted.why)
        return replace(adapted, slots=self._asked, why=why, gone=empty)

    # --- inside ----------------------------------------------------------------------------
    def _choose(self, situation: Situation, count: int) -> tuple[int, ...]:
        """So many slots to do without, those that leave already among them; at least one stays."""
        nodes, slots = situation.nodes, len(situation.nodes)
        count = min(count, slots - 1)
        cost = np.bincount(situation.home, situation.migration_cost, slots)
        hosts = () if nodes.distances is None else nodes.distances.hosts(np.arange(slots))
        spent = cost.astype(np.float64)
        return choose_leaving(spent, nodes.capacity, count, hosts, self.leaving)

    def _worth_applying(self, situation: Situation, plan: Plan | None) -> Plan | None:
        """The plan, if it is worth its moves, and without moves that luck has put into it."""
        if plan is None or not plan.migrations:
            return plan
        if not self._is_worth_applying(situation, plan):
            return None
        if self._is_by_luck(situation, plan):
            speak = rows_that_speak(situation.traffic, self._before, len(situation.units))
            again = self._planner.plan(replace(situation, traffic=speak), self._limits)
            if again.migrations and self._is_worth_applying(situation, again):
                return replace(again, collocation=situation.collocation(again.node))
        return plan

    def _is_by_luck(self, situation: Situation, plan: Plan) -> bool:
        """Does it bring rows together that only chance has put side by side?

        One that adds a few pairs a period takes none along.
        """
        if plan.as_measured or not self._planner.collocates:
            return False
        saved = far_rows(situation, situation.home) - far_rows(situation, plan.node)
        if saved < SAVES * situation.traffic.total:
            return False
        return not is_more_than_luck(situation, plan.node, self._before)

    def _is_worth_applying(self, situation: Situation, plan: Plan) -> bool:
        now = Standing.of(situation, situation.home, self._balance)
        then = Standing.of(situation, plan.node, self._balance)
        limit_pct, collocates = self._limits.distance_max_pct, self._planner.collocates
        emptier = then.left_load < now.left_load * (1 - ROUNDING) - ROUNDING
        if then.left < now.left or (then.left == now.left and emptier):
            return True
        saves = collocates and now.far - then.far >= (0.0 if plan.as_measured else SAVES)
        saves = saves and is_more_than_chance(situation, plan.node)
        noticed = not plan.as_measured  # by itself; a few pairs a period are in the end
        saves = saves and is_more_than_luck(situation, plan.node, self._before, noticed=noticed)
        if collocates and plan.as_measured:
            saves = saves and plan.distance_pct <= max(limit_pct, now.distance_pct) + ROUNDING
            if then.evens(now, limit_pct) and then.far <= now.far:
                return True
            limit_pct = max(limit_pct, min(UNFORESEEN * limit_pct, UNEVEN_PCT))
        if then.evens(now, limit_pct):
            return True
        return saves and then.distance_pct <= max(limit_pct, now.distance_pct) + ROUNDING

    def _draining(self, adapted: Adapted, situation: Situation, empty: tuple[int, ...]) -> Adapted:
        """Go on if only what is too big is left, and say how far it has come."""
        why = ""
        before = units_left(situation, None, self.leaving)
        if not before:
            return adapted  # released, but still there
        if units_left(situation, adapted.plan, self.leaving) >= before:
            leaving = marked(situation, self.leaving)
            alone = move_alone(leaving, self._limits, self._planner.name, self._balance)
            if alone is not None:
                adapted, why = replace(adapted, plan=alone[0]), alone[1]
        left = units_left(situation, adapted.plan, self.leaving)
        going = [slot for slot in self.leaving if slot not in empty]
        drained = f"{slots_named(going)} drained: {left} units are left"
        return replace(adapted, why=joined(adapted.why, drained, why))

    def _scale(self, watch: Watch, measured: MeasuredUnits, plan: Plan, slots: int) -> Adapted:
        """More slots if that takes enough off the busiest one; fewer if they can take the load."""
        rule, situation, stays = watch.scaling, measured.situation, slots - len(self.leaving)
        loads, nodes = measured.loads_of(plan), situation.nodes
        total, busiest = float(loads @ nodes.capacity / nodes.capacity.mean()), float(loads.max())
        wanted = watch.step(stays, total, busiest)
        facts = f"planned loads: mean {total / stays:.0f} %, busiest {busiest:.0f} %"
        if stays < rule.min_slots:
            self._ask(wanted)
            return Adapted(plan, wanted, f"fewer slots than min_slots={wanted}")
        if wanted == stays:
            return Adapted(plan)
        unlimited = replace(self._limits, migration_cost_max=np.inf)
        base = measured.base * slots / wanted
        if wanted > stays:
            if self.leaving:
                facts, self.leaving = f"{len(self.leaving)} slots stay after all; {facts}", ()
                if wanted <= slots:
                    again = self._planner.plan(marked(situation, ()), self._limits)
                    return Adapted(again, None, facts)
            more = nodes.grown(wanted)
            wider = self._planner.plan(situation.on(more), unlimited)
            after = float(((wider.loads + base) / more.capacity).max())
            if after > busiest - HELPS_PCT:
                why = f"more slots would not help: {busiest:.0f} -> {after:.0f} %"
                return Adapted(plan, None, why)
            self._ask(wanted)
            return Adapted(plan, wanted, f"{facts}; with {wanted} slots {after:.0f} %")
        too_many = stays > rule.most  # these go whatever the load
        facts = f"more slots than max_slots={rule.most}" if too_many else facts
        chosen = self._choose(situation, slots - wanted)
        fewer = marked(situation, chosen)
        trial, stay = self._planner.plan(fewer, unlimited), fewer.nodes.staying
        busiest = float(((trial.loads + base) / nodes.capacity)[stay].max())
        strays = fewer.nodes.leaving[list(trial.places)].any()
        if strays or (busiest > rule.high_pct and not too_many):
            return Adapted(plan, None, f"{wanted} slots would not do: busiest {busiest:.0f} %")
        self.leaving = chosen
        watch.begin_anew()
        drain = self._planner.plan(fewer, self._limits)
        return Adapted(drain, None, f"{facts}; {slots_named(chosen)} drained from now on")

    def _ask(self, slots: int, leave_then: Sequence[int] = ()) -> None:
        """Ask for a number of slots, of which some are to leave yet."""
        self._asked, self._leave_then = slots, tuple(leave_then)
        self._patience = PATIENCE_PERIODS


@dataclass(frozen=True)
class Standing:
    """How good an allocation is; each part is better if smaller.

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

    def evens(self, now: Standing, limit_pct: float) -> bool:
        return now.distance_pct > limit_pct and self.distance_pct < EVENS * now.distance_pct


class Watch:
    """Counts periods in a row above and below the thresholds; says how many slots, and when."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._above = self._below = 0

    def step(self, slots: int, total_pct: float, busiest_pct: float) -> int:
        """Slots there should be after one more period; the same number: stay."""
        rule = self.scaling
        if slots != rule.within(slots):
            return rule.within(slots)
        fitting = rule.fitting(total_pct)
        above = busiest_pct > rule.high_pct and slots < rule.most
        below = total_pct / slots < rule.low_pct and fitting < slots
        self._above = self._above + 1 if above else 0
        self._below = self._below + 1 if below else 0
        if self._above >= rule.hold_periods:
            return min(max(fitting, slots + 1), 2 * slots, rule.most)
        return fitting if self._below >= rule.hold_periods else slots

    def begin_anew(self) -> None:
        """Something changed: what was seen before says nothing any more."""
        self._above = self._below = 0
