"""Plans: a routing table per stateful operator, and the hand-overs between two of them.

Routing and moves are the real ones (`headgate.routing.table`). What moves is a unit: a key that
either table pins, or a bucket with all other keys of it, seen or not. So a hand-over is known
before the keys are, and a receiver knows for every key whether it has to wait for its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headgate.arrays import U64
from headgate.routing.hashing import bucket_of, hash_columns
from headgate.routing.table import RoutingTable, moves_between

Unit = tuple[str, int]  # ("pin", hash) or ("bucket", number)


@lru_cache
def key_hashes(count: int) -> U64:
    """The hashes of the integer keys 0 .. count - 1; a key is known by its hash."""
    return hash_columns([pa.array(range(count), pa.int64())], count)


class Router:
    """A routing table asked for one key at a time, with the answers for known keys at hand."""

    __slots__ = ("known", "slot_of", "table")

    def __init__(self, table: RoutingTable, known: U64) -> None:
        self.table, self.known = table, known
        self.slot_of: dict[int, int] = dict(
            zip(known.tolist(), table.route(known).tolist(), strict=True)
        )

    def slot(self, key: int) -> int:
        found = self.slot_of.get(key)
        if found is None:
            found = self.slot_of[key] = int(self.table.route(np.array([key], np.uint64))[0])
        return found


class Plan(NamedTuple):
    """One routing version of the whole flow."""

    id: int
    routers: Mapping[str, Router]


class Units:
    """What a key moves with, if it moves, between two tables."""

    __slots__ = ("_buckets", "_of", "_pins")

    def __init__(self, pins: frozenset[int], buckets: int, known: U64) -> None:
        self._pins, self._buckets = pins, buckets
        self._of: dict[int, Unit] = {}
        for key, bucket in zip(known.tolist(), bucket_of(known, buckets).tolist(), strict=True):
            self._of[key] = ("pin", key) if key in pins else ("bucket", bucket)

    def of(self, key: int) -> Unit:
        found = self._of.get(key)
        if found is None:
            bucket = int(bucket_of(np.array([key], np.uint64), self._buckets)[0])
            found = self._of[key] = ("pin", key) if key in self._pins else ("bucket", bucket)
        return found


class Handover(NamedTuple):
    """The send and receive lists of one instance, by the index of the other instance."""

    send: Mapping[int, frozenset[Unit]]
    receive: Mapping[int, frozenset[Unit]]
    units: Units


NO_HANDOVER = Handover({}, {}, Units(frozenset(), 1, key_hashes(0)))


def handovers(old: Router, new: Router) -> list[Handover]:
    """Send and receive lists of every instance of an operator. O(buckets + pins)."""
    before, after = old.table, new.table
    moves = moves_between(before, after)
    moved: list[tuple[Unit, int, int]] = [
        (("bucket", b), int(before.bucket_slots[b]), int(after.bucket_slots[b]))
        for b in moves.buckets.tolist()
    ]
    if len(moves.routes):
        owners = before.route(moves.routes).tolist(), after.route(moves.routes).tolist()
        moved += [
            (("pin", key), sender, receiver)
            for key, sender, receiver in zip(moves.routes.tolist(), *owners, strict=True)
        ]
    pairs: dict[tuple[int, int], set[Unit]] = {}
    for unit, sender, receiver in moved:
        pairs.setdefault((sender, receiver), set()).add(unit)
    pins = frozenset(np.union1d(before.pinned_h, after.pinned_h).tolist())
    units = Units(pins, after.buckets, new.known)
    slots = range(after.slots)
    return [
        Handover(
            {r: frozenset(u) for (s, r), u in pairs.items() if s == slot},
            {s: frozenset(u) for (s, r), u in pairs.items() if r == slot},
            units,
        )
        for slot in slots
    ]
