"""Should a mergeable operator be split, or keep its rows with the owners of their keys?

Split, its rows stay where they are and one partial per key and task is merged; by key, rows travel
and a hot key's slot has more than the others. Both are counted in rows per epoch, smoothed, and the
choice changes only when the other way is clearly cheaper. What the other way would cost is
estimated from the keys counted, and measured once it has been taken. Pure: what was seen in, a
choice and its reason out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64

ROWS_PER_MERGE = 2.0  # a partial is made, sent and merged; a row is sent and processed
CLEARLY = 0.7  # the other way must cost less than this share of the present one
SMOOTHING = 0.5
HELD_EPOCHS = 3  # a choice holds that long before it is judged again


@dataclass(frozen=True)
class Seen:
    """One operator in some epochs; all counts are per epoch.

    `rows` came in, `remote_rows` of them over an exchange, `excess_rows` is what all slots would
    have done more if each had as much as the busiest; `merge_rows` partials were merged, and
    `producer_excess_rows` is the excess that rows have which stay where they are. Of a way that
    was not taken, what is known of it is an estimate, or None.
    """

    rows: float
    producer_excess_rows: float
    remote_rows: float | None = None
    excess_rows: float | None = None
    merge_rows: float | None = None


class SplitOrKey:
    """The choice for one operator. Begins by key, where all there is to know can be counted."""

    def __init__(self) -> None:
        self.split = False
        self._epochs = 0
        self._by_key: float | None = None  # cost per row, smoothed
        self._split: float | None = None
        self._latest: Seen | None = None

    def observe(self, seen: Seen, epochs: int = 1) -> None:
        """Take epochs in that ran under the present choice."""
        if seen.rows <= 0:
            return
        self._epochs += epochs
        self._latest = seen
        if seen.remote_rows is not None and seen.excess_rows is not None:
            cost = (seen.remote_rows + seen.excess_rows) / seen.rows
            self._by_key = _smooth(self._by_key, cost)
        if seen.merge_rows is not None:
            cost = (ROWS_PER_MERGE * seen.merge_rows + seen.producer_excess_rows) / seen.rows
            self._split = _smooth(self._split, cost)

    def decide(self) -> str | None:
        """Choose anew if it is time; a reason if the choice changed."""
        if self._by_key is None or self._split is None or self._latest is None:
            return None
        if self._epochs < (HELD_EPOCHS if self.split else 1):
            return None
        here, there = (self._split, self._by_key) if self.split else (self._by_key, self._split)
        if there >= CLEARLY * here:
            return None
        self.split, self._epochs = not self.split, 0
        way = "split" if self.split else "by key again"
        rows = self._latest.rows
        return (
            f"{way}: {self._split * rows:,.0f} rows' worth of partials and skew an epoch, "
            f"against {self._by_key * rows:,.0f} of travel and skew by key"
        )


def partials_expected(loads: F64, rows: float, tasks: int) -> float:
    """Distinct keys per task, summed over tasks, if each of them gets an equal part of the rows.

    `loads` are rows of the keys that are known; every other row counts as a key of its own.
    """
    if rows <= 0 or tasks <= 0:
        return 0.0
    total = max(float(loads.sum()), rows if not len(loads) else 0.0)
    share = loads / total if len(loads) else loads
    each = rows / tasks
    known = -np.expm1(each * np.log1p(-np.minimum(share, 1 - 1e-12))).sum()
    return float(min(rows, tasks * known)) if len(loads) else rows


def excess(loads: Sequence[int] | Sequence[float]) -> float:
    """What all slots would do more if each had as much as the busiest."""
    return max(loads) * len(loads) - sum(loads) if loads else 0.0


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + SMOOTHING * (now - before)
