"""The optimizer on an engine that runs in epochs: slots, rows per epoch, rows per batch tuple.

A slot hosts an instance of every operator and runs them one after the other, so there is one degree
of parallelism, and the work that counts is the sum over all operators. What runs before the first
exchange runs in source tasks, as many as the source has partitions, whatever the number of slots.
An epoch is itself a batch: its fixed cost F is shared by its rows, as n is by the rows of a
message. So the paper's equations hold one floor up: the fewest slots that are more than work x
rate (equation 4), and the smallest epoch that keeps up (equation 2 with n = F). Nothing leaves a
task before an epoch's level is over, so a batch tuple smaller than B_max makes no row earlier:
batches are as large as they may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.planner.tuning.cost_model import FlowModel
from headgate.planner.tuning.epoch_model import (
    WAITS,
    EpochModel,
    EpochPrediction,
    EpochSettings,
)
from headgate.planner.tuning.optimizer import ROUNDING

HEADROOM = 0.8  # slots are to be busy with this share of the rate that is known; bursts take more
EFFICIENCY = 0.95  # without a rate to keep up with, epochs spend this share of their time on rows
EPOCH_BYTES_MAX = 256 << 20  # rows of one epoch in one slot, as they come from the sources
FEWER = 0.95  # without a rate, the fewest slots that are predicted to give this share of the most
ROWS_MAX = 1e9  # where rows seem to cost nothing; what slots should hold bounds it


@dataclass(frozen=True)
class TunedEpochs:
    """Settings with what is predicted of them, and the reasons.

    Per operator: its share of the work, and rows per second that come to it.
    """

    settings: EpochSettings
    prediction: EpochPrediction
    work_share: Mapping[str, float]
    bottleneck: str
    why: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)

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
            told.get("rates", {}),
        )


def tune_epochs(
    model: EpochModel,
    *,
    rate: float | None = None,
    latency_s: float | None = None,
    slots_max: int | None = None,
    slots: int | None = None,
    rows_max: int | None = None,
    epoch_bytes_max: int = EPOCH_BYTES_MAX,
) -> TunedEpochs:
    """Slots, rows per epoch and batch rows; linear in the flow's size, and in slots without a rate.

    Args:
        rate: Source rows per second to keep up with; without one, as fast as the cores allow.
        latency_s: Target for the mean latency of a row. It bounds the epoch; throughput is then
            what such epochs give.
        slots_max: At most so many (default: one per core, more would only add tasks). Without a
            rate, the fewest that give nearly as much as the best.
        slots: Do not choose slots, these are given.
        rows_max: No epoch is to have more rows, for reasons that the model does not know.
        epoch_bytes_max: Source bytes of one epoch in one slot.
    """
    why: list[str] = []
    size = _Size(rate, latency_s, rows_max, epoch_bytes_max)
    most = slots_max or model.cores
    if slots is None and rate is None:
        slots = _fewest_of_the_fast(model, min(most, model.cores), size, why)
    elif slots is None:
        slots = _slots_for(model, rate or 0.0, most, why)
    settings, reasons = _settings(model, slots, size)
    per_row = model.per_row(slots)
    total = sum(per_row.values())
    heaviest = max(per_row, key=lambda name: per_row[name])
    share = {name: spent / total if total else 0.0 for name, spent in per_row.items()}
    where = " (in source tasks)" if heaviest in model.at_source else ""
    why += [*reasons, f"{heaviest}{where} has {share[heaviest]:.0%} of the work per row"]
    told = model.predict(settings)
    source_rate = model.flow.source_rate or 1.0
    rates = {n: r / source_rate * told.rows_per_s for n, r in model.flow.rate_in.items()}
    return TunedEpochs(settings, told, share, heaviest, tuple(why), rates)


@dataclass(frozen=True)
class _Size:
    """What an epoch's rows have to satisfy."""

    rate: float | None
    latency_s: float | None
    rows_max: int | None
    epoch_bytes_max: int


def _settings(model: EpochModel, slots: int, size: _Size) -> tuple[EpochSettings, list[str]]:
    """Rows per epoch for so many slots, and batches as large as they may be."""
    flow, costs = model.flow, model.costs
    batch = {s.name: costs.batch_rows_max(s.row_bytes) for s in flow.streams}
    at_once = min(slots, model.cores)
    fixed = model.fixed_s(slots) + min(slots * slots, 1e9) * costs.message_s / at_once
    rows, reason = _rows(fixed, model.row_s(slots), size.rate, size.latency_s)
    why = [reason]
    fitting = _rows_that_fit(flow, slots, size.epoch_bytes_max)
    if rows > fitting:
        rows = fitting
        why.append(f"an epoch is cut to {rows:,} rows, what slots should hold at once")
    if size.rows_max is not None and rows > size.rows_max:
        rows = size.rows_max
        why.append(f"an epoch is cut to {rows:,} rows, as asked for")
    return EpochSettings(slots, rows, batch), why


def _fewest_of_the_fast(model: EpochModel, most: int, size: _Size, why: list[str]) -> int:
    """As fast as the cores allow, with as few slots as that takes: each costs tasks and messages
    that no model sees in full.
    """
    rates = {}
    for slots in range(1, most + 1):
        settings, _ = _settings(model, slots, size)
        rates[slots] = model.predict(settings).rows_per_s
    best = max(rates.values())
    slots = next(n for n, rate in rates.items() if rate >= FEWER * best)
    source, slot = model.work_s(slots)
    share = slot / (source + slot) if source + slot else 0.0
    why.append(
        f"{slots} of {most} slots: predicted {rates[slots]:,.0f} rows/s, at best {best:,.0f}; "
        f"{share:.0%} of the work is done in slots"
    )
    return slots


def _slots_for(model: EpochModel, rate: float, most: int, why: list[str]) -> int:
    """Equation 4 for the work that slots do, which grows with them: fewer rows stay at home."""
    for slots in range(1, most + 1):
        slot_s = model.work_s(slots)[1]
        needed = max(1, math.floor(rate * slot_s / HEADROOM * (1 + ROUNDING)) + 1)
        if needed <= slots:
            break
    short = f"; {needed} would be needed" if needed > slots else ""
    why.append(
        f"{slots} slots: {slot_s * 1e6:,.3g} us per row x {rate:,.0f} rows/s, busy at most "
        f"{HEADROOM:.0%}{short}"
    )
    return slots


def _rows(
    fixed_s: float, row_s: float, rate: float | None, latency_s: float | None
) -> tuple[int, str]:
    """The smallest epoch that keeps up; with nothing to keep up with, one that wastes little."""
    spare = EFFICIENCY / (1 - EFFICIENCY)
    efficient = spare * fixed_s / row_s if row_s > 0 else ROWS_MAX
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
