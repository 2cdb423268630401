"""A flow as the optimizer sees it, from what is known of its last epochs.

Times per operator come from the tasks (advisory: a task run twice counts twice), rows and bytes per
edge from the control records. Where epochs differ in size, what they take without rows is told from
what rows take, for the whole and for every operator; else it is what the calibration says, and no
more than an epoch took beside its tasks: the engine may have been cold or busy then. What tasks
take beyond their operators is work on rows too: in slots it is charged to the operators there, by
their rows. All that is left (reading, Arrow, the shuffle) is charged to the sources, so that
predicted and measured epochs agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.control.epoch_pace import arriving_per_s, overhead_s
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epoch_model import EpochModel
from headgate.planner.tuning.rescaler import Load
from headgate.slot.plan import edge_name
from headgate.slot.program import Program
from headgate.topology.graph import Node

APART = 2.0  # large epochs must have so many times the rows of small ones
FEW = 0.1  # of the epochs, which are larger or smaller than those
WARM_UP = 2  # epochs in which workers start and caches fill
GROWTH_MOST = 2.0  # times the rows of an epoch: its cost per row says nothing about more
LEFT_LEAST = 0.25  # of the time, for slots: what source tasks may take of it at most in the demand


@dataclass(frozen=True)
class Measured:
    """The model, the costs with the flow's own overhead per epoch, and what they rest on.

    `rows_per_s` is what busy epochs got through, `arriving_per_s` what came in, waiting included.
    `beside_s` of the model's fixed cost passes between two jobs. `sizes_differ`: what epochs cost
    without rows was measured, and not taken from the calibration.
    """

    model: EpochModel
    epochs: int
    rows_per_s: float
    epoch_s: float
    epoch_rows: int
    arriving_per_s: float
    sizes_differ: bool
    beside_s: float = 0.0

    def job_fixed_s(self, slots: int) -> float:
        """Seconds of an epoch's job without rows."""
        return self.model.fixed_s(slots) - self.beside_s


def measure_flow(
    program: Program,
    epochs: Sequence[EpochFacts],
    costs: EngineCosts,
    cores: int,
    *,
    elastic: bool = False,
) -> Measured:
    """What these epochs say, the first ones left out if there are enough.

    `elastic`: executors follow the slots, so that other slots have other cores.
    """
    told = [e for e in epochs if e.rows > 0]
    slots, there = (told[-1].slots, told[-1].engine.cores) if told else (0, None)
    told = [e for e in told if e.slots == slots and e.engine.cores == there and e.attempts == 1]
    if len(told) > WARM_UP + 1:
        told = told[WARM_UP:]
    if not told:
        raise DeclarationError(
            "no epoch with rows has run, so nothing could be measured; feed the flow and try again"
        )
    rows = sum(e.rows for e in told)
    seconds = sum(e.engine.seconds for e in told)
    flow, instance_s = _flow(program, told, rows / seconds if seconds else 0.0)
    source_tasks = round(float(np.median([e.source_tasks for e in told])))
    jobs = EpochModel(
        flow,
        costs,
        program.levels,
        cores,
        at_source=_at_source(program),
        source_tasks=max(1, source_tasks),
        between_slots=_between_slots(program),
        slots_seen=slots,
        instance_s=instance_s,
        sending=_sending(program),
        elastic=elastic,
    )
    jobs = _with_work_of_tasks(_with_fixed_of(jobs, told, slots), told, slots)
    beside_s = overhead_s(told)
    model = replace(
        jobs,
        flow=_with_engine_work(jobs, told, slots),
        costs=replace(jobs.costs, epoch_s=jobs.costs.epoch_s + beside_s),
    )
    epoch_s = seconds / len(told) + beside_s
    rate = rows / len(told) / epoch_s if epoch_s else 0.0
    return Measured(
        model=model,
        epochs=len(told),
        rows_per_s=rate,
        epoch_s=epoch_s,
        epoch_rows=round(float(np.median([e.rows for e in told]))),
        arriving_per_s=arriving_per_s(told) or rate,
        sizes_differ=tells_apart([e.rows for e in told]),
        beside_s=beside_s,
    )


def _at_source(program: Program) -> frozenset[str]:
    """Sources, and what runs in their tasks: all that takes its rows before an exchange."""
    return frozenset(n.name for n in program.graph.nodes if _is_at_source(program, n))


def _is_at_source(program: Program, node: Node) -> bool:
    return node.kind == "source" or program.rows_level.get(node.id) == 0


def _sending(program: Program) -> frozenset[str]:
    """Streams that send batch tuples; others stay inside a task."""
    graph = program.graph
    return frozenset(edge_name(graph, e) for e in graph.edges if e.exchanges)


def _between_slots(program: Program) -> frozenset[str]:
    """Streams by which rows may go from one slot to another."""
    graph = program.graph
    return frozenset(
        edge_name(graph, e)
        for e in graph.edges
        if e.exchanges and not _is_at_source(program, graph.nodes[e.producer])
    )


def _flow(program: Program, told: Sequence[EpochFacts], rate: float) -> tuple[FlowModel, float]:
    """Steps and streams, and what the operators of a slot take in an epoch without rows."""
    graph = program.graph
    total_rows = sum(e.rows for e in told)
    rows_in = {n.name: _rows_in(n.name, n.kind, told) for n in graph.nodes}
    sizes = [e.rows for e in told]
    lines = {n.name: line_of(sizes, _operator_s(n.name, told)) for n in graph.nodes}
    nested_s = {name: line.row_s * total_rows for name, line in lines.items()}
    instance_s = sum(
        lines[n.name].fixed_s / told[-1].slots for n in graph.nodes if not _is_at_source(program, n)
    )
    steps = []
    for node in graph.nodes:
        if node.kind != "source" and not graph.inputs(node.id):
            continue  # dead letters come from everywhere and cost next to nothing
        spent = nested_s[node.name]
        if node.kind == "source":  # its time holds that of what runs in source tasks
            inner = [n for n in graph.nodes if n.kind != "source" and _is_at_source(program, n)]
            spent = max(0.0, spent - sum(nested_s[n.name] for n in inner))
        ppt_s = spent / rows_in[node.name] if rows_in[node.name] else 0.0
        share = rows_in[node.name] / total_rows if total_rows else 0.0
        steps.append(Step(node.name, ppt_s, rate * share if node.kind == "source" else None))
    streams = []
    for edge in graph.edges:
        producer, consumer = graph.nodes[edge.producer].name, graph.nodes[edge.consumer].name
        counts = [e.edges.get(f"{producer}->{consumer}") for e in told]
        known = [c for c in counts if c is not None]
        local = sum(c.local_rows for c in known)
        remote = sum(c.remote_rows for c in known)
        size = sum(c.local_bytes + c.remote_bytes for c in known)
        crossed = local + remote if known else _passed(program, edge.consumer, rows_in)
        streams.append(
            Stream(
                producer,
                consumer,
                rows_per_row=crossed / rows_in[producer] if rows_in[producer] else 0.0,
                row_bytes=size / crossed if crossed else 0.0,
                remote_share=remote / crossed if known and crossed else 0.0,
            )
        )
    return FlowModel(tuple(steps), tuple(streams)), instance_s


def _passed(program: Program, consumer: int, rows_in: Mapping[str, float]) -> float:
    """Rows of an edge inside a task are not counted: of several inputs each gets an even part."""
    inputs = len(program.graph.inputs(consumer))
    return rows_in[program.graph.nodes[consumer].name] / inputs


def _rows_in(name: str, kind: str, told: Sequence[EpochFacts]) -> float:
    if kind == "source":
        return float(sum(e.source_rows.get(name, 0) for e in told))
    if kind == "sink":
        return float(sum(e.sink_rows.get(name, 0) for e in told))
    return float(sum(e.operator_rows.get(name, 0) for e in told))


def _operator_s(name: str, told: Sequence[EpochFacts]) -> list[float]:
    return [sum(e.operator_ms.get(name, ())) / 1e3 for e in told]


def _with_fixed_of(model: EpochModel, told: Sequence[EpochFacts], slots: int) -> EpochModel:
    """The engine's fixed costs as this flow's epochs show them; their proportions are those of the
    calibration, whose engine may have been colder or busier.
    """
    charged = replace(model, instance_s=0.0).fixed_s(slots)
    if charged == 0:
        return model
    sizes = [e.rows for e in told]
    if tells_apart(sizes):
        operators_s = model.fixed_s(slots) - charged
        seen = line_of(sizes, [e.engine.seconds for e in told]).fixed_s - operators_s
    else:
        beside_tasks = [e.engine.seconds - in_tasks_s(e.engine) for e in told]
        seen = min(charged, float(np.quantile(beside_tasks, 0.25)))
    share = max(0.0, seen) / charged
    costs = replace(
        model.costs,
        epoch_s=model.costs.epoch_s * share,
        level_s=model.costs.level_s * share,
        task_s=model.costs.task_s * share,
    )
    return replace(model, costs=costs)


def in_tasks_s(engine: EngineFacts) -> float:
    """What an epoch's time was spent inside tasks at the least: the longest of every level."""
    return min(engine.seconds, float(sum(engine.levels_ms.values())) / 1e3)


def _with_work_of_tasks(model: EpochModel, told: Sequence[EpochFacts], slots: int) -> EpochModel:
    """Slots' tasks do more than call operators: they open, check, order and route rows."""
    if not all(e.engine.task_ms for e in told):
        return model
    in_tasks = [sum(ms for level, ms in e.engine.task_ms.items() if level) / 1e3 for e in told]
    seen = line_of([e.rows for e in told], in_tasks)
    beyond = seen.row_s - model.work_s(slots)[1]
    rate = model.flow.source_rate or 1.0
    inside = {name for name in model.flow.order if name not in model.at_source}
    taken_in = sum(model.flow.rate_in[name] for name in inside) / rate
    if beyond <= 0 or taken_in == 0:
        return model
    steps = tuple(
        replace(step, ppt_s=step.ppt_s + beyond / taken_in) if step.name in inside else step
        for step in model.flow.steps
    )
    return replace(model, flow=replace(model.flow, steps=steps))


def _with_engine_work(model: EpochModel, told: Sequence[EpochFacts], slots: int) -> FlowModel:
    """Charge what is not explained yet to the sources, per row."""
    rows = sum(e.rows for e in told)
    spent = sum(max(0.0, e.engine.seconds - model.fixed_s(slots)) for e in told)
    at_once = min(model.source_tasks, model.cores)
    extra = max(0.0, spent / rows - model.row_s(slots)) * at_once
    steps = tuple(
        replace(step, ppt_s=step.ppt_s + extra) if step.is_source else step
        for step in model.flow.steps
    )
    return replace(model.flow, steps=steps)


def load_between(before: EpochFacts, after: EpochFacts, fixed_s: float, cores: int) -> Load | None:
    """Rows that came while an epoch ran and until the next began, and what a row cost in it.

    `fixed_s` of its time was for no row, but what tasks took was. Slots have the time that source
    tasks leave: these run first, whatever the slots, and if they are what fills an epoch, more
    slots are no help. None if nothing can be said.
    """
    seconds = (after.now_ms - before.now_ms) / 1e3
    if seconds <= 0 or (before.rows == 0 and after.rows > 0):
        return None
    if after.rows == 0:
        return Load(0.0, 0.0)
    on_rows = max(in_tasks_s(before.engine), before.engine.seconds - fixed_s)
    in_slots = _share_of_slots(before.engine.levels_ms)
    left = max(LEFT_LEAST, 1.0 - on_rows * (1.0 - in_slots) / seconds)
    work = on_rows * in_slots * min(before.slots, cores)
    alike = max(before.rows, after.rows / GROWTH_MOST)
    return Load(after.rows / seconds, work / alike / left)


def _share_of_slots(levels_ms: Mapping[int, float]) -> float:
    """The part of an epoch's time that its slots take, by the longest task of each level."""
    total = sum(levels_ms.values())
    return 1.0 - levels_ms.get(0, 0.0) / total if total > 0 else 1.0


@dataclass(frozen=True)
class EpochLine:
    """Seconds of an epoch: `fixed_s` and `row_s` for each of its rows, neither negative."""

    fixed_s: float
    row_s: float


def tells_apart(rows: Sequence[float]) -> bool:
    """Do sizes differ enough for a line? A single epoch apart from all others is no second size."""
    if len(rows) < 3:
        return False
    small, large = np.quantile(rows, (FEW, 1 - FEW))
    return bool(large >= APART * small)


def line_of(rows: Sequence[float], seconds: Sequence[float]) -> EpochLine:
    """The line through epochs, errors counted in shares of the epoch's own time."""
    x, y = np.asarray(rows, dtype=float), np.asarray(seconds, dtype=float)
    if not tells_apart(rows) or not (y > 0).any():
        return EpochLine(0.0, float(y.sum() / x.sum()))
    from scipy.optimize import nnls  # late: only who tunes needs it

    weight = 1.0 / np.maximum(y, y.max() * 1e-3)
    unit = x.max()
    found, _ = nnls(np.stack([weight, weight * x / unit], axis=1), weight * y)
    return EpochLine(float(found[0]), float(found[1] / unit))
