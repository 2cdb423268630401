"""What a configuration would do: rates, who is busy, and the latency of a row.

A configuration is a degree of parallelism (dop) and a batch size per step. Steps that cannot keep
up hold back the sources, all by the same share. Latency is that of Sax et al. 2013, definition 3:
from a row's creation to the end of the last row it gave rise to, so the longest path counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Stream, rows_of

SLACK_MIN = 0.02  # queues are bounded: a step that is never idle does not make rows wait for ever


@dataclass(frozen=True)
class Configuration:
    """Instances and batch rows per step; the batch is that of what the step puts out."""

    dop: Mapping[str, int]
    batch_rows: Mapping[str, int]

    def unbatched(self) -> Configuration:
        """The paper's "no batching"."""
        return Configuration(self.dop, dict.fromkeys(self.batch_rows, 1))

    def serial(self, flow: FlowModel) -> Configuration:
        """The paper's "only batching": one instance of each; sources are as the user has them."""
        return Configuration(one_each(flow), self.batch_rows)


def one_each(flow: FlowModel) -> dict[str, int]:
    return {s.name: s.source_dop if s.is_source else 1 for s in flow.steps}


def four_configurations(flow: FlowModel, optimized: Configuration) -> dict[str, Configuration]:
    """Those that the paper compares."""
    return {
        "optimized": optimized,
        "not_optimized": optimized.unbatched().serial(flow),
        "no_batching": optimized.unbatched(),
        "only_batching": optimized.serial(flow),
    }


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
    busy = {name: work[name] / configuration.dop[name] for name in flow.order}
    limit = max(flow.order, key=lambda name: busy[name])
    slowest = busy[limit]
    if cores is not None and (total := sum(work.values()) / cores) > slowest:
        slowest = total
    share = 1.0 if slowest <= 1.0 else 1.0 / slowest
    steps = {
        name: StepPrediction(
            rate_in=share * flow.rate_in[name],
            rate_out=share * flow.rate_in[name] * sum(s.rows_per_row for s in flow.outputs[name]),
            busy=share * busy[name],
        )
        for name in flow.order
    }
    latency = _latency(flow, costs, configuration, steps)
    return Prediction(share, share * flow.source_rate, latency, limit, steps)


def work_of(
    flow: FlowModel, costs: EngineCosts, batch_rows: Mapping[str, float] | Mapping[str, int]
) -> dict[str, float]:
    """Seconds of work per second that each step has, if the sources are not held back."""
    return {
        name: flow.rate_in[name] * flow.row_s(name, costs, batch_rows[name]) for name in flow.order
    }


def _latency(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    steps: Mapping[str, StepPrediction],
) -> float:
    ready: dict[str, float] = {}
    for name in flow.order:
        waits = (
            ready[s.producer] + _actual_processing_s(flow, costs, configuration, steps, s)
            for s in flow.inputs[name]
        )
        ready[name] = max(waits, default=0.0)
    return max(ready.values())


def _actual_processing_s(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    steps: Mapping[str, StepPrediction],
    stream: Stream,
) -> float:
    """Shipping (waiting for the batch included), queueing and pure processing of a mean row."""
    batch = rows_of(costs, stream, configuration.batch_rows[stream.producer])
    consumer = flow.step[stream.consumer]
    rate = steps[stream.producer].rate_in * stream.rows_per_row
    buffers = configuration.dop[stream.producer] * configuration.dop[stream.consumer]
    filling = (batch - 1) / 2 * buffers / rate if rate > 0 else 0.0
    shipping = filling + costs.message_s + batch * stream.row_bytes * costs.byte_s
    busy = steps[stream.consumer].busy
    own_batch = (batch - 1) / 2 * consumer.ppt_s
    before_it = busy / (2 * max(1 - busy, SLACK_MIN)) * batch * consumer.ppt_s
    return shipping + own_batch + before_it + consumer.ppt_s
