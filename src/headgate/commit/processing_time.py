"""Processing time: the wall clock, as far as it can be believed.

A wall clock may jump: ahead, and every TTL is over at once; back, and none ends until it has caught
up. Two rules, neither of which trusts one reading:

- `SteadyClock`: while a driver runs, time goes on as a clock that never jumps says. A wall clock
  that disagrees with it is believed when it has done so for `PATIENCE_MS`.
- `epoch_time`: time does not go back from epoch to epoch, until the clock has been behind the last
  manifest in `PATIENCE_EPOCHS` epochs in a row. State touched in the meantime, at a time that is
  now ahead, counts as touched in the next sweep (`StateSession`).

A clock that is ahead when a driver starts cannot be told from one that was down for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.commit.manifest import Manifest

SLACK_MS = 60_000  # clocks are set right by less than this all the time
PATIENCE_MS = 600_000
PATIENCE_EPOCHS = 10


class SteadyClock:
    """The wall clock in ms, without its jumps."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        self._start_ms = wall_ms() - monotonic_ms()  # the wall clock's time at monotonic time 0
        self._doubted_since_ms: int | None = None

    def __call__(self) -> int:
        wall, monotonic = self._wall_ms(), self._monotonic_ms()
        steady = self._start_ms + monotonic
        if abs(wall - steady) > SLACK_MS:
            if self._doubted_since_ms is None:
                self._doubted_since_ms = monotonic
            if monotonic - self._doubted_since_ms < PATIENCE_MS:
                return steady
        self._start_ms, self._doubted_since_ms = wall - monotonic, None
        return wall


def epoch_time(clock_ms: int, last: Manifest | None) -> tuple[int, int]:
    """The time of the epoch after `last`, and in how many epochs in a row the clock was behind."""
    if last is None or clock_ms >= last.now_ms:
        return clock_ms, 0
    behind = last.clock_behind + 1
    if last.now_ms - clock_ms > SLACK_MS and behind >= PATIENCE_EPOCHS:
        return clock_ms, 0
    return last.now_ms, behind
