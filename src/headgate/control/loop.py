"""The decision loop: epochs in, one decision out. Pure, and the only place that decides.

Policies propose (`policy`): where keys live, which keys are cut or folded early, how large epochs
are, how many slots there should be. The loop weighs what they propose, makes one decision of it
that says why, and compares what was promised with what was achieved.

**One owner of the number of slots.** The load of slots, a backlog, a latency target and the user
(`FlowQuery.rescale`) ask for it. While a change is under way, the user's included, nobody else is
heard. Of policies that ask in the same turn, more slots win over fewer: what one of them needs,
another must not take away. Slots to give back are drained first, where the placement can do that
within its budget.

**Instances and batches** are the tuner's to choose. Instances in the slots there are hold from the
next epoch on; those of another number of slots come with it. What a placement proposes in the same
turn for operators whose instances change was made for the old ones, and is left out.

**Nothing outside of an operator's slots.** An operator may have instances in some slots only. A
table or shares of it that name another slot are left out of the decision, whoever proposed them,
and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headgate.commit.facts import EpochFacts, PlanFacts, TuningFacts
from headgate.commit.planning import Decides, Decision, Observed, Planning, slots_of, units_of
from headgate.control.hot_keys import HotKeys, foldable
from headgate.control.placement import HeadgatePlacement, KeyPlacement, task_of
from headgate.control.policy import Figure, Policy, Proposal, View, compare, joined
from headgate.control.settings import Manager, Scaling
from headgate.control.tuner import Tuner
from headgate.control.units import UnitPlacement
from headgate.planner.tuning.rescaler import Wanted
from headgate.routing.route import Dispatch, Shares
from headgate.routing.table import RoutingTable
from headgate.slot.program import Program

STATISTICS_BYTES = 1 << 20  # of a slot, where no manager says otherwise: 40,000 pairs


class Places(Policy, Protocol):
    """The policy that says where keys live."""

    @property
    def units_of(self) -> frozenset[str]: ...

    @property
    def born_local(self) -> frozenset[str]: ...


class DecisionLoop:
    """Decides for one flow."""

    def __init__(
        self,
        *,
        placing: Places | None = None,
        hot_keys: HotKeys | None = None,
        sizing: Tuner | None = None,
        statistics_bytes: int = STATISTICS_BYTES,
    ) -> None:
        self._placing, self._sizing = placing, sizing
        self._drains = placing if isinstance(placing, HeadgatePlacement) else None
        policies: list[Policy | None] = [placing, hot_keys]
        self._policies = [policy for policy in policies if policy is not None]
        self.statistics_bytes = statistics_bytes if self._policies else 0
        self._slots = 0
        self._instances: Mapping[str, tuple[int, ...]] = {}
        self._dispatch: dict[int, Mapping[str, Dispatch]] = {}  # by number of the policy
        self._promised: Mapping[Figure, float] = {}

    @property
    def units_of(self) -> frozenset[str]:
        return frozenset() if self._placing is None else self._placing.units_of

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._placing is None else self._placing.born_local

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        """One turn, after some epochs."""
        slots = slots_of(tables) or observed[-1].facts.slots
        if self._slots and slots != self._slots:
            self._promised, self._dispatch = {}, {}
            for policy in self._policies:
                policy.slots_changed(slots)
        view = View(tables, slots, _instances(observed[-1].facts, tables, slots))
        if view.instances != self._instances:
            self._promised = {}  # for keys that had other owners
        self._slots, self._instances = slots, view.instances
        recent = [epoch for epoch in observed if epoch.facts.slots == slots]
        recent = [epoch for epoch in recent if epoch.facts.instances == view.instances]
        proposals = [policy.propose(recent, view) for policy in self._policies]
        tuning = self._tune(observed)
        decision = replace(_within_instances(self._join(proposals), view), tuning=tuning)
        kept = decision.dispatch or {}
        self._dispatch = {
            number: {op: by for op, by in said.items() if op in kept}
            for number, said in self._dispatch.items()
        }
        wanted = self._slots_wanted(proposals, tuning, slots)
        if wanted is not None:
            decision = replace(decision, slots=wanted.count, scaling=wanted.why, gone=wanted.gone)
        return _with_tuned_instances(decision)

    # --- inside ----------------------------------------------------------------------------
    def _join(self, proposals: Sequence[Proposal]) -> Decision:
        """One decision. Where two place the same operator, the one asked later does."""
        tables: dict[str, RoutingTable] = {}
        instances: dict[str, tuple[int, ...]] = {}
        plan: PlanFacts | None = None
        achieved: dict[Figure, float] = {}
        promised: dict[Figure, float] = {}
        for number, proposal in enumerate(proposals):
            tables |= proposal.tables
            instances |= proposal.instances
            if proposal.dispatch is not None:
                self._dispatch[number] = proposal.dispatch
            plan = _both(plan, proposal.plan)
            achieved |= proposal.achieved
            promised |= proposal.promised
        given = (proposal.outcome for proposal in proposals)
        outcome = compare(self._promised, achieved) or next(filter(None, given), None)
        if promised or outcome is not None:
            self._promised = promised
        dispatch = {op: by for said in self._dispatch.values() for op, by in said.items()}
        return Decision(tables, plan, outcome, dispatch=dispatch, instances=instances)

    def _tune(self, observed: Sequence[Observed]) -> TuningFacts | None:
        """What the tuner says of these epochs, the last word; after a wish for slots, no other."""
        advice: TuningFacts | None = None
        if self._sizing is None:
            return None
        draining = self._drains is not None and self._drains.is_draining
        for epoch in observed:
            asked = advice is not None and advice.slots is not None
            said = self._sizing.observe(epoch.facts, changing=epoch.changing or draining or asked)
            advice = advice if asked or said is None else said
        return advice

    def _slots_wanted(
        self, proposals: Sequence[Proposal], tuning: TuningFacts | None, slots: int
    ) -> Wanted | None:
        placing = [proposal.slots for proposal in proposals if proposal.slots is not None]
        asked = [*placing]
        if tuning is not None and tuning.slots is not None:
            asked.append(Wanted(tuning.slots, tuning.why or ""))
        wanted = max(asked, key=lambda ask: ask.count, default=None)
        if self._drains is None or wanted is None or wanted.count >= slots or placing:
            return wanted
        self._drains.drain(slots - wanted.count)
        return None


def _both(one: PlanFacts | None, other: PlanFacts | None) -> PlanFacts | None:
    """The plan of a placement, with what was decided about hot keys beside it."""
    if one is None or other is None:
        return one or other
    return replace(
        one,
        why=joined(one.why, other.why),
        hot_keys=other.hot_keys,
        spread=other.spread,
        split=other.split,
    )


def _instances(
    last: EpochFacts, tables: Mapping[str, RoutingTable], slots: int
) -> Mapping[str, tuple[int, ...]]:
    """Where operators have instances in the coming epoch, if in some slots only.

    If the number of slots is another by now, those that own keys are all that is known of them.
    """
    if last.slots == slots:
        return last.instances
    return {op: tuple(_owners(tables[op])) for op in last.instances if op in tables}


def _owners(table: RoutingTable) -> list[int]:
    found: list[int] = np.union1d(table.bucket_slots, table.pinned_slots).tolist()
    return found


def _within_instances(decision: Decision, view: View) -> Decision:
    """The decision without what names a slot in which its operator has no instance."""
    refused: list[str] = []
    instances: dict[str, tuple[int, ...]] = {}
    for operator, wanted in decision.instances.items():
        chosen = tuple(sorted({*wanted}))
        if chosen and chosen[0] >= 0 and chosen[-1] < view.slots:
            instances[operator] = chosen
        else:
            refused.append(f"{operator} keeps its instances: there is no {_named(wanted)}")

    def fits(operator: str, what: str, used: Collection[int]) -> bool:
        own = instances.get(operator) or view.slots_of(operator)
        strange = sorted({*used} - {*own})
        if strange:
            refused.append(
                f"{what} of {operator} is left out: it names {_named(strange)}, and {operator} has "
                f"an instance in {_named(own)} only"
            )
        return not strange

    tables: dict[str, RoutingTable] = {}
    for operator, table in decision.tables.items():
        now = view.tables.get(operator)
        if now is None or (table.slots, table.buckets) != (now.slots, now.buckets):
            of = f"for {table.slots} slots and {table.buckets} buckets"
            refused.append(
                f"the table of {operator} {of} is left out: no operator has such a table"
            )
        elif fits(operator, "the table", _owners(table)):
            tables[operator] = table
    dispatch = {
        op: by
        for op, by in (decision.dispatch or {}).items()
        if not isinstance(by, Shares) or fits(op, "the spread", by.spread.slots.tolist())
    }
    if not refused:
        return replace(decision, instances=instances)
    plan = decision.plan or PlanFacts()
    why = joined(plan.why, *refused)
    return replace(
        decision,
        tables=tables,
        instances=instances,
        dispatch=None if decision.dispatch is None else dispatch,
        plan=replace(plan, why=why),
    )


def _with_tuned_instances(decision: Decision) -> Decision:
    """The decision with the instances that the tuner asks for, if they are of the slots to come."""
    tuning = decision.tuning
    if tuning is None or not tuning.instances or tuning.slots != decision.slots:
        return decision
    tuned = tuning.instances
    if tuning.slots is not None:
        return replace(decision, instances_then=tuned)
    return replace(
        decision,
        instances={**decision.instances, **tuned},
        tables={op: table for op, table in decision.tables.items() if op not in tuned},
        dispatch=decision.dispatch
        and {
            op: by
            for op, by in decision.dispatch.items()
            if op not in tuned or not isinstance(by, Shares)
        },
    )


def _named(slots: Sequence[int]) -> str:
    return f"slot{'' if len(slots) == 1 else 's'} {', '.join(map(str, slots)) or 'at all'}"


class _Given:
    """Somebody else's decider, as a policy. It sees what is counted of the keys it may place."""

    def __init__(self, decider: Decides, placed: Collection[str]) -> None:
        self._decider, self._placed = decider, units_of(decider) | set(placed)

    @property
    def units_of(self) -> frozenset[str]:
        return units_of(self._decider)

    @property
    def born_local(self) -> frozenset[str]:
        return self._decider.born_local

    def slots_changed(self, slots: int) -> None:
        pass  # it sees that from the tables

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        said = self._decider.step([self._placeable(epoch) for epoch in observed], view.tables)
        wanted = None if said.slots is None else Wanted(said.slots, said.scaling, said.gone)
        return Proposal(
            said.tables,
            said.dispatch,
            said.plan,
            slots=wanted,
            outcome=said.outcome,
            instances=said.instances,
        )

    def _placeable(self, epoch: Observed) -> Observed:
        shown = [
            replace(task, loads={op: x for op, x in task.loads.items() if op in self._placed})
            for task in epoch.statistics
        ]
        return replace(epoch, statistics=shown)


def plan_with(
    manager: Manager | Decides | None,
    program: Program,
    slots: int,
    *,
    racks: Mapping[str, str] | None = None,
    scaling: Scaling | None = None,
    sizing: Tuner | None = None,
    beside: bool = True,
) -> Planning | None:
    """The loop at work on a flow; None if there is nothing to decide.

    Operators that are placed by load need no manager for that; rows are folded early only beside
    our own planner, so that every other does what its paper says and no more.
    """
    placing: Places | None = None
    prepare: list[Callable[[], None]] = []
    statistics_bytes = STATISTICS_BYTES
    folds = isinstance(manager, Manager) and manager.is_ours
    placed = program.operators(lambda may: may.be_placed)
    if isinstance(manager, Manager):
        statistics_bytes = manager.tuning.statistics_bytes
        if placed:
            placing, prepare = _placement(manager, program, placed, slots, racks, scaling)
    elif manager is not None and (placed or units_of(manager)):
        placing, statistics_bytes = _Given(manager, placed), manager.statistics_bytes
    by_load = program.operators(lambda may: may.be_evened) or (folds and foldable(program))
    hot_keys = HotKeys(program, slots, folds=folds) if by_load else None
    if placing is None and hot_keys is None and sizing is None:
        return None
    loop = DecisionLoop(
        placing=placing, hot_keys=hot_keys, sizing=sizing, statistics_bytes=statistics_bytes
    )
    planning = Planning(loop, beside=beside)
    for work in prepare:
        planning.prepare(work)
    return planning


def _placement(
    manager: Manager,
    program: Program,
    placed: Sequence[str],
    slots: int,
    racks: Mapping[str, str] | None,
    scaling: Scaling | None,
) -> tuple[Places, list[Callable[[], None]]]:
    """The policy that places keys by the planner of that name, and what compiles its kernels."""
    from headgate.planner.allocation.integrated import compile_allocation_kernels
    from headgate.planner.incremental_placing import compile_kernels

    if manager.places_units:
        return UnitPlacement(placed, manager, racks, scaling=scaling), [compile_allocation_kernels]
    keys = KeyPlacement(task_of(program, manager, slots, racks), manager)
    if manager.planner != "headgate":
        return keys, [compile_kernels]
    both = HeadgatePlacement(keys, UnitPlacement(placed, manager, racks))
    return both, [compile_kernels, compile_allocation_kernels]
