"""What a tuner remembers of its own decisions, so that a constant load comes to rest."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headgate.planner.tuning.epoch_model import EpochModel, EpochSettings
from headgate.planner.tuning.epochs import TunedEpochs

PAYS = 0.03  # more rows per second that larger epochs must promise
SAME = 0.8  # epochs that have this share of another's rows are of its size
FAR_OFF = 0.5  # epochs with twice the rows that they should have
ALIKE = 0.9  # a rate is lower than another if it is below this share of it
RATES_KEPT = 20  # of which the highest counts
REFUSED_EPOCHS = 64  # without asking again, after the first time; then twice as long


@dataclass(frozen=True)
class EpochRows:
    """Rows per epoch that are worth a restart of the query, and why."""

    rows: int
    why: str


class EpochSizeAdvisor:
    """When sources should be told another number of rows per epoch: seldom, and not in vain.

    A limit is felt only where rows wait for epochs. There larger epochs share their fixed cost
    among more rows. Smaller ones are for a latency that was asked for, or if they were far too
    large. Telling sources takes a restart of the query, so a number that would change little is
    not worth it, nor is one in the other direction than the last unless it is far off. A source
    that ignored its last limit is not told again.
    """

    def __init__(self, told: int | None, latency_s: float | None = None) -> None:
        self.told, self._latency_s = told, latency_s
        self._typical_then: int | None = None
        self._grew: bool | None = None
        self._source_ignores_limit = False
        self._note = ""

    def ask(self, model: EpochModel, typical: int, tuned: TunedEpochs) -> EpochRows | None:
        """Rows wait, and epochs have `typical` rows: should sources be told another number?"""
        wanted, slots = tuned.settings.rows_per_epoch, tuned.settings.slots
        self._check_source(typical)
        as_is = model.predict(EpochSettings(slots, typical, tuned.settings.batch_rows))
        if wanted > typical:
            worth = tuned.prediction.rows_per_s >= (1 + PAYS) * as_is.rows_per_s
        else:
            late = self._latency_s is not None and as_is.latency_s > self._latency_s
            worth = wanted <= (SAME if late else FAR_OFF) * typical
        back = self._grew is not None and self._grew != (wanted > typical)
        far = min(wanted, typical) <= FAR_OFF * max(wanted, typical)
        if self._source_ignores_limit or not worth or (back and not far):
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

    def _check_source(self, typical: int) -> None:
        """Have epochs changed since sources were told?"""
        if self.told is not None and _same(typical, self.told):
            self._source_ignores_limit = False
        elif self._typical_then is not None and _same(typical, self._typical_then):
            self._source_ignores_limit = True
            self._note = (
                f"sources were told {self.told:,} rows per epoch, and still bring {typical:,}; "
                "they are not told again"
            )
        self._typical_then = None


def _same(one: int, other: int) -> bool:
    return min(one, other) >= SAME * max(one, other)


class ScalingHistory:
    """What the slot counts tried so far came to, so that no change is made twice in vain.

    A count that could not sustain a rate is not returned to before the rate has fallen. Slots that
    could not be had are not asked for again for a while, each time for longer. And a backlog is not
    moved to a count that was seen to be no faster. `most` is what may be asked for at all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._too_few: dict[int, float] = {}
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._speeds: dict[int, float] = {}
        self._refused: tuple[int, int] | None = None  # slots that were had, until which epoch
        self._patience = REFUSED_EPOCHS

    def observe_rate(self, rate: float) -> None:
        """Rows per second of one more epoch."""
        self._rates.append(rate)

    def too_few(self, slots: int) -> None:
        """More than these are needed for what comes now."""
        self._too_few[slots] = max(self._rates, default=0.0)

    @property
    def least(self) -> int:
        """Fewer slots than these were too few for such a rate."""
        rate = max(self._rates, default=0.0)
        return 1 + max((n for n, seen in self._too_few.items() if rate >= ALIKE * seen), default=0)

    def record_refusal(self, had: int, epoch: int) -> None:
        """More than `had` were asked for and did not come."""
        self._refused = had, epoch + self._patience
        self._patience *= 2

    def most(self, epoch: int) -> int:
        if self._refused is not None and epoch < self._refused[1]:
            return max(1, min(self._most, self._refused[0]))
        return self._most

    def observe_backlog(self, slots: int, rows_per_s: float) -> None:
        """What a backlog got through."""
        self._speeds[slots] = rows_per_s

    def expected(self, slots: int, predicted: float) -> float:
        """Rows per second with so many slots: as seen, or as predicted."""
        return min(predicted, self._speeds.get(slots, predicted))

    def forget_speeds(self) -> None:
        """The backlog is gone, or its epochs have another size."""
        self._speeds.clear()
