"""The worst manager there can be, for tests of everything that must hold whatever is decided."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from tests.routes import may_be_local
from tests.scenario.oracle import Case, random_table

from headgate.commit.facts import PlanFacts
from headgate.commit.planning import Decision
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
        return Decision(changed, why, slots=slots, instances=instances)
