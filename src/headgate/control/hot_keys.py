"""The policy for hot keys: place by load, cut heavy keys, fold rows early where that pays.

Operators with a `dkg` or `cut` grouping are placed by load alone, from what their slots counted;
with a manager, those of grouping `auto` that are mergeable are folded where their rows are while
that pays. A change needs a clear gain, since a bucket or pin that moves takes its state along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Observed
from headgate.control.observation import gather
from headgate.control.policy import Proposal, View
from headgate.planner.by_load import Layout, expected_loads, lay_out_split, lay_out_whole
from headgate.planner.placing import KeyLoads, Observation
from headgate.planner.split_or_key import Seen, SplitOrKey, excess, partials_expected
from headgate.routing.route import Dispatch, Here, Shares, Spread
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable
from headgate.slot.program import Program

KEYS_MAX = 1 << 14  # heaviest keys remembered per operator; 24 bytes each


@dataclass(frozen=True)
class HotKeySettings:
    """When keys are placed by their load.

    Args:
        fade: What the past counts for after one more epoch; a half follows bursts within a few.
        learning_rows: Rows that must have been counted before the first plan of `dkg`; the m of
            its paper.
        settled: An imbalance (max over mean) that nothing is moved for, by grouping. Cutting is
            finer than placing whole keys, so it can aim lower.
        gain: What a change must take off the imbalance.
    """

    fade: float = 0.5
    learning_rows: float = 1_000
    settled: Mapping[str, float] = field(default_factory=lambda: {"cut": 1.03, "dkg": 1.1})
    gain: Mapping[str, float] = field(default_factory=lambda: {"cut": 0.01, "dkg": 0.05})


class _Loads:
    """Recent rows of an operator's keys: the heaviest of them, and all together."""

    def __init__(self, fade: float) -> None:
        self.sketch, self._fade = PairSketch(KEYS_MAX), fade
        self.total = 0.0

    def add(self, loads: KeyLoads, rows: float) -> None:
        self.sketch.decay(self._fade)
        self.sketch.update(loads.h, np.zeros(len(loads.h), np.uint64), loads.rows)
        self.total = self._fade * self.total + rows


class HotKeys:
    """Decides for the operators of one flow that have a say in it; the others it leaves alone."""

    def __init__(
        self,
        program: Program,
        slots: int,
        settings: HotKeySettings | None = None,
        *,
        folds: bool = False,
    ) -> None:
        self._program, self.settings = program, settings or HotKeySettings()
        self._foldable = foldable(program) if folds else ()
        nodes = program.graph.nodes
        self._inputs = {
            node.name: [
                (f"{nodes[e.producer].name}->{node.name}", nodes[e.producer].name)
                for e in program.graph.inputs(node.id)
            ]
            for node in program.stateful
        }
        self.slots_changed(slots)

    @staticmethod
    def has_work(program: Program, *, folds: bool) -> bool:
        evened = program.operators(lambda may: may.be_evened)
        return bool(evened or (folds and foldable(program)))

    def slots_changed(self, slots: int) -> None:
        """What is known of keys holds for the old slots: begin anew."""
        evened = self._program.operators(lambda may: may.be_evened) if slots > 1 else ()
        self._slots = slots
        self._by_load = {op: self._program.dispatches[op].grouping for op in sorted(evened)}
        self._loads = {operator: _Loads(self.settings.fade) for operator in self._by_load}
        self._spreads: dict[str, Spread] = {}
        self._learnt: set[str] = set()
        self._choices = {op: SplitOrKey() for op in self._foldable}

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        if observed:
            self._observe(observed, gather(observed, KEYS_MAX))
        changed: dict[str, RoutingTable] = {}
        reasons: list[str] = []
        for operator, grouping in self._by_load.items():
            table = view.tables[operator]
            layout, reason = self._lay_out(operator, grouping, table)
            if layout is None:
                continue
            reasons.append(f"{operator} {reason}")
            if grouping == "cut":
                self._spreads[operator] = layout.spread
            if not layout.table.same_routes(table):
                changed[operator] = replace(layout.table, version=table.version + 1)
        for operator, choice in self._choices.items():
            because = choice.decide()
            if because is not None:
                reasons.append(f"{operator} {because}")
        # What is not folded is left out: it may be born local.
        dispatch: dict[str, Dispatch] = {op: Here() for op, by in self._choices.items() if by.split}
        dispatch |= {op: Shares(spread) for op, spread in self._spreads.items()}
        return Proposal(changed, dispatch, _facts(reasons, dispatch) if reasons else None)

    # --- inside ----------------------------------------------------------------------------
    def _observe(self, observed: Sequence[Observed], seen: Observation) -> None:
        for operator, recent in self._loads.items():
            if operator in seen.loads:
                rows = float(seen.slot_rows.get(operator, np.zeros(1)).sum())
                recent.add(seen.loads[operator], rows)
        for operator, choice in self._choices.items():
            choice.observe(self._seen(operator, choice.split, observed, seen), len(observed))

    def _lay_out(
        self, operator: str, grouping: str, table: RoutingTable
    ) -> tuple[Layout | None, str]:
        recent = self._loads[operator]
        if not recent.total or (grouping == "dkg" and recent.total < self.settings.learning_rows):
            return None, ""
        h, rows, total = recent.sketch.a, recent.sketch.count, recent.total
        before = self._spreads.get(operator)
        now = expected_loads(h, rows, total, table, before)
        imbalance = float(now.max() / now.mean())
        first = operator not in self._learnt
        if not first and imbalance <= self.settings.settled[grouping]:
            return None, ""
        if grouping == "cut":
            made = lay_out_split(h, rows, total, table, before)
        else:
            made = lay_out_whole(h, rows, total, table)
        self._learnt.add(operator)
        if imbalance - made.imbalance < self.settings.gain[grouping] and not (
            first and grouping == "cut"
        ):
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


def foldable(program: Program) -> tuple[str, ...]:
    return program.operators(lambda may: may.be_folded)


def _facts(reasons: Sequence[str], dispatch: Mapping[str, Dispatch]) -> PlanFacts:
    chosen = dispatch.items()
    return PlanFacts(
        planner="load",
        why="; ".join(reasons),
        hot_keys=tuple(reasons),
        spread={op: len(by.spread.cut) for op, by in chosen if isinstance(by, Shares)},
        split=tuple(sorted(op for op, by in chosen if isinstance(by, Here))),
    )
