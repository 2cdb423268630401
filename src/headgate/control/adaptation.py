"""The adaptation loop of Madsen et al. 2017 (Algorithm 1), pure: a period in, instructions out.

    1  slots marked for removal that are empty are released
    2  plan an allocation of units, under the migration budget
    3  decide on scaling from the planned loads; if it changes, plan again with the new slots
    4  apply the plan, if it is worth its moves (`acceptance`)

Loads are those of the allocation that is *planned*: uneven loads are evened before slots are asked
for (section III.A). Slots are numbered, and the last ones leave. A slot that is to leave is drained
over as many periods as the budget takes, then released without anything to move. What costs more to
move than a period may would hold its slot for ever; so when nothing else can be taken off, one such
unit a period moves alone: a drain ends after as many periods as there are units, at most. New slots
come empty, when the engine has them, and the plan of the period after fills them. Until slots that
were asked for or released have come or gone, units are planned as ever, but nothing else is scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headgate.control.acceptance import is_worth_applying
from headgate.control.settings import Scaling
from headgate.control.unit_statistics import Measured
from headgate.planner.allocation.model import Balance, Nodes, Situation
from headgate.planner.allocation.plan import Limits, Plan, Planner, describe

HELPS_PCT = 5.0  # more slots must take at least this off the busiest one
PATIENCE_PERIODS = 10  # for slots that were asked for and did not come


@dataclass(frozen=True)
class Adapted:
    """What one turn came to: a plan to apply, slots to change to, and why, in one line."""

    plan: Plan | None = None
    slots: int | None = None
    why: str = ""


class Adaptation:
    """Decides period by period; remembers which slots leave and what it has asked for."""

    def __init__(
        self,
        planner: Planner,
        limits: Limits,
        scaling: Scaling | None,
        balance: Balance = "total",
    ) -> None:
        self._planner, self._limits, self._balance = planner, limits, balance
        self._watch = None if scaling is None else Watch(scaling)
        self.leaving = 0
        self._asked: int | None = None
        self._stays = self._patience = 0

    def slots_changed(self, slots: int) -> None:
        """The engine runs with another number of slots now; some of them may have to go yet."""
        self.leaving = slots - self._stays if slots == self._asked else 0
        self._asked = None
        if self._watch is not None:
            self._watch.begin_anew()

    def drain(self, slots: int) -> None:
        """Empty so many slots at the end, under the budget, and then ask for their release."""
        self.leaving = slots

    def step(self, measured: Measured, *, scale: bool = True) -> Adapted:
        """One turn. The situation says how many slots there are, and which of them leave."""
        situation = measured.situation
        if self._asked is not None:
            self._patience -= 1
            self._asked = self._asked if self._patience > 0 else None
        released, leaving = self._release(situation), self.leaving
        adapted = Adapted(self._planner.plan(situation, self._limits))
        if scale and self._watch is not None and measured.timed and self._asked is None:
            assert adapted.plan is not None
            adapted = self._scale(measured, adapted.plan, len(situation.nodes))
        adapted = replace(adapted, plan=self._worth(situation, adapted.plan))
        if leaving and leaving == self.leaving:
            adapted = self._draining(adapted, situation)
        if not released:
            return adapted
        return replace(adapted, slots=self._asked, why=_all_of(released, adapted.why))

    # --- inside ----------------------------------------------------------------------------
    def _worth(self, situation: Situation, plan: Plan | None) -> Plan | None:
        """The plan, if it is worth its moves."""
        if plan is None or not plan.migrations:
            return plan
        worth = is_worth_applying(
            marked(situation, self.leaving),
            plan,
            self._limits.distance_max_pct,
            self._balance,
            collocates=self._planner.collocates,
        )
        return plan if worth else None

    def _release(self, situation: Situation) -> str:
        """Ask to let slots at the end go that are drained, and say so; once in a while."""
        slots, needed = len(situation.nodes), slots_in_use(situation, self.leaving)
        if needed == slots or (self._asked is not None and self._asked <= needed):
            return ""
        self._ask(needed, slots - self.leaving)
        return f"{slots_named(needed, slots)} released: drained, nothing lives there"

    def _draining(self, adapted: Adapted, situation: Situation) -> Adapted:
        """Go on if only what is too big is left, and say how far it has come."""
        slots, why = len(situation.nodes), ""
        before = units_left(situation, None, self.leaving)
        if not before:
            return adapted  # released, but still there
        if units_left(situation, adapted.plan, self.leaving) >= before:
            leaving = marked(situation, self.leaving)
            alone = move_alone(leaving, self._limits, self._planner.name, self._balance)
            if alone is not None:
                adapted, why = replace(adapted, plan=alone[0]), alone[1]
        left = units_left(situation, adapted.plan, self.leaving)
        names = slots_named(slots - self.leaving, slots_in_use(situation, self.leaving))
        told = f"{names} drained: {left} units are left"
        return replace(adapted, why=_all_of(adapted.why, told, why))

    def _scale(self, measured: Measured, plan: Plan, slots: int) -> Adapted:
        assert self._watch is not None
        loads = measured.planned_loads(plan)
        total, busiest = float(loads.sum()), float(loads.max())
        stays = slots - self.leaving
        wanted = self._watch.step(stays, total, busiest)
        facts = f"planned loads: mean {total / stays:.0f} %, busiest {busiest:.0f} %"
        if stays < self._watch.scaling.min_slots:
            self._ask(wanted, wanted)
            return Adapted(plan, wanted, f"fewer slots than min_slots={wanted}")
        if wanted > stays:
            return self._grow(measured, plan, slots, wanted, facts)
        if wanted < stays:
            return self._shrink(measured, plan, slots, wanted, facts)
        return Adapted(plan)

    def _grow(self, measured: Measured, plan: Plan, slots: int, wanted: int, facts: str) -> Adapted:
        if self.leaving:
            kept = f"{self.leaving} slots stay after all"
            self.leaving = 0
            if wanted <= slots:
                again = self._planner.plan(marked(measured.situation, 0), self._limits)
                return Adapted(again, None, f"{kept}; {facts}")
        before = float(measured.planned_loads(plan).max())
        wider = _with_slots(measured.situation, wanted)
        again = self._planner.plan(wider, replace(self._limits, migration_cost_max=np.inf))
        share = measured.base * slots / wanted
        after = float(again.loads.max()) + share
        if after > before - HELPS_PCT:
            return Adapted(plan, None, f"more slots would not help: {before:.0f} -> {after:.0f} %")
        self._ask(wanted, wanted)
        return Adapted(plan, wanted, f"{facts}; with {wanted} slots {after:.0f} %")

    def _shrink(
        self, measured: Measured, plan: Plan, slots: int, wanted: int, facts: str
    ) -> Adapted:
        """Mark the last slots, if the others can take their load and share it well enough.

        Slots above the most that are allowed go whatever the load.
        """
        assert self._watch is not None
        most = self._watch.scaling.most
        too_many = slots - self.leaving > most
        facts = f"more slots than max_slots={most}" if too_many else facts
        fewer = marked(measured.situation, slots - wanted)
        trial = self._planner.plan(fewer, replace(self._limits, migration_cost_max=np.inf))
        loads = trial.loads + measured.base * slots / wanted
        busiest = float(loads[:wanted].max())
        too_full = busiest > self._watch.scaling.high_pct and not too_many
        if max(trial.places) >= wanted or too_full:
            return Adapted(plan, None, f"{wanted} slots would not do: busiest {busiest:.0f} %")
        self.leaving = slots - wanted
        self._watch.begin_anew()
        drain = self._planner.plan(fewer, self._limits)
        return Adapted(drain, None, f"{facts}; {slots_named(wanted, slots)} drained from now on")

    def _ask(self, slots: int, stays: int) -> None:
        """Ask for a number of slots, of which some are to leave yet."""
        self._asked, self._stays, self._patience = slots, stays, PATIENCE_PERIODS


def _all_of(*lines: str) -> str:
    return "; ".join(filter(None, lines))


def _with_slots(situation: Situation, slots: int) -> Situation:
    """The same units with more slots, and none of them leaving."""
    return situation.on(Nodes.alike(slots))


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
        if self._below >= rule.hold_periods:
            return fitting
        return slots

    def begin_anew(self) -> None:
        """Something changed: what was seen before says nothing any more."""
        self._above = self._below = 0


def marked(situation: Situation, leaving: int) -> Situation:
    """The same units, and the last slots leave."""
    slots = len(situation.nodes)
    gone = np.arange(slots) >= slots - leaving
    return situation.on(replace(situation.nodes, leaving=gone))


def slots_in_use(situation: Situation, leaving: int) -> int:
    """Slots there must be: those that stay, and those that leave up to the last with a unit."""
    last = int(situation.home.max(initial=-1))
    return max(len(situation.nodes) - leaving, last + 1)


def units_left(situation: Situation, plan: Plan | None, leaving: int) -> int:
    """Units that a plan leaves on slots that are to go."""
    node = situation.home if plan is None else plan.node
    return int((node >= len(situation.nodes) - leaving).sum())


def move_alone(
    situation: Situation, limits: Limits, method: str, balance: Balance
) -> tuple[Plan, str] | None:
    """The cheapest unit on slots that leave which is above the budget, to the emptiest slot.

    None if there is none. The line says that the budget is not kept.
    """
    cost, nodes = situation.migration_cost, situation.nodes
    too_big = np.flatnonzero(nodes.leaving[situation.home] & (cost > limits.migration_cost_max))
    if not len(too_big):
        return None
    unit = int(too_big[np.argmin(cost[too_big])])
    loads = situation.node_loads(situation.home) + situation.units.load[unit]
    node = situation.home.astype(np.int32)
    node[unit] = np.argmin(np.where(nodes.leaving, np.inf, loads / nodes.capacity))
    plan = describe(situation, node, method, limits, bound_pct=0.0, balance=balance)
    why = (
        f"{situation.units.name(unit)} costs {cost[unit]:.3g}, more than the "
        f"{limits.migration_cost_max:.3g} of a period: it moves alone"
    )
    return plan, why


def slots_named(first: int, end: int) -> str:
    """Slots from the first to before the end, as the beginning of a sentence.

    Examples:
        >>> slots_named(2, 4)
        'slots 2, 3 are'
        >>> slots_named(3, 4)
        'slot 3 is'
    """
    names = ", ".join(str(slot) for slot in range(first, end))
    return f"slot {names} is" if end - first == 1 else f"slots {names} are"
