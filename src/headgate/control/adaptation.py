"""The adaptation loop of Madsen et al. 2017 (Algorithm 1), pure: a period in, instructions out.

    1  slots marked for removal that are empty are released
    2  plan an allocation of units, under the migration budget
    3  decide on scaling from the planned loads; if it changes, plan again with the new slots
    4  apply the plan, if it is worth its moves (`applying`)

Slots are numbered, and the last ones leave. A slot that is to leave is drained over as many
periods as the budget takes, then released without anything to move. New slots come empty, when the
engine has them, and the plan of the period after fills them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headgate.control.applying import is_worth_applying
from headgate.control.scaling import Scaling, Watch
from headgate.control.unit_statistics import Measured
from headgate.planner.allocation.measures import Balance
from headgate.planner.allocation.model import Nodes, Situation
from headgate.planner.allocation.plan import Limits, Plan, Planner

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
        self._patience = 0

    def slots_changed(self) -> None:
        """The engine runs with another number of slots now."""
        self.leaving, self._asked = 0, None
        if self._watch is not None:
            self._watch.begin_anew()

    def step(self, measured: Measured, *, scale: bool = True) -> Adapted:
        """One turn. The situation says how many slots there are, and which of them leave."""
        situation = measured.situation
        slots = len(situation.nodes)
        if self.leaving and not (situation.home >= slots - self.leaving).any():
            if self._asked == slots - self.leaving and self._patience > 0:
                self._patience -= 1
                return Adapted()
            gone = _slots_named(slots - self.leaving, slots)
            return self._ask(slots - self.leaving, f"{gone} released: drained, nothing lives there")
        plan = self._planner.plan(situation, self._limits)
        if not scale or self._watch is None or not measured.timed:
            return Adapted(self._worth(situation, plan))
        adapted = self._scale(measured, plan, slots)
        adapted = replace(adapted, plan=self._worth(situation, adapted.plan))
        if self.leaving and not adapted.why:
            return self._draining(adapted, situation)
        return adapted

    # --- inside ----------------------------------------------------------------------------
    def _worth(self, situation: Situation, plan: Plan | None) -> Plan | None:
        """The plan, if it is worth its moves."""
        if plan is None or not plan.migrations:
            return plan
        worth = is_worth_applying(
            _leaving(situation, self.leaving),
            plan,
            self._limits.distance_max_pct,
            self._balance,
            collocates=self._planner.collocates,
        )
        return plan if worth else None

    def _draining(self, adapted: Adapted, situation: Situation) -> Adapted:
        """Say how far it has come: a drain may take many periods."""
        slots = len(situation.nodes)
        stays = slots - self.leaving
        on = situation.home if adapted.plan is None else adapted.plan.node
        left = int((on >= stays).sum())
        if adapted.plan is not None:
            left += sum(n >= stays for parts in adapted.plan.extras.values() for n, _ in parts)
        return replace(adapted, why=f"{_slots_named(stays, slots)} drained: {left} units are left")

    def _scale(self, measured: Measured, plan: Plan, slots: int) -> Adapted:
        assert self._watch is not None
        if self._asked is not None:
            self._patience -= 1
            if self._patience > 0:
                return Adapted(plan)
            self._asked = None
        loads = measured.planned_loads(plan)
        total, busiest = float(loads.sum()), float(loads.max())
        stays = slots - self.leaving
        wanted = self._watch.step(stays, total, busiest)
        facts = f"planned loads: mean {total / stays:.0f} %, busiest {busiest:.0f} %"
        if stays < self._watch.scaling.min_slots:
            self._ask(wanted, "")
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
                again = self._planner.plan(_leaving(measured.situation, 0), self._limits)
                return Adapted(again, None, f"{kept}; {facts}")
        before = float(measured.planned_loads(plan).max())
        wider = _with_slots(measured.situation, wanted)
        again = self._planner.plan(wider, replace(self._limits, migration_cost_max=np.inf))
        share = measured.base * slots / wanted
        after = float(again.loads.max()) + share
        if after > before - HELPS_PCT:
            return Adapted(plan, None, f"more slots would not help: {before:.0f} -> {after:.0f} %")
        self._ask(wanted, "")
        return Adapted(plan, wanted, f"{facts}; with {wanted} slots {after:.0f} %")

    def _shrink(
        self, measured: Measured, plan: Plan, slots: int, wanted: int, facts: str
    ) -> Adapted:
        """Mark the last slots, if the others can take their load and share it well enough.

        Slots above the most that are allowed go whatever the load.
        """
        assert self._watch is not None
        most = self._watch.scaling.max_slots
        too_many = slots - self.leaving > most
        facts = f"more slots than max_slots={most}" if too_many else facts
        fewer = _leaving(measured.situation, slots - wanted)
        trial = self._planner.plan(fewer, replace(self._limits, migration_cost_max=np.inf))
        loads = trial.loads + measured.base * slots / wanted
        busiest = float(loads[:wanted].max())
        too_full = busiest > self._watch.scaling.high_pct and not too_many
        if max(trial.places) >= wanted or too_full:
            return Adapted(plan, None, f"{wanted} slots would not do: busiest {busiest:.0f} %")
        self.leaving = slots - wanted
        self._watch.begin_anew()
        drain = self._planner.plan(fewer, self._limits)
        return Adapted(drain, None, f"{facts}; {_slots_named(wanted, slots)} drained from now on")

    def _ask(self, slots: int, why: str) -> Adapted:
        self._asked, self._patience = slots, PATIENCE_PERIODS
        return Adapted(None, slots, why)


def _slots_named(first: int, end: int) -> str:
    """Slots from the first to before the end, as the beginning of a sentence.

    Examples:
        >>> _slots_named(2, 4)
        'slots 2, 3 are'
        >>> _slots_named(3, 4)
        'slot 3 is'
    """
    names = ", ".join(str(slot) for slot in range(first, end))
    return f"slot {names} is" if end - first == 1 else f"slots {names} are"


def _with_slots(situation: Situation, slots: int) -> Situation:
    """The same units with more slots, and none of them leaving."""
    return situation.on(Nodes.alike(slots))


def _leaving(situation: Situation, leaving: int) -> Situation:
    slots = len(situation.nodes)
    gone = np.arange(slots) >= slots - leaving
    return situation.on(replace(situation.nodes, leaving=gone))
