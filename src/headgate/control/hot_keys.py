"""The manager's part for hot keys: place by load, cut heavy keys, split what pays. Pure.

Operators with a `dkg` or `split` grouping are placed by load alone, from what their slots counted;
those declared `split="auto"` are split or not. Operators whose units somebody else places and
cuts (`allocation_manager`) are left alone. A change needs a clear gain, since a bucket or pin
that moves takes its state along. Decisions are made after every epoch, beside those of a manager
of placement, if there is one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Decides, Decision, Observed, PlacesUnits
from headgate.control.observation import gather
from headgate.planner.by_load import Layout, expected_loads, lay_out_split, lay_out_whole
from headgate.planner.placing import KeyLoads, Observation
from headgate.planner.split_or_key import Seen, SplitOrKey, excess, partials_expected
from headgate.routing.route import TO_OWNER, Dispatch, Here, Shares, Spread
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable
from headgate.slot.program import Dispatches, Program

KEYS_MAX = 1 << 14
STATISTICS_BYTES = 1 << 20  # of a slot, where no manager says otherwise
FADE = 0.5
LEARNING_ROWS = 1_000  # DKG's m: rows that must have been counted before the first plan
SETTLED = {"split": 1.03, "dkg": 1.1}  # an imbalance that nothing is moved for
GAIN = {"split": 0.01, "dkg": 0.05}  # what a change must bring


@dataclass(frozen=True)
class HotDecision:
    """Tables that change, how rows find their slots in the epochs to come, and why."""

    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    dispatch: Mapping[str, Dispatch] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


class _Loads:
    """Recent rows of an operator's keys: the heaviest of them, and all together."""

    def __init__(self) -> None:
        self.sketch = PairSketch(KEYS_MAX)
        self.total = 0.0

    def add(self, loads: KeyLoads, rows: float) -> None:
        self.sketch.decay(FADE)
        self.sketch.update(loads.h, np.zeros(len(loads.h), np.uint64), loads.rows)
        self.total = FADE * self.total + rows


class HotKeys:
    """Decides for the operators of one flow that have a say in it; the others it leaves alone."""

    def __init__(self, program: Program, slots: int, others: Container[str] = ()) -> None:
        """`others` are operators that somebody else places and cuts."""
        self._slots = slots
        mine = [op for op in program.operators(lambda may: may.be_evened) if op not in others]
        self._by_load = {
            op: program.dispatches[op].grouping for op in (sorted(mine) if slots > 1 else ())
        }
        self._loads = {operator: _Loads() for operator in self._by_load}
        self._spreads: dict[str, Spread] = {}
        self._learnt: set[str] = set()
        self._choices = {operator: SplitOrKey() for operator in program.operators(_may_split)}
        nodes = program.graph.nodes
        self._inputs = {
            node.name: [
                (f"{nodes[e.producer].name}->{node.name}", nodes[e.producer].name)
                for e in program.graph.inputs(node.id)
            ]
            for node in program.stateful
            if node.name in self._choices
        }

    def observe(self, observed: Sequence[Observed], seen: Observation) -> None:
        """Take in epochs that ran under the last decision."""
        for operator, recent in self._loads.items():
            if operator in seen.loads:
                rows = float(seen.slot_rows.get(operator, np.zeros(1)).sum())
                recent.add(seen.loads[operator], rows)
        for operator, choice in self._choices.items():
            choice.observe(self._seen(operator, choice.split, observed, seen), len(observed))

    def decide(self, tables: Mapping[str, RoutingTable]) -> HotDecision:
        """What the epochs to come should run with; tables and reasons only where it changes."""
        changed: dict[str, RoutingTable] = {}
        reasons: list[str] = []
        for operator, grouping in self._by_load.items():
            layout, reason = self._lay_out(operator, grouping, tables[operator])
            if layout is None:
                continue
            reasons.append(f"{operator} {reason}")
            if grouping == "split":
                self._spreads[operator] = layout.spread
            if not layout.table.same_routes(tables[operator]):
                changed[operator] = replace(layout.table, version=tables[operator].version + 1)
        for operator, choice in self._choices.items():
            because = choice.decide()
            if because is not None:
                reasons.append(f"{operator} {because}")
        dispatch: dict[str, Dispatch] = {
            op: Here() if choice.split else TO_OWNER for op, choice in self._choices.items()
        }
        dispatch |= {op: Shares(spread) for op, spread in self._spreads.items()}
        return HotDecision(changed, dispatch, tuple(reasons))

    # --- inside ----------------------------------------------------------------------------
    def _lay_out(
        self, operator: str, grouping: str, table: RoutingTable
    ) -> tuple[Layout | None, str]:
        recent = self._loads[operator]
        if not recent.total or (grouping == "dkg" and recent.total < LEARNING_ROWS):
            return None, ""
        h, rows, total = recent.sketch.a, recent.sketch.count, recent.total
        before = self._spreads.get(operator)
        now = expected_loads(h, rows, total, table, before)
        imbalance = float(now.max() / now.mean())
        first = operator not in self._learnt
        if not first and imbalance <= SETTLED[grouping]:
            return None, ""
        if grouping == "split":
            made = lay_out_split(h, rows, total, table, before)
        else:
            made = lay_out_whole(h, rows, total, table)
        self._learnt.add(operator)
        if imbalance - made.imbalance < GAIN[grouping] and not (first and grouping == "split"):
            return None, ""
        return made, (
            f"placed by load: imbalance {imbalance:.2f} -> {made.imbalance:.2f}, "
            f"{len(made.spread.cut)} keys cut, with {made.spread.replicas} pieces elsewhere"
        )

    def _seen(
        self, operator: str, split: bool, observed: Sequence[Observed], seen: Observation
    ) -> Seen:
        """What these epochs say of both ways, the one they took and the other."""
        epochs = [e.facts for e in observed if (operator in e.facts.split) == split]
        if not epochs:
            return Seen(0.0, 0.0)
        rows = remote = stays_uneven = expected = merged = uneven = 0.0
        loads = seen.loads.get(operator)
        for facts in epochs:
            for name, producer in self._inputs[operator]:
                edge = facts.edges.get(name)
                if edge is None:
                    continue
                tasks = self._slots if edge.between_slots else facts.source_tasks
                rows += edge.rows
                remote += edge.remote_rows
                if edge.between_slots:
                    stays_uneven += edge.rows * ((facts.imbalance.get(producer) or 1.0) - 1.0)
                if loads is not None:
                    expected += partials_expected(loads.rows, edge.rows, tasks)
            uneven += excess(facts.loads.get(operator, ()))
            merged += facts.merge_rows.get(operator, 0)
        n = len(epochs)
        if split:
            return Seen(rows / n, stays_uneven / n, merge_rows=merged / n)
        return Seen(
            rows / n,
            stays_uneven / n,
            remote / n,
            uneven / n,
            expected / n if loads is not None else None,
        )


class WithHotKeys:
    """A manager, or none, and the one that sees to hot keys, as one."""

    def __init__(self, placing: Decides | None, program: Program) -> None:
        units = _units_of(placing)
        placed = frozenset(program.operators(_may_place))
        self._placing = placing if placed or units else None
        self._placed, self._units = units | placed, units
        self._program = program
        self._hot: HotKeys | None = None
        self._slots = 0
        self._cut: Mapping[str, Dispatch] = {}
        self.statistics_bytes = STATISTICS_BYTES if placing is None else placing.statistics_bytes

    @staticmethod
    def has_work(program: Program, placing: Decides | None) -> bool:
        """Is there anything to decide, or anything to keep from a manager of placement?"""
        units = _units_of(placing)
        placed = units | set(program.operators(_may_place))
        special = placing is not None and len(placed) < len(program.stateful)
        evened = set(program.operators(lambda may: may.be_evened)) - units
        return bool(evened or program.operators(_may_split)) or special

    @property
    def units_of(self) -> frozenset[str]:
        return self._units

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._placing is None else self._placing.born_local

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        """One turn of both."""
        decision = Decision()
        if self._placing is not None:
            decision = self._placing.step([self._placeable(epoch) for epoch in observed], tables)
        slots = next(table.slots for table in tables.values())
        if self._hot is None or slots != self._slots:
            self._hot, self._slots = HotKeys(self._program, slots, self._units), slots
            self._cut = {}
        self._cut = self._cut if decision.dispatch is None else decision.dispatch
        observed = [epoch for epoch in observed if epoch.facts.slots == slots]
        if observed:
            self._hot.observe(observed, gather(observed, KEYS_MAX))
        hot = self._hot.decide(tables)
        return replace(
            decision,
            tables={**decision.tables, **hot.tables},
            plan=_joined(decision.plan, hot),
            dispatch={**self._cut, **hot.dispatch},
        )

    def _placeable(self, epoch: Observed) -> Observed:
        """The epoch without what was counted of operators that are not a planner's to place."""
        shown = [
            replace(task, loads={op: x for op, x in task.loads.items() if op in self._placed})
            for task in epoch.statistics
        ]
        return Observed(epoch.facts, shown)


def _may_place(may: Dispatches) -> bool:
    return may.be_placed


def _may_split(may: Dispatches) -> bool:
    return may.be_split


def _units_of(placing: Decides | None) -> frozenset[str]:
    return placing.units_of if isinstance(placing, PlacesUnits) else frozenset()


def _joined(plan: PlanFacts | None, hot: HotDecision) -> PlanFacts | None:
    if not hot.reasons:
        return plan
    plan = PlanFacts() if plan is None else plan
    chosen = hot.dispatch.items()
    return replace(
        plan,
        planner=plan.planner or "load",
        why="; ".join(filter(None, [plan.why, *hot.reasons])),
        hot_keys=hot.reasons,
        spread={op: len(by.spread.cut) for op, by in chosen if isinstance(by, Shares)},
        split=tuple(sorted(op for op, by in chosen if isinstance(by, Here))),
    )
