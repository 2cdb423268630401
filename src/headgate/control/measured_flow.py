"""A flow as the optimizer sees it, from the facts of its last epochs: what everything costs.

Times per operator come from the tasks (advisory: a task run twice counts twice), rows and bytes per
edge from the control records. Where the system tells, an operator's time is what it had of cores
and what it waited for others; standing in line for a core is nobody's work. Where epochs differ in
size, a line through them tells what an epoch takes without rows from what rows take, for the whole
and for every operator; else the calibration says it, and at most what an epoch took beside its
tasks: the engine may have been cold or busy then.

What tasks take beyond their operators is work on rows too: in slots it is charged to the operators
there, by their rows. What levels took, over what the model says of them, shows how uneven slots
are, how crowded the processors, and what a task costs before its first row. The rest (reading,
Arrow, the shuffle) is charged to the sources, as far as rows can be the reason for it. So predicted
and measured epochs agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headgate.commit.facts import EpochFacts
from headgate.control.epoch_lines import EpochLine, line_of, tells_apart
from headgate.control.pace import apart_s, in_tasks_s, overhead_s
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel
from headgate.slot.plan import edge_name
from headgate.slot.program import Program, is_ordered
from headgate.topology.graph import Node

WARM_UP = 2  # epochs in which workers start and caches fill
STRETCH_MOST = 4.0  # times what even slots would take
OPENING_MOST_S = 0.005  # of a core, for an instance of an operator with state, without its rows
TASK_MOST_S = 0.01  # of a core, for a task beside its operators; 3 to 9 ms were measured
BEFORE_MOST_S = 0.02  # what a task takes before its first row, unless epochs show that it is more
DOUBT = 0.2  # weight of "no stretch, and nothing before the first row" against what is measured
CORRECTION = (0.5, 2.0)  # what predicted epochs may be off by, and still be worth anything


@dataclass(frozen=True)
class Measured:
    """The model, the costs with the flow's own overhead per epoch, and what they rest on.

    `rows_per_s` is what busy epochs got through, `arriving_per_s` what came in, waiting included.
    `beside_s` of the model's fixed cost passes between two jobs. `sizes_differ`: what epochs cost
    without rows was measured, and not taken from the calibration. `rows` is a mean epoch's.
    """

    model: EpochModel
    epochs: int
    rows_per_s: float
    arriving_per_s: float
    sizes_differ: bool
    beside_s: float = 0.0
    rows: float = 0.0

    def job_fixed_s(self, slots: int, instances: Mapping[str, int] | None = None) -> float:
        """Seconds of an epoch's job without rows."""
        return self.model.fixed_s(slots, instances) - self.beside_s


def measure_flow(
    program: Program,
    epochs: Sequence[EpochFacts],
    costs: EngineCosts,
    cores: int,
    *,
    elastic: bool = False,
    given: Mapping[str, int] | None = None,
    every_s: float = 0.0,
) -> Measured:
    """What these epochs say, the first ones left out if there are enough.

    `elastic`: executors follow the slots, so that other slots have other cores. `given`: instances
    that operators were given, beside those declared. `every_s`: the trigger's interval.
    """
    seen = [e for e in epochs if e.rows > 0]
    if seen:
        last = seen[-1]
        seen = [e for e in seen if _alike(e, last) and e.attempts == 1]
    if len(seen) > WARM_UP + 1:
        seen = seen[WARM_UP:]
    seen = [e for e in seen if not e.moving_ms] or seen
    if not seen:
        raise DeclarationError(
            "no epoch with rows has run, so nothing could be measured; feed the flow and try again"
        )
    sizes = [e.rows for e in seen]
    rows, seconds = sum(sizes), sum(e.engine.seconds for e in seen)
    view = _View(program, seen, given or {})
    model = EpochModel(
        view.flow(rows / seconds if seconds else 0.0),
        costs,
        program.levels,
        cores,
        cpus=seen[-1].engine.cpus,
        source_tasks=max(1, round(float(np.median([e.source_tasks for e in seen])))),
        slots_seen=last.slots,
        instances_seen=instances_of(last),
        elastic=elastic,
        every_s=every_s,
        full_levels=view.full_levels,
    )
    model = _with_fixed_of(model, seen)
    model = _with_work_of_tasks(model, seen)
    model = _with_levels_of(model, seen)
    model = _with_engine_work(model, seen)
    beside_s = overhead_s(seen)
    costs = replace(model.costs, epoch_s=model.costs.epoch_s + beside_s / model.correction)
    epoch_s = seconds / len(seen) + beside_s
    rate = rows / len(seen) / epoch_s if epoch_s else 0.0
    passed = apart_s(seen[0], seen[-1])
    return Measured(
        model=replace(model, costs=costs),
        epochs=len(seen),
        rows_per_s=rate,
        arriving_per_s=(sum(sizes[:-1]) / passed if passed > 0 else 0.0) or rate,
        sizes_differ=tells_apart(sizes),
        beside_s=beside_s,
        rows=rows / len(seen),
    )


def instances_of(epoch: EpochFacts) -> dict[str, int]:
    """How many instances the operators have that are in some slots only."""
    return {op: len(slots) for op, slots in epoch.instances.items()}


def _alike(one: EpochFacts, other: EpochFacts) -> bool:
    """Did they run on the same cores, with the same slots and instances?"""
    same = one.slots == other.slots and one.engine.cores == other.engine.cores
    return same and one.instances == other.instances


def _names(program: Program) -> dict[int, str]:
    """Every node's name, in which a sink differs from an operator or a source of its name."""
    others = {node.name for node in program.graph.nodes if node.kind != "sink"}
    return {
        n.id: f"{n.name} (sink)" if n.kind == "sink" and n.name in others else n.name
        for n in program.graph.nodes
    }


def _rows(node: Node, epoch: EpochFacts) -> int:
    if node.kind == "source":
        return epoch.source_rows.get(node.own_name, 0)
    counted = epoch.sink_rows if node.kind == "sink" else epoch.operator_rows
    return counted.get(node.name, 0)


class _View:
    """The flow's graph with what was counted on it."""

    def __init__(
        self, program: Program, seen: Sequence[EpochFacts], given: Mapping[str, int]
    ) -> None:
        self._program, self._seen, self._given = program, seen, given
        self._names = _names(program)
        self._nodes = {self._names[node.id]: node for node in program.graph.nodes}
        self._folded = {
            n.name for n in program.stateful if program.graph.key_grouping(n.id) == "partial"
        } | set(seen[-1].split)
        self._rows = {
            n: float(sum(_rows(node, e) for e in seen)) for n, node in self._nodes.items()
        }
        self._at_source = self._in_source_tasks()

    @property
    def full_levels(self) -> frozenset[int]:
        """Where owners of folded rows merge them: every slot has some."""
        depth = self._program.depth
        return frozenset(max(1, depth[self._nodes[name].id]) for name in self._folded)

    def flow(self, rate: float) -> FlowModel:
        graph, total = self._program.graph, sum(e.rows for e in self._seen)
        times = self._with_own_times({name: self._times(name) for name in self._nodes})
        inside = _sum(times[n] for n in self._at_source if self._nodes[n].kind != "source")
        steps = []
        for name, node in self._nodes.items():
            source = node.kind == "source"
            if not source and not graph.inputs(node.id):
                continue  # dead letters come from everywhere and cost next to nothing
            # A source's time holds that of what runs in its tasks.
            spent = times[name].less(inside) if source else times[name]
            rows, share = self._rows[name], self._rows[name] / total if total else 0.0
            per_row = total / rows if rows else 0.0
            steps.append(
                Step(
                    name,
                    spent.row_s * per_row,
                    rate * share if source else None,
                    at_source=name in self._at_source,
                    wait_s=spent.wait_s * per_row,
                    instance_s=0.0 if name in self._at_source else spent.instance_s,
                    instances=self._fixed(node),
                    everywhere=self._is_everywhere(node),
                    ordered=is_ordered(node),
                )
            )
        return FlowModel(tuple(steps), tuple(self._streams()))

    # --- inside ----------------------------------------------------------------------------
    def _in_source_tasks(self) -> set[str]:
        graph, found = self._program.graph, set[str]()
        for node in self._program.order:
            inputs = graph.inputs(node.id)
            before = all(self._names[e.producer] in found for e in inputs)
            early = self._program.rows_level.get(node.id) == 0
            name = self._names[node.id]
            if node.kind == "source" or early or (name in self._folded and inputs and before):
                found.add(name)
        return found

    def _fixed(self, node: Node) -> int | None:
        """Instances that are not to be chosen."""
        kinds = {e.grouping.kind for e in self._program.graph.inputs(node.id)}
        if "global" in kinds:
            return 1
        return self._given.get(self._names[node.id], node.parallelism)

    def _is_everywhere(self, node: Node) -> bool:
        kinds = {e.grouping.kind for e in self._program.graph.inputs(node.id)}
        return self._names[node.id] in self._folded or "all" in kinds

    def _times(self, name: str) -> _OperatorTimes:
        """An operator's seconds per source row, on cores and waiting, and those of an instance."""
        rows = [e.rows for e in self._seen]
        by_slot = [e.operator_ms.get(name, ()) for e in self._seen]
        count = max(1, *(sum(ms > 0 for ms in slots) for slots in by_slot))
        if all(e.operator_cpu_ms for e in self._seen):
            cpu = line_of(rows, [e.operator_cpu_ms.get(name, 0.0) / 1e3 for e in self._seen])
            wait = line_of(rows, [e.operator_wait_ms.get(name, 0.0) / 1e3 for e in self._seen])
        else:  # who did not tell may have waited for a core: that is work of the machine
            cpu = line_of(rows, [sum(slots) / 1e3 for slots in by_slot])
            wait = EpochLine(0.0, 0.0)
        fixed_s = cpu.fixed_s + wait.fixed_s
        return _OperatorTimes(cpu.row_s + wait.row_s, wait.row_s, fixed_s / count)

    def _with_own_times(self, times: dict[str, _OperatorTimes]) -> dict[str, _OperatorTimes]:
        """Epochs of one size do not show what an instance takes however few its rows are. To open
        and commit its state takes any operator about as long: no longer than the one that takes
        least for everything, and not for long.
        """
        rows = [e.rows for e in self._seen]
        if tells_apart(rows) or not all(e.operator_cpu_ms for e in self._seen):
            return times
        slots, last = self._seen[-1].slots, self._seen[-1].instances
        many = {
            node.name: len(last.get(node.name, range(slots))) / float(np.mean(rows))
            for node in self._program.stateful
            if node.name not in self._at_source and times[node.name].row_s > 0
        }
        own_s = min(
            ((times[name].row_s - times[name].wait_s) / each for name, each in many.items()),
            default=0.0,
        )
        own_s = min(max(own_s, 0.0), OPENING_MOST_S)
        changed = {
            name: _OperatorTimes(times[name].row_s - own_s * each, times[name].wait_s, own_s)
            for name, each in many.items()
        }
        return times | changed

    def _streams(self) -> list[Stream]:
        graph, found = self._program.graph, []
        for edge in graph.edges:
            producer, consumer = self._names[edge.producer], self._names[edge.consumer]
            name, sink = edge_name(graph, edge), graph.nodes[edge.consumer].kind == "sink"
            known = [] if sink else [e.edges[name] for e in self._seen if name in e.edges]
            crossed, remote = float(sum(c.rows for c in known)), sum(c.remote_rows for c in known)
            if not known:  # in a task rows are not counted: of several inputs each gets its part
                crossed = self._rows[consumer] / len(graph.inputs(edge.consumer))
            size = sum(c.local_bytes + c.remote_bytes for c in known)
            before = self._rows[producer]
            sends = edge.exchanges and consumer not in self._folded
            found.append(
                Stream(
                    producer,
                    consumer,
                    rows_per_row=crossed / before if before else 0.0,
                    row_bytes=size / crossed if crossed else 0.0,
                    remote_share=remote / crossed if crossed else 0.0,
                    sends=sends,
                    between_slots=sends and producer not in self._at_source,
                )
            )
        return found


class _OperatorTimes(NamedTuple):
    """Seconds per source row, what of it waits, and of an instance without rows."""

    row_s: float
    wait_s: float
    instance_s: float

    def less(self, others: _OperatorTimes) -> _OperatorTimes:
        row_s = max(0.0, self.row_s - others.row_s)
        return _OperatorTimes(row_s, min(row_s, max(0.0, self.wait_s - others.wait_s)), 0.0)


def _sum(times: Iterable[_OperatorTimes]) -> _OperatorTimes:
    every = [_OperatorTimes(0.0, 0.0, 0.0), *times]
    return _OperatorTimes(*(float(sum(part)) for part in zip(*every, strict=True)))


def _with_fixed_of(model: EpochModel, seen: Sequence[EpochFacts]) -> EpochModel:
    """The engine's fixed costs as this flow's epochs show them; their proportions are those of the
    calibration, whose engine may have been another, colder or busier.

    Epochs of one size show what passes beside their tasks. That is fixed, but for messages.
    """
    slots, instances = model.slots_seen, model.instances_seen
    charged = model.engine_s(slots, instances)
    if charged == 0:
        return model
    sizes, times = [e.rows for e in seen], [e.engine.seconds for e in seen]
    if tells_apart(sizes):
        found = line_of(sizes, times).fixed_s - (model.fixed_s(slots, instances) - charged)
    else:
        sending_s = model.seen(sizes).sending_s / model.cpus_for(slots)
        beside_s = np.array(times) - [in_tasks_s(e.engine) for e in seen] - sending_s
        found = float(np.quantile(beside_s, 0.25))
        if not all(e.engine.levels_ms for e in seen):
            found = min(charged, found)
    share, costs = max(0.0, found) / charged, model.costs
    fixed = {name: share * getattr(costs, name) for name in ("epoch_s", "level_s", "task_s")}
    return replace(model, costs=replace(costs, **fixed))


def _with_work_of_tasks(model: EpochModel, seen: Sequence[EpochFacts]) -> EpochModel:
    """Slots' tasks do more than call operators: they open, check, order and route rows.

    Where epochs of one size do not tell, it is taken for what every task needs, up to a limit.
    """
    if not all(e.engine.task_ms for e in seen):
        return model
    told = all(e.engine.task_cpu_ms for e in seen)
    spent = [e.engine.task_cpu_ms if told else e.engine.task_ms for e in seen]
    in_tasks = [sum(ms for level, ms in by_level.items() if level) / 1e3 for by_level in spent]
    rows = [float(e.rows) for e in seen]
    times = model.seen(rows)
    count = model.times(model.slots_seen).exactly(model.instances_seen)
    known = (times.cpu_s if told else times.busiest_s * count).sum(axis=0)
    beyond = max(0.0, line_of(rows, in_tasks).row_s - line_of(rows, known).row_s)
    if not tells_apart(rows) and count.sum():
        each_s = min(beyond * float(np.mean(rows)) / float(count.sum()), TASK_MOST_S)
        beyond -= each_s * float(count.sum()) / float(np.mean(rows))
        model = _with_instance_time(model, each_s)
    inside = {step.name for step in model.flow.steps if not step.in_source_tasks}
    total = sum(model.rows_into(name) for name in inside)
    return _charged(model, inside, beyond / total) if beyond > 0 and total else model


def _with_instance_time(model: EpochModel, each_s: float) -> EpochModel:
    """The model with so much more time of every instance of a group, however few its rows."""
    heads = {group.name for group in model.groups.of}
    steps = tuple(
        replace(step, instance_s=step.instance_s + each_s) if step.name in heads else step
        for step in model.flow.steps
    )
    return replace(model, flow=replace(model.flow, steps=steps))


def _with_levels_of(model: EpochModel, seen: Sequence[EpochFacts]) -> EpochModel:
    """How much longer levels take than even slots would, and what they take before the first row.

    The two are told apart by levels and epochs with more and with less work. In doubt it is a bit
    of both: what is not known is drawn to no stretch, and no time before the first row.
    """
    levels = model.times(model.slots_seen).levels
    if not levels or not all(e.engine.levels_ms for e in seen):
        return model
    rows = [float(e.rows) for e in seen]
    x = model.seen(rows).levels_s.ravel()
    y = np.array([[e.engine.levels_ms.get(n, 0.0) / 1e3 for e in seen] for n in levels]).ravel()
    if not (x > 0).any():
        return model
    from scipy.optimize import nnls  # late: only who tunes needs it

    unit, many = float(x.max()), np.sqrt(len(x))
    lines = [np.stack([np.ones_like(x), x / unit], axis=1) / many, DOUBT * np.eye(2)]
    (before_s, stretch), _ = nnls(np.concatenate(lines), np.append(y / many, [0.0, DOUBT * unit]))
    if not tells_apart(rows):
        before_s = min(before_s, BEFORE_MOST_S)
    stretch = min(max(stretch / unit, 1.0), STRETCH_MOST)
    costs = replace(model.costs, level_s=model.costs.level_s + float(before_s))
    return replace(model, costs=costs, stretch=float(stretch))


def _with_engine_work(model: EpochModel, seen: Sequence[EpochFacts]) -> EpochModel:
    """Charge what is not explained yet to the sources, per row; too much is taken off of all.

    Where epochs of one size do not tell rows from the rest, work on rows outside of tasks is no
    more than inside, and what is left passes in every epoch: a few rows do not take a second.
    """
    rows = [e.rows for e in seen]
    spent, predicted = sum(e.engine.seconds for e in seen), float(model.seen(rows).epoch_s.sum())
    if spent < predicted:
        low, high = CORRECTION
        return replace(model, correction=min(max(spent / predicted, low), high))
    on_rows = spent - predicted
    if not tells_apart(rows) and all(e.engine.levels_ms for e in seen):
        on_rows = min(on_rows, sum(in_tasks_s(e.engine) for e in seen))
    fixed_s = (spent - predicted - on_rows) / len(seen)
    model = replace(model, costs=replace(model.costs, epoch_s=model.costs.epoch_s + fixed_s))
    sources = {step.name for step in model.flow.steps if step.is_source}
    tasks = min(model.source_tasks, model.cpus_for(model.slots_seen))
    return _charged(model, sources, on_rows / sum(rows) * tasks)


def _charged(model: EpochModel, names: set[str], row_s: float) -> EpochModel:
    """The model with so much more time per row in some steps."""
    steps = tuple(
        replace(step, ppt_s=step.ppt_s + row_s) if step.name in names else step
        for step in model.flow.steps
    )
    return replace(model, flow=replace(model.flow, steps=steps))
