"""The head of a stream: keys so frequent that two slots are not enough for them.

SpaceSaving finds the keys above a threshold theta, and from their frequencies follows the number d
of candidate slots that they need (Nasir et al. 2016, "When two choices are not enough"). Both are
judged at fixed row numbers, ever further apart, and hold until the next: what a row is taken for
depends on the rows before it, not on how they are cut into chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headgate.routing.hashing import U64
from headgate.sketch.space_saving import PairSketch

F64 = npt.NDArray[np.float64]

BLOCK_ROWS = 1 << 14
EPSILON = 1e-4
ROWS_OF_A_HEAD_KEY = 4  # a key must have been seen about that often before it can be in the head
COUNTERS_PER_HEAD_KEY = 8


class HeadKeys:
    """Keys with at least a share `theta` of the rows so far, by SpaceSaving.

    theta defaults to 1 / (5 slots), the lowest of the range that the paper finds useful. At most
    1 / theta keys are in the head; memory is eight counters for each. A key counts as head by its
    upper bound, which is above its true count by at most an eighth of theta's.
    """

    def __init__(self, slots: int, theta: float | None = None) -> None:
        self.slots = slots
        self.theta = 1 / (5 * slots) if theta is None else theta
        self.h: U64 = np.empty(0, np.uint64)
        self.frequency: F64 = np.empty(0, np.float64)
        self._sketch = PairSketch(math.ceil(COUNTERS_PER_HEAD_KEY / self.theta))
        self._waiting: list[U64] = []
        self._seen = 0
        self._next = math.ceil(ROWS_OF_A_HEAD_KEY / self.theta)

    def stretches(self, h: U64) -> Iterator[slice]:
        """Cut new rows where the head is judged anew; take each stretch in after its use."""
        start = 0
        while start < len(h):
            stop = min(len(h), start + self._next - self._seen)
            yield slice(start, stop)
            self._waiting.append(h[start:stop])
            self._seen += stop - start
            if self._seen == self._next:
                self._judge()
            start = stop

    def holds(self, h: U64) -> npt.NDArray[np.bool_]:
        """Which of these keys are in the head."""
        if not len(self.h):
            return np.zeros(len(h), np.bool_)
        at = np.searchsorted(self.h, h)
        at[at == len(self.h)] = 0
        return np.asarray(self.h[at] == h)

    def _judge(self) -> None:
        rows = np.concatenate(self._waiting)
        self._waiting = []
        self._sketch.update(rows, np.zeros(len(rows), np.uint64))
        self._next = self._seen + min(self._seen, BLOCK_ROWS)
        head = np.flatnonzero(self._sketch.count >= self.theta * self._seen)
        head = head[np.argsort(self._sketch.a[head])]
        self.h = self._sketch.a[head]
        self.frequency = self._sketch.count[head] / self._seen


def choices_needed(frequency: F64, slots: int, epsilon: float = EPSILON) -> int:
    """The smallest d for which head keys with d candidates each can be spread evenly.

    For every prefix of the head, heaviest first, the slots that its candidates cover in
    expectation must take the prefix, and what of all other keys falls into them with all its
    choices, within epsilon of their even share. `slots` means that only all of them suffice.
    """
    p = np.sort(frequency)[::-1]
    if not len(p) or slots < 3:
        return min(2, slots)
    head = np.cumsum(p)
    rest = head[-1] - head
    tail = max(0.0, 1.0 - float(head[-1]))
    prefix = np.arange(1, len(p) + 1)
    for d in range(max(2, math.ceil(float(p[0]) * slots)), slots):
        covered = slots - slots * ((slots - 1) / slots) ** (prefix * d)
        share = covered / slots
        expected = head + share**d * rest + share**2 * tail
        if (expected <= covered * (1 / slots + epsilon)).all():
            return d
    return slots
