"""How long a comparison may take: every query has its share of what is left, and says what it took.

The first round of a query is always run. A later one takes in only the contestants whose last run
tells that they are done within the query's share, in the order of their importance. So the whole
ends in about the time that it was given, and a median may be of fewer rounds than asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass
class Pace:
    """A number of queries in a number of seconds; None: as long as it takes."""

    queries: int
    seconds: float | None = None
    clock: Clock = time.monotonic
    _began: float = field(init=False)
    _done: int = field(init=False, default=0)
    _ends: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def gone(self) -> float:
        """Seconds since the first query began."""
        return self.clock() - self._began

    def next_query(self) -> None:
        """What the queries before have left over is shared by this one and those that follow."""
        left = self.queries - self._done
        self._done += 1
        if self.seconds is not None:
            self._ends = self.clock() + (self.seconds - self.gone) / left

    def fitting(self, took: Mapping[str, float], names: Iterable[str]) -> list[str]:
        """Those of the contestants, the first ones first, that can run once more in the share.

        Examples:
            >>> pace = Pace(2, 20.0, clock=lambda: 0.0)
            >>> pace.next_query()
            >>> pace.fitting({"a": 4.0, "b": 9.0, "c": 5.0}, "abc")
            ['a', 'c']
        """
        if self._ends is None:
            return list(names)
        left, chosen = self._ends - self.clock(), []
        for name in names:
            if took[name] <= left:
                left -= took[name]
                chosen.append(name)
        return chosen
