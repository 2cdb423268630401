"""SpaceSaving over pairs of keys, whole batches at a time: the heaviest pairs in bounded memory.

SpaceSaving (Metwally et al. 2005) replaces the smallest counter, one item at a time. A batch is
taken in at once instead: join it with the counters, keep the `capacity` largest, and remember the
largest count that had to go as the *floor*. A pair that is not kept was seen at most `floor` times,
so a newcomer starts there. This is the reduction step of mergeable summaries (Agarwal et al. 2012)
in SpaceSaving's terms: raising the floor by v lowers at least `capacity + 1` counters by v in
theirs, so the same bound holds however the pairs are cut into batches, and over merges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from headgate.arrays import F64, I64, U64, Bools
from headgate.routing.hashing import find_sorted, group_rows

PAIR_BYTES = 32  # two hashes, count, error
JUDGED_ROWS_MAX = 1 << 14  # rows between two judgements of the head, once it is known
EPSILON = 1e-4  # of an even share: how uneven slots may be, as in the paper
ROWS_OF_A_HEAD_KEY = 4  # a key must have been seen about that often before it can be in the head
COUNTERS_PER_HEAD_KEY = 8  # a count is then too high by at most an eighth of the threshold
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class PairSketch:
    """Counts of pairs (a, b) of 64-bit key hashes.

    Guarantee: a kept pair's true weight lies in [count - error, count]; any other pair weighs at
    most `floor`; error <= floor <= total / (capacity + 1). Memory: `PAIR_BYTES` a pair, at most
    `capacity` pairs between calls. Cost of an update: a sort of (batch + kept) pairs.

    Examples:
        >>> sketch = PairSketch(capacity=2)
        >>> a, b = np.array([1, 1, 2, 3], np.uint64), np.array([7, 7, 8, 9], np.uint64)
        >>> sketch.update(a, b)
        >>> int(sketch.count.max()), sketch.floor, sketch.total
        (2, 1.0, 4.0)
    """

    capacity: int
    a: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    b: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    count: F64 = field(default_factory=lambda: np.empty(0, np.float64))
    error: F64 = field(default_factory=lambda: np.empty(0, np.float64))
    floor: float = 0.0
    total: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"a sketch of {self.capacity} pairs; it needs room for at least one")

    @classmethod
    def within(cls, memory_bytes: int) -> PairSketch:
        """The sketch that fits into so many bytes."""
        return cls(max(1, memory_bytes // PAIR_BYTES))

    def __len__(self) -> int:
        return len(self.a)

    def update(self, a: U64, b: U64, weight: F64 | I64 | None = None) -> None:
        """Add rows (weight 1 each) or pairs that were counted before; order does not matter."""
        if not len(a):
            return
        a, b, counted = count_pairs(a, b, None if weight is None else weight.astype(np.float64))
        self._join(a, b, counted, np.zeros(len(a)), other_floor=0.0)
        self.total += float(counted.sum())

    def merge(self, other: PairSketch) -> None:
        """Add another slot's or epoch's sketch; floors and bounds add up."""
        self._join(other.a, other.b, other.count, other.error, other_floor=other.floor)
        self.total += other.total

    def decay(self, factor: float) -> None:
        """Age everything; a pair below a thousandth of a row is dropped, which the floor notes."""
        self.count *= factor
        self.error *= factor
        self.floor *= factor
        self.total *= factor
        faded = self.count < 1e-3
        if faded.any():
            self.floor = max(self.floor, float(self.count[faded].max()))
            self._keep(np.flatnonzero(~faded))

    def reset(self) -> None:
        """Forget everything: a new routing has begun."""
        self._keep(np.empty(0, np.int64))
        self.floor = self.total = 0.0

    # --- inside ----------------------------------------------------------------------------
    def _join(self, a: U64, b: U64, count: F64, error: F64, *, other_floor: float) -> None:
        """Both sides' counters as one; a pair that one side lacks counts as that side's floor."""
        mine, theirs = pair_code(self.a, self.b), pair_code(a, b)
        _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        my_count, my_error = self.count + other_floor, self.error + other_floor
        my_count[here] += count[there] - other_floor
        my_error[here] += error[there] - other_floor
        new = np.ones(len(theirs), np.bool_)
        new[there] = False
        all_count = np.concatenate([my_count, count[new] + self.floor])
        all_error = np.concatenate([my_error, error[new] + self.floor])
        self.a, self.b = np.concatenate([self.a, a[new]]), np.concatenate([self.b, b[new]])
        self.count, self.error = all_count, all_error
        self.floor += other_floor
        self._shrink()

    def _shrink(self) -> None:
        surplus = len(self.a) - self.capacity
        if surplus <= 0:
            return
        order = np.argpartition(self.count, surplus - 1)
        self.floor = max(self.floor, float(self.count[order[:surplus]].max()))
        self._keep(np.sort(order[surplus:]))

    def _keep(self, at: I64) -> None:
        self.a, self.b = self.a[at], self.b[at]
        self.count, self.error = self.count[at], self.error[at]


def pair_code(a: U64, b: U64) -> U64:
    """One number per pair. Two pairs may share one (2^-64 each); their counts then add up."""
    return a * _SPREAD + b


def count_pairs(a: U64, b: U64, weight: F64 | None = None) -> tuple[U64, U64, F64]:
    """Each pair once, in order of first appearance, with its summed weight (a row weighs 1)."""
    code = pair_code(a, b)
    group, first = group_rows(code)
    counted = np.bincount(group, weights=weight, minlength=len(first)).astype(np.float64)
    return a[first], b[first], counted


class HeadKeys:
    """The head of a stream: keys with at least a share `theta` of the rows so far.

    theta defaults to 1 / (5 slots), the lowest of the range that Nasir et al. 2016 ("When two
    choices are not enough") find useful. The head is judged at fixed row numbers, ever further
    apart, and holds until the next: what a row is taken for depends on the rows before it, not on
    how they are cut into chunks.
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
        """Cut new rows where the head is judged again; take each stretch in after its use."""
        start = 0
        while start < len(h):
            stop = min(len(h), start + self._next - self._seen)
            yield slice(start, stop)
            self._waiting.append(h[start:stop])
            self._seen += stop - start
            if self._seen == self._next:
                self._judge()
            start = stop

    def holds(self, h: U64) -> Bools:
        """Which of these keys are in the head."""
        return find_sorted(self.h, h) >= 0

    def _judge(self) -> None:
        rows = np.concatenate(self._waiting)
        self._waiting = []
        self._sketch.update(rows, np.zeros(len(rows), np.uint64))
        self._next = self._seen + min(self._seen, JUDGED_ROWS_MAX)
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
