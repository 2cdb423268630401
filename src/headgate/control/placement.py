"""Our own placement: single keys go to where their rows are; whole units, where slots are uneven.

Most of the time keys are placed (`keys`): slots count keys and pairs of keys, and a few keys move
after every epoch. That evens rows, operator by operator. If the *time* that slots spend stays
uneven all the same, or if slots are to leave, slots count units instead, buckets and pinned keys,
and these are placed by load, traffic and what moving costs (`units`), until nothing is left to
gain. Keys go on from the tables that came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.commit.facts import EpochFacts, PlanFacts
from headgate.commit.planning import Observed
from headgate.control.keys import KeyPlacement
from headgate.control.policy import Proposal, View
from headgate.control.units import UnitPlacement


@dataclass(frozen=True)
class PlacementSettings:
    """When units are placed instead of keys.

    Args:
        uneven: The busiest slot's time over the mean that is too much. Times of equal slots differ
            by a tenth or so from epoch to epoch.
        patience_epochs: For so many epochs in a row; doubled whenever placing units did not help.
        slot_ms_min: Mean time of a slot per epoch below which the clock says nothing.
        rest_turns: Turns without a plan after which keys are placed again.
    """

    uneven: float = 1.3
    patience_epochs: int = 8
    slot_ms_min: float = 50.0
    rest_turns: int = 4


class HeadgatePlacement:
    """The planner "headgate" at work on one flow."""

    def __init__(
        self, keys: KeyPlacement, units: UnitPlacement, settings: PlacementSettings | None = None
    ) -> None:
        self._keys, self._units, self.settings = keys, units, settings or PlacementSettings()
        self._places_units = False
        self._uneven_epochs = self._turns_at_rest = 0
        self._patience = self.settings.patience_epochs

    @property
    def units_of(self) -> frozenset[str]:
        """Operators whose units are counted, and placed, in place of keys."""
        return self._units.units_of if self._places_units else frozenset()

    @property
    def born_local(self) -> frozenset[str]:
        return frozenset() if self._places_units else self._keys.born_local

    @property
    def is_draining(self) -> bool:
        return self._places_units and self._units.adaptation.leaving > 0

    def drain(self, slots: int) -> None:
        """Empty so many slots at the end, within the budget, then ask for their release."""
        self._units.adaptation.drain(slots)
        self._place_units()

    def slots_changed(self, slots: int) -> None:
        self._keys.slots_changed(slots)
        self._units.slots_changed(slots)
        self._uneven_epochs = 0

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        if self._places_units:
            counted = [epoch for epoch in observed if epoch.counted_units is not False]
            return self._with_units(counted, view)
        observed = [epoch for epoch in observed if not epoch.counted_units]
        proposal = self._keys.propose(observed, view)
        excess = self._unevenness([epoch.facts for epoch in observed])
        if excess is None:
            return proposal
        self._place_units()
        why = (
            f"the busiest slot took {excess:.2f} times the mean in {self._uneven_epochs} epochs in "
            "a row; buckets and pinned keys are placed by load"
        )
        facts = proposal.plan or PlanFacts(planner="headgate")
        facts = replace(facts, why="; ".join(filter(None, [facts.why, why])))
        return replace(proposal, plan=facts)

    # --- inside ----------------------------------------------------------------------------
    def _with_units(self, observed: Sequence[Observed], view: View) -> Proposal:
        proposal = self._units.propose(observed, view)
        moved = bool(proposal.tables) or self.is_draining
        self._turns_at_rest = 0 if moved or not observed else self._turns_at_rest + 1
        if self._turns_at_rest >= self.settings.rest_turns:
            self._places_units = False
            self._uneven_epochs = 0
            self._patience *= 2
        return proposal

    def _place_units(self) -> None:
        self._places_units, self._turns_at_rest = True, 0

    def _unevenness(self, epochs: Sequence[EpochFacts]) -> float | None:
        """How uneven slots have been for long enough; None: they have not."""
        excess = 1.0
        for facts in epochs:
            spent = np.sum(list(facts.operator_ms.values()), axis=0)
            mean = float(np.mean(spent)) if np.size(spent) else 0.0
            if mean < self.settings.slot_ms_min:
                continue
            excess = float(np.max(spent)) / mean
            if excess > self.settings.uneven:
                self._uneven_epochs += 1
            else:
                self._uneven_epochs, self._patience = 0, self.settings.patience_epochs
        return excess if self._uneven_epochs >= self._patience else None
