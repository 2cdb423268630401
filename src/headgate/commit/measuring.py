"""Which epochs measure rows behind a cost-aware shuffle by value; the others only add up times.

Measuring takes each slot some milliseconds an epoch, however few its rows are: groups, sketches,
and a note to go on from. While little is known every epoch is measured. After that one is, whenever
slots have done so much work since the last that measuring hardly counts, and after so many epochs
in any case. Slots' times are added up in all epochs, and held against what the schedule expected:
if they are off, or an instance says that it is unsettled, the next epoch is measured.

What is chosen is part of the plan. It decides what is learnt, never where a row goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.commit.facts import CostFacts
from headgate.routing.costs import CostModel

SEEN_ROWS = 6  # of a value, on average, when enough is known of them ...
ENOUGH_ROWS = 8_192  # ... or of an instance, on average, however many values there are
WORK_MS = 1_000.0  # of a slot, to one measured epoch, which takes it 2 to 4 ms
EPOCHS_MAX = 16
WATCH_ROWS = 128  # in a slot: fewer often take more or less than expected
DRIFT = 0.25  # of the slots' times, above which they are not what was expected


@dataclass
class Measuring:
    """An operator's next epoch is measured while it is `wanted`; `always`, whatever is known."""

    always: bool = False
    wanted: bool = True
    _work_ms: float = 0.0
    _epochs: int = 0

    def observe(self, facts: CostFacts, *, measured: bool, unsettled: bool) -> None:
        """An epoch's times; `unsettled` if an instance says so, which it can if it measured."""
        working = sum(1 for rows in facts.rows if rows)
        if not working:
            return
        if measured:
            self._work_ms, self._epochs = 0.0, 0
        self._work_ms += sum(facts.measured_ms) / working
        self._epochs += 1
        due = self._work_ms >= WORK_MS or self._epochs >= EPOCHS_MAX
        self.wanted = due or unsettled or surprising(facts)

    def is_due(self, model: CostModel | None) -> bool:
        return self.always or self.wanted or model is None or not knows_enough(model)


def knows_enough(model: CostModel) -> bool:
    """Have those who have told anything told enough, together and with those who are gone?"""
    told = model.told_rows
    enough = min(SEEN_ROWS * model.values, ENOUGH_ROWS * int((told > 0).sum()))
    return 0 < enough <= float(told.sum()) + model.former.rows


def surprising(facts: CostFacts) -> bool:
    """Did slots that had many rows take longer or shorter than expected?"""
    pairs = [
        (expected, spent)
        for expected, spent, rows in zip(
            facts.estimated_ms, facts.measured_ms, facts.rows, strict=True
        )
        if expected is not None and rows >= WATCH_ROWS
    ]
    off_ms = sum(abs(spent - expected) for expected, spent in pairs)
    return off_ms > DRIFT * max(sum(e for e, _ in pairs), sum(s for _, s in pairs))
