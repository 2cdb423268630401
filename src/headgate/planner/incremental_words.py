"""The words of the incremental planner: its settings, what it is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.arrays import F64, I32, U8, U64


@dataclass(frozen=True)
class IncrementalSettings:
    """One setting for all data; how it was chosen is told in docs/guide/replay.md.

    Args:
        move_rows: A move must gain so many rows (over the memory of pairs) ...
        inertia: ... and this share of the key's own rows.
        price: What a row of load costs in a slot at the tolerance, in rows of locality.
        steepness: How much faster the price grows above the tolerance.
        measured: Weight of measured over planned fullness.
        slack: Tolerated imbalance at least, as a multiple of alpha - 1.
        wobble_tolerance: Tolerated imbalance per unit of epoch-to-epoch wobble.
        pair_memory: Half-life of pairs, in horizons.
        load_memory: Half-life of key loads, in horizons.
        slot_memory: Half-life of measured slot loads, in horizons.
        burst_price: As `price`, for the load of the last few epochs; 0 turns it off.
        burst_tolerance: Tolerated imbalance of bursts.
        burst_epochs: Half-life of bursts, in epochs.
        least_rows: Keys with fewer rows are left where they are.
        passes: How often a plan goes over the keys.
    """

    move_rows: float = 0.7
    inertia: float = 0.06
    price: float = 0.055
    steepness: float = 5.0
    measured: float = 1.35
    slack: float = 2.5
    wobble_tolerance: float = 0.22
    pair_memory: float = 6.0
    load_memory: float = 5.0
    slot_memory: float = 0.4
    burst_price: float = 0.015
    burst_tolerance: float = 0.06
    burst_epochs: float = 4.0
    least_rows: float = 0.8
    passes: int = 2


class SeenKeys(NamedTuple):
    """Keys of one operator in one epoch, each once.

    `slot` is who owns the key now. For a newborn (1 in `newborn`) it is the slot that had most of
    its rows.
    """

    h: U64
    rows: F64
    slot: I32
    newborn: U8

    def take(self, which: Any) -> SeenKeys:
        return SeenKeys(self.h[which], self.rows[which], self.slot[which], self.newborn[which])


class SeenPairs(NamedTuple):
    """Rows that went on from key a[i] of operator `source` to key b[i] of `target`."""

    source: int
    target: int
    a: U64
    b: U64
    rows: F64

    def take(self, which: Any) -> SeenPairs:
        return self._replace(a=self.a[which], b=self.b[which], rows=self.rows[which])


class Reason(IntEnum):
    """Why a key got a new owner."""

    ADOPTED = 0
    PARTNERS = 1
    LOAD = 2


@dataclass(frozen=True)
class KeyMoves:
    """What a plan changes for one operator: keys with a new owner, the hottest first.

    Newborn keys are always named, also if they stay where they were born: they need an entry.
    `here` and `there` are rows of the key (aged) that meet their partner in the old and new slot.
    """

    operator: int
    h: U64
    source: I32
    target: I32
    reason: I32
    gain: F64
    rows: F64
    here: F64
    there: F64

    def __len__(self) -> int:
        return len(self.h)

    @property
    def moved(self) -> npt.NDArray[np.bool_]:
        """Which of them are moves: a key that had an owner gets another."""
        return np.asarray(self.reason != Reason.ADOPTED)
