"""What an epoch costs, and the optimizer over slots, rows per epoch and rows per batch tuple.

A slot hosts an instance of every operator and runs them one after the other, so the work that
counts is the sum over all operators. What runs before the first exchange runs in source tasks, as
many as the source has partitions, whatever the number of slots. Rows go from slot to slot by key:
the fewer slots, the more of them stay.

There is one degree of parallelism, the slots, and an epoch is itself a batch: its rows share its
fixed cost F, as the rows of a message share n. So the equations of Sax et al. 2013 hold one floor
up: the smallest epoch that keeps up (equation 2 with n = F), and the fewest slots for which there
is one (equation 4, source tasks included). Nothing leaves a task before an epoch's level is over,
so a batch tuple smaller than B_max makes no row earlier: batches are as large as they may be.

A latency target is met by other slots and smaller epochs, but never at the price of falling behind:
rows that are not processed are later than any target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import ROUNDING, EngineCosts, FlowModel, Stream, rows_of

WAITS = 1.5  # epochs: a row waits for half of one on average, then for the whole of its own
HEADROOM = 0.8  # share of a known rate that slots should be busy with; the rest is for bursts
EFFICIENCY = 0.95  # share of an epoch's time for rows, without a rate to keep up with
FEWER = 0.95  # without a rate, the fewest slots predicted to give this share of the best rate
ROWS_MAX = 1e9  # where rows seem to cost nothing; what slots should hold bounds it
EPOCH_BYTES_MAX = 256 << 20  # rows of one epoch in one slot, as they come from the sources


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
    """A flow on an engine with epochs: `levels` shuffles each, tasks on `cores`."""

    flow: FlowModel
    costs: EngineCosts
    levels: int
    cores: int
    _: KW_ONLY
    source_tasks: int = 1
    slots_seen: int = 0  # with which remote shares were measured; 0: they hold for any number
    instance_s: float = 0.0  # what the operators of one slot take, however few rows there are
    elastic: bool = False  # executors follow the slots; `cores` are those of `slots_seen`

    def __post_init__(self) -> None:
        if self.levels < 1 or self.cores < 1:
            raise DeclarationError("an epoch has at least one level, and runs on at least one core")

    def rows_into(self, name: str) -> float:
        """Rows into a step per row of the sources."""
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

    def shipped(self, stream: Stream, slots: int) -> float:
        """Rows that leave their slot on a stream, per row of the sources."""
        rows = self.rows_into(stream.producer)
        if self.slots_seen == 0 or not stream.between_slots:
            return rows * stream.shipped_per_row
        share = 1.0 - 1.0 / slots
        if self.slots_seen > 1:  # what tables keep at home beyond chance stays there
            share *= min(1.0, stream.remote_share / (1.0 - 1.0 / self.slots_seen))
        return rows * stream.rows_per_row * share

    def per_row(self, slots: int | None = None) -> dict[str, float]:
        """Core seconds of each operator per source row: processing, and shipping by the byte."""
        slots = slots or self.slots_seen
        return {
            name: self.rows_into(name) * self.flow.step[name].ppt_s
            + sum(self.shipped(s, slots) * s.row_bytes for s in self.flow.outputs[name])
            * self.costs.byte_s
            for name in self.flow.order
        }

    def work_s(self, slots: int) -> tuple[float, float]:
        """Core seconds per source row, in source tasks and in slots.

        Sender and receiver pay half each for a byte that is shipped.
        """
        per_row, step = self.per_row(slots), self.flow.step
        source = sum(spent for name, spent in per_row.items() if step[name].at_source)
        out = [s for s in self.flow.streams if step[s.producer].at_source]
        source -= sum(self.shipped(s, slots) * s.row_bytes for s in out) * self.costs.byte_s / 2
        return source, sum(per_row.values()) - source

    def row_s(self, slots: int) -> float:
        """Seconds that a source row adds to an epoch: each part on as many cores as it can use."""
        source, slot = self.work_s(slots)
        return source / min(self.source_tasks, self.cores_for(slots)) + slot / self.at_once(slots)

    def messages(self, slots: int, rows: float, batch_rows: Mapping[str, int]) -> float:
        """Batch tuples of an epoch: per stream and pair of tasks as many as its rows fill."""
        count = 0.0
        for s in self.flow.streams:
            sent = rows * self.shipped(s, slots)
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
        messages = self.messages(slots, rows, settings.batch_rows)
        fixed = self.fixed_s(slots)
        shipping = messages * self.costs.message_s / self.at_once(slots)
        epoch_s = fixed + rows * self.row_s(slots) + shipping
        rate = rows / epoch_s if epoch_s > 0 else math.inf
        return EpochPrediction(epoch_s, rate, WAITS * epoch_s, fixed, messages)


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


def tune_epochs(
    model: EpochModel,
    *,
    rate: float | None = None,
    latency_s: float | None = None,
    max_slots: int | None = None,
    slots: int | None = None,
    rows_max: int | None = None,
    epoch_bytes_max: int = EPOCH_BYTES_MAX,
) -> TunedEpochs:
    """Slots, rows per epoch and batch rows; linear in the flow's size, and in slots.

    Args:
        rate: Source rows per second to keep up with; without one, as fast as the cores allow.
        latency_s: Target for the mean latency of a row. No epoch is made so small for it that the
            flow falls behind the rate; without a rate it may cost a fifth of the throughput.
        max_slots: At most so many (default: one per core, more would only add tasks). Without a
            rate, the fewest that give nearly as much as the best.
        slots: Do not choose slots, these are given.
        rows_max: No epoch is to have more rows, for reasons that the model does not know.
        epoch_bytes_max: Source bytes of one epoch in one slot.
    """
    goal = _Goal(rate, latency_s, rows_max, epoch_bytes_max)
    for name, value in {**vars(goal), "max_slots": max_slots, "slots": slots}.items():
        least = 0.0 if name in ("rate", "latency_s") else 1.0
        if value is not None and not (math.isfinite(value) and value >= least and value > 0):
            wanted = f"at least {least:g}" if least else "a number above 0"
            raise DeclarationError(
                f"{name} is {value}, and must be {wanted}; leave it out if there is none"
            )
    most = max_slots or model.cores
    if slots is not None:
        chosen, why = _try(model, slots, goal), list[str]()
    elif rate is not None:
        chosen, why = _fewest_that_keep_up(model, most, goal)
    else:
        chosen, why = _fastest(model, most if model.elastic else min(most, model.cores), goal)
    why += chosen.why
    if not chosen.in_time:
        best = chosen.prediction.latency_s
        why.append(f"a mean latency of {latency_s:g} s cannot be met; the best is {best:.2g} s")
    per_row = model.per_row(chosen.settings.slots)
    total = sum(per_row.values())
    heaviest = max(per_row, key=lambda name: per_row[name])
    share = {name: spent / total if total else 0.0 for name, spent in per_row.items()}
    where = " (in source tasks)" if model.flow.step[heaviest].at_source else ""
    why.append(f"{heaviest}{where} has {share[heaviest]:.0%} of the work per row")
    rates = {n: model.rows_into(n) * chosen.prediction.rows_per_s for n in model.flow.order}
    return TunedEpochs(chosen.settings, chosen.prediction, share, heaviest, tuple(why), rates)


@dataclass(frozen=True)
class _Goal:
    """What an epoch has to satisfy."""

    rate: float | None
    latency_s: float | None
    rows_max: int | None
    epoch_bytes_max: int


@dataclass(frozen=True)
class _Tried:
    """The best epoch for some number of slots. `busy` is the share of its time the rate takes."""

    settings: EpochSettings
    prediction: EpochPrediction
    busy: float
    in_time: bool
    why: list[str]

    @property
    def keeps_up(self) -> bool:
        return self.busy <= 1 + ROUNDING

    @property
    def has_room(self) -> bool:
        return self.busy <= HEADROOM + ROUNDING


def _try(model: EpochModel, slots: int, goal: _Goal) -> _Tried:
    """Rows per epoch for so many slots, and batches as large as they may be."""
    sending = [s for s in model.flow.streams if s.sends]
    batch = {s.name: model.costs.batch_rows_max(s.row_bytes) for s in sending}
    sent = {s.name: model.shipped(s, slots) for s in sending}
    message_s = model.costs.message_s / model.at_once(slots)
    pairs = slots * slots * sum(rows > 0 for rows in sent.values())
    full = sum(rows / batch[name] for name, rows in sent.items())
    fixed_s = model.fixed_s(slots) + pairs * message_s
    wanted, reason = _rows(fixed_s, model.row_s(slots) + full * message_s, goal)
    row_bytes = sum(
        model.rows_into(s.producer) * s.rows_per_row * s.row_bytes
        for s in model.flow.streams
        if model.flow.step[s.producer].is_source
    )
    rows, cut = max(1, int(slots * goal.epoch_bytes_max / max(row_bytes, 1.0))), ""
    if goal.rows_max is not None and goal.rows_max <= min(wanted - 1, rows):
        rows, cut = goal.rows_max, "as asked for"
    elif rows < wanted:
        cut = "what slots should hold at once"
    rows = rows if cut else wanted
    settings = EpochSettings(slots, rows, batch)
    predicted = model.predict(settings)
    why = [f"{'without a limit ' if cut else ''}{wanted:,} rows per epoch: {reason}"]
    why += [f"an epoch is cut to {rows:,} rows, {cut}"] if cut else []
    busy = 0.0 if goal.rate is None else goal.rate / predicted.rows_per_s
    late = goal.latency_s is not None and predicted.latency_s > goal.latency_s * (1 + ROUNDING)
    tried = _Tried(settings, predicted, busy, not late, why)
    if not tried.keeps_up:
        why.append(f"falls behind: {predicted.rows_per_s:,.0f} of {goal.rate:,.0f} rows/s")
    return tried


def _rows(fixed_s: float, row_s: float, goal: _Goal) -> tuple[int, str]:
    """The smallest epoch that keeps up; with nothing to keep up with, one that wastes little."""

    def spending(share: float) -> float:
        """Rows of an epoch that spends this share of its time on them."""
        return share / (1 - share) * fixed_s / row_s if row_s > 0 else ROWS_MAX

    rows, why = spending(EFFICIENCY), f"{EFFICIENCY:.0%} of an epoch's time is for rows"
    if goal.rate is not None:
        left = HEADROOM / goal.rate - row_s
        if left > ROUNDING * row_s:
            rows = fixed_s / left
            why = f"the smallest epoch that keeps up with {goal.rate:,.0f} rows/s"
        else:
            many = f"{goal.rate:,.0f} rows/s are more than the slots can do"
            why = f"{why}; {many} with {1 - HEADROOM:.0%} to spare"
    elif goal.latency_s is not None and row_s > 0:
        within, least = (goal.latency_s / WAITS - fixed_s) / row_s, spending(HEADROOM)
        if least <= within < rows:
            rows, why = math.floor(within), f"the largest epoch within {goal.latency_s:g} s"
        elif within < least:
            rows, why = least, f"{HEADROOM:.0%} of an epoch's time is for rows, latency or not"
    return max(1, math.ceil(rows * (1 - ROUNDING))), why


def _fewest_that_keep_up(model: EpochModel, most: int, goal: _Goal) -> tuple[_Tried, list[str]]:
    """In time and with room for bursts; or with room, the soonest; without room, the fast ones."""
    tried: list[_Tried] = []
    for slots in range(1, most + 1):
        tried.append(_try(model, slots, goal))
        if tried[-1].has_room and tried[-1].in_time:
            break
    enough = [t for t in tried if t.has_room]
    if not enough:
        barely = [t for t in tried if t.keeps_up]
        return _fewest_of_the_fast(model, [t for t in barely if t.in_time] or barely or tried, most)
    soonest = min(t.prediction.latency_s for t in enough)
    late = (t for t in enough if t.prediction.latency_s <= soonest / FEWER)
    chosen = next((t for t in enough if t.in_time), None) or next(late)
    slots = chosen.settings.slots
    source_us, slot_us = (1e6 * spent for spent in model.work_s(slots))
    return chosen, [
        f"{slots} slots: {slot_us:,.3g} us per row in slots, {source_us:,.3g} in "
        f"{model.source_tasks} source tasks, busy at most {HEADROOM:.0%}"
    ]


def _fastest(model: EpochModel, most: int, goal: _Goal) -> tuple[_Tried, list[str]]:
    """As fast as the cores allow, in time if that costs no more than a fifth of it."""
    tried = [_try(model, slots, goal) for slots in range(1, most + 1)]
    best = max(t.prediction.rows_per_s for t in tried)
    in_time = [t for t in tried if t.in_time and t.prediction.rows_per_s >= HEADROOM * best]
    return _fewest_of_the_fast(model, in_time or tried, most)


def _fewest_of_the_fast(
    model: EpochModel, tried: list[_Tried], most: int
) -> tuple[_Tried, list[str]]:
    """As few slots as nearly the best takes: each costs more than any model sees."""
    best = max(t.prediction.rows_per_s for t in tried)
    chosen = next(t for t in tried if t.prediction.rows_per_s >= FEWER * best)
    slots, rate = chosen.settings.slots, chosen.prediction.rows_per_s
    source, slot = model.work_s(slots)
    share = slot / (source + slot) if source + slot else 0.0
    return chosen, [
        f"{slots} of {most} slots: predicted {rate:,.0f} rows/s, at best {best:,.0f}; "
        f"{share:.0%} of the work is done in slots"
    ]
