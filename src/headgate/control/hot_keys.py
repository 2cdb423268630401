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
from headgate.control.policy import Proposal, View, gather, joined
from headgate.planner.hot_keys import (
    Layout,
    Seen,
    SplitOrKey,
    excess,
    expected_loads,
    lay_out_split,
    lay_out_whole,
    partials_expected,
)
from headgate.planner.placing import Observation
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
        self.slots_changed(slots)

    def slots_changed(self, slots: int) -> None:
        """What is known of keys holds for the old slots: begin anew."""
        evened = self._program.operators(lambda may: may.be_evened) if slots > 1 else ()
        self._slots = slots
        self._by_load = {op: self._program.dispatches[op].grouping for op in sorted(evened)}
        self._heaviest = {operator: PairSketch(KEYS_MAX) for operator in self._by_load}
        self._rows = dict.fromkeys(self._by_load, 0.0)  # of all keys; both fade
        self._spreads: dict[str, Spread] = {}
        self._imbalance: dict[str, float] = {}  # as last seen, of operators laid out before
        self._choices = {op: SplitOrKey() for op in self._foldable}

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        if observed:
            self._observe(observed, gather(observed, KEYS_MAX))
        changed: dict[str, RoutingTable] = {}
        reasons: list[str] = []
        for operator, grouping in self._by_load.items():
            table = view.tables[operator]
            layout = self._lay_out(operator, grouping, table)
            if layout is None:
                continue
            reasons.append(
                f"{operator} placed by load: imbalance {self._imbalance[operator]:.2f} -> "
                f"{layout.imbalance:.2f}, {len(layout.spread.cut)} keys cut, with "
                f"{layout.spread.replicas} pieces elsewhere"
            )
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
        if not reasons:
            return Proposal(changed, dispatch)
        plan = PlanFacts(
            planner="load",
            why=joined(*reasons),
            hot_keys=tuple(reasons),
            spread={op: len(spread.cut) for op, spread in self._spreads.items()},
            split=tuple(sorted(op for op, by in self._choices.items() if by.split)),
        )
        return Proposal(changed, dispatch, plan)

    # --- inside ----------------------------------------------------------------------------
    def _observe(self, observed: Sequence[Observed], seen: Observation) -> None:
        fade = self.settings.fade
        for operator, sketch in self._heaviest.items():
            if operator in seen.loads:
                loads = seen.loads[operator]
                sketch.decay(fade)
                sketch.update(loads.h, np.zeros(len(loads.h), np.uint64), loads.rows)
                rows = float(seen.slot_rows.get(operator, np.zeros(1)).sum())
                self._rows[operator] = fade * self._rows[operator] + rows
        for operator, choice in self._choices.items():
            choice.observe(self._seen(operator, choice.split, observed, seen), len(observed))

    def _lay_out(self, operator: str, grouping: str, table: RoutingTable) -> Layout | None:
        """A better layout of one operator's keys; None: it is good enough, or little is known."""
        total, sketch = self._rows[operator], self._heaviest[operator]
        if not total or (grouping == "dkg" and total < self.settings.learning_rows):
            return None
        before, first = self._spreads.get(operator), operator not in self._imbalance
        now = expected_loads(sketch.a, sketch.count, total, table, before)
        imbalance = self._imbalance[operator] = float(now.max() / now.mean())
        if not first and imbalance <= self.settings.settled[grouping]:
            return None
        if grouping == "cut":
            made = lay_out_split(sketch.a, sketch.count, total, table, before)
        else:
            made = lay_out_whole(sketch.a, sketch.count, total, table)
        gains = imbalance - made.imbalance >= self.settings.gain[grouping]
        return made if gains or (first and grouping == "cut") else None

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
            for name, edge in facts.edges.items():
                producer, _, consumer = name.partition("->")
                if consumer != operator:
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
