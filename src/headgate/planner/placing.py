"""What the manager asks of a planner: watch epochs, and say now and then who should live where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from headgate.arrays import F64, I32, U64, Bools
from headgate.errors import HeadgateError
from headgate.planner.instances import allowed_slots
from headgate.planner.registry import load, registered, why_unknown
from headgate.routing.table import RoutingTable


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


NO_ENTRY = -1  # in place of a slot: the key loses its entry and follows its hash again


class Pins(NamedTuple):
    """Keys, the slots they should have, and how many rows each had lately; hottest first."""

    h: U64
    slot: I32
    rows: F64

    @classmethod
    def hottest_first(cls, h: U64, slot: I32, rows: F64) -> Pins:
        order = np.lexsort((h, -rows))
        return cls(h[order], slot[order].astype(np.int32), rows[order])

    def take(self, which: Any) -> Pins:
        return Pins(self.h[which], self.slot[which], self.rows[which])

    def split(self, at: int) -> tuple[Pins, Pins]:
        return self.take(slice(None, at)), self.take(slice(at, None))


@dataclass(frozen=True)
class Proposal:
    """A plan: keys to pin, what they should bring, and why, in one line."""

    pins: Mapping[str, Pins]
    reason: str
    locality: float | None = None
    imbalance: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Placing(Protocol):
    """A planner at work on one flow."""

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        """Take in what was seen under these tables."""

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        """A plan from all that was observed; None: all is well as it is."""

    def rows_lately(self, operator: str, h: U64) -> F64:
        """About how many rows these keys had lately; 0 for those it has forgotten."""

    def why(self, operator: str, pins: Pins, i: int) -> str:
        """Half a line on why this key should live there."""


@dataclass(frozen=True)
class Task:
    """What a planner has to place, and within which limits.

    `instances` are the slots of operators that have an instance in some slots only; their keys must
    not be placed elsewhere. `distance_costs` are what a row costs by class of distance, if given.
    """

    operators: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    slots: int
    alpha: float
    pins_max: int
    moves_max: int
    born_local: frozenset[str]
    memory_epochs: int
    seed: int
    racks: Mapping[str, str] = field(default_factory=dict)
    instances: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    distance_costs: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def allowed(self) -> Bools | None:
        """[operator, slot]: where operators have an instance; None: everywhere."""
        return allowed_slots(self.operators, self.slots, self.instances)


class OnlyMeasures:
    """The planner "hash": rows are counted as for any other, and every key stays where it is."""

    def observe(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> None:
        pass

    def propose(self, seen: Observation, tables: Mapping[str, RoutingTable]) -> Proposal | None:
        return None

    def rows_lately(self, operator: str, h: U64) -> F64:
        return np.zeros(len(h))

    def why(self, operator: str, pins: Pins, i: int) -> str:
        return "its hash says so"


OWN = ("headgate", "hash")


def make_placing(name: str, task: Task) -> Placing:
    """The planner of that name. Imported late: they are compiled, and only a manager needs them."""
    if name == "headgate":
        from headgate.planner.incremental_placing import IncrementalPlacing

        return IncrementalPlacing(task)
    if name == "hash":
        return OnlyMeasures()
    if name not in registered("keys"):
        raise HeadgateError(why_unknown(name, OWN, "keys"), planner=name)
    placing: Placing = load("keys", name)(name, task)
    return placing
