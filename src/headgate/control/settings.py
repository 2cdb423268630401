"""What a user may say about how a flow decides: settings only, validated once, here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import ClassVar

from headgate.errors import DeclarationError, UnknownSlot
from headgate.planner.allocation.model import Balance
from headgate.planner.distance import CLASSES
from headgate.planner.placing import OWN
from headgate.planner.registry import registered, why_unknown
from headgate.routing.table import RoutingTable
from headgate.topology.arguments import check_count, duration_us, named_fields

SLOTS_MAX = 1 << 16  # as many as a routing table can have buckets


@named_fields
@dataclass(frozen=True)
class Scaling:
    """How many slots a flow may have, and when it gets more or fewer.

    Args:
        min_slots: Never fewer.
        max_slots: Never more (default: a slot per core).
        high_pct: More slots if the busiest slot of the planned allocation is above this. This and
            the next two are for planners of units (`headgate-lab`); ours follows the demand.
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


def slots_for(
    slots: int | Scaling | None,
    tables: Mapping[str, RoutingTable],
    parallelism: Mapping[str, int] = MappingProxyType({}),
) -> int | Scaling:
    """A number that stays, or limits within which it is chosen; tables are for a number.

    There are as many as any operator is to have instances.
    """
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
    if isinstance(slots, int):
        slots = check_count(slots, "slots=")
    for operator, wanted in parallelism.items():
        most = slots.most if isinstance(slots, Scaling) else slots
        if most is not None and wanted > most:
            raise DeclarationError(
                f"{operator!r} is to have {wanted} instances, and there are {most} slots: an "
                "operator has at most one in each. Give more slots, or a smaller parallelism=",
                operator=operator,
                slots=most,
            )
    limits = Scaling() if slots is None else slots
    if isinstance(limits, int):
        return limits
    return replace(limits, min_slots=max(limits.min_slots, *parallelism.values(), 1))


MOVES_MAX = 5_000  # keys per operator and epoch, of our own planner
NO_LIMIT = 1 << 40


@named_fields
@dataclass(frozen=True)
class PlannerSettings:
    """What a planner seldom needs to be told; give it to `hg.Manager(tuning=...)`.

    Args:
        statistics_bytes: Memory of a slot for counting keys and pairs. 1 MB holds 32,768 pairs,
            with which replayed streams are planned as well as with exact counts
            (docs/decisions/0011).
        moves_max: Keys per operator whose state may move with one epoch; the rest of a plan waits.
            By default 5,000 with "headgate", which keeps an epoch that moves about as long as the
            others (a round number, not searched), and no limit with papers' planners, which move
            all at once.
        pins_max: Keys per operator with an owner of their own; all others follow their hash, and
            in a full table hot keys take the entries of cold ones. A pin takes 12 bytes of a table
            that every task reads, so this many are 3 MB.
        memory_epochs: About how many epochs the planner looks back. Set with the replays of
            docs/decisions/0011, whose keys drift within some epochs; not searched.
        slot_state_bytes: State that a slot can hold, a number for all or by host, as
            `{"big": 8e9, "small": 2e9}` (then for every host). If given, memory may be the
            bottleneck; by default it is not, as nobody knows what else an executor's memory is for.
        slot_bytes_per_second: Bytes that a slot can take in and send, in the same way. If given,
            the network may be the bottleneck; by default it is not, as slots of one host do not use
            it.
        host_speeds: How fast hosts are, by name, where 1 is a plain one: of units, a slot on a host
            of speed 2 gets twice the load. A host that is not named then has 1. By default tasks
            measure it, and hosts within a quarter of each other count as alike.
        distance_costs: What a row costs that leaves its slot, as `{"host": 1, "rack": 2,
            "elsewhere": 4}` (the default): to a slot of the same host, to another host of the rack,
            to another rack. Only their proportion counts, so the seconds that a megabyte takes will
            do, as measured on your network.
        planner_seconds: What a plan of units may take; epochs go on meanwhile. A solver may
            overstay it a little.
        migration_units_max: Units that one plan may move (the paper's limit in key groups), besides
            `migration_seconds_max`. By default the seconds alone limit a plan.
        load_distance_max_pct: Load distance (maxLD) that is even enough, in percent of the mean;
            by default what `alpha` allows.
        score_factor: sF of "albic": a pair counts above so many times its sender's average
            (default 1.5).
        partition_load_pct: maxPL of "albic" to begin with, in percent of a slot's mean load
            (default 50).
        seed: For planners that draw; any whole number from 0 on will do.
    """

    statistics_bytes: int = 1 << 20
    moves_max: int | None = None
    pins_max: int = 262_144
    memory_epochs: int = 5
    slot_state_bytes: float | Mapping[str, float] | None = None
    slot_bytes_per_second: float | Mapping[str, float] | None = None
    host_speeds: Mapping[str, float] = field(default_factory=dict)
    distance_costs: Mapping[str, float] = field(default_factory=dict)
    planner_seconds: float = 1.0
    migration_units_max: int | None = None
    load_distance_max_pct: float | None = None
    score_factor: float | None = None
    partition_load_pct: float | None = None
    seed: int = 0

    OF_ALBIC: ClassVar = ("score_factor", "partition_load_pct")

    def __post_init__(self) -> None:
        least = {
            "statistics_bytes": 1 << 12,
            "moves_max": 1,
            "pins_max": 0,
            "memory_epochs": 1,
            "seed": 0,
        }
        for name, lowest in least.items():
            if name != "moves_max" or self.moves_max is not None:
                check_count(getattr(self, name), f"{name}=", least=lowest)
        if self.migration_units_max is not None:
            check_count(self.migration_units_max, "migration_units_max=")
        for name in ("slot_state_bytes", "slot_bytes_per_second"):
            given = getattr(self, name)
            numbers = given.values() if isinstance(given, Mapping) else [given]
            if not all(number is None or number > 0 for number in numbers) or given == {}:
                raise DeclarationError(f"{name}={given}; give more than 0, or None")
        for name in (
            "planner_seconds",
            "load_distance_max_pct",
            *self.OF_ALBIC,
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise DeclarationError(f"{name}={value}; give more than 0, or None")
        if distances := dict(self.distance_costs):
            costs = [distances.get(name, 0.0) for name in CLASSES[1:]]
            if set(distances) != set(CLASSES[1:]) or not 0 < costs[0] <= costs[1] <= costs[2]:
                raise DeclarationError(
                    f"distance_costs={distances}; give host, rack and elsewhere, above 0, none "
                    "below the one before"
                )
        for host, speed in self.host_speeds.items():
            if not speed > 0:
                raise DeclarationError(f"host_speeds of {host!r} is {speed}; give more than 0")

    @property
    def of_planner(self) -> dict[str, float]:
        """Settings that only some planner of units has, as far as they are given."""
        given = {name: getattr(self, name) for name in self.OF_ALBIC}
        return {name: value for name, value in given.items() if value is not None}


@named_fields
@dataclass(frozen=True)
class Manager:
    """How a flow places its keys while it runs; give it to `flow.start(manager=…)`.

    Args:
        planner: "headgate" (ours) moves a few keys at a time to where their rows are, and whole
            buckets and pinned keys where slots stay uneven or are to leave; it also folds rows in
            place where that pays. "hash" only measures.
            Papers' planners come with `headgate-lab`: "online" and "offline" (Caneill et al. 2016,
            METIS from scratch each period, or once), "online-estimated" (the same, if an estimate
            says that it pays), "worst-case", "milp" and "albic" (Madsen et al. 2017, which place
            units by load, and scale by the load of slots).
        every: Epochs from one plan to the next, or time, as "30 seconds" or a timedelta. For
            planners of units, the period over which statistics are added up.
        warm_up_epochs: Epochs that are only measured before the first plan.
        alpha: No slot should have more than this times the mean load. Planners of keys keep it for
            every operator, planners of units for what `balance` says.
        balance: What units keep even: "total", the load of slots, or "operator", the load that
            every operator gives them. "milp" and "albic" know the total only.
        migration_seconds_max: What a plan of units may cost in time spent on moving state.
        born_local: Process keys without an owner where their rows are, if their state can be
            merged, and let them live there. By default only "headgate" does.
        tuning: What is seldom needed; see `hg.PlannerSettings`.
    """

    REPLACED: ClassVar = {
        "every_epochs": "every=",
        "scaling": "slots=hg.Scaling(...) to flow.start",
    }

    planner: str = "headgate"
    every: int | str | timedelta = 1
    warm_up_epochs: int = 0
    alpha: float = 1.05
    balance: Balance = "total"
    migration_seconds_max: float = 1.0
    born_local: bool | None = None
    tuning: PlannerSettings = PlannerSettings()

    def __post_init__(self) -> None:
        if self.planner not in (*OWN, *registered("keys", "units")):
            raise DeclarationError(
                why_unknown(self.planner, OWN, "keys", "units"), planner=self.planner
            )
        if self.balance not in ("total", "operator"):
            raise DeclarationError(f'balance={self.balance!r}; give "total" or "operator"')
        if self.balance == "operator" and self.places_units:
            raise DeclarationError(
                f'balance="operator" needs planner="headgate"; {self.planner!r} evens the total',
                planner=self.planner,
            )
        if self.tuning.of_planner and self.planner != "albic":
            raise DeclarationError(
                f"{', '.join(self.tuning.of_planner)}: only planner='albic' has that, and this is "
                f"{self.planner!r}; leave it out",
                planner=self.planner,
            )
        if not self.migration_seconds_max > 0:
            raise DeclarationError(
                f"migration_seconds_max={self.migration_seconds_max}; give more than 0"
            )
        if not self.alpha > 1:
            raise DeclarationError(f"alpha={self.alpha}; it must be above 1: slots are never equal")
        check_count(self.warm_up_epochs, "warm_up_epochs=", least=0)
        if isinstance(self.every, (str, timedelta)):
            duration_us(self.every)
        else:
            check_count(self.every, "every=")

    @property
    def every_epochs(self) -> int:
        """Epochs that must have passed since the last plan."""
        return self.every if isinstance(self.every, int) else 1

    @property
    def every_ms(self) -> int:
        """Milliseconds that must have."""
        return 0 if isinstance(self.every, int) else duration_us(self.every) // 1000

    @property
    def is_ours(self) -> bool:
        """Whether more is decided than what the planner of that name decides by itself."""
        return self.planner == "headgate"

    @property
    def distance_max_pct(self) -> float:
        """Load distance that is even enough, in percent of the mean."""
        given = self.tuning.load_distance_max_pct
        return 100.0 * (self.alpha - 1) if given is None else given

    @property
    def migration_seconds_least(self) -> float:
        """What a unit counts for at least, so that no more move than may."""
        most = self.tuning.migration_units_max
        return 0.0 if most is None else self.migration_seconds_max / most

    @property
    def keeps_new_keys_local(self) -> bool:
        return self.is_ours if self.born_local is None else self.born_local

    @property
    def moves_max(self) -> int:
        """Keys per operator that may move with one epoch."""
        if self.tuning.moves_max is not None:
            return self.tuning.moves_max
        return MOVES_MAX if self.is_ours else NO_LIMIT

    @property
    def places_units(self) -> bool:
        """Whether the planner places whole units (and can scale), or single keys."""
        return self.planner not in OWN and self.planner not in registered("keys")
