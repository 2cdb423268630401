"""What a user may say about how a flow decides: settings only, validated once, here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headgate.errors import DeclarationError, UnknownSlot
from headgate.planner.allocation.model import Balance
from headgate.planner.placing import OWN
from headgate.planner.registry import registered, why_unknown
from headgate.routing.table import RoutingTable
from headgate.topology.declared import check_count, named_fields
from headgate.topology.duration import duration_us

SLOTS_MAX = 1 << 16  # as many as a routing table can have buckets
UNIT_PLANNERS = ("allocation",)
LEAST = {"every_epochs": 1, "memory_epochs": 1, "warm_up_epochs": 0, "moves_max": 1, "pins_max": 0}


@named_fields
@dataclass(frozen=True)
class Scaling:
    """How many slots a flow may have, and when it gets more or fewer.

    Args:
        min_slots: Never fewer.
        max_slots: Never more (default: a slot per core).
        high_pct: More slots if the busiest slot of the planned allocation is above this.
        low_pct: Fewer slots if all slots together are below this, on average.
        hold_periods: For so many periods in a row, before anything changes.
    """

    min_slots: int = 1
    max_slots: int | None = None
    high_pct: float = 75.0
    low_pct: float = 40.0
    hold_periods: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min_slots <= self.most:
            raise DeclarationError(
                f"min_slots={self.min_slots}, max_slots={self.max_slots}; "
                "give 1 <= min_slots <= max_slots"
            )
        if not 0 < self.low_pct < self.high_pct <= 100:
            raise DeclarationError(
                f"low_pct={self.low_pct:g}, high_pct={self.high_pct:g}; "
                "give 0 < low_pct < high_pct <= 100"
            )
        if self.hold_periods < 1:
            raise DeclarationError(f"hold_periods={self.hold_periods}; it must be at least 1")

    @property
    def aim_pct(self) -> float:
        """The mean load to go for: half way between the thresholds."""
        return (self.low_pct + self.high_pct) / 2

    def fitting(self, total_pct: float) -> int:
        """The least number of slots whose mean load is at most the aim, within the limits."""
        return self.within(max(1, math.ceil(total_pct / self.aim_pct - 1e-9)))

    @property
    def most(self) -> int:
        """The upper limit as a number; without one, more than any cluster has."""
        return SLOTS_MAX if self.max_slots is None else self.max_slots

    def within(self, slots: int) -> int:
        """The nearest number of slots that the limits allow."""
        return max(min(slots, self.most), self.min_slots)


def slots_for(slots: int | Scaling | None, tables: Mapping[str, RoutingTable]) -> int | Scaling:
    """A number that stays, or limits within which it is chosen; tables are for a number."""
    for operator, table in tables.items():
        if isinstance(slots, Scaling):
            raise DeclarationError(
                f"the routing table of {operator!r} is for {table.slots} slots, and their number "
                "is to be chosen: keep one. Without tables the manager places keys, however many "
                "slots there are",
                operator=operator,
            )
        slots = table.slots if slots is None else slots
        if table.slots != slots:
            raise UnknownSlot(
                f"the routing table of {operator!r} is for {table.slots} slots, the flow is to run "
                f"{slots}; run {table.slots} slots, or analyse again with --slots {slots}",
                operator=operator,
                slots=slots,
            )
    if slots is None:
        return Scaling()
    return slots if isinstance(slots, Scaling) else check_count(slots, "slots=")


@named_fields
@dataclass(frozen=True)
class Manager:
    """How a flow places its keys while it runs; give it to `flow.start(manager=…)`.

    Args:
        planner: "headgate" moves a few keys at a time to where their rows are; "online" and
            "offline" are the planners of Caneill et al. 2016 (METIS from scratch each period, or
            once); "hash" only measures; "worst-case" sends apart what belongs together.
            "allocation" (ours), "milp" and "albic" (Madsen et al. 2017) place whole buckets and
            pinned keys by load, traffic and what moving costs, and scale by the load of slots.
            "allocation" cuts keys of split groupings that are too heavy for a slot.
            "online", "offline", "worst-case", "milp" and "albic" come with `headgate-lab`.
        every_epochs: Epochs from one plan to the next; for planners of units, the period over
            which statistics are added up.
        warm_up_epochs: Epochs that are only measured before the first plan.
        every: Time from one plan to the next, as "30 seconds" or a timedelta; both must have
            passed.
        alpha: No slot should have more than this times the mean load. Planners of keys keep it for
            every operator, planners of units for what `balance` says.
        balance: What "allocation" keeps even: "total", the load of slots, or "operator", the load
            that every operator gives them. "milp" and "albic" know the total only.
        statistics_bytes: Memory of a slot for counting keys and pairs.
        moves_max: Keys per operator whose state may move with one epoch; the rest of a plan waits.
        pins_max: Keys per operator with an owner of their own; all others follow their hash. In a
            full table hot keys take the entries of cold ones.
        born_local: Process keys without an owner where their rows are, if their state can be
            merged, and let them live there.
        memory_epochs: About how many epochs the "headgate" planner looks back.
        seed: For planners that draw.
        migration_seconds_max: What a plan of units may cost in time spent on moving state.
        slot_state_bytes: State that a slot can hold. If given, memory may be the bottleneck.
        slot_bytes_per_second: Bytes that a slot can take in and send. If given, the network may
            be the bottleneck.
    """

    planner: str = "headgate"
    every_epochs: int = 1
    warm_up_epochs: int = 0
    every: str | timedelta | None = None
    alpha: float = 1.05
    balance: Balance = "total"
    statistics_bytes: int = 1 << 20
    moves_max: int = 5_000
    pins_max: int = 262_144
    born_local: bool = True
    memory_epochs: int = 5
    seed: int = 0
    migration_seconds_max: float = 1.0
    slot_state_bytes: float | None = None
    slot_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        own = OWN + UNIT_PLANNERS
        if self.planner not in own and self.planner not in registered("keys", "units"):
            raise DeclarationError(
                why_unknown(self.planner, own, "keys", "units"), planner=self.planner
            )
        if self.balance not in ("total", "operator"):
            raise DeclarationError(f'balance={self.balance!r}; give "total" or "operator"')
        if self.balance == "operator" and self.places_units and self.planner != "allocation":
            raise DeclarationError(
                f'balance="operator" needs planner="allocation"; {self.planner!r} evens the total',
                planner=self.planner,
            )
        if not self.migration_seconds_max > 0:
            raise DeclarationError(
                f"migration_seconds_max={self.migration_seconds_max}; give more than 0"
            )
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise DeclarationError(f"{name}={getattr(self, name)}; it must be at least {least}")
        if not self.alpha > 1:
            raise DeclarationError(f"alpha={self.alpha}; it must be above 1: slots are never equal")
        if self.statistics_bytes < 1 << 12:
            raise DeclarationError(
                f"statistics_bytes={self.statistics_bytes}; give at least 4096 bytes"
            )
        if self.every is not None:
            duration_us(self.every)

    @property
    def places_units(self) -> bool:
        """Whether the planner places whole units (and can scale), or single keys."""
        return self.planner not in OWN and self.planner not in registered("keys")
