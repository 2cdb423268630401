"""Keys that several slots process at once, in fixed shares.

A routing table gives a key one owner; a spread adds, for the few keys that are too heavy for one
slot, the slots that process them and the share of rows that each gets. The owner stays the owner:
others send it partials. Keys that were weighed and left whole may be in it too, with one slot: they
are known, not new. `choices.deal` deals the rows out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headgate.errors import UnknownSlot
from headgate.routing.hashing import I64, U64

I32 = npt.NDArray[np.int32]
Shares = Sequence[tuple[int, float]]

_FULL = 1 << 64


@dataclass(frozen=True)
class Spread:
    """Key h[i] has slots[starts[i]:starts[i+1]]; `upto` are its cumulated shares, of 2^64."""

    h: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    starts: I64 = field(default_factory=lambda: np.zeros(1, np.int64))
    slots: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    upto: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def of(cls, shares: Mapping[int, Shares]) -> Spread:
        """From {hash: [(slot, weight)]}; weights need not add up to 1.

        Examples:
            >>> spread = Spread.of({7: [(0, 3.0), (2, 1.0)]})
            >>> spread.shares_of(7)
            {0: 0.75, 2: 0.25}
        """
        hashes = sorted(shares)
        slots: list[int] = []
        upto: list[int] = []
        starts = [0]
        for h in hashes:
            weights = np.array([weight for _, weight in shares[h]], np.float64)
            if not len(weights) or not weights.min() > 0:
                raise UnknownSlot(f"key #{h:016x} is spread over no slot, or by a share of 0")
            ends = np.cumsum(weights) / weights.sum()
            upto += [min(_FULL - 1, int(end * _FULL)) for end in ends[:-1]] + [_FULL - 1]
            slots += [slot for slot, _ in shares[h]]
            starts.append(len(slots))
        return cls(
            np.array(hashes, np.uint64),
            np.array(starts, np.int64),
            np.array(slots, np.int32),
            np.array(upto, np.uint64),
        )

    def __len__(self) -> int:
        return len(self.h)

    @property
    def cut(self) -> U64:
        """The keys that have several slots."""
        return self.h[np.diff(self.starts) > 1]

    @property
    def replicas(self) -> int:
        """How many slots beyond the first its keys take, all together."""
        return len(self.slots) - len(self.h)

    def shares_of(self, h: int) -> dict[int, float]:
        """Slot -> share of a key; empty if it is not spread."""
        at = int(np.searchsorted(self.h, np.uint64(h)))
        if at == len(self.h) or int(self.h[at]) != h:
            return {}
        mine = slice(int(self.starts[at]), int(self.starts[at + 1]))
        ends = self.upto[mine].astype(np.float64) / _FULL
        parts = np.diff(ends, prepend=0.0)
        return {int(slot): float(part) for slot, part in zip(self.slots[mine], parts, strict=True)}

    def find(self, h: U64) -> I64:
        """The number of each key in this spread, -1 for keys that are not spread."""
        if not len(self.h):
            return np.full(len(h), -1, np.int64)
        at = np.searchsorted(self.h, h)
        at[at == len(self.h)] = 0
        return np.where(self.h[at] == h, at, -1)
