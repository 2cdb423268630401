"""The optimizer on an engine that runs in epochs: slots, rows per epoch, rows per batch tuple.

There is one degree of parallelism, the slots, and an epoch is itself a batch: its fixed cost F is
shared by its rows, as n is by the rows of a message. So the paper's equations hold one floor up:
the smallest epoch that keeps up (equation 2 with n = F), and the fewest slots for which there is
one (equation 4, source tasks included). Nothing leaves a task before an epoch's level is over, so a
batch tuple smaller than B_max makes no row earlier: batches are as large as they may be.

A latency target is met by other slots and smaller epochs, but never at the price of falling behind:
rows that are not processed are later than any target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import ROUNDING
from headgate.planner.tuning.epoch_model import (
    WAITS,
    EpochModel,
    EpochPrediction,
    EpochSettings,
)

HEADROOM = 0.8  # slots are to be busy with this share of the rate that is known; bursts take more
EFFICIENCY = 0.95  # without a rate to keep up with, epochs spend this share of their time on rows
FEWER = 0.95  # without a rate, the fewest slots that are predicted to give this share of the most
ROWS_MAX = 1e9  # where rows seem to cost nothing; what slots should hold bounds it
EPOCH_BYTES_MAX = 256 << 20  # rows of one epoch in one slot, as they come from the sources


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
    """Slots, rows per epoch and batch rows; linear in the flow's size, and in slots.

    Args:
        rate: Source rows per second to keep up with; without one, as fast as the cores allow.
        latency_s: Target for the mean latency of a row. No epoch is made so small for it that the
            flow falls behind the rate; without a rate it may cost a fifth of the throughput.
        slots_max: At most so many (default: one per core, more would only add tasks). Without a
            rate, the fewest that give nearly as much as the best.
        slots: Do not choose slots, these are given.
        rows_max: No epoch is to have more rows, for reasons that the model does not know.
        epoch_bytes_max: Source bytes of one epoch in one slot.
    """
    goal = Goal(rate, latency_s, rows_max, epoch_bytes_max)
    _check(slots_max=slots_max, slots=slots, **vars(goal))
    if slots is not None:
        chosen, why = try_slots(model, slots, goal), list[str]()
    elif rate is not None:
        chosen, why = _fewest_that_keep_up(model, slots_max or model.cores, goal)
    else:
        most = slots_max or model.cores
        chosen, why = _fastest(model, most if model.elastic else min(most, model.cores), goal)
    why += chosen.why
    if not chosen.in_time:
        best = chosen.prediction.latency_s
        why.append(f"a mean latency of {latency_s:g} s cannot be met; the best is {best:.2g} s")
    per_row = model.per_row(chosen.slots)
    total = sum(per_row.values())
    heaviest = max(per_row, key=lambda name: per_row[name])
    share = {name: spent / total if total else 0.0 for name, spent in per_row.items()}
    where = " (in source tasks)" if heaviest in model.at_source else ""
    why.append(f"{heaviest}{where} has {share[heaviest]:.0%} of the work per row")
    rates = {n: model.rows_into(n) * chosen.prediction.rows_per_s for n in model.flow.order}
    return TunedEpochs(chosen.settings, chosen.prediction, share, heaviest, tuple(why), rates)


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
    sending = [s for s in model.flow.streams if model.sends(s)]
    batch = {s.name: model.costs.batch_rows_max(s.row_bytes) for s in sending}
    wanted, told_rows = _rows(*_with_messages(model, slots, batch), goal)
    rows, cut = _cut(wanted, _rows_that_fit(model, slots, goal.epoch_bytes_max), goal.rows_max)
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
    sent = {
        s.name: model.rows_into(s.producer) * model.shipped_per_row(s, slots)
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


def _rows_that_fit(model: EpochModel, slots: int, epoch_bytes_max: int) -> int:
    per_row = sum(
        model.rows_into(s.producer) * s.rows_per_row * s.row_bytes
        for s in model.flow.streams
        if model.flow.step[s.producer].is_source
    )
    return max(1, int(slots * epoch_bytes_max / max(per_row, 1.0)))


def _check(**given: float | None) -> None:
    """All of these are above zero: counts are 1 or more, rates and times are numbers."""
    for name, value in given.items():
        least = 0.0 if name in ("rate", "latency_s") else 1.0
        if value is None or (math.isfinite(value) and value >= least and value > 0):
            continue
        wanted = f"at least {least:g}" if least else "a number above 0"
        raise DeclarationError(
            f"{name} is {value}, and must be {wanted}; leave it out if there is none"
        )


def _fewest_that_keep_up(model: EpochModel, most: int, goal: Goal) -> tuple[Tried, list[str]]:
    """In time and with room for bursts; or with room, the soonest; without room, the fast ones."""
    tried: list[Tried] = []
    for slots in range(1, most + 1):
        tried.append(try_slots(model, slots, goal))
        if tried[-1].has_room and tried[-1].in_time:
            break
    enough = [t for t in tried if t.has_room]
    if not enough:
        barely = [t for t in tried if t.keeps_up]
        return _fewest_of_the_fast(model, [t for t in barely if t.in_time] or barely or tried, most)
    chosen = next((t for t in enough if t.in_time), None)
    if chosen is None:
        soonest = min(t.prediction.latency_s for t in enough)
        chosen = next(t for t in enough if t.prediction.latency_s <= soonest / FEWER)
    source_s, slot_s = (1e6 * spent for spent in model.work_s(chosen.slots))
    told = (
        f"{slot_s:,.3g} us per row in slots, {source_s:,.3g} in {model.source_tasks} source tasks"
    )
    return chosen, [f"{chosen.slots} slots: {told}, busy at most {HEADROOM:.0%}"]


def _fastest(model: EpochModel, most: int, goal: Goal) -> tuple[Tried, list[str]]:
    """As fast as the cores allow, in time if that costs no more than a fifth of it."""
    tried = [try_slots(model, slots, goal) for slots in range(1, most + 1)]
    best = max(t.prediction.rows_per_s for t in tried)
    in_time = [t for t in tried if t.in_time and t.prediction.rows_per_s >= HEADROOM * best]
    return _fewest_of_the_fast(model, in_time or tried, most)


def _fewest_of_the_fast(
    model: EpochModel, tried: list[Tried], most: int
) -> tuple[Tried, list[str]]:
    """As few slots as nearly the best takes: each costs more than any model sees."""
    best = max(t.prediction.rows_per_s for t in tried)
    chosen = next(t for t in tried if t.prediction.rows_per_s >= FEWER * best)
    source, slot = model.work_s(chosen.slots)
    share = slot / (source + slot) if source + slot else 0.0
    why = (
        f"{chosen.slots} of {most} slots: predicted {chosen.prediction.rows_per_s:,.0f} rows/s, "
        f"at best {best:,.0f}; {share:.0%} of the work is done in slots"
    )
    return chosen, [why]
