"""What a policy is: pure code that sees committed epochs and proposes what to change.

The loop (`loop`) asks every policy after some epochs, decides what is carried out, and later
compares what was promised with what was achieved. A policy remembers what it needs between two
calls and touches neither engine nor storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from headgate.arrays import F64
from headgate.commit.facts import OutcomeFacts, PlanFacts
from headgate.commit.planning import Observed
from headgate.planner.placing import KeyLoads, Observation, Pairs
from headgate.planner.tuning.rescaler import Wanted
from headgate.routing.route import Dispatch
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable

Figure = Literal["locality", "distance_pct"]
"""What a plan promises: the share of rows that stay in their slot, or the load distance."""
DECIMALS: Mapping[Figure, int] = {"locality": 4, "distance_pct": 2}  # in the journal
MOVES_EXPLAINED = 8  # lines of a plan's record that name single moves


@dataclass(frozen=True)
class View:
    """What holds for the coming epoch unless a decision changes it.

    `instances` are the slots of operators that have an instance in some slots only.
    """

    tables: Mapping[str, RoutingTable]
    slots: int
    instances: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def slots_of(self, operator: str) -> tuple[int, ...]:
        return self.instances.get(operator) or tuple(range(self.slots))


@dataclass(frozen=True)
class Proposal:
    """What a policy would change (nothing: all is well), why, and what that should bring.

    Args:
        tables: Owners of keys, for the operators where they change.
        dispatch: How rows find their slots, for all operators that the policy decides about; the
            others go the usual way. None: as the policy said before.
        plan: For the journal; None: nothing to report.
        promised: Figures that the next epochs should show.
        achieved: The same figures as the epochs seen now show them.
        slots: Another number of slots that the policy asks for.
        outcome: What the last plan achieved, of a policy that compares by itself.
        instances: The slots of operators whose instances should change.
    """

    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    dispatch: Mapping[str, Dispatch] | None = None
    plan: PlanFacts | None = None
    promised: Mapping[Figure, float] = field(default_factory=dict)
    achieved: Mapping[Figure, float] = field(default_factory=dict)
    slots: Wanted | None = None
    outcome: OutcomeFacts | None = None
    instances: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Policy(Protocol):
    def slots_changed(self, slots: int) -> None:
        """The flow runs with another number of slots: what was planned for the old one is void."""

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        """`observed` are the epochs since the last call that ran with the view's slots."""


def compare(
    promised: Mapping[Figure, float], achieved: Mapping[Figure, float]
) -> OutcomeFacts | None:
    """What the last plan promised and what was achieved; None: nothing can be compared."""
    for figure, decimals in DECIMALS.items():
        if figure in promised and figure in achieved:
            figures: dict[str, Any] = {
                f"predicted_{figure}": round(promised[figure], decimals),
                f"achieved_{figure}": round(achieved[figure], decimals),
            }
            error = round(promised[figure] - achieved[figure], decimals)
            return OutcomeFacts(error=error, **figures)
    return None


def joined(*reasons: str | None) -> str:
    return "; ".join(filter(None, reasons))


def gather(observed: Sequence[Observed], pairs_max: int) -> Observation:
    """What all tasks of these epochs counted; at most `pairs_max` pairs an edge are kept.

    The slot of a key is that with most of its rows, the lowest of equals.
    """
    pairs: dict[tuple[str, str], PairSketch] = {}
    by_slot: dict[str, dict[int, PairSketch]] = {}
    labels: dict[str, dict[int, str]] = {}
    slot_rows: dict[str, F64] = {}
    local = remote = 0
    for epoch in observed:
        for task in epoch.statistics:
            for edge, sketch in task.pairs.items():
                pairs.setdefault(edge, PairSketch(pairs_max)).merge(sketch)
            for operator, sketch in task.loads.items():
                slots = by_slot.setdefault(operator, {})
                slots.setdefault(task.slot, PairSketch(pairs_max)).merge(sketch)
            for operator, texts in task.labels.items():
                labels.setdefault(operator, {}).update(texts)
        for operator, by in epoch.facts.loads.items():
            rows, before = np.asarray(by, np.float64), slot_rows.get(operator)
            same = before is not None and len(before) == len(rows)
            slot_rows[operator] = before + rows if same and before is not None else rows
        for counts in epoch.facts.edges.values():
            if counts.between_slots:
                local, remote = local + counts.local_rows, remote + counts.remote_rows
    last = observed[-1].facts
    return Observation(
        epoch=last.epoch,
        epochs=len(observed),
        rows=sum(epoch.facts.rows for epoch in observed),
        now_ms=last.now_ms,
        pairs={edge: Pairs(s.a, s.b, s.count) for edge, s in sorted(pairs.items())},
        loads={operator: _loads(slots) for operator, slots in sorted(by_slot.items())},
        slot_rows=slot_rows,
        labels=labels,
        locality=local / (local + remote) if local + remote else None,
        hosts=last.engine.hosts,
    )


def _loads(by_slot: Mapping[int, PairSketch]) -> KeyLoads:
    h = np.concatenate([s.a for s in by_slot.values()])
    rows = np.concatenate([s.count for s in by_slot.values()])
    slot = np.concatenate([np.full(len(s), n, np.int32) for n, s in by_slot.items()])
    order = np.lexsort((slot, -rows, h))
    h, rows, slot = h[order], rows[order], slot[order]
    keys, first = np.unique(h, return_index=True)
    total = np.add.reduceat(rows, first) if len(first) else rows
    return KeyLoads(keys, total, slot[first])
