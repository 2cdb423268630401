"""Settings in words, operator by operator, with the numbers of the model that speak for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from headgate.planner.tuning.epoch_times import EpochTimes, Times
from headgate.planner.tuning.epochs import EpochModel, EpochPrediction, EpochSettings
from headgate.planner.tuning.groups import Group

MOSTLY = 0.5  # of its time: an operator that waits more than it works is said to wait


@dataclass(frozen=True)
class OperatorChoice:
    """What was chosen for an operator, what it will see, and why.

    `busy` is the share of an epoch in which its busiest instance is at work, or waits for others;
    `batch_rows` are by stream.
    """

    name: str
    instances: int
    rows_per_s: float
    busy: float
    why: str
    batch_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TunedEpochs:
    """Settings with what is predicted of them, and the reasons.

    Per operator: its share of the work, rows per second that come to it, and what was chosen for it
    and why. `bottleneck` is what an epoch spends most time on, `why_bottleneck` what holds it back.
    """

    settings: EpochSettings
    prediction: EpochPrediction
    work_share: Mapping[str, float]
    bottleneck: str
    why: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    operators: Annotated[tuple[OperatorChoice, ...], "sparse"] = ()
    why_bottleneck: Annotated[str, "sparse"] = ""


def explain(
    model: EpochModel, settings: EpochSettings, predicted: EpochPrediction, why: Iterable[str]
) -> TunedEpochs:
    """Settings with what they mean for every operator; `why` are the reasons known so far."""
    operators, bottleneck, held_back = _operators(model, settings, predicted)
    reasons = [*why, _batches(model, settings), f"{bottleneck} {held_back}"]
    return TunedEpochs(
        settings,
        predicted,
        model.work_shares(settings),
        bottleneck,
        tuple(filter(None, reasons)),
        {name: model.rows_into(name) * predicted.rows_per_s for name in model.flow.order},
        operators,
        held_back,
    )


def _operators(
    model: EpochModel, settings: EpochSettings, predicted: EpochPrediction
) -> tuple[tuple[OperatorChoice, ...], str, str]:
    """All operators, then the bottleneck and what holds it back."""
    times = model.times(settings.slots)
    column = times.exactly(settings.instances)
    rows = float(settings.rows_per_epoch)
    told = times.of(column, rows, settings.batch_rows)
    counts = dict(zip(times.names, column[:, 0].tolist(), strict=True))
    reasons = _reasons(model, times, settings, counts)
    groups = {group.name: number for number, group in enumerate(model.groups.of)}
    epoch_s = max(predicted.epoch_s, 1e-12)
    made = []
    for name in model.flow.order:
        homes = model.groups.shares[name]
        if None in homes:
            count, busy = model.source_tasks, float(told.source_s[0])
            why = "in source tasks, as many as the source has partitions"
        else:
            main = max((g for g in homes if g is not None), key=lambda g: homes[g])
            count, busy = counts[main], float(told.busiest_s[groups[main], 0])
            why = reasons[main] if main == name else f"runs where {main} runs"
        sent = {
            s.name: settings.batch_rows[s.name]
            for s in model.flow.outputs[name]
            if s.sends and s.name in settings.batch_rows
        }
        rate = model.rows_into(name) * predicted.rows_per_s
        made.append(OperatorChoice(name, count, rate, min(1.0, busy / epoch_s), why, sent))
    bottleneck, held_back = _bottleneck(model, times, told, counts, epoch_s)
    return tuple(made), bottleneck, held_back


def _reasons(
    model: EpochModel, times: EpochTimes, settings: EpochSettings, counts: Mapping[str, int]
) -> dict[str, str]:
    """By group: what its number of instances is for."""
    groups = model.groups.of
    column, rows = times.exactly(settings.instances), float(settings.rows_per_epoch)
    tried = np.repeat(column, 2 * len(groups) + 1, axis=1)
    for number in range(len(groups)):
        now = int(column[number, 0])
        tried[number, 2 * number] = max(1, now // 2)
        tried[number, 2 * number + 1] = min(settings.slots, 2 * now)
    seconds = times.of(tried, rows, settings.batch_rows).epoch_s
    rates = (rows / np.maximum(seconds, 1e-12)).tolist()
    found = {}
    for number, group in enumerate(groups):
        now = counts[group.name]
        if group.fixed is not None and now == min(group.fixed, settings.slots):
            why = f"{now} as declared, or all that one key can have"
        elif group.everywhere:
            why = "in every slot: its rows are processed where they are"
        else:
            why = _compared(now, settings.slots, rates[-1], *rates[2 * number : 2 * number + 2])
        found[group.name] = why + _waiting(group)
    return found


def _compared(now: int, slots: int, rate: float, half: float, twice: float) -> str:
    said = f"predicted {rate:,.0f} rows/s"
    if now > 1:
        said += f", with {now // 2} {half:,.0f}"
    if now < slots:
        said += f", with {min(slots, 2 * now)} {twice:,.0f}"
    return said


def _waiting(group: Group) -> str:
    whole = group.cpu_s + group.wait_s
    if whole <= 0 or group.wait_s < MOSTLY * whole:
        return ""
    return f"; it waits {group.wait_s / whole:.0%} of its time, for which it needs no core"


def _bottleneck(
    model: EpochModel,
    times: EpochTimes,
    told: Times,
    counts: Mapping[str, int],
    epoch_s: float,
) -> tuple[str, str]:
    """The operator that an epoch spends most time on, and what would help."""
    cpus, slots = model.cpus_for(times.slots), times.slots
    by_cores = told.cpu_s[:, 0] / cpus
    spent = np.maximum(told.busiest_s[:, 0], by_cores)
    source_s = float(told.source_s[0])
    if not len(spent) or source_s >= spent.max(initial=0.0):
        mine = [n for n, homes in model.groups.shares.items() if None in homes]
        name = max(mine, key=lambda n: model.rows_into(n) * model.flow.step[n].ppt_s)
        said = f"takes most of the {source_s / epoch_s:.0%} of an epoch in source tasks: "
        if model.source_tasks < cpus:
            return name, f"{said}more partitions of the source would help, slots do not"
        return name, f"{said}more processors, or less work per row, would help, slots do not"
    at = int(spent.argmax())
    group = model.groups.of[at]
    mine = [n for n, homes in model.groups.shares.items() if homes.get(group.name)]
    name = max(mine, key=lambda n: model.rows_into(n) * model.flow.step[n].ppt_s)
    now, said = counts[group.name], f"takes {spent[at] / epoch_s:.0%} of an epoch in "
    said += f"{now} instance{'s' if now > 1 else ''}: "
    if by_cores[at] >= told.busiest_s[at, 0]:
        return name, f"{said}all {cpus} processors are busy; more, or less work per row, would help"
    if not group.is_free:
        return name, f"{said}their number is given"
    if now == slots and slots >= model.cores_for(slots):
        return name, f"{said}as many as tasks can run at once; more of these would help"
    if now == slots:
        return name, f"{said}one in every slot; more slots may help"
    return name, f"{said}more would not pay for what their tasks cost"


def _batches(model: EpochModel, settings: EpochSettings) -> str:
    """What the batches chosen give, against half of them and against the largest that fit."""
    sizes = settings.batch_rows
    if not sizes:
        return ""
    half = {name: max(1, rows // 2) for name, rows in sizes.items()}
    rates = []
    for batch in (sizes, half, {}):
        with_it = EpochSettings(settings.slots, settings.rows_per_epoch, batch, settings.instances)
        rates.append(model.predict(with_it).rows_per_s)
    streams = {s.name: s for s in model.flow.streams}
    largest = max(sizes.items(), key=lambda one: one[1] * streams[one[0]].row_bytes)
    size = largest[1] * streams[largest[0]].row_bytes
    return (
        f"batches of up to {largest[1]:,} rows ({size / 1e3:,.0f} kB): predicted {rates[0]:,.0f} "
        f"rows/s, with half of that {rates[1]:,.0f}, with all that fits in a message "
        f"{rates[2]:,.0f}"
    )
