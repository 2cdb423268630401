"""The worst manager and tuner there can be, for tests of what must hold whatever is decided."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.routes import may_be_local
from tests.scenario.oracle import Case, random_table

from headgate import testing
from headgate.commit.facts import EpochFacts, PlanFacts, TuningFacts
from headgate.commit.instances import InstancesInUse
from headgate.commit.planning import Decision
from headgate.slot.plan import edge_name
from headgate.slot.program import Program


class Restless:
    """A manager that changes its mind about everything, all the time."""

    statistics_bytes = 4096

    def __init__(
        self,
        rng: random.Random,
        case: Case,
        program: Program,
        buckets: int,
        fixed: Collection[str] = (),
    ) -> None:
        self.rng, self.case, self.buckets = rng, case, buckets
        self.fixed = {*fixed, *(n.name for n in program.graph.nodes if n.parallelism is not None)}
        self.born_local = frozenset(
            op for op in sorted(may_be_local(program)) if rng.random() < 0.7
        )
        self.units_of = frozenset(case.keys) if rng.random() < 0.5 else frozenset()

    def step(self, observed: Any, tables: Any) -> Decision:
        rng = self.rng
        now = next(iter(tables.values())).slots
        instances = {
            operator: tuple(sorted(rng.sample(range(now), rng.randint(1, now))))
            for operator in self.case.keys
            if operator not in self.fixed and rng.random() < 0.3
        }
        in_use = {**observed[-1].facts.instances, **instances}
        changed = {
            operator: random_table(rng, self.case, operator, now, self.buckets).resized(
                now, in_use.get(operator, ())
            )
            for operator in self.case.keys
            if rng.random() < 0.4
        }
        slots = rng.randrange(1, 5) if rng.random() < 0.3 else None
        why = PlanFacts(why=f"restless: {sorted(changed)}, {sorted(instances)}")
        gone: tuple[int, ...] = ()
        if slots is not None and slots < now and rng.random() < 0.7:
            gone = tuple(sorted(rng.sample(range(now), now - slots)))
        return Decision(changed, why, slots=slots, gone=gone, instances=instances)


class RestlessTuner:
    """A tuner that asks for instances, batches and slots at random, beside any manager."""

    def __init__(self, rng: random.Random, program: Program) -> None:
        self.rng, graph = rng, program.graph
        self.edges = [edge_name(graph, edge) for edge in graph.edges if edge.exchanges]
        behind = InstancesInUse(program, 2).all()
        self.operators = [op for op, slots in behind.items() if len(slots) == 2]

    def observe(self, epoch: EpochFacts, *, changing: bool = False) -> TuningFacts | None:
        rng, slots = self.rng, None
        if rng.random() < 0.3 and not changing:
            slots = rng.randrange(1, 5)
        among = epoch.slots if slots is None else slots
        instances = {
            op: tuple(sorted(rng.sample(range(among), rng.randint(1, among))))
            for op in self.operators
            if rng.random() < 0.3
        }
        batches = {edge: rng.randint(1, 9) for edge in self.edges if rng.random() < 0.3}
        return TuningFacts(
            epoch.epoch, slots=slots, instances=instances or None, batch_rows=batches or None
        )


@contextmanager
def restless_tuning(rng: random.Random, program: Program) -> Iterator[None]:
    """Flows of the kit are tuned by a `RestlessTuner`."""
    tuned: Any = partial(testing.plan_with, sizing=RestlessTuner(rng, program))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "plan_with", tuned)
        yield
