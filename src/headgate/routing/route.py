"""One route per operator and epoch: who owns a key, and where a row of it is processed.

There is one rule. A row may be folded in a slot that does not own its key; what the rows of a key
have come to there, a partial, then goes to the owner. A *dispatch* says which rows that are:

- `ToOwner`: none; every row goes to the owner of its key.
- `Here`: all; a row is folded in the task that has it.
- `HereUnlessPinned`: rows of keys without a pin. Those of a source, which is in no slot, go to the
  slot that owns their next key, if the row shows that key already (`stops`).
- `Choose`: rows go to the least loaded of a few slots that their key may use.
- `Shares`: rows of the keys in a `Spread` are dealt out in given shares.

Who owns a key never depends on the dispatch, so neither do migration and recovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from headgate.arrays import I32, I64, U64
from headgate.errors import UnknownSlot
from headgate.routing.hashing import find_sorted
from headgate.routing.table import RoutingTable
from headgate.topology.keys import Key

Weights = Sequence[tuple[int, float]]

_FULL = 1 << 64


@dataclass(frozen=True)
class Spread:
    """Keys that several slots process at once, in fixed shares. The owner stays the owner.

    Key h[i] has slots[starts[i]:starts[i+1]]; `upto` are its cumulated shares, of 2^64. Keys that
    were weighed and left whole may be in it too, with one slot: they are known, not new.
    """

    h: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    starts: I64 = field(default_factory=lambda: np.zeros(1, np.int64))
    slots: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    upto: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def of(cls, shares: Mapping[int, Weights]) -> Spread:
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

    def renamed(self, name: I32) -> Spread:
        """The same shares where slot s is called name[s]."""
        return replace(self, slots=name[self.slots])

    def within(self, slots: Sequence[int]) -> Spread:
        """The shares in these slots only; a key that has none there is not spread any more."""
        keeps = np.isin(self.slots, slots)
        if keeps.all():
            return self
        shares = {int(h): self.shares_of(int(h)) for h in self.h}
        left = {h: [(s, x) for s, x in by.items() if s in slots] for h, by in shares.items()}
        return Spread.of({h: weights for h, weights in left.items() if weights})

    def find(self, h: U64) -> I64:
        """The number of each key in this spread, -1 for keys that are not spread."""
        return find_sorted(self.h, h)


Candidates = Literal["pkg", "d_choices", "w_choices"]


class Stop(NamedTuple):
    """A keyed operator that a row will come to later, and the columns of its key."""

    operator: str
    key: Key


@dataclass(frozen=True)
class ToOwner:
    """Rows go to the owner of their key."""


@dataclass(frozen=True)
class Here:
    """Rows are folded where they are, whoever owns their key."""


@dataclass(frozen=True)
class HereUnlessPinned:
    """Rows of keys without a pin are folded where they are.

    `stops` holds, by edge, what source rows of it will come to later, next stops first.
    """

    stops: Mapping[int, tuple[Stop, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choose:
    """Rows go to the least loaded of the slots that their key may use."""

    candidates: Candidates


@dataclass(frozen=True)
class Shares:
    """Rows of the keys of a spread are dealt out by it; frequent keys it lacks go anywhere."""

    spread: Spread = field(default_factory=Spread)


Dispatch = ToOwner | Here | HereUnlessPinned | Choose | Shares
TO_OWNER = ToOwner()


def last_fold(dispatch: Dispatch, home: int) -> int | None:
    """The last level in which rows are folded away from home; None: they never are.

    `home` is the level in which rows are with the owners of their keys if they go there.
    """
    match dispatch:
        case ToOwner():
            return None
        case Here():
            return home - 1
        case HereUnlessPinned(stops):
            return max(home - 1, 1 if stops else 0)
        case Choose() | Shares():
            return home


def end_level(dispatch: Dispatch, home: int) -> int:
    """The level in which an operator has all of its epoch: its rows, and partials of the others."""
    folded = last_fold(dispatch, home)
    return home if folded is None else max(home, folded + 1)


@dataclass(frozen=True)
class Route:
    """How one operator's rows find their slots in one epoch.

    `slots` are those that have an instance of the operator, in ascending order; none: all have.
    """

    table: RoutingTable
    dispatch: Dispatch = TO_OWNER
    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.slots:
            return
        used = np.union1d(self.table.bucket_slots, self.table.pinned_slots)
        strangers = np.setdiff1d(used, self.slots)
        if len(strangers):
            raise UnknownSlot(
                f"a route names slot {strangers[0]} as an owner, but its operator has instances "
                f"in slots {', '.join(map(str, self.slots))} only",
                slot=int(strangers[0]),
                slots=self.table.slots,
            )
