"""Instances for the work there is, and the smallest batches that do as well.

With fewer instances than are wanted, each goes to the step that holds the flow back most at that
moment. Since a step's capacity is its instances over its work, no other sharing lets more rows
through, a proportional one included. Cores are shared by all work there is, so there it is the sum
that counts. Batches begin as large as they may be and shrink to what the rate needs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.arrays import F64
from headgate.planner.tuning.cost_model import ROUNDING, EngineCosts, FlowModel
from headgate.planner.tuning.optimizer import batch_rows_for
from headgate.planner.tuning.prediction import (
    Configuration,
    one_each,
    processing_s,
    share_of,
    work_of,
)

CORES_SLACK = 0.01  # throughput given up for smaller batches when all cores are busy


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


@dataclass(frozen=True)
class Capped:
    """Batches of at most so many rows, and the work that each step has with them."""

    largest: dict[str, int]
    work: dict[str, float]


def capped(flow: FlowModel, costs: EngineCosts, cap: int) -> Capped:
    largest = {name: min(cap, largest_batch(flow, costs, name)) for name in flow.order}
    return Capped(largest, work_of(flow, costs, largest))


def shared(
    flow: FlowModel,
    costs: EngineCosts,
    limited: Capped,
    instances: int | None,
    cores: float | None,
    headroom: float = 1.0,
) -> Configuration:
    """Instances for capped batches, then the smallest batches that do as well."""
    largest, work = limited.largest, limited.work
    dop = shared_instances(flow, work, instances, headroom=headroom)
    share = share_of(work, dop, cores)
    used = {
        name: max(1, math.ceil(headroom * share * seconds * (1 - ROUNDING)))
        for name, seconds in work.items()
    }
    dop = {name: min(count, used[name]) for name, count in dop.items()} | _source_dop(flow)
    rate = {name: headroom * share * flow.rate_in[name] for name in flow.order}
    enough = {
        name: batch_rows_for(
            dop[name], rate[name], processing_s(flow.step[name]), flow.outputs[name], costs
        )
        for name in flow.order
    }
    batch = {name: min(largest[name], enough[name]) for name in flow.order}
    return Configuration(dop, _within_cores(flow, costs, batch, largest, cores))


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


def _source_dop(flow: FlowModel) -> dict[str, int]:
    return {s.name: s.source_dop for s in flow.steps if s.is_source}


def largest_batch(flow: FlowModel, costs: EngineCosts, name: str) -> int:
    return max((costs.batch_rows_max(s.row_bytes) for s in flow.outputs[name]), default=1)
