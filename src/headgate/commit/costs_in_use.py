"""The cost models of a flow's cost-aware shuffles: stored, learnt from its epochs, committed.

The instances themselves decide, in their tasks, when to send what they have measured
(`slot/cost_memory.py`). Only then does the plan's frozen copy change: a new model is saved, the
next epoch's tasks read it, and the manifest names it, so a restart begins with it. Models hold real
times only, per instance, and no epoch inherits a queue. So the paper's synchronisation, which
settles old debts of estimated against real time, is the speed of an instance here.

What a slot has to do besides, in the level in which it has the rows of the shuffle, is what it had
to do in the last epochs. Slots begin with that; each of several schedulers takes its share of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headgate.arrays import I64
from headgate.commit.facts import CostFacts
from headgate.commit.measuring import Measuring
from headgate.commit.renumbering import in_order
from headgate.errors import StateFileError
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.slot.cost_timing import chains
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.report import Timing
from headgate.slot.statistics import TaskStatistics
from headgate.state.named_table import read_table, write_table
from headgate.state.storage import Storage

log = logging.getLogger("headgate")


NEWEST = 0.5  # how much the last epoch says of what slots will do besides


class CostFiles:
    """Saves and loads cost models; keeps each operator's last one."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._known: dict[str, tuple[str, CostModel]] = {}

    def save(self, operator: str, model: CostModel) -> str:
        name = write_table(self.storage, operator, model.to_arrow(fitted=True))
        self._known[operator] = name, model
        return name

    def load(self, name: str) -> CostModel:
        operator = name.rsplit("-", 1)[0]
        known, model = self._known.get(operator, ("", None))
        if known != name or model is None:
            model = CostModel.from_arrow(read_table(self.storage, name, "cost model"))
            self._known[operator] = name, model
        return model


class CostsAsAsked(Mapping[str, CostModel]):
    """A plan's models, each read when a task first asks for it: most tasks only run rows.

    They are advice, so a task can do without one that cannot be read. Another attempt that has it
    may send rows elsewhere; custody notices, and the epoch is run again.
    """

    def __init__(self, files: CostFiles, names: Mapping[str, str]) -> None:
        self._files, self._names = files, names
        self._found: dict[str, CostModel | None] = {}

    def __getitem__(self, operator: str) -> CostModel:
        if operator not in self._found:
            try:
                self._found[operator] = self._files.load(self._names[operator])
            except StateFileError:
                self._found[operator] = None
        model = self._found[operator]
        if model is None:
            raise KeyError(operator)
        return model

    def __iter__(self) -> Iterator[str]:
        return (operator for operator in self._names if operator in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class CostsInUse:
    """Models by operator and their files; what slots do besides."""

    def __init__(self, program: Program, files: CostFiles, stored: Mapping[str, str]) -> None:
        self._files = files
        self._shapes = cost_shapes(program)
        self._chains = chain_names(program) if self._shapes else {}
        self.models: dict[str, CostModel] = {}
        self.names: dict[str, str] = {}
        self.beside_ms: dict[str, tuple[float, ...]] = {}
        self._sent: Counter[str] = Counter()
        self._measuring = {op: Measuring(always=op in _papers(program)) for op in self._shapes}
        self.damaged: dict[str, StateFileError] = {}
        for operator, name in stored.items():
            if operator in self._shapes:
                self._adopt(operator, name)

    def fit(self, slots: int) -> None:
        """Make the models those of so many slots; new slots count as mean ones."""
        for operator, model in self.models.items():
            if model.instances != slots:
                self._use(operator, model.resized(slots))
                self._measuring[operator].wanted = True
        self.beside_ms = {op: b for op, b in self.beside_ms.items() if len(b) == slots}

    @property
    def unmeasured(self) -> frozenset[str]:
        """Operators whose rows the next epoch need not measure by value."""
        due = {op for op, chosen in self._measuring.items() if chosen.is_due(self.models.get(op))}
        return frozenset(self._shapes) - due

    def renumber(self, order: I64) -> None:
        """Slot `order[i]` is called i from now on."""
        for operator, model in self.models.items():
            if model.instances == len(order):
                renumbered = [model.sketches[slot] for slot in order.tolist()]
                self._use(operator, CostModel.of(renumbered, model.former))
        self.beside_ms = {op: in_order(ms, order) for op, ms in self.beside_ms.items()}

    def observe(
        self, statistics: Iterable[TaskStatistics], slots: int, timings: Sequence[Timing] = ()
    ) -> None:
        """Take in what an epoch's instances sent, and what their slots did besides."""
        sent: dict[str, dict[int, CostSketch]] = {}
        for task in statistics:
            for operator, sketch in task.costs.items():
                sent.setdefault(operator, {})[task.slot] = sketch
                self._sent[operator] += 1
        for operator, by_slot in sent.items():
            shape, model = self._shapes[operator], self.models.get(operator)
            if model is None:
                model = CostModel.of([CostSketch(shape)] * slots)
            known, former = list(model.sketches), model.former
            for slot, sketch in by_slot.items():
                if sketch.rows < known[slot].rows:  # it started over, for times have changed
                    former = CostSketch(shape)
                known[slot] = sketch
            self._use(operator, CostModel.of(known, former))
        for operator, (chain, producers) in self._chains.items():
            now = beside(timings, operator, chain, producers, slots)
            before = self.beside_ms.get(operator, now)
            self.beside_ms[operator] = tuple(
                round(NEWEST * a + (1 - NEWEST) * b, 3) for a, b in zip(now, before, strict=True)
            )

    def judge(
        self, plan: EpochPlan, facts: Mapping[str, CostFacts], statistics: Iterable[TaskStatistics]
    ) -> None:
        """Whether times were as expected: if not, the next epoch is measured."""
        unsettled = {operator for task in statistics for operator in task.unsettled}
        for operator, chosen in self._measuring.items():
            measured = operator not in plan.unmeasured
            chosen.observe(facts[operator], measured=measured, unsettled=operator in unsettled)

    def record(
        self, plan: EpochPlan, total: Control, statistics: Iterable[TaskStatistics]
    ) -> dict[str, CostFacts]:
        """Per operator, estimated and measured milliseconds of every slot."""
        facts, slots = {}, range(plan.slots)
        spent = spent_by_slot(statistics)
        for operator in self._shapes:
            estimated, real = total.estimated_us.get(operator, {}), spent.get(operator, {})
            model = plan.costs.get(operator)
            facts[operator] = CostFacts(
                estimated_ms=tuple(
                    estimated.get(str(s), 0) / 1000 if model else None for s in slots
                ),
                measured_ms=tuple(round(real.get(s, (0, 0.0))[1], 3) for s in slots),
                rows=tuple(real.get(s, (0, 0.0))[0] for s in slots),
                speed=None if model is None else tuple(round(x, 3) for x in model.speed.tolist()),
                sketches_sent=self._sent[operator],
                beside_ms=None if model is None else plan.beside_ms.get(operator),
            )
        return facts

    def _use(self, operator: str, model: CostModel) -> None:
        self.models[operator] = model
        self.names[operator] = self._files.save(operator, model)

    def _adopt(self, operator: str, name: str) -> None:
        """Begin with a stored model; it is advice, so one that does not fit is left out."""
        try:
            model = self._files.load(name)
        except StateFileError as problem:
            log.warning("%s; costs are measured anew", problem)
            self.damaged[operator] = problem
            return
        if model.shape != self._shapes[operator]:
            return
        self.models[operator], self.names[operator] = model, name


def spent_by_slot(
    statistics: Iterable[TaskStatistics],
) -> dict[str, dict[int, tuple[int, float]]]:
    """Rows and milliseconds of an epoch's tasks, by operator and slot, levels added up."""
    found: dict[str, dict[int, tuple[int, float]]] = {}
    for task in statistics:
        for operator, (rows, ms) in task.spent.items():
            by_slot = found.setdefault(operator, {})
            before = by_slot.get(task.slot, (0, 0.0))
            by_slot[task.slot] = before[0] + rows, before[1] + ms
    return found


def beside(
    timings: Sequence[Timing], operator: str, chain: set[str], producers: set[str], slots: int
) -> tuple[float, ...]:
    """What slots did besides an operator's chain in the level in which it had most rows, per task
    that scheduled its rows, in milliseconds.
    """
    rows: Counter[int] = Counter()
    for timing in timings:
        if timing.name == operator:
            rows[timing.level] += timing.rows
    spent_ms = [0.0] * slots
    if not rows:
        return tuple(spent_ms)
    level = max(rows, key=lambda at: (rows[at], -at))
    schedulers = {t[:2] for t in timings if t.level < level and t.name in producers}
    for timing in timings:
        if timing.level == level and timing.name not in chain and not timing.is_moving:
            spent_ms[timing.producer] += timing.nanoseconds / 1e6 / max(1, len(schedulers))
    return tuple(spent_ms)


def chain_names(program: Program) -> dict[str, tuple[set[str], set[str]]]:
    """By operator behind a cost-aware shuffle: its chain, and the operators it has rows from."""
    nodes, found = program.graph.nodes, chains(program)
    named: dict[str, tuple[set[str], set[str]]] = {}
    for head in set(found.values()):
        chain = {nodes[node].name for node, of in found.items() if of == head}
        producers = {nodes[edge.producer].name for edge in program.graph.inputs(head)}
        named[nodes[head].name] = chain, producers
    return named


def _papers(program: Program) -> set[str]:
    """Operators that get their rows as in the paper, whose instances measure whatever they do."""
    edges = [edge for edge in program.graph.edges if edge.grouping.kind == "cost"]
    nodes = program.graph.nodes
    return {nodes[e.consumer].name for e in edges if e.grouping.cost.schedule == "paper"}


def cost_shapes(program: Program) -> dict[str, SketchShape]:
    """Operators with a cost-aware input, and the shape of their sketches."""
    shapes = {}
    for edge in program.graph.edges:
        if edge.grouping.kind == "cost":
            options = edge.grouping.cost
            operator = program.graph.nodes[edge.consumer].name
            shapes[operator] = SketchShape.within(options.epsilon, options.delta)
    return shapes
