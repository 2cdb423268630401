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
    Places,
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
        self._rows_in = operators_that_hold_rows(program)
        nodes = program.graph.nodes
        self._producers = {
            node.name: [nodes[edge.producer].name for edge in program.graph.inputs(node.id)]
            for node in nodes
            if node.kind != "sink"
        }
        self.slots_changed(slots)

    def slots_changed(self, slots: int) -> None:
        """What is known of keys holds for the old slots: begin anew."""
        evened = self._program.operators(lambda may: may.be_evened) if slots > 1 else ()
        self._by_load = {op: self._program.dispatches[op].grouping for op in sorted(evened)}
        self._heaviest = {operator: PairSketch(KEYS_MAX) for operator in self._by_load}
        self._rows = dict.fromkeys(self._by_load, 0.0)  # of all keys; both fade
        self._spreads: dict[str, Spread] = {}
        self._imbalance: dict[str, float] = {}  # as last seen, of operators laid out before
        self._choices = {op: SplitOrKey() for op in self._foldable}
        self._instances: dict[str, tuple[int, ...]] = {}

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        self._take_instances(view)
        if observed:
            self._observe(observed, gather(observed, KEYS_MAX), view)
        changed: dict[str, RoutingTable] = {}
        reasons: list[str] = []
        for operator, grouping in self._by_load.items():
            table = view.tables[operator]
            layout = self._lay_out(operator, grouping, table, view.slots_of(operator))
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
    def _take_instances(self, view: View) -> None:
        """Where an operator's instances are others now, its layout is void; its keys are known."""
        for operator in {*self._spreads, *self._imbalance}:
            if view.slots_of(operator) != self._instances.get(operator):
                self._spreads.pop(operator, None)
                self._imbalance.pop(operator, None)
        self._instances = {operator: view.slots_of(operator) for operator in self._by_load}

    def _observe(self, observed: Sequence[Observed], seen: Observation, view: View) -> None:
        fade = self.settings.fade
        for operator, sketch in self._heaviest.items():
            if operator in seen.loads:
                loads = seen.loads[operator]
                sketch.decay(fade)
                sketch.update(loads.h, np.zeros(len(loads.h), np.uint64), loads.rows)
                rows = float(seen.slot_rows.get(operator, np.zeros(1)).sum())
                self._rows[operator] = fade * self._rows[operator] + rows
        for operator, choice in self._choices.items():
            found = self._seen(operator, choice.split, observed, seen, view)
            choice.observe(found, len(observed))

    def _lay_out(
        self, operator: str, grouping: str, table: RoutingTable, slots: tuple[int, ...]
    ) -> Layout | None:
        """A better layout of one operator's keys; None: it is good enough, or little is known."""
        total, sketch = self._rows[operator], self._heaviest[operator]
        if not total or (grouping == "dkg" and total < self.settings.learning_rows):
            return None
        if len(slots) == 1:
            return None
        places = Places(np.array(slots, np.int32), table.slots)
        table = places.inside(table)
        before = places.inside_spread(self._spreads.get(operator))
        first = operator not in self._imbalance
        now = expected_loads(sketch.a, sketch.count, total, table, before)
        imbalance = self._imbalance[operator] = float(now.max() / now.mean())
        if not first and imbalance <= self.settings.settled[grouping]:
            return None
        if grouping == "cut":
            made = lay_out_split(sketch.a, sketch.count, total, table, before)
        else:
            made = lay_out_whole(sketch.a, sketch.count, total, table)
        gains = imbalance - made.imbalance >= self.settings.gain[grouping]
        return places.outside(made) if gains or (first and grouping == "cut") else None

    def _slots_with(self, name: str, view: View) -> int:
        """In how many slots rows of an operator may be; a source's are in none, which counts 1."""
        holders = self._rows_in.get(name, frozenset())
        return len({slot for op in holders for slot in view.slots_of(op)}) or 1

    def _seen(
        self,
        operator: str,
        split: bool,
        observed: Sequence[Observed],
        seen: Observation,
        view: View,
    ) -> Seen:
        """What these epochs say of both ways, the one they took and the other.

        Rows that stay are processed in the slots of their producers, those that travel in the
        operator's own. Both are held against the larger of the two numbers, so that neither way
        looks even because it leaves slots out.
        """
        own = view.slots_of(operator)
        before = self._producers.get(operator, ())
        among = max(len(own), *(self._slots_with(name, view) for name in before), 1)
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
                tasks = facts.source_tasks
                if edge.between_slots:
                    tasks = self._slots_with(producer, view)
                rows += edge.rows
                remote += edge.remote_rows
                if edge.between_slots:
                    busiest = (facts.imbalance.get(producer) or 1.0) * (among / tasks)
                    stays_uneven += edge.rows * (busiest - 1.0)
                if loads is not None:
                    expected += partials_expected(loads.rows, edge.rows, tasks)
            uneven += excess(facts.loads.get(operator, ()), among)
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


def operators_that_hold_rows(program: Program) -> dict[str, frozenset[str]]:
    """For every operator, those behind an exchange in whose slots its rows are; none: sources'."""
    found: dict[int, frozenset[str]] = {}
    for node in program.order:
        inputs = program.graph.inputs(node.id)
        if any(edge.grouping.kind != "local" for edge in inputs):
            found[node.id] = frozenset({node.name})
        else:
            found[node.id] = frozenset().union(*(found[edge.producer] for edge in inputs))
    return {node.name: found[node.id] for node in program.order if node.kind != "sink"}


def foldable(program: Program) -> tuple[str, ...]:
    return program.operators(lambda may: may.be_folded)
