"""What a configuration would do: rates, who is busy, and the latency of a row.

A configuration is a degree of parallelism (dop) and a batch size per step. Steps that cannot keep
up hold back the sources, all by the same share. Latency is that of Sax et al. 2013, definition 3:
from a row's creation to the end of the last row it gave rise to, so the longest path counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream, rows_of

SLACK_MIN = 0.02  # queues are bounded: a step that is never idle does not make rows wait for ever


@dataclass(frozen=True)
class Configuration:
    """Instances and batch rows per step; the batch is that of what the step puts out."""

    dop: Mapping[str, int]
    batch_rows: Mapping[str, int]


def one_each(flow: FlowModel) -> dict[str, int]:
    return {s.name: s.source_dop if s.is_source else 1 for s in flow.steps}


@dataclass(frozen=True)
class StepPrediction:
    """One step: rows per second in and out (all instances), and the busy share of an instance."""

    rate_in: float
    rate_out: float
    busy: float


@dataclass(frozen=True)
class Prediction:
    """`share` of the sources' rate that gets through; `limit` is the step that holds it back."""

    share: float
    rows_per_s: float
    latency_s: float
    limit: str
    steps: Mapping[str, StepPrediction]


def predict(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    cores: float | None = None,
) -> Prediction:
    """Rates and latency; with `cores`, instances share them. Linear in the flow's size."""
    work = work_of(flow, costs, configuration.batch_rows)
    share, latency = share_and_latency(flow, costs, configuration, cores, work)
    steps = {
        name: StepPrediction(
            rate_in=share * flow.rate_in[name],
            rate_out=share * flow.rate_in[name] * sum(s.rows_per_row for s in flow.outputs[name]),
            busy=share * work[name] / configuration.dop[name],
        )
        for name in flow.order
    }
    limit = max(flow.order, key=lambda name: steps[name].busy)
    return Prediction(share, share * flow.source_rate, latency, limit, steps)


def share_and_latency(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    cores: float | None = None,
    work: Mapping[str, float] | None = None,
) -> tuple[float, float]:
    """What a search compares: the share of the rate that gets through, and the longest path."""
    work = work_of(flow, costs, configuration.batch_rows) if work is None else work
    share = share_of(work, configuration.dop, cores)
    ready: dict[str, float] = {}
    for name in flow.order:
        busy = share * work[name] / configuration.dop[name]
        ready[name] = 0.0
        for stream in flow.inputs[name]:
            passes = _actual_processing_s(flow, costs, configuration, share, busy, stream)
            ready[name] = max(ready[name], ready[stream.producer] + passes)
    return share, max(ready.values())


def share_of(
    work: Mapping[str, float], dop: Mapping[str, int], cores: float | None = None
) -> float:
    """The share of the sources' rate that gets through."""
    slowest = max(seconds / dop[name] for name, seconds in work.items())
    if cores is not None:
        slowest = max(slowest, sum(work.values()) / cores)
    return 1.0 if slowest <= 1.0 else 1.0 / slowest


def work_of(
    flow: FlowModel, costs: EngineCosts, batch_rows: Mapping[str, float] | Mapping[str, int]
) -> dict[str, float]:
    """Seconds of work per second that each step has, if the sources are not held back."""
    return {
        name: flow.rate_in[name] * row_s(flow, name, costs, batch_rows[name]) for name in flow.order
    }


def row_s(flow: FlowModel, name: str, costs: EngineCosts, batch_rows: float) -> float:
    """How long a row that comes in keeps an instance of this step busy."""
    return processing_s(flow.step[name]) + sum(
        s.shipped_per_row * ship_s(costs, s.row_bytes, rows_of(costs, s, batch_rows))
        for s in flow.outputs[name]
    )


def processing_s(step: Step) -> float:
    """Ppt, as far as it delays shipping: a source ships while it waits for its next row."""
    return 0.0 if step.is_source else step.ppt_s


def ship_s(costs: EngineCosts, row_bytes: float, batch_rows: float) -> float:
    """Average time of the sender per row: n / batch + t x s."""
    return costs.message_s / batch_rows + row_bytes * costs.byte_s


def _actual_processing_s(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    share: float,
    busy: float,
    stream: Stream,
) -> float:
    """Shipping (waiting for the batch included), queueing and pure processing of a mean row.

    `share` of the sources' rate comes; `busy` is the consumer.
    """
    batch = rows_of(costs, stream, configuration.batch_rows[stream.producer])
    ppt_s = flow.step[stream.consumer].ppt_s
    rate = share * flow.rate_in[stream.producer] * stream.rows_per_row
    buffers = configuration.dop[stream.producer] * configuration.dop[stream.consumer]
    filling = (batch - 1) / 2 * buffers / rate if rate > 0 else 0.0
    shipping = filling + costs.message_s + batch * stream.row_bytes * costs.byte_s
    own_batch = (batch - 1) / 2 * ppt_s
    before_it = busy / (2 * max(1 - busy, SLACK_MIN)) * batch * ppt_s
    return shipping + own_batch + before_it + ppt_s
