"""What one or more epochs showed, over all slots: the input of every planner.

Keys are hashes; `pairs` and `loads` come from bounded sketches, so the lightest may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.arrays import F64, I32, U64


class Pairs(NamedTuple):
    """Rows that went on from key a[i] of one operator to key b[i] of the next."""

    a: U64
    b: U64
    rows: F64


class KeyLoads(NamedTuple):
    """Rows of each key, and the slot that had most of them."""

    h: U64
    rows: F64
    slot: I32


@dataclass(frozen=True)
class Observation:
    """Epochs up to `epoch`, seen together. `slot_rows[operator][slot]` is exact."""

    epoch: int
    epochs: int
    rows: int
    now_ms: int
    pairs: Mapping[tuple[str, str], Pairs]
    loads: Mapping[str, KeyLoads]
    slot_rows: Mapping[str, F64]
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    locality: float | None = None
    hosts: tuple[str, ...] = ()
