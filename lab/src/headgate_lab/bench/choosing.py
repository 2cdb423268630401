"""What the optimizer makes of a flow that a probe has measured: a setting, and what it promises.

Rows come evenly while latency is measured, and the flow is busy `LOAD` of the time
(`flow_runs.run_steadily`). So a row waits for its epoch to be complete, 95 % of rows for at most
95 % of the time between two epochs, and then for its own epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headgate.control.measured_flow import Measured
from headgate.control.proving import prove
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.planner.tuning.tuned import tune_epochs
from headgate_lab.bench.flow_runs import LOAD, Ground, Setting
from headgate_lab.bench.probing import Known, again
from headgate_lab.bench.tune_flows import BenchFlow


@dataclass(frozen=True)
class Expected:
    """Of epochs with some setting."""

    rows_per_s: float
    epoch_s: float
    latency_p95_ms: float
    fixed_s: float


@dataclass(frozen=True)
class Chosen:
    """The optimizer's setting; `tuned` has its reasons. `tries` settings were probed for it."""

    setting: Setting
    tuned: TunedEpochs
    tries: int = 0


def choose(
    ground: Ground,
    flow: BenchFlow,
    known: Known,
    probe_rows: tuple[int, ...],
    *,
    rows_max: int,
    max_slots: int | None = None,
) -> tuple[Chosen, Known]:
    """Settings for a backlog, as fast as it gets, and what is known once they were probed too."""

    def wish(model: EpochModel, kept: EpochSettings | None = None) -> TunedEpochs:
        slots, instances = (None, None) if kept is None else (kept.slots, kept.instances)
        return tune_epochs(
            model, rows_max=rows_max, max_slots=max_slots, slots=slots, instances=instances
        )

    def probe(slots: int, instances: Mapping[str, int]) -> Measured:
        nonlocal known
        known = again(ground, flow, known, Setting(slots, None, 0, instances), probe_rows)
        return known.measured

    proved = prove(known.measured, wish, probe)
    chosen = proved.tuned.settings
    batch, instances = dict(chosen.batch_rows), dict(chosen.instances)
    setting = Setting(chosen.slots, batch, chosen.rows_per_epoch, instances)
    return Chosen(setting, proved.tuned, proved.tries), replace(known, measured=proved.measured)


def parallelism_of(flow: BenchFlow, setting: Setting) -> dict[str, int]:
    """Instances of every operator; sources and sinks are none.

    A global one has one instance, and what gets its rows in memory is where these come from.
    """
    graph = flow.program.graph
    found: dict[str, int] = {}
    for node in flow.program.order:
        inputs = graph.inputs(node.id)
        if node.kind in ("source", "sink"):
            continue
        if any(edge.grouping.kind == "global" for edge in inputs):
            found[node.name] = 1
        elif any(edge.grouping.exchanges for edge in inputs):
            found[node.name] = setting.parallelism.get(node.name, setting.slots)
        else:
            producers = (graph.nodes[edge.producer].name for edge in inputs)
            found[node.name] = max(found.get(name, setting.slots) for name in producers)
    return found


def expect(model: EpochModel, setting: Setting) -> Expected:
    """What the optimizer's model says of any setting."""
    batch = setting.batch
    if isinstance(batch, int):
        batch = {stream.name: batch for stream in model.flow.streams}
    counts = {**model.alike(setting.slots), **setting.parallelism}
    settings = EpochSettings(setting.slots, setting.rows_per_epoch, batch or {}, counts)
    told = model.predict(settings)
    return Expected(told.rows_per_s, told.epoch_s, 1e3 * p95_s(told.epoch_s), told.fixed_s)


def p95_s(epoch_s: float) -> float:
    """Of the latency of rows that come evenly."""
    return (0.95 / LOAD + 1.0) * epoch_s
