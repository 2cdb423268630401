"""What an epoch costs: a flow on an engine that runs in epochs, with slots and instances.

An operator behind an exchange has instances in some slots or in all (`groups`); an epoch goes level
by level, and a level takes as long as its busiest slot (`epoch_times`). What runs before the first
exchange runs in source tasks, as many as the source has partitions, whatever the slots. Rows go
from slot to slot by key: the fewer instances, the more of them stay.

An epoch is itself a batch: its rows share its fixed cost F, as the rows of a message share n. So
the equations of Sax et al. 2013 hold one floor up: the smallest epoch that keeps up (equation 2,
with n = F), and the fewest instances for which there is one (equation 4).

**Latency.** A row comes at any time while an epoch runs, waits for the rest of it, and is committed
with the next: from one epoch to two of them, evenly spread, if epochs follow each other. So the
mean is 1.5 epochs and the 95th percentile 1.95. A trigger's interval makes the wait longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.epoch_times import EpochTimes, Times
from headgate.planner.tuning.groups import Groups

WAITS = 1.5  # epochs: a row waits for half of one on average, then for the whole of its own
P95 = 0.95


@dataclass(frozen=True)
class EpochSettings:
    """What can be set on Spark: slots, rows per epoch, rows per batch tuple of each stream.

    `instances` of operators that have one in some slots only; the others have one in every slot.
    """

    slots: int
    rows_per_epoch: int
    batch_rows: Mapping[str, int]
    instances: Annotated[Mapping[str, int], "sparse"] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochPrediction:
    """One epoch of so many rows: its seconds, the rate it gives, a row's mean and 95 % latency."""

    epoch_s: float
    rows_per_s: float
    latency_s: float
    fixed_s: float
    messages: float
    latency_p95_s: Annotated[float, "sparse"] = 0.0

    def slower(self, factor: float) -> EpochPrediction:
        """With epochs so many times as long."""
        return replace(
            self,
            epoch_s=self.epoch_s * factor,
            rows_per_s=self.rows_per_s / factor,
            latency_s=self.latency_s * factor,
            latency_p95_s=self.latency_p95_s * factor,
        )


@dataclass(frozen=True)
class EpochModel:
    """A flow on an engine with epochs: `levels` shuffles each, `cores` tasks at once.

    Args:
        cpus: Processors that the tasks share (default: one for each task).
        source_tasks: As many as the source has partitions.
        slots_seen: With which remote shares were measured; 0: they hold for any number.
        instances_seen: Of operators that had one in some slots only, then.
        elastic: Executors follow the slots; `cores` and `cpus` are those of `slots_seen`.
        every_s: The trigger's interval.
        full_levels: Levels in which every slot has a task, whatever is chosen.
        stretch: What busiest slots took, over what even ones would have.
        correction: What epochs took, over what was predicted of them.
    """

    flow: FlowModel
    costs: EngineCosts
    levels: int
    cores: int
    _: KW_ONLY
    cpus: int | None = None
    source_tasks: int = 1
    slots_seen: int = 0
    instances_seen: Mapping[str, int] = field(default_factory=dict)
    elastic: bool = False
    every_s: float = 0.0
    full_levels: frozenset[int] = frozenset()
    stretch: float = 1.0
    correction: float = 1.0

    def __post_init__(self) -> None:
        if self.levels < 1 or self.cores < 1:
            raise DeclarationError("an epoch has at least one level, and runs on at least one core")

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.flow, self.levels)

    def rows_into(self, name: str) -> float:
        """Rows into a step per row of the sources."""
        return self.groups.rows_into[name]

    def seen_of(self, group: str) -> int:
        """Instances of a group when it was measured."""
        return self.instances_seen.get(group, self.slots_seen)

    def cores_for(self, slots: int) -> int:
        """Tasks at once with so many slots: where executors follow, at least one each."""
        if not self.elastic:
            return self.cores
        share = slots / self.slots_seen if self.slots_seen else 1.0
        return max(slots, math.ceil(self.cores * min(1.0, share)))

    def cpus_for(self, slots: int) -> int:
        """Processors that so many slots would share."""
        if self.cpus is None:
            return self.cores_for(slots)
        if not self.elastic:
            return min(self.cpus, self.cores)
        return max(1, round(self.cores_for(slots) * min(1.0, self.cpus / self.cores)))

    def times(self, slots: int) -> EpochTimes:
        if slots not in self._known:
            self._known[slots] = EpochTimes(self, slots)
        return self._known[slots]

    @cached_property
    def _known(self) -> dict[int, EpochTimes]:
        return {}

    def alike(self, slots: int) -> dict[str, int]:
        """An instance of every operator in every slot, as far as that is not given."""
        times = self.times(slots)
        return dict(zip(times.names, times.column({})[:, 0].tolist(), strict=True))

    def work_shares(self, settings: EpochSettings) -> dict[str, float]:
        """What each step has of all time that is spent on rows, waiting included."""
        groups = self.groups
        spent = {
            name: groups.rows_into[name] * self.flow.step[name].ppt_s for name in self.flow.order
        }
        times = self.times(settings.slots)
        sent = times.bytes_sent(times.exactly(settings.instances))
        for stream in self.flow.streams:
            spent[stream.producer] += sent.get(stream.name, 0.0) * self.costs.byte_s
        total = sum(spent.values())
        return {name: each / total if total else 0.0 for name, each in spent.items()}

    def fixed_s(self, slots: int, instances: Mapping[str, int] | None = None) -> float:
        """An epoch without rows: the driver's part, the rounds of tasks, and the tasks."""
        times = self.times(slots)
        return float(times.of(times.exactly(instances or {}), 0.0, {}).epoch_s[0])

    def engine_s(self, slots: int, instances: Mapping[str, int] | None = None) -> float:
        """The engine's part of that, without what instances take."""
        times = self.times(slots)
        return float(times.of(times.exactly(instances or {}), 0.0, {}).fixed_s[0])

    def seen(self, rows: Sequence[float]) -> Times:
        """Epochs of so many rows each, with the slots and instances they were measured with."""
        times = self.times(self.slots_seen)
        column = times.exactly(self.instances_seen)
        return times.of(np.repeat(column, len(rows), axis=1), np.asarray(rows, float), {})

    def predict(self, settings: EpochSettings) -> EpochPrediction:
        """Seconds, rate and latency of epochs with these settings, one after the other."""
        rows, times = settings.rows_per_epoch, self.times(settings.slots)
        column = times.exactly(settings.instances)
        told = times.of(np.repeat(column, 2, axis=1), np.array([rows, 0.0]), settings.batch_rows)
        epoch_s, fixed_s = told.epoch_s.tolist()
        rate = rows / epoch_s if epoch_s > 0 else math.inf
        return self.predicted(epoch_s, rate, fixed_s, float(told.messages[0]))

    def predicted(
        self, epoch_s: float, rate: float, fixed_s: float, messages: float
    ) -> EpochPrediction:
        """With the latency of rows that come at any time."""
        apart = max(epoch_s, self.every_s)
        mean, p95 = apart * (WAITS - 1) + epoch_s, apart * P95 + epoch_s
        return EpochPrediction(epoch_s, rate, mean, fixed_s, messages, p95)

    def steady_rows(self, settings: EpochSettings, rate: float) -> float:
        """Rows of an epoch that takes what came while the one before it ran, if it keeps up."""
        times, most = self.times(settings.slots), float(settings.rows_per_epoch)
        two = np.repeat(times.exactly(settings.instances), 2, axis=1)
        rows = min(most, max(1.0, rate * self.every_s))
        for _ in range(8):  # along the line that time is over rows, nearly
            here = rows * np.array([1.0, 1.1])
            first, second = times.of(two, here, settings.batch_rows).epoch_s.tolist()
            row_s = (second - first) / (0.1 * rows)
            left = 1.0 / rate - row_s
            found = (first - row_s * rows) / left if left > 0 else most
            found = min(most, max(1.0, found, rate * self.every_s))
            if abs(found - rows) <= 1e-3 * rows:
                break
            rows = found
        return found
