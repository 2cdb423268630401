"""Rows per epoch for a given number of slots, and whether that is enough.

An epoch's fixed cost is shared by its rows, as n is by the rows of a message. So equation 2 gives
the smallest epoch that keeps up with a rate; with no rate there is one that wastes little. What
slots should hold, and what was asked for, may cut it. The reasons tell what came of that: an epoch
that falls behind is never called one that keeps up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.planner.tuning.cost_model import ROUNDING, FlowModel
from headgate.planner.tuning.epoch_model import (
    WAITS,
    EpochModel,
    EpochPrediction,
    EpochSettings,
)

HEADROOM = 0.8  # slots are to be busy with this share of the rate that is known; bursts take more
EFFICIENCY = 0.95  # without a rate to keep up with, epochs spend this share of their time on rows
ROWS_MAX = 1e9  # where rows seem to cost nothing; what slots should hold bounds it


@dataclass(frozen=True)
class Goal:
    """What an epoch has to satisfy."""

    rate: float | None
    latency_s: float | None
    rows_max: int | None
    epoch_bytes_max: int


@dataclass(frozen=True)
class Tried:
    """The best epoch for some number of slots.

    `keeps_up` with the rate as it is; `has_room` for bursts too. Without a rate, both.
    """

    settings: EpochSettings
    prediction: EpochPrediction
    keeps_up: bool
    has_room: bool
    in_time: bool
    why: tuple[str, ...]

    @property
    def slots(self) -> int:
        return self.settings.slots


def try_slots(model: EpochModel, slots: int, goal: Goal) -> Tried:
    """Rows per epoch for so many slots, and batches as large as they may be."""
    flow, costs = model.flow, model.costs
    sending = [s for s in flow.streams if model.sends(s)]
    batch = {s.name: costs.batch_rows_max(s.row_bytes) for s in sending}
    fixed_s, row_s = _with_messages(model, slots, batch)
    wanted, told_rows = _rows(fixed_s, row_s, goal)
    rows, cut = _cut(wanted, _rows_that_fit(flow, slots, goal.epoch_bytes_max), goal.rows_max)
    settings = EpochSettings(slots, rows, batch)
    told = model.predict(settings)
    why = [f"{'without a limit ' if cut else ''}{wanted:,} rows per epoch: {told_rows}", *cut]
    busy = 0.0 if goal.rate is None else goal.rate / told.rows_per_s
    keeps_up = busy <= 1 + ROUNDING
    if not keeps_up:
        why.append(f"falls behind: {told.rows_per_s:,.0f} of {goal.rate:,.0f} rows/s")
    late = goal.latency_s is not None and told.latency_s > goal.latency_s * (1 + ROUNDING)
    return Tried(settings, told, keeps_up, busy <= HEADROOM + ROUNDING, not late, tuple(why))


def _cut(wanted: int, fitting: int, rows_max: int | None) -> tuple[int, list[str]]:
    """Rows that an epoch may have, and why they are fewer than wanted."""
    if rows_max is not None and rows_max <= min(wanted - 1, fitting):
        return rows_max, [f"an epoch is cut to {rows_max:,} rows, as asked for"]
    if fitting < wanted:
        return fitting, [f"an epoch is cut to {fitting:,} rows, what slots should hold at once"]
    return wanted, []


def _with_messages(model: EpochModel, slots: int, batch: Mapping[str, int]) -> tuple[float, float]:
    """Seconds of an epoch without rows, and of a row, with all the messages that they may need."""
    rate = model.flow.source_rate or 1.0
    sent = {
        s.name: model.flow.rate_in[s.producer] / rate * model.shipped_per_row(s, slots)
        for s in model.flow.streams
        if s.name in batch
    }
    message_s = model.costs.message_s / model.at_once(slots)
    pairs = slots * slots * sum(rows > 0 for rows in sent.values())
    full = sum(rows / batch[name] for name, rows in sent.items())
    return model.fixed_s(slots) + pairs * message_s, model.row_s(slots) + full * message_s


def _rows(fixed_s: float, row_s: float, goal: Goal) -> tuple[int, str]:
    """The smallest epoch that keeps up; with nothing to keep up with, one that wastes little."""
    rows = _rows_with(EFFICIENCY, fixed_s, row_s)
    told = f"{EFFICIENCY:.0%} of an epoch's time is for rows"
    if goal.rate is not None:
        left = HEADROOM / goal.rate - row_s
        if left > ROUNDING * row_s:
            rows = fixed_s / left
            told = f"the smallest epoch that keeps up with {goal.rate:,.0f} rows/s"
        else:
            many = f"{goal.rate:,.0f} rows/s are more than the slots can do"
            told = f"{told}; {many} with {1 - HEADROOM:.0%} to spare"
    elif goal.latency_s is not None and row_s > 0:
        within = (goal.latency_s / WAITS - fixed_s) / row_s
        least = _rows_with(HEADROOM, fixed_s, row_s)
        if least <= within < rows:
            rows, told = math.floor(within), f"the largest epoch within {goal.latency_s:g} s"
        elif within < least:
            rows, told = least, f"{HEADROOM:.0%} of an epoch's time is for rows, latency or not"
    return max(1, math.ceil(rows * (1 - ROUNDING))), told


def _rows_with(efficiency: float, fixed_s: float, row_s: float) -> float:
    """Rows of an epoch that spends this share of its time on them."""
    return efficiency / (1 - efficiency) * fixed_s / row_s if row_s > 0 else ROWS_MAX


def _rows_that_fit(flow: FlowModel, slots: int, epoch_bytes_max: int) -> int:
    rate = flow.source_rate or 1.0
    per_row = sum(
        flow.rate_in[s.producer] / rate * s.rows_per_row * s.row_bytes
        for s in flow.streams
        if flow.step[s.producer].is_source
    )
    return max(1, int(slots * epoch_bytes_max / max(per_row, 1.0)))
