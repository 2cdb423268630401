"""What a policy is: pure code that sees committed epochs and proposes what to change.

The loop (`loop`) asks every policy after some epochs, decides what is carried out, and later holds
what was promised against what came. A policy remembers what it needs between two calls and touches
neither engine nor storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headgate.commit.facts import OutcomeFacts, PlanFacts
from headgate.commit.planning import Observed
from headgate.routing.route import Dispatch
from headgate.routing.table import RoutingTable

Figure = Literal["locality", "distance_pct"]
"""What a plan promises: the share of rows that stay in their slot, or the load distance."""


@dataclass(frozen=True)
class View:
    """What holds for the coming epoch unless a decision changes it."""

    tables: Mapping[str, RoutingTable]
    slots: int


@dataclass(frozen=True)
class SlotsWanted:
    """How many slots there should be, and why, in one line."""

    slots: int
    why: str


@dataclass(frozen=True)
class Proposal:
    """What a policy would change (nothing: all is well), why, and what that should bring.

    Args:
        tables: Owners of keys, for the operators where they change.
        dispatch: How rows find their slots, for all operators that the policy decides about; the
            others go the usual way. None: as the policy said before.
        plan: For the journal; None: there is nothing to tell.
        promised: Figures that the next epochs should show.
        achieved: The same figures as the epochs seen now show them.
        slots: Another number of slots that the policy asks for.
        outcome: What came of the last plan, of a policy that compares by itself.
    """

    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    dispatch: Mapping[str, Dispatch] | None = None
    plan: PlanFacts | None = None
    promised: Mapping[Figure, float] = field(default_factory=dict)
    achieved: Mapping[Figure, float] = field(default_factory=dict)
    slots: SlotsWanted | None = None
    outcome: OutcomeFacts | None = None


class Policy(Protocol):
    """One of those who propose."""

    def slots_changed(self, slots: int) -> None:
        """The flow runs with another number of slots: what was planned for the old one is void."""

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        """`observed` are the epochs since the last call that ran with the view's slots."""


def compare(
    promised: Mapping[Figure, float], achieved: Mapping[Figure, float]
) -> OutcomeFacts | None:
    """What the last plan promised against what came; None: nothing can be compared."""
    if "locality" in promised and "locality" in achieved:
        told, found = promised["locality"], achieved["locality"]
        return OutcomeFacts(
            error=round(told - found, 4),
            predicted_locality=round(told, 4),
            achieved_locality=round(found, 4),
        )
    if "distance_pct" in promised and "distance_pct" in achieved:
        told, found = promised["distance_pct"], achieved["distance_pct"]
        return OutcomeFacts(
            error=round(told - found, 2),
            predicted_distance_pct=round(told, 2),
            achieved_distance_pct=round(found, 2),
        )
    return None
