"""The optimizer on an engine that runs in epochs: slots, rows per epoch, rows per batch tuple.

A slot hosts an instance of every operator and runs them one after the other, so there is one degree
of parallelism, and the work that counts is the sum over all operators. An epoch is itself a batch:
its fixed cost F is shared by its rows, as n is by the rows of a message. So the paper's equations
hold one floor up: the fewest slots that are more than work x rate (equation 4), and the smallest
epoch that keeps up (equation 2 with n = F). Nothing leaves a task before an epoch's level is over,
so a batch tuple smaller than B_max makes no row earlier: batches are as large as they may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, rows_of
from headgate.planner.tuning.optimizer import ROUNDING

HEADROOM = 0.8  # slots are to be busy with this share of the rate that is known; bursts take more
EFFICIENCY = 0.95  # without a rate to keep up with, epochs spend this share of their time on rows
EPOCH_BYTES_MAX = 256 << 20  # rows of one epoch in one slot, as they come from the sources
WAITS = 1.5  # a row waits for half an epoch on average, then for the whole of its own


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
class TunedEpochs:
    """Settings with what is predicted of them, per operator too, and the reasons."""

    settings: EpochSettings
    prediction: EpochPrediction
    work_share: Mapping[str, float]
    bottleneck: str
    why: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> TunedEpochs:
        return cls(
            EpochSettings(**told["settings"]),
            EpochPrediction(**told["prediction"]),
            told["work_share"],
            told["bottleneck"],
            tuple(told["why"]),
        )


@dataclass(frozen=True)
class EpochModel:
    """A flow on an engine with epochs: `levels` shuffles each, tasks on `cores`."""

    flow: FlowModel
    costs: EngineCosts
    levels: int
    cores: int

    def __post_init__(self) -> None:
        if self.levels < 1 or self.cores < 1:
            raise DeclarationError("an epoch has at least one level, and runs on at least one core")

    def per_row(self) -> dict[str, float]:
        """Core seconds of each operator per source row: processing, and shipping by the byte."""
        source_rate = self.flow.source_rate or 1.0
        spent = {}
        for name in self.flow.order:
            rows = self.flow.rate_in[name] / source_rate
            out = sum(s.shipped_per_row * s.row_bytes for s in self.flow.outputs[name])
            spent[name] = rows * (self.flow.step[name].ppt_s + out * self.costs.byte_s)
        return spent

    def messages(self, slots: int, rows: float, batch_rows: Mapping[str, int]) -> float:
        """Batch tuples of an epoch: per stream and pair of tasks as many as its rows fill."""
        source_rate = self.flow.source_rate or 1.0
        count = 0.0
        for s in self.flow.streams:
            sent = rows * self.flow.rate_in[s.producer] / source_rate * s.shipped_per_row
            batch = rows_of(self.costs, s, batch_rows.get(f"{s.producer}->{s.consumer}", math.inf))
            pairs = min(float(slots * slots), sent)
            count += max(pairs, sent / batch)
        return count

    def fixed_s(self, slots: int) -> float:
        """An epoch without rows: the driver's part, and the tasks of all levels on the cores."""
        tasks = (self.levels + 1) * slots
        return self.costs.epoch_s + tasks * self.costs.task_s / min(slots, self.cores)

    def predict(self, settings: EpochSettings) -> EpochPrediction:
        """Seconds, rate and latency of epochs with these settings."""
        slots, rows = settings.slots, settings.rows_per_epoch
        at_once = min(slots, self.cores)
        messages = self.messages(slots, rows, settings.batch_rows)
        work = rows * sum(self.per_row().values()) + messages * self.costs.message_s
        fixed = self.fixed_s(slots)
        epoch_s = fixed + work / at_once
        rate = rows / epoch_s if epoch_s > 0 else math.inf
        return EpochPrediction(epoch_s, rate, WAITS * epoch_s, fixed, messages)


def tune_epochs(
    model: EpochModel,
    *,
    rate: float | None = None,
    latency_s: float | None = None,
    slots_max: int | None = None,
    slots: int | None = None,
    epoch_bytes_max: int = EPOCH_BYTES_MAX,
) -> TunedEpochs:
    """Slots, rows per epoch and batch rows; linear in the flow's size.

    Args:
        rate: Source rows per second to keep up with; without one, as fast as the cores allow.
        latency_s: Target for the mean latency of a row. It bounds the epoch; throughput is then
            what such epochs give.
        slots_max: At most so many (default: one per core, more would only add tasks).
        slots: Do not choose slots, these are given.
        epoch_bytes_max: Source bytes of one epoch in one slot.
    """
    flow, costs = model.flow, model.costs
    per_row = model.per_row()
    row_s = sum(per_row.values())
    batch = {f"{s.producer}->{s.consumer}": costs.batch_rows_max(s.row_bytes) for s in flow.streams}
    why: list[str] = []
    if slots is None:
        slots = _slots(model, row_s, rate, slots_max or model.cores, why)
    at_once = min(slots, model.cores)
    fixed = model.fixed_s(slots) + min(slots * slots, 1e9) * costs.message_s / at_once
    rows, reason = _rows(fixed, row_s / at_once, rate, latency_s)
    why.append(reason)
    most = _rows_that_fit(flow, slots, epoch_bytes_max)
    if rows > most:
        rows = most
        why.append(f"an epoch is cut to {rows:,} rows, what slots should hold at once")
    settings = EpochSettings(slots, rows, batch)
    heaviest = max(per_row, key=lambda name: per_row[name])
    share = {name: spent / row_s if row_s else 0.0 for name, spent in per_row.items()}
    why.append(f"{heaviest} has {share[heaviest]:.0%} of the work per row")
    return TunedEpochs(settings, model.predict(settings), share, heaviest, tuple(why))


def _slots(model: EpochModel, row_s: float, rate: float | None, most: int, why: list[str]) -> int:
    if rate is None:
        slots = min(most, model.cores)
        why.append(f"{slots} slots: every core that may be used")
        return slots
    needed = max(1, math.floor(rate * row_s / HEADROOM * (1 + ROUNDING)) + 1)
    slots = min(needed, most)
    short = f"; {needed} would be needed" if needed > most else ""
    why.append(
        f"{slots} slots: {row_s * 1e6:,.3g} us per row x {rate:,.0f} rows/s, busy at most "
        f"{HEADROOM:.0%}{short}"
    )
    return slots


def _rows(
    fixed_s: float, row_s: float, rate: float | None, latency_s: float | None
) -> tuple[int, str]:
    """The smallest epoch that keeps up; with nothing to keep up with, one that wastes little."""
    spare = EFFICIENCY / (1 - EFFICIENCY)
    efficient = spare * fixed_s / row_s if row_s > 0 else 1.0
    if rate is not None:
        left = 1 / (rate / HEADROOM) - row_s
        if left > 0:
            rows = fixed_s / left
            told = f"the smallest epoch that keeps up with {rate:,.0f} rows/s"
        else:
            rows = efficient
            told = f"{rate:,.0f} rows/s are more than the slots can do"
    else:
        rows = efficient
        told = f"{EFFICIENCY:.0%} of an epoch's time is for rows"
    if latency_s is not None:
        within = (latency_s / WAITS - fixed_s) / row_s if row_s > 0 else rows
        if within < rows:
            rows = within
            told = f"the largest epoch within {latency_s:g} s"
            if within < 1:
                told += f", which cannot be met: an epoch without rows takes {fixed_s:.2g} s"
    rows = max(1, math.ceil(rows * (1 - ROUNDING)))
    return rows, f"{rows:,} rows per epoch: {told}"


def _rows_that_fit(flow: FlowModel, slots: int, epoch_bytes_max: int) -> int:
    rate = flow.source_rate or 1.0
    per_row = sum(
        flow.rate_in[s.producer] / rate * s.rows_per_row * s.row_bytes
        for s in flow.streams
        if flow.step[s.producer].is_source
    )
    return max(1, int(slots * epoch_bytes_max / max(per_row, 1.0)))
