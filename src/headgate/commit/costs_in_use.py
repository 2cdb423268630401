"""The cost models of a flow's cost-aware shuffles: stored, learnt from its epochs, committed.

Every slot's measured costs of an epoch arrive as sketches and go through the state machine of that
instance (`InstanceCosts`). Only when it says so does the plan's frozen copy change: a new model
is saved, the next epoch's tasks read it, and the manifest names it, so a restart begins with it.
Models hold real times only, per instance, and each epoch starts with idle slots. So the paper's
synchronisation, which settles old debts of estimated against real time, is the speed of an instance
here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from headgate.commit.facts import CostFacts
from headgate.errors import StateFileError
from headgate.routing.costs import CostModel, CostSketch, InstanceCosts, SketchShape
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.state.named_table import read_table, write_table
from headgate.state.storage import Storage

log = logging.getLogger("headgate")


class CostFiles:
    """Saves and loads cost models; keeps each operator's last one."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._known: dict[str, tuple[str, CostModel]] = {}

    def save(self, operator: str, model: CostModel) -> str:
        name = write_table(self.storage, operator, model.to_arrow())
        self._known[operator] = name, model
        return name

    def load(self, name: str) -> CostModel:
        operator = name.rsplit("-", 1)[0]
        known, model = self._known.get(operator, ("", None))
        if known != name or model is None:
            model = CostModel.from_arrow(read_table(self.storage, name, "cost model"))
            self._known[operator] = name, model
        return model


class CostsInUse:
    """Models by operator and their files; what every instance has measured since."""

    def __init__(self, program: Program, files: CostFiles, stored: Mapping[str, str]) -> None:
        self._files = files
        self._shapes = cost_shapes(program)
        self._instances: dict[str, dict[int, InstanceCosts]] = {op: {} for op in self._shapes}
        self.models: dict[str, CostModel] = {}
        self.names: dict[str, str] = {}
        self._sent: dict[str, int] = {}
        self.damaged: dict[str, StateFileError] = {}
        for operator, name in stored.items():
            if operator in self._shapes:
                self._adopt(operator, name)

    def fit(self, slots: int) -> None:
        """Make the models those of so many slots; new slots count as mean ones."""
        for operator, model in self.models.items():
            if model.instances != slots:
                self._use(operator, model.resized(slots))

    def observe(self, statistics: Iterable[TaskStatistics], slots: int) -> None:
        """Take in what an epoch's tasks measured; replaces models whose instances say so."""
        for operator, by_slot in measured(statistics).items():
            shape, instances = self._shapes[operator], self._instances[operator]
            sent = sum(
                instances.setdefault(slot, InstanceCosts(shape)).add(sketch)
                for slot, sketch in sorted(by_slot.items())
            )
            if sent:
                self._sent[operator] = self._sent.get(operator, 0) + sent
                known = [instances[s].sent if s in instances else None for s in range(slots)]
                self._use(operator, CostModel.of([s or CostSketch(shape) for s in known]))

    def record(
        self, plan: EpochPlan, total: Control, statistics: Iterable[TaskStatistics]
    ) -> dict[str, CostFacts]:
        """Per operator, estimated and measured milliseconds of every slot."""
        facts, found, slots = {}, measured(statistics), range(plan.slots)
        for operator in self._shapes:
            estimated, real = total.estimated_us.get(operator, {}), found.get(operator, {})
            model = plan.costs.get(operator)
            facts[operator] = CostFacts(
                estimated_ms=tuple(
                    estimated.get(str(s), 0) / 1000 if model else None for s in slots
                ),
                measured_ms=tuple(round(real[s].total_ms, 3) if s in real else 0.0 for s in slots),
                rows=tuple(int(real[s].rows) if s in real else 0 for s in slots),
                speed=None if model is None else tuple(round(x, 3) for x in model.speed.tolist()),
                sketches_sent=self._sent.get(operator, 0),
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
        for slot in range(model.instances):
            sketch = CostSketch(model.shape, model.frequency[slot], model.time_ms[slot])
            instance = InstanceCosts(model.shape)
            instance.adopt(sketch)
            self._instances[operator][slot] = instance


def measured(statistics: Iterable[TaskStatistics]) -> dict[str, dict[int, CostSketch]]:
    """What an epoch's tasks measured, by operator and slot, levels added up."""
    found: dict[str, dict[int, CostSketch]] = {}
    for task in statistics:
        for operator, sketch in task.costs.items():
            by_slot = found.setdefault(operator, {})
            by_slot.setdefault(task.slot, CostSketch(sketch.shape)).merge(sketch)
    return found


def cost_shapes(program: Program) -> dict[str, SketchShape]:
    """Operators with a cost-aware input, and the shape of their sketches."""
    shapes = {}
    for edge in program.graph.edges:
        if edge.grouping.kind == "cost":
            options = edge.grouping.cost
            operator = program.graph.nodes[edge.consumer].name
            shapes[operator] = SketchShape.within(options.epsilon, options.delta)
    return shapes
