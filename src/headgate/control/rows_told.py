"""Rows per epoch that sources are told while a flow runs: seldom, and not in vain.

A limit is felt only where rows wait for epochs. There larger epochs share their fixed cost among
more rows, up to where that pays no more. Smaller ones are for a latency that was asked for, or if
they were far too large. Telling sources takes a restart of the query, so a number that would change
little is not told, nor is one in the other direction than the last unless it is far off. A source
that was told and did not change is not told again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.planner.tuning.epoch_model import EpochModel, EpochSettings
from headgate.planner.tuning.epochs import TunedEpochs

PAYS = 0.03  # more rows per second that larger epochs must promise
SAME = 0.8  # epochs that have this share of another's rows are of its size
FAR_OFF = 0.5  # epochs with twice the rows that they should have


@dataclass(frozen=True)
class EpochRows:
    """Rows per epoch that are worth a restart of the query, and why."""

    rows: int
    why: str


class RowsTold:
    """What sources were told last, and what came of it."""

    def __init__(self, told: int | None, latency_s: float | None = None) -> None:
        self.told, self._latency_s = told, latency_s
        self._typical_then: int | None = None
        self._grew: bool | None = None
        self._deaf = False
        self._note = ""

    def ask(self, model: EpochModel, typical: int, tuned: TunedEpochs) -> EpochRows | None:
        """Rows wait, and epochs have `typical` rows: should sources be told another number?"""
        wanted, slots = tuned.settings.rows_per_epoch, tuned.settings.slots
        self._listen(typical)
        as_is = model.predict(EpochSettings(slots, typical, tuned.settings.batch_rows))
        if wanted > typical:
            worth = tuned.prediction.rows_per_s >= (1 + PAYS) * as_is.rows_per_s
        else:
            late = self._latency_s is not None and as_is.latency_s > self._latency_s
            worth = wanted <= (SAME if late else FAR_OFF) * typical
        back = self._grew is not None and self._grew != (wanted > typical)
        far = min(wanted, typical) <= FAR_OFF * max(wanted, typical)
        if self._deaf or not worth or (back and not far):
            return None
        self.told, self._typical_then, self._grew = wanted, typical, wanted > typical
        expected = tuned.prediction
        why = f"rows wait, and epochs have {typical:,} rows; with {wanted:,} one takes "
        why += f"{expected.epoch_s:.2g} s, and {expected.rows_per_s:,.0f} rows/s get through"
        return EpochRows(wanted, why)

    def take_note(self) -> str:
        """What is worth a line in the journal, once."""
        note, self._note = self._note, ""
        return note

    def _listen(self, typical: int) -> None:
        """Have epochs changed since sources were told?"""
        if self.told is not None and _same(typical, self.told):
            self._deaf = False
        elif self._typical_then is not None and _same(typical, self._typical_then):
            self._deaf = True
            self._note = (
                f"sources were told {self.told:,} rows per epoch, and still bring {typical:,}; "
                "they are not told again"
            )
        self._typical_then = None


def _same(one: int, other: int) -> bool:
    return min(one, other) >= SAME * max(one, other)
