"""Tumbling windows by a plain fold, for oracles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


@dataclass
class FoldedWindows:
    """Sums per key and tumbling window, one row at a time: the plain way."""

    size: timedelta
    origin: datetime
    held: Counter[tuple[Any, datetime]] = field(default_factory=Counter)

    def take(self, key: Any, time: datetime, number: int, closed_to: datetime | None) -> None:
        start = time - (time - self.origin) % self.size
        if closed_to is None or start + self.size > closed_to:
            self.held[key, start] += number

    def close(self, mark: datetime | None) -> list[tuple[Any, datetime, int]]:
        """Key, start and sum of the windows that end by then; they are forgotten."""
        gone = [w for w in self.held if mark is not None and w[1] + self.size <= mark]
        return [(key, start, self.held.pop((key, start))) for key, start in gone]

    def first_open(self, mark: datetime | None) -> datetime | None:
        """The start of the first window that is still open when those to `mark` are closed."""
        if mark is None:
            return None
        return next(
            start
            for start in (self.origin + n * self.size for n in range(10_000))
            if start + self.size > mark
        )
