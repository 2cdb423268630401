"""What an epoch costs: slots at work, levels, tasks, rows that leave their slot.

A slot hosts an instance of every operator and runs them one after the other, so the work that
counts is the sum over all operators. What runs before the first exchange runs in source tasks, as
many as the source has partitions, whatever the number of slots. Rows go from slot to slot by key:
the fewer slots, the more of them stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Stream, rows_of

WAITS = 1.5  # epochs: a row waits for half of one on average, then for the whole of its own


@dataclass(frozen=True)
class EpochSettings:
    """What can be set on Spark: slots, rows per epoch, rows per batch tuple of each stream."""

    slots: int
    rows_per_epoch: int
    batch_rows: Mapping[str, int]


@dataclass(frozen=True)
class EpochPrediction:
    """One epoch of so many rows: its seconds, the rate it gives, and a row's mean latency."""

    epoch_s: float
    rows_per_s: float
    latency_s: float
    fixed_s: float
    messages: float


@dataclass(frozen=True)
class EpochModel:
    """A flow on an engine with epochs: `levels` shuffles each, tasks on `cores`.

    A row stays in its slot more often the fewer there are: with one, always.
    """

    flow: FlowModel
    costs: EngineCosts
    levels: int
    cores: int
    _: KW_ONLY
    at_source: frozenset[str] = frozenset()  # steps that run in source tasks ...
    source_tasks: int = 1  # ... of which there are so many
    between_slots: frozenset[str] = frozenset()  # streams ("a->b") that lead from slot to slot
    slots_seen: int = 0  # with which remote shares were measured; 0: they hold for any number
    instance_s: float = 0.0  # what the operators of one slot take, however few rows there are
    sending: frozenset[str] | None = None  # streams that send batch tuples; None: all do
    elastic: bool = False  # executors follow the slots; `cores` are those of `slots_seen`

    def __post_init__(self) -> None:
        if self.levels < 1 or self.cores < 1:
            raise DeclarationError("an epoch has at least one level, and runs on at least one core")

    def rows_into(self, name: str) -> float:
        """Rows that come to a step, per row of the sources."""
        return self.flow.rate_in[name] / (self.flow.source_rate or 1.0)

    def cores_for(self, slots: int) -> int:
        """Cores that so many slots would have: where executors follow, at least one each."""
        if not self.elastic:
            return self.cores
        share = slots / self.slots_seen if self.slots_seen else 1.0
        return max(slots, math.ceil(self.cores * min(1.0, share)))

    def at_once(self, slots: int) -> int:
        """Slots that can be at work at the same time."""
        return min(slots, self.cores_for(slots))

    def sends(self, stream: Stream) -> bool:
        return self.sending is None or stream.name in self.sending

    def shipped_per_row(self, stream: Stream, slots: int) -> float:
        """Rows that leave their slot, per row that the producer takes in."""
        if self.slots_seen == 0 or stream.name not in self.between_slots:
            return stream.shipped_per_row
        share = 1.0 - 1.0 / slots
        if self.slots_seen > 1:  # what tables keep at home beyond chance stays kept
            share *= min(1.0, stream.remote_share / (1.0 - 1.0 / self.slots_seen))
        return stream.rows_per_row * share

    def per_row(self, slots: int | None = None) -> dict[str, float]:
        """Core seconds of each operator per source row: processing, and shipping by the byte."""
        slots = slots or self.slots_seen
        spent = {}
        for name in self.flow.order:
            out = sum(self.shipped_per_row(s, slots) * s.row_bytes for s in self.flow.outputs[name])
            rows = self.rows_into(name)
            spent[name] = rows * self.flow.step[name].ppt_s + rows * out * self.costs.byte_s
        return spent

    def work_s(self, slots: int) -> tuple[float, float]:
        """Core seconds per source row, in source tasks and in slots.

        A byte that is shipped is paid for half by who sends it, half by who takes it.
        """
        per_row = self.per_row(slots)
        source = sum(spent for name, spent in per_row.items() if name in self.at_source)
        taken = sum(
            self.rows_into(s.producer) * self.shipped_per_row(s, slots) * s.row_bytes
            for s in self.flow.streams
            if s.producer in self.at_source
        )
        source -= taken * self.costs.byte_s / 2
        return source, sum(per_row.values()) - source

    def row_s(self, slots: int) -> float:
        """Seconds that a source row adds to an epoch: each part on as many cores as it can use."""
        source, slot = self.work_s(slots)
        cores = self.cores_for(slots)
        return source / min(self.source_tasks, cores) + slot / self.at_once(slots)

    def messages(self, slots: int, rows: float, batch_rows: Mapping[str, int]) -> float:
        """Batch tuples of an epoch: per stream and pair of tasks as many as its rows fill."""
        count = 0.0
        for s in self.flow.streams:
            sent = rows * self.rows_into(s.producer) * self.shipped_per_row(s, slots)
            batch = rows_of(self.costs, s, batch_rows.get(s.name, math.inf))
            count += max(min(float(slots * slots), sent), sent / batch)
        return count

    def fixed_s(self, slots: int) -> float:
        """An epoch without rows: the driver's part, the rounds of tasks, and the tasks."""
        costs = self.costs
        tasks = self.levels * slots + self.source_tasks
        fixed = costs.epoch_s + (self.levels + 1) * costs.level_s
        fixed += tasks * costs.task_s / self.cores_for(slots)
        return fixed + slots * self.instance_s / self.at_once(slots)

    def predict(self, settings: EpochSettings) -> EpochPrediction:
        """Seconds, rate and latency of epochs with these settings."""
        slots, rows = settings.slots, settings.rows_per_epoch
        at_once = self.at_once(slots)
        messages = self.messages(slots, rows, settings.batch_rows)
        fixed = self.fixed_s(slots)
        epoch_s = fixed + rows * self.row_s(slots) + messages * self.costs.message_s / at_once
        rate = rows / epoch_s if epoch_s > 0 else math.inf
        return EpochPrediction(epoch_s, rate, WAITS * epoch_s, fixed, messages)
