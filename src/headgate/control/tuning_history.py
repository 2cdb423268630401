"""What a tuner remembers, so that under a constant load its changes come to an end.

Every estimate has a bias that depends on the settings it was made with, and two biased estimates
that take turns never end. So what was measured with some settings counts more than what is
predicted of them later; what did not help is not repeated; what was refused is asked for again
ever more seldom.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from headgate.planner.tuning.epochs import EpochModel, EpochPrediction, EpochSettings
from headgate.planner.tuning.rescaler import Wanted

ROWS_PAY = 0.03  # more rows per second that larger epochs must promise
SAME = 0.8  # epochs that have this share of another's rows are of its size
FAR_OFF = 0.5  # epochs with twice the rows that they should have
ALIKE = 0.9  # a rate is lower than another if it is below this share of it
RATES_KEPT = 20  # of which the highest counts
REFUSED_EPOCHS = 64  # without asking again, after the first time; then twice as long
TRIED_KEPT = 16  # settings whose epochs are remembered
FACTOR = (0.5, 2.0)  # what a prediction may be off by, and still be corrected

Places = tuple[int, tuple[tuple[str, int], ...]]  # slots, and instances of some operators


class Experience:
    """How long epochs took with the settings tried so far, against what is predicted of them now.

    Predictions are corrected by that: of settings that were tried, by what they took; of others, by
    what is usual for settings that are not those measured now.
    """

    def __init__(self) -> None:
        self._tried: dict[Places, tuple[float, float]] = {}  # rows of an epoch, and its seconds
        self._now: Places | None = None

    def record(self, settings: EpochSettings, rows: float, epoch_s: float) -> None:
        """The settings that are in use, and a mean epoch with them."""
        self._now = _places(settings)
        self._tried.pop(self._now, None)
        self._tried[self._now] = rows, epoch_s
        while len(self._tried) > TRIED_KEPT:
            self._tried.pop(next(iter(self._tried)))

    def corrected(self, model: EpochModel, settings: EpochSettings) -> EpochPrediction:
        """What to expect of settings."""
        return model.predict(settings).slower(self.factor(model, settings))

    def factor(self, model: EpochModel, settings: EpochSettings) -> float:
        """How many times as long epochs take as the model says."""
        return self._factor(model, _places(settings))

    def _factor(self, model: EpochModel, places: Places) -> float:
        if places == self._now:
            return 1.0  # the model was made from it
        if places in self._tried:
            return self._of(model, places)
        others = [self._of(model, tried) for tried in self._tried if tried != self._now]
        return median(others) if others else 1.0

    def _of(self, model: EpochModel, places: Places) -> float:
        rows, seconds = self._tried[places]
        slots, instances = places
        settings = EpochSettings(slots, max(1, round(rows)), {}, dict(instances))
        low, high = FACTOR
        predicted = model.predict(settings).epoch_s
        return min(max(seconds / predicted, low), high) if predicted > 0 else 1.0


def _places(settings: EpochSettings) -> Places:
    some = {op: n for op, n in settings.instances.items() if n < settings.slots}
    return settings.slots, tuple(sorted(some.items()))


class EpochSizeAdvisor:
    """When sources should get another limit of rows per epoch: seldom, and not in vain.

    A limit is felt only where rows wait for epochs. There larger epochs share their fixed cost
    among more rows. Smaller ones are for a latency that was asked for, or if they were far too
    large. A new limit takes a restart of the query, so one that would change little is not worth
    it, nor is one in the other direction than the last unless it is far off. A source that ignored
    its last limit gets no other.
    """

    def __init__(self, limit: int | None, latency_s: float | None = None) -> None:
        self.limit, self._latency_s = limit, latency_s
        self._rows_before: int | None = None  # of an epoch, when the limit was given
        self._grew: bool | None = None
        self._source_ignores_limit = False

    def ask(
        self, model: EpochModel, rows: int, settings: EpochSettings, expected: EpochPrediction
    ) -> tuple[Wanted | None, str]:
        """Rows wait, and epochs have so many: another limit, and a note for the journal."""
        note, before, self._rows_before = "", self._rows_before, None
        if self.limit is not None and _same_size(rows, self.limit):
            self._source_ignores_limit = False
        elif before is not None and _same_size(rows, before):
            self._source_ignores_limit = True
            note = f"sources were told {self.limit:,} rows per epoch, and still bring {rows:,}; "
            note += "they are not told again"
        wanted = settings.rows_per_epoch
        as_is = model.predict(replace(settings, rows_per_epoch=rows))
        grows = wanted > rows
        if grows:
            worth = expected.rows_per_s >= (1 + ROWS_PAY) * as_is.rows_per_s
        else:
            late = self._latency_s is not None and as_is.latency_p95_s > self._latency_s
            worth = wanted <= (SAME if late else FAR_OFF) * rows
        back = self._grew is not None and self._grew != grows
        far = min(wanted, rows) <= FAR_OFF * max(wanted, rows)
        if self._source_ignores_limit or not worth or (back and not far):
            return None, note
        self.limit, self._rows_before, self._grew = wanted, rows, grows
        why = f"rows wait, and epochs have {rows:,} rows; with {wanted:,} one takes "
        why += f"{expected.epoch_s:.2g} s, and {expected.rows_per_s:,.0f} rows/s get through"
        return Wanted(wanted, why), note


def _same_size(one: int, other: int) -> bool:
    return min(one, other) >= SAME * max(one, other)


class ScalingHistory:
    """What the slot counts tried so far came to, so that no change is made twice in vain.

    Headgate does not return to a slot count that could not sustain the current rate. It does not
    ask again for slots that did not come for a while, each time for longer.
    """

    def __init__(self, max_slots: int) -> None:
        self._max_slots = max_slots
        self.rates: deque[float] = deque(maxlen=RATES_KEPT)  # rows per second of recent epochs
        self._too_few: dict[int, float] = {}
        self._refused: tuple[int, int] | None = None  # slots that were had, until which epoch
        self._patience = REFUSED_EPOCHS

    def record_too_few(self, slots: int) -> None:
        """More than these are needed for the present rate."""
        self._too_few[slots] = max(self.rates, default=0.0)

    @property
    def least(self) -> int:
        """Fewer slots than these were too few for such a rate."""
        rate = max(self.rates, default=0.0)
        return 1 + max((n for n, seen in self._too_few.items() if rate >= ALIKE * seen), default=0)

    def record_refusal(self, had: int, epoch: int) -> None:
        """More than `had` were asked for and did not come."""
        self._refused = had, epoch + self._patience
        self._patience *= 2

    def most(self, epoch: int) -> int:
        if self._refused is not None and epoch < self._refused[1]:
            return max(1, min(self._max_slots, self._refused[0]))
        return self._max_slots
