"""Where windows of a fixed size begin: multiples of a step, of UTC or of the time of some place.

In a time zone, days and hours are those of its clocks. Where these jump, a day has 23 or 25 hours
and a window that would begin in the hour that is left out begins when that is over. In the hour
that comes twice a window begins twice, if it begins there at all. So every instant is in exactly
one window, whatever the clocks do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64
from headgate.errors import DeclarationError

_LOCAL = pa.timestamp("us")


@dataclass(frozen=True)
class Grid:
    """Starts `offset_us` after the multiples of `step_us` since 1970-01-01 00:00.

    Examples:
        >>> hours = Grid(3_600_000_000, offset_us=900_000_000)
        >>> hours.start_of(np.array([0, 900_000_000])).tolist()
        [-2700000000, 900000000]
    """

    step_us: int
    offset_us: int = 0
    timezone: str | None = None

    def check(self, who: str) -> None:
        """Raise if there is no such time zone."""
        try:
            self.start_of(np.zeros(1, np.int64))
        except (pa.ArrowException, ValueError) as problem:
            raise DeclarationError(
                f"{who}: timezone={self.timezone!r} is not known here ({problem}); write it as in "
                "'Europe/Berlin'"
            ) from problem

    def start_of(self, times: I64) -> I64:
        """The last start that is not after each time."""
        if self.timezone is None:
            return self._floor(times)
        local = self._local(times)
        wanted = self._floor(local)
        starts: I64 = times - (local - wanted)
        jumped = np.flatnonzero(self._local(starts) != wanted)  # the clocks did, in between
        if len(jumped):
            starts[jumped] = self._instant(wanted[jumped])
        return starts

    def end_of(self, starts: I64, size_us: int) -> I64:
        """Where windows of that size end that begin at these starts."""
        ends: I64 = starts + size_us
        if self.timezone is None or not len(starts):
            return ends
        local = self._floor(self._local(starts)) + size_us
        jumped = np.flatnonzero(self._local(ends) != local)
        if len(jumped):
            ends[jumped] = self._instant(local[jumped])
        if size_us == self.step_us:  # the second of two windows may begin before
            again = self.start_of(ends - 1)
            ends = np.where(again > starts, again, ends)
        return ends

    def _floor(self, times: I64) -> I64:
        result: I64 = (times - self.offset_us) // self.step_us * self.step_us + self.offset_us
        return result

    def _local(self, times: I64) -> I64:
        there = pa.array(times).view(pa.timestamp("us", self.timezone))
        result: I64 = pc.local_timestamp(there).view(pa.int64()).to_numpy()
        return result

    def _instant(self, local: I64) -> I64:
        there = pc.assume_timezone(
            pa.array(local).view(_LOCAL), self.timezone, ambiguous="earliest", nonexistent="latest"
        )
        result: I64 = there.view(pa.int64()).to_numpy()
        return result
