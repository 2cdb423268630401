"""What flows, and what the manager thinks of next: both from the seed.

Keys are few and skewed, so they repeat, and plans move the same keys again and again. A plan is
either random (pins, buckets, pins dropped, back to plain hashing) or follows the statistics: it
pins the heaviest consumer keys to the slot with the number of the key that leads to them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping

import numpy as np

from headgate.routing.table import RoutingTable, hash_table
from headgate_lab.simulator.manager import Pairs
from headgate_lab.simulator.message import Data
from headgate_lab.simulator.plan import Plan, Router, key_hashes
from headgate_lab.simulator.shape import Address, Wiring

KEYS = 12
BUCKETS = 16


def first_plan(wiring: Wiring) -> Plan:
    """Plain hashing."""
    known = key_hashes(KEYS)
    return Plan(
        0, {n: Router(hash_table(c, BUCKETS), known) for n, c in wiring.shape.stateful.items()}
    )


def draw_logs(wiring: Wiring, rng: random.Random, tuples: int) -> dict[Address, list[Data]]:
    """What each source has to read; a tuple has a key for every stateful operator."""
    keys = key_hashes(KEYS).tolist()
    names = tuple(wiring.shape.stateful)
    logs: dict[Address, list[Data]] = {source: [] for source in wiring.sources}
    for number in range(tuples):
        first = min(rng.randrange(KEYS), rng.randrange(KEYS))
        drawn = {n: keys[first if rng.random() < 0.5 else rng.randrange(KEYS)] for n in names}
        logs[rng.choice(wiring.sources)].append(Data(number, "", drawn, number))
    return logs


class SeededPlanner:
    """A new plan whenever asked; the same question twice gets two different answers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __call__(self, routers: Mapping[str, Router], pairs: Pairs) -> Mapping[str, Router]:
        follow = self.rng.random() < 0.3
        changed = self._followed(routers, pairs) if follow else self._random(routers)
        known = key_hashes(KEYS)
        return {
            name: router if (table := changed[name]) is router.table else Router(table, known)
            for name, router in routers.items()
        }

    def _random(self, routers: Mapping[str, Router]) -> dict[str, RoutingTable]:
        return {
            name: self._altered(router.table) if self.rng.random() < 0.9 else router.table
            for name, router in routers.items()
        }

    def _altered(self, table: RoutingTable) -> RoutingTable:
        rng = self.rng
        how = rng.random()
        if how < 0.5:
            chosen = key_hashes(KEYS)[rng.sample(range(KEYS), rng.randint(2, 8))]
            slots = [rng.randrange(table.slots) for _ in chosen]
            return table.pin_hashes(chosen, np.array(slots, np.int32))
        if how < 0.85:
            owners = table.bucket_slots.copy()
            for bucket in rng.sample(range(BUCKETS), rng.randint(2, 12)):
                owners[bucket] = rng.randrange(table.slots)
            return table.with_buckets(owners)
        if how < 0.95:
            return RoutingTable(table.slots, table.bucket_slots, table.version + 1)
        return hash_table(table.slots, BUCKETS)

    def _followed(self, routers: Mapping[str, Router], pairs: Pairs) -> dict[str, RoutingTable]:
        pins: dict[str, dict[int, int]] = {}
        for operator, key, consumer, next_key in heapq.nsmallest(
            6, pairs, key=lambda pair: (-pairs[pair], pair)
        ):
            slot = routers[operator].slot(key) % routers[consumer].table.slots
            pins.setdefault(consumer, {})[next_key] = slot
        changed = {name: router.table for name, router in routers.items()}
        for name, chosen in pins.items():
            keys, slots = (
                np.array(list(chosen), np.uint64),
                np.array(list(chosen.values()), np.int32),
            )
            changed[name] = changed[name].pin_hashes(keys, slots)
        return changed
