"""The optimizer over slots, instances, rows per epoch and rows per batch tuple.

With a rate to keep up with: the fewest slots for which some epoch does, a fifth to spare, and the
smallest such epoch. Else as fast as the tasks that can run at once allow. Either way every operator
then gets its own number of instances (`parallelism`) and every stream its own batches (`batches`).
Slots are as many as the operator with most instances needs.

A latency target is met by other slots and smaller epochs, but never at the price of falling behind:
rows that are not processed are later than any target. It is a target for the 95th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headgate.arrays import I64
from headgate.errors import DeclarationError
from headgate.planner.tuning.batches import MEMORY_BYTES, SPARE, batch_rows_max, choose_batches
from headgate.planner.tuning.cost_model import ROUNDING
from headgate.planner.tuning.epoch_times import EpochTimes
from headgate.planner.tuning.epochs import P95, EpochModel, EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs, explain
from headgate.planner.tuning.parallelism import InstanceSearch

HEADROOM = 0.8  # share of a known rate that slots should be busy with; the rest is for bursts
EFFICIENCY = 0.95  # share of an epoch's time for rows, without a rate to keep up with
FEWER = 0.98  # the fewest slots predicted to give this share of the best rate
SAME = 0.8  # epochs that have this share of another's rows are of its size
SIZES = 6  # numbers of slots that are tried where their own number matters
ROWS_MAX = 1e9  # where rows seem to cost nothing; what slots should hold bounds it
EPOCH_BYTES_MAX = 256 << 20  # rows of one epoch in one slot, as they come in


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What to choose settings for.

    Args:
        rate: Source rows per second to keep up with; without one, as fast as the cores allow.
        latency_s: Target for the 95th percentile of a row's latency. No epoch is made so small for
            it that the flow falls behind the rate; without a rate it may cost a fifth of the
            throughput.
        max_slots: At most so many (default: one for each task that can run at once).
        slots: Do not choose slots, these are given; operators may have fewer instances.
        instances: Do not choose instances either, these are given (operators that are not
            mentioned have one in every slot).
        per_operator: Operators may have different numbers of instances; else every slot has one of
            each, as far as no other number was declared.
        rows_max: No epoch is to have more rows, for reasons that the model does not know.
        epoch_bytes_max: Bytes of one epoch that one slot takes in.
        batch_memory_bytes: For batch tuples on their way, of all tasks that run at once.
    """

    rate: float | None = None
    latency_s: float | None = None
    max_slots: int | None = None
    slots: int | None = None
    instances: Mapping[str, int] | None = None
    per_operator: bool = True
    rows_max: int | None = None
    epoch_bytes_max: int = EPOCH_BYTES_MAX
    batch_memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("instances", "per_operator") or value is None:
                continue
            least = 0.0 if name in ("rate", "latency_s") else 1.0
            if not (math.isfinite(value) and value >= least and value > 0):
                wanted = f"at least {least:g}" if least else "a number above 0"
                raise DeclarationError(
                    f"{name} is {value}, and must be {wanted}; leave it out if there is none"
                )


@dataclass(frozen=True)
class Choice:
    """The best epochs for some slots and instances; `busy` is the share of time the rate takes."""

    settings: EpochSettings
    prediction: EpochPrediction
    busy: float
    in_time: bool
    why: tuple[str, ...]

    @property
    def keeps_up(self) -> bool:
        return self.busy <= 1 + ROUNDING

    @property
    def has_room(self) -> bool:
        return self.busy <= HEADROOM + ROUNDING


def tune_epochs(
    model: EpochModel,
    *,
    rate: float | None = None,
    latency_s: float | None = None,
    max_slots: int | None = None,
    slots: int | None = None,
    instances: Mapping[str, int] | None = None,
    rows_max: int | None = None,
    epoch_bytes_max: int = EPOCH_BYTES_MAX,
    batch_memory_bytes: int = MEMORY_BYTES,
) -> TunedEpochs:
    """What is chosen for these wishes (see `Goal`), explained operator by operator."""
    goal = Goal(
        rate=rate,
        latency_s=latency_s,
        max_slots=max_slots,
        slots=slots,
        instances=instances,
        rows_max=rows_max,
        epoch_bytes_max=epoch_bytes_max,
        batch_memory_bytes=batch_memory_bytes,
    )
    chosen = choose(model, goal)
    return explain(model, chosen.settings, chosen.prediction, chosen.why)


def choose(model: EpochModel, goal: Goal) -> Choice:
    """Slots, instances, rows per epoch and batch rows."""
    most = goal.max_slots or model.cores
    why: list[str] = []
    if goal.slots is not None:
        chosen = _try(model, goal.slots, goal.instances or {}, goal)
        if goal.instances is None:
            chosen = _refined(model, chosen, goal.slots, goal)
    elif goal.rate is not None:
        chosen, why = _fewest_that_keep_up(model, most, goal)
    else:
        chosen, why = _fastest(model, most, goal)
    why += chosen.why
    if goal.rate is not None and goal.latency_s is None and chosen.keeps_up:
        settled = _at_rate(model, chosen.settings, chosen.prediction, goal.rate)
        chosen = replace(chosen, prediction=settled)
    if not chosen.in_time:
        best = chosen.prediction.latency_p95_s
        target = f"a latency of {goal.latency_s:g} s (p95)"
        why.append(f"{target} cannot be met; the best is {best:.2g} s")
    return replace(chosen, why=tuple(why))


# --- one number of slots, and instances ------------------------------------------------------
def _try(model: EpochModel, slots: int, instances: Mapping[str, int], goal: Goal) -> Choice:
    """Rows per epoch for so many slots and instances, and batches for them."""
    times = model.times(slots)
    column = times.exactly(instances) if instances else times.column({})
    fullest = max(float(times.bytes_per_slot(column)[0]), _source_bytes(model) / slots)
    held = max(1, int(goal.epoch_bytes_max / max(fullest, 1.0 / slots)))
    largest = {
        s.name: batch_rows_max(
            model.costs, s.row_bytes, model.cores_for(slots), goal.batch_memory_bytes
        )
        for s in model.flow.streams
    }
    wanted, reason = _rows(times, column, largest, goal)
    rows, cut = held, ""
    if goal.rows_max is not None and goal.rows_max <= min(wanted - 1, held):
        rows, cut = goal.rows_max, "as asked for"
    elif held < wanted:
        cut = "what slots should hold at once"
    rows = rows if cut else wanted
    counts = dict(zip(times.names, column[:, 0].tolist(), strict=True))
    some = {name: count for name, count in counts.items() if count < slots}
    settings = EpochSettings(slots, rows, _batches(times, column, rows, largest, goal), some)
    predicted = model.predict(settings)
    why = [f"{'without a limit ' if cut else ''}{wanted:,} rows per epoch: {reason}"]
    why += [f"an epoch is cut to {rows:,} rows, {cut}"] if cut else []
    busy = 0.0
    if goal.rate is not None:
        busy = goal.rate / predicted.rows_per_s
        if busy > 1 + ROUNDING:
            why.append(f"falls behind: {predicted.rows_per_s:,.0f} of {goal.rate:,.0f} rows/s")
        elif goal.latency_s is not None:
            predicted = _at_rate(model, settings, predicted, goal.rate)
    late = goal.latency_s is not None and predicted.latency_p95_s > goal.latency_s * (1 + ROUNDING)
    return Choice(settings, predicted, busy, not late, tuple(why))


def _at_rate(
    model: EpochModel, settings: EpochSettings, limit: EpochPrediction, rate: float
) -> EpochPrediction:
    """Latency is that of the epochs there will be, which are smaller than the limit."""
    rows = math.ceil(model.steady_rows(settings, rate))
    steady = model.predict(replace(settings, rows_per_epoch=max(1, rows)))
    return replace(limit, latency_s=steady.latency_s, latency_p95_s=steady.latency_p95_s)


def _source_bytes(model: EpochModel) -> float:
    """Bytes of a row as sources bring it."""
    step = model.flow.step
    return sum(
        model.rows_into(s.producer) * s.rows_per_row * s.row_bytes
        for s in model.flow.streams
        if step[s.producer].is_source
    )


def _batches(
    times: EpochTimes, column: I64, rows: int, largest: Mapping[str, int], goal: Goal
) -> dict[str, int]:
    """The smallest that do, or where every millisecond counts, those that cost none."""
    model = times.model
    epoch_s = float(times.of(column, float(rows), largest).epoch_s[0])
    late = goal.latency_s is not None and epoch_s * (1 + P95) > goal.latency_s
    slower = model.stretch * model.correction
    return choose_batches(
        times.traffic(column, float(rows)),
        replace(model.costs, message_s=slower * model.costs.message_s),
        epoch_s=epoch_s,
        cpus=model.cpus_for(times.slots),
        largest=largest,
        spare=0.0 if late else SPARE,
    )


def _rows(
    times: EpochTimes, column: I64, largest: Mapping[str, int], goal: Goal
) -> tuple[int, str]:
    """The smallest epoch that keeps up; with nothing to keep up with, one that wastes little.

    Time is nearly a straight line over rows: it is followed until the rows fit to the line there.
    Batches that are chosen later may take `SPARE` more than the largest.
    """
    here, two = np.array([1e4, 1e7]), np.repeat(column, 2, axis=1)
    for _ in range(12):
        first, second = ((1 + SPARE) * times.of(two, here, largest).epoch_s).tolist()
        row_s = (second - first) / float(here[1] - here[0])
        fixed_s = max(0.0, first - row_s * float(here[0]))
        found, why = _rows_on_line(fixed_s, row_s, goal, times.model.every_s)
        found = min(max(found, 1.0), ROWS_MAX)
        if abs(found - here[0]) <= 1e-4 * found:
            break
        here = found * np.array([1.0, 1.1])
    return max(1, math.ceil(found * (1 - ROUNDING))), why


def _rows_on_line(fixed_s: float, row_s: float, goal: Goal, every_s: float) -> tuple[float, str]:
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
        epoch_s = min(goal.latency_s / (1 + P95), goal.latency_s - P95 * every_s)
        within, least = (epoch_s - fixed_s) / row_s, spending(HEADROOM)
        if least <= within < rows:
            rows, why = math.floor(within), f"the largest epoch within {goal.latency_s:g} s (p95)"
        elif within < least:
            rows, why = least, f"{HEADROOM:.0%} of an epoch's time is for rows, latency or not"
    return rows, why


def _refined(model: EpochModel, tried: Choice, most: int, goal: Goal) -> Choice:
    """Instances for the epochs of a try, at most so many of each; then epochs for them.

    None of it if that is slower: few instances may hold few rows.
    """
    if not goal.per_operator:
        return tried
    times, first = model.times(most), tried
    for _ in range(2):
        before = tried.settings
        search = InstanceSearch(times, float(before.rows_per_epoch), before.batch_rows)
        column = search.fewest(search.best(goal.rate))
        counts = dict(zip(times.names, column[:, 0].tolist(), strict=True))
        tried = _try(model, most, counts, goal)
        few, many = sorted((before.rows_per_epoch, tried.settings.rows_per_epoch))
        if few >= SAME * many:
            break
    slower = tried.prediction.rows_per_s < FEWER * first.prediction.rows_per_s
    return first if slower or (first.in_time and not tried.in_time) else tried


# --- how many slots --------------------------------------------------------------------------
def _fewest_that_keep_up(model: EpochModel, most: int, goal: Goal) -> tuple[Choice, list[str]]:
    """In time and with room for bursts; or with room, the soonest; without room, the fast ones."""
    tried: list[Choice] = []
    for slots in range(_fewest_in_question(model, most, goal), most + 1):
        tried.append(_try(model, slots, {}, goal))
        if tried[-1].has_room and tried[-1].in_time:
            break
    enough = [t for t in tried if t.has_room]
    if not enough:
        return _fastest(model, most, goal, {t.settings.slots: t for t in tried})
    chosen = next((t for t in enough if t.in_time), enough[0])
    if not chosen.in_time:
        soonest = min(t.prediction.latency_p95_s for t in enough)
        chosen = next(t for t in enough if t.prediction.latency_p95_s <= soonest / FEWER)
    refined = _refined(model, chosen, chosen.settings.slots, goal)
    if refined.has_room and (refined.in_time or not chosen.in_time):
        chosen = refined
    busy = f"busy {chosen.busy:.0%} with {goal.rate:,.0f} rows/s, at most {HEADROOM:.0%}"
    return chosen, [f"{chosen.settings.slots} slots: {busy}"]


def _fewest_in_question(model: EpochModel, most: int, goal: Goal) -> int:
    """Slots with which some epoch keeps up, if only it is large enough."""
    assert goal.rate is not None
    large = np.array([1e8, 2e8])
    for slots in range(1, most):
        times = model.times(slots)
        seconds = times.of(np.repeat(times.column({}), 2, axis=1), large, {}).epoch_s
        if float(seconds[1] - seconds[0]) / 1e8 < HEADROOM / goal.rate:
            return slots
    return most


def _fastest(
    model: EpochModel, most: int, goal: Goal, known: Mapping[int, Choice] = MappingProxyType({})
) -> tuple[Choice, list[str]]:
    """As fast as there is room for, with as few slots as nearly the best takes.

    `known`: some tries with an instance of every operator in so many slots.
    """
    if not model.elastic:
        most = min(most, model.cores)
    sizes = _sizes(model, most, goal)
    alike = [known.get(n) or _try(model, n, {}, goal) for n in sizes]
    found = [
        _without_idle_slots(model, _refined(model, tried, n, goal), goal)
        for n, tried in zip(sizes, alike, strict=True)
    ]
    top = max(t.prediction.rows_per_s for t in found)
    good = [t for t in found if t.prediction.rows_per_s >= HEADROOM * top and t.in_time]
    good = [t for t in good if t.keeps_up] or [t for t in found if t.keeps_up] or good or found
    best = max(t.prediction.rows_per_s for t in good)
    good = [t for t in good if t.prediction.rows_per_s >= FEWER * best]
    chosen = min(good, key=lambda t: (t.settings.slots, -t.prediction.rows_per_s))
    slots, rate = chosen.settings.slots, chosen.prediction.rows_per_s
    said = f"{slots} of {most} slots: predicted {rate:,.0f} rows/s"
    if chosen.settings.instances:
        number, others = _best_alike(model, chosen.settings, most)
        said += f"; with an instance of each operator in all slots {others:,.0f}, in {number}"
    return chosen, [said]


def _sizes(model: EpochModel, most: int, goal: Goal) -> list[int]:
    """Numbers of slots to try. The most alone, where operators have as few instances as they need;
    all if they have one in each; some where processors follow slots, or rows are late.
    """
    if not goal.per_operator:
        return list(range(1, most + 1))
    if not model.elastic and goal.latency_s is None:
        return [most]
    return sorted({round(most ** (n / SIZES)) for n in range(SIZES + 1)})


def _without_idle_slots(model: EpochModel, tried: Choice, goal: Goal) -> Choice:
    """As many slots as the largest operator has instances, if others need none of their own."""
    settings = tried.settings
    used = int(model.times(settings.slots).exactly(settings.instances).max(initial=1))
    if used == settings.slots or model.elastic:
        return tried
    fewer = _try(model, used, settings.instances, goal)
    slower = fewer.prediction.rows_per_s < FEWER * tried.prediction.rows_per_s
    return tried if slower else fewer


def _best_alike(model: EpochModel, settings: EpochSettings, most: int) -> tuple[int, float]:
    """The best number of slots if every operator has an instance in each, and its rate."""
    rates = {
        n: model.predict(replace(settings, slots=n, instances=model.alike(n))).rows_per_s
        for n in range(1, most + 1)
    }
    best = max(rates, key=lambda n: rates[n])
    return best, rates[best]
