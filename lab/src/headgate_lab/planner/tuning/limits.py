"""The optimizer where instances or cores are not free, or where latency counts.

The paper leaves this to future work. Instances and cores are shared such that most rows get through
(`sharing`). A latency target makes the same search over smaller batches and more instances, and
takes the highest throughput that it finds within it (`latency`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import ROUNDING, EngineCosts, FlowModel
from headgate.planner.tuning.optimizer import Tuned, explained, optimize
from headgate.planner.tuning.prediction import Configuration, predict, share_of, work_of
from headgate_lab.planner.tuning.latency import NEARLY, fastest_in_time
from headgate_lab.planner.tuning.sharing import capped, shared


@dataclass(frozen=True)
class Limits:
    """At most so many instances (sources not counted), so many cores, such a latency."""

    instances: int | None = None
    cores: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.instances, self.cores, self.latency_s) if v is not None]
        if not all(v > 0 for v in given):
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


def _fastest(flow: FlowModel, costs: EngineCosts, limits: Limits) -> Tuned:
    limited = capped(flow, costs, costs.message_bytes_max)
    best = shared(flow, costs, limited, limits.instances, limits.cores)
    work = work_of(flow, costs, best.batch_rows)
    why = _reasons(flow, work, best, limits)
    return explained(flow, costs, best, why, limits.cores)


def _within_latency(flow: FlowModel, costs: EngineCosts, limits: Limits, target_s: float) -> Tuned:
    best = fastest_in_time(
        flow, costs, instances=limits.instances, cores=limits.cores, target_s=target_s
    )
    why = _reasons(flow, work_of(flow, costs, best.batch_rows), best, limits)
    tuned = explained(flow, costs, best, why, limits.cores)
    if tuned.prediction.latency_s <= target_s:
        return tuned
    missed = (
        f"The target of {target_s * 1e3:,.3g} ms cannot be met; "
        f"this is within {NEARLY - 1:.0%} of the lowest latency found. "
    )
    return Tuned(tuned.choices, tuned.prediction, tuned.bottleneck, missed + tuned.why)


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
    """Work is that of the full rate, with the batches chosen."""
    why = {}
    dop, batch = chosen.dop, chosen.batch_rows
    share = share_of(work, dop, limits.cores)
    for name in flow.order:
        needed = math.ceil(work[name] * (1 - ROUNDING))
        if flow.step[name].is_source:
            why[name] = "rate and dop are given"
        elif dop[name] >= needed:
            earlier = dop[name] - max(1, needed)
            why[name] = f"work for {work[name]:.3g}"
            why[name] += f"; {earlier} more, so that rows wait less" if earlier else ""
        elif share * work[name] >= dop[name] * (1 - 1e-6):
            why[name] = f"work for {work[name]:.3g}; the limits leave {dop[name]}"
        else:
            why[name] = f"work for {work[name]:.3g}; {dop[name]} do for what gets through"
        if batch[name] > 1:
            why[name] += f"; {batch[name]} rows share n"
    if limits.cores is not None:
        total = sum(work.values())
        heaviest = max(work, key=lambda n: work[n])
        why[heaviest] += f"; {work[heaviest] / total:.0%} of all work" if total else ""
    return why
