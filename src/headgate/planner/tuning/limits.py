"""The optimizer where instances or cores are not free, or where latency counts.

The paper leaves this to future work. With fewer instances than the optimizer wants, each goes to
the step that holds the flow back most at that moment. Since a step's capacity is its instances over
its work, no other sharing lets more rows through, a proportional one included. Cores are shared by
all work there is, so there it is the sum that counts. Batches begin as large as a message may be
and shrink to what the rate needs.

A latency target makes the same search over smaller batches and more instances, and takes the
highest throughput that stays within it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel
from headgate.planner.tuning.optimizer import (
    ROUNDING,
    Tuned,
    batch_rows_for,
    explained,
    instances_for,
    optimize,
)
from headgate.planner.tuning.prediction import (
    Configuration,
    one_each,
    predict,
    share_and_latency,
    share_of,
    work_of,
)

F64 = npt.NDArray[np.float64]

CORES_SLACK = 0.01  # throughput given up for smaller batches when all cores are busy
HEADROOMS = (1.0, 1.1, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class Limits:
    """At most so many instances (sources not counted), so many cores, such a latency."""

    instances: int | None = None
    cores: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.instances, self.cores, self.latency_s) if v is not None]
        if any(v <= 0 for v in given):
            raise DeclarationError(f"limits must be above zero: {self}")


def optimize_within(flow: FlowModel, costs: EngineCosts, limits: Limits) -> Tuned:
    """The best configuration within limits; the paper's own if that is within them."""
    movable = [s.name for s in flow.steps if not s.is_source]
    if limits.instances is not None and limits.instances < len(movable):
        raise DeclarationError(
            f"{limits.instances} instances for {len(movable)} steps; each needs one. "
            "Limit cores instead: steps can share them",
            instances=limits.instances,
        )
    free = optimize(flow, costs)
    if _fits(flow, costs, free, limits):
        return free
    if limits.latency_s is not None:
        return _within_latency(flow, costs, limits, limits.latency_s)
    return _fastest(flow, costs, limits)


def shared_instances(
    flow: FlowModel, work: Mapping[str, float], total: int | None, *, headroom: float = 1.0
) -> dict[str, int]:
    """Instances per step, at most `total`: each in turn to the step with least for its work.

    `work` is that of the full rate; no step gets more than for what the sources can ship of it.
    """
    dop = one_each(flow)
    shipped = min(dop[s.name] / max(work[s.name], dop[s.name]) for s in flow.steps if s.is_source)
    needed = {s.name: headroom * shipped * work[s.name] for s in flow.steps if not s.is_source}
    left = math.inf if total is None else total - len(needed)
    busiest = [(-share, name) for name, share in needed.items()]
    heapq.heapify(busiest)
    while left > 0 and busiest and busiest[0][0] < -1 - ROUNDING:
        name = busiest[0][1]
        more = 1 if total is not None else math.ceil(needed[name] * (1 - ROUNDING)) - dop[name]
        dop[name] += more
        left -= more
        heapq.heapreplace(busiest, (-needed[name] / dop[name], name))
    return dop


def _fastest(flow: FlowModel, costs: EngineCosts, limits: Limits) -> Tuned:
    best = _shared(flow, costs, limits, _capped(flow, costs, costs.message_bytes_max))
    work = work_of(flow, costs, best.batch_rows)
    why = _reasons(flow, work, best, limits)
    return explained(flow, costs, best, why, limits.cores)


@dataclass(frozen=True)
class _Capped:
    """Batches of at most so many rows, and the work that each step has with them."""

    largest: dict[str, int]
    work: dict[str, float]


def _capped(flow: FlowModel, costs: EngineCosts, cap: int) -> _Capped:
    largest = {name: min(cap, _largest_batch(flow, costs, name)) for name in flow.order}
    return _Capped(largest, work_of(flow, costs, largest))


def _shared(
    flow: FlowModel, costs: EngineCosts, limits: Limits, capped: _Capped, headroom: float = 1.0
) -> Configuration:
    """Instances for capped batches, then the smallest batches that do as well."""
    largest, work = capped.largest, capped.work
    dop = shared_instances(flow, work, limits.instances, headroom=headroom)
    share = share_of(work, dop, limits.cores)
    used = {
        name: max(1, math.ceil(headroom * share * seconds * (1 - ROUNDING)))
        for name, seconds in work.items()
    }
    dop = {name: min(count, used[name]) for name, count in dop.items()} | _source_dop(flow)
    rate = {name: headroom * share * flow.rate_in[name] for name in flow.order}
    enough = {
        name: batch_rows_for(
            dop[name], rate[name], flow.step[name].processing_s, flow.outputs[name], costs
        )
        for name in flow.order
    }
    batch = {name: min(largest[name], enough[name]) for name in flow.order}
    return Configuration(dop, _within_cores(flow, costs, batch, largest, limits.cores))


def _within_cores(
    flow: FlowModel,
    costs: EngineCosts,
    batch: dict[str, int],
    largest: Mapping[str, int],
    cores: float | None,
) -> dict[str, int]:
    """Raise batches until shipping wastes nearly no core; a step that puts out less, less."""
    if cores is None:
        return batch
    least = sum(work_of(flow, costs, largest).values())
    allowed = max(least * (1 + CORES_SLACK), cores)
    names = list(batch)
    put_out = np.array(
        [flow.rate_in[n] * sum(s.rows_per_row for s in flow.outputs[n]) for n in names]
    )
    part = put_out / (put_out.max() or 1.0)
    small = np.array([batch[n] for n in names], np.float64)
    large = np.array([largest[n] for n in names], np.float64)
    place = {name: number for number, name in enumerate(names)}
    producer = np.array([place[s.producer] for s in flow.streams], np.intp)
    rows = np.array([flow.rate_in[s.producer] * s.shipped_per_row for s in flow.streams])
    fitting = np.array([costs.batch_rows_max(s.row_bytes) for s in flow.streams])

    def at(floor: int) -> F64:
        return np.minimum(large, np.maximum(small, np.ceil(floor * part)))

    def shipping_s(rows_per_batch: F64) -> float:
        messages = rows / np.minimum(rows_per_batch[producer], fitting)
        return costs.message_s * float(messages.sum())

    others = least - shipping_s(large)
    low, high = 1, costs.message_bytes_max * 1024
    while low < high:
        middle = (low + high) // 2
        if others + shipping_s(at(middle)) <= allowed:
            high = middle
        else:
            low = middle + 1
    return {name: int(count) for name, count in zip(names, at(low), strict=True)}


def _within_latency(flow: FlowModel, costs: EngineCosts, limits: Limits, target_s: float) -> Tuned:
    best = _soonest_of_the_fast(flow, costs, limits, target_s)
    why = _reasons(flow, work_of(flow, costs, best.batch_rows), best, limits)
    tuned = explained(flow, costs, best, why, limits.cores)
    if tuned.prediction.latency_s <= target_s:
        return tuned
    missed = f"The target of {target_s * 1e3:,.3g} ms cannot be met; this is the nearest. "
    return Tuned(tuned.choices, tuned.prediction, tuned.bottleneck, missed + tuned.why)


def _soonest_of_the_fast(
    flow: FlowModel, costs: EngineCosts, limits: Limits, target_s: float
) -> Configuration:
    """The best of all caps and headrooms: within the target, then by rows, instances, latency.

    From large caps to small ones: with smaller batches no more rows get through. So once one is in
    time, caps that let less through need not be looked at.
    """
    most = max(_largest_batch(flow, costs, name) for name in flow.order)
    found: list[tuple[tuple[float, ...], Configuration]] = []
    for cap in (2**k for k in reversed(range(most.bit_length() + 1))):
        capped = _capped(flow, costs, cap)
        for headroom in HEADROOMS:
            tried = _shared(flow, costs, limits, capped, headroom)
            if any(tried == configuration for _, configuration in found):
                continue
            share, latency_s = share_and_latency(flow, costs, tried, limits.cores)
            merit: tuple[float, ...] = (0.0, -latency_s, 0.0, 0.0)
            if latency_s <= target_s:
                merit = (1.0, round(share, 6), -sum(tried.dop.values()), -latency_s)
            found.append((merit, tried))
            if headroom == 1.0 and any(m[0] and m[1] > share + 1e-6 for m, _ in found):
                return max(found, key=lambda entry: entry[0])[1]
    return max(found, key=lambda entry: entry[0])[1]


def _source_dop(flow: FlowModel) -> dict[str, int]:
    return {s.name: s.source_dop for s in flow.steps if s.is_source}


def _largest_batch(flow: FlowModel, costs: EngineCosts, name: str) -> int:
    return max((costs.batch_rows_max(s.row_bytes) for s in flow.outputs[name]), default=1)


def _fits(flow: FlowModel, costs: EngineCosts, tuned: Tuned, limits: Limits) -> bool:
    configuration = tuned.configuration
    used = sum(configuration.dop[s.name] for s in flow.steps if not s.is_source)
    told = predict(flow, costs, configuration, limits.cores)
    return (
        (limits.instances is None or used <= limits.instances)
        and (limits.cores is None or told.share >= tuned.prediction.share * (1 - ROUNDING))
        and (limits.latency_s is None or told.latency_s <= limits.latency_s)
    )


def _reasons(
    flow: FlowModel,
    work: Mapping[str, float],
    chosen: Configuration,
    limits: Limits,
) -> dict[str, str]:
    why = {}
    dop, batch = chosen.dop, chosen.batch_rows
    for name in flow.order:
        step = flow.step[name]
        wished = instances_for(flow.rate_in[name], step.ppt_s)
        if step.is_source:
            why[name] = "rate and dop are given"
        elif dop[name] < work[name]:
            why[name] = f"work for {work[name]:.3g}; the limit leaves {dop[name]}"
        else:
            why[name] = f"work for {work[name]:.3g}, at full rate {wished} would do"
        if batch[name] > 1:
            why[name] += f"; {batch[name]} rows share n"
    if limits.cores is not None:
        total = sum(work.values())
        heaviest = max(work, key=lambda n: work[n])
        why[heaviest] += f"; {work[heaviest] / total:.0%} of all work" if total else ""
    return why
