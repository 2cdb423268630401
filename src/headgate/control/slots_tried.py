"""What a tuner has learnt of slot counts while it runs, so that no change is made twice in vain.

Slots that were too few for a rate are too few for it again: they are not gone back to before the
rate has fallen. Slots that could not be had are not asked for again for a while, each time for
longer. And a backlog is not moved to a count that was seen to be no faster.
"""

from __future__ import annotations

from collections import deque

ALIKE = 0.9  # a rate is lower than another if it is below this share of it
RATES_KEPT = 20  # of which the highest counts
REFUSED_EPOCHS = 64  # without asking again, after the first time; then twice as long


class SlotsTried:
    """`most` is what may be asked for at all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._too_few: dict[int, float] = {}
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._speeds: dict[int, float] = {}
        self._refused: tuple[int, int] | None = None  # slots that were had, until which epoch
        self._patience = REFUSED_EPOCHS

    def came(self, rate: float) -> None:
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

    def refused(self, had: int, epoch: int) -> None:
        """More than `had` were asked for and did not come."""
        self._refused = had, epoch + self._patience
        self._patience *= 2

    def most(self, epoch: int) -> int:
        if self._refused is not None and epoch < self._refused[1]:
            return max(1, min(self._most, self._refused[0]))
        return self._most

    def ran(self, slots: int, rows_per_s: float) -> None:
        """What a backlog got through."""
        self._speeds[slots] = rows_per_s

    def expected(self, slots: int, predicted: float) -> float:
        """Rows per second with so many slots: as seen, or as predicted."""
        return min(predicted, self._speeds.get(slots, predicted))

    def forget_speeds(self) -> None:
        """The backlog is gone, or its epochs have another size."""
        self._speeds.clear()
