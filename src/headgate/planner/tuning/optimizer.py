"""TopologyOptimizer: a batch size and a degree of parallelism for every step (Sax et al. 2013).

Algorithm 1 walks from the sources. A producer's batch is the smallest that lets it ship as fast as
rows come in (equation 2), at most B_max; if that is not enough it gets more instances. That gives
its output rate (equation 3), which is the input rate of its consumers, and each consumer gets the
fewest instances that keep up with it (equation 4). Every step and stream is looked at once.

The paper leaves out how many rows a step makes of one; here a step has rows_per_row for each
output, and with one output of one row per row the equations are the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.planner.tuning.cost_model import ROUNDING, EngineCosts, FlowModel, Stream
from headgate.planner.tuning.prediction import (
    Configuration,
    Prediction,
    predict,
    processing_s,
    row_s,
)


@dataclass(frozen=True)
class Choice:
    """What was chosen for a step, what it will see (all instances), and why."""

    name: str
    dop: int
    batch_rows: int
    rate_in: float
    rate_out: float
    busy: float
    why: str


@dataclass(frozen=True)
class Tuned:
    """A configuration explained. `bottleneck` is the step that needs most, or holds all back."""

    choices: tuple[Choice, ...]
    prediction: Prediction
    bottleneck: str
    why: str

    @property
    def configuration(self) -> Configuration:
        return Configuration(
            {c.name: c.dop for c in self.choices}, {c.name: c.batch_rows for c in self.choices}
        )

    def stream_batch_rows(self, flow: FlowModel, costs: EngineCosts) -> dict[str, int]:
        """Batch rows per stream, "producer->consumer", within what fits in a message of it."""
        batch = self.configuration.batch_rows
        return {
            f"{s.producer}->{s.consumer}": min(batch[s.producer], costs.batch_rows_max(s.row_bytes))
            for s in flow.streams
        }

    def explain(self) -> list[str]:
        """A line per step and one for the whole."""
        lines = [
            f"{c.name}: {c.dop} instance{'s' if c.dop > 1 else ''}, batches of {c.batch_rows}; "
            f"{c.rate_in:,.0f} rows/s in, {c.rate_out:,.0f} out, busy {c.busy:.0%}. {c.why}"
            for c in self.choices
        ]
        told = (
            f"{self.prediction.rows_per_s:,.0f} rows/s, {self.prediction.latency_s * 1e3:,.1f} ms"
        )
        return [*lines, f"bottleneck: {self.bottleneck}. {self.why} Predicted {told}"]


def optimize(flow: FlowModel, costs: EngineCosts) -> Tuned:
    """The paper's optimizer: no limit on instances."""
    dop = {s.name: s.source_dop for s in flow.steps if s.is_source}
    batch: dict[str, int] = {}
    served: dict[str, float] = {}  # rows per second that a step takes in, at most what comes
    why: dict[str, str] = {}
    for name in flow.order:
        step, outputs = flow.step[name], flow.outputs[name]
        if step.source_rate is not None:
            rate, why[name] = step.source_rate, "rate and dop are given"
        else:
            rate = sum(served[s.producer] * s.rows_per_row for s in flow.inputs[name])
            dop[name] = instances_for(rate, step.ppt_s)
            why[name] = f"ppt {step.ppt_s * 1e6:,.3g} us x rate = {rate * step.ppt_s:.3g}"
        largest = max((costs.batch_rows_max(s.row_bytes) for s in outputs), default=1)
        wanted = batch_rows_for(dop[name], rate, processing_s(step), outputs, costs)
        batch[name] = min(wanted, largest)
        if batch[name] > 1:
            full = ", all that fit in a message" if wanted > largest else ""
            why[name] += f"; single rows ship slower than they come, {batch[name]} share n{full}"
        busy_s = row_s(flow, name, costs, batch[name])
        if rate * busy_s > dop[name] * (1 + ROUNDING) and not step.is_source:
            dop[name] = math.ceil(rate * busy_s * (1 - ROUNDING))
            why[name] += f"; with shipping it needs {dop[name]}"
        served[name] = rate if busy_s <= 0 else min(rate, dop[name] / busy_s)
        if served[name] < rate * (1 - ROUNDING):
            why[name] += f"; ships only {served[name]:,.0f} of {rate:,.0f} rows/s"
    return explained(flow, costs, Configuration(dop, batch), why)


def batch_rows_for(
    dop: int, rate: float, ppt_s: float, outputs: tuple[Stream, ...], costs: EngineCosts
) -> int:
    """Equation 2: the smallest batch with which an instance is done before its next row is due.

    Streams of large rows may have to do with smaller batches than others; their part of n is then
    fixed. If no batch does it, the answer is larger than any message can be.
    """
    if rate <= 0 or not outputs:
        return 1
    left = dop / rate - ppt_s - sum(s.shipped_per_row * s.row_bytes for s in outputs) * costs.byte_s
    messages = sum(s.shipped_per_row for s in outputs) * costs.message_s
    largest = 1
    for stream in sorted(outputs, key=lambda s: -s.row_bytes):
        wanted = max(largest, _least_batch(messages, left, costs.message_bytes_max + 1))
        largest = costs.batch_rows_max(stream.row_bytes)
        if wanted <= largest:
            return wanted
        own = stream.shipped_per_row * costs.message_s
        messages -= own
        left -= own / largest
    return costs.message_bytes_max + 1


def _least_batch(messages: float, left: float, most: int) -> int:
    if messages <= left * (1 + ROUNDING):
        return 1
    if left * most <= messages:
        return most
    return max(1, math.ceil(messages / left * (1 - ROUNDING)))


def instances_for(rate: float, ppt_s: float) -> int:
    """Equation 4: the fewest instances that are more than ppt x rate."""
    return max(1, math.floor(rate * ppt_s * (1 + ROUNDING)) + 1)


def explained(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    why: dict[str, str],
    cores: float | None = None,
) -> Tuned:
    """A configuration with what is predicted of it and the reasons given."""
    told = predict(flow, costs, configuration, cores)
    choices = tuple(
        Choice(
            name,
            configuration.dop[name],
            configuration.batch_rows[name],
            told.steps[name].rate_in,
            told.steps[name].rate_out,
            told.steps[name].busy,
            why[name],
        )
        for name in flow.order
    )
    return Tuned(choices, told, *_bottleneck(flow, configuration, told, cores))


def _bottleneck(
    flow: FlowModel, configuration: Configuration, told: Prediction, cores: float | None
) -> tuple[str, str]:
    """Who holds the flow back; if nobody does, who needed most instances not to."""
    if told.share < 1 - ROUNDING:
        lost = f"only {told.share:.0%} of the sources' rate gets through."
        busy = sum(s.busy * configuration.dop[n] for n, s in told.steps.items())
        if cores is not None and busy >= cores * (1 - 1e-6):
            heaviest = max(flow.order, key=lambda n: told.steps[n].busy * configuration.dop[n])
            return heaviest, f"All {cores:g} cores are busy, most with {heaviest}; {lost}"
        return told.limit, f"Its {configuration.dop[told.limit]} are always busy; {lost}"
    heaviest = max(flow.order, key=lambda n: told.steps[n].busy * configuration.dop[n])
    return heaviest, f"It has the most work, shared by {configuration.dop[heaviest]}; all keep up."
