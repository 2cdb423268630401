"""A flow of two operators with instances in some slots, simulated: decisions change what is seen.

Every epoch has the same rows. What slots count, keys or units, follows the loop's wish; tables,
instances and slots change as it decides, and whatever it decides is checked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import headgate as hg
from headgate.commit.facts import EdgeFacts, EpochFacts, StateSize
from headgate.commit.planning import Decides, Decision, Observed, units_of
from headgate.control.loop import plan_with
from headgate.control.settings import Scaling
from headgate.routing.hashing import mix
from headgate.routing.route import Route, Shares
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.testing import ListSource

Instances = Mapping[str, tuple[int, ...]]
BUCKETS = 32
QUICK = {"a": 1e-3, "b": 1e-3}  # ms a row; slots too quick to time are left to planners of keys


def program(grouping: Any = "hash") -> Program:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("a bigint, b bigint", []))
    first = rows.key_by("a", grouping=grouping).process(hg.Count(emit="rows"), name="a")
    first.key_by("b", grouping=grouping).process(hg.Count(), name="b").to_memory("out")
    return compile_flow(flow.graph())


def loop_of(
    manager: Any, slots: int, grouping: Any = "hash", scaling: Scaling | None = None
) -> Decides:
    planning = plan_with(manager, program(grouping), slots, scaling=scaling, beside=False)
    assert planning is not None
    return planning.manager


def first_tables(slots: int, instances: Instances) -> dict[str, RoutingTable]:
    """Plain hash grouping over the slots of each operator."""
    found = {}
    for operator in ("a", "b"):
        own = np.array(instances.get(operator) or range(slots), np.int32)
        found[operator] = RoutingTable(slots, own[hash_table(len(own), BUCKETS).bucket_slots])
    return found


class World:
    """`rows` is an array of (a, b), which are hashed; `ms` is what a row takes, by operator."""

    def __init__(
        self,
        loop: Decides,
        slots: int,
        instances: Instances,
        rows: Any,
        ms: Mapping[str, float] = QUICK,
    ) -> None:
        self.loop, self.slots, self.instances, self.ms = loop, slots, dict(instances), ms
        self.hashes = {
            "a": mix(np.asarray(rows)[:, 0].astype(np.uint64)),
            "b": mix(np.asarray(rows)[:, 1].astype(np.uint64) + np.uint64(1 << 32)),
        }
        self.tables = first_tables(slots, instances)
        self.epoch = 0
        self.moved: list[int] = []
        self.decisions: list[Decision] = []

    def run(self, epochs: int) -> None:
        for _ in range(epochs):
            decision = self.loop.step([self.observed()], dict(self.tables))
            self.check(decision)
            self.decisions.append(decision)
            self.moved.append(self.follow(decision))

    @property
    def why(self) -> list[str]:
        return [d.plan.why for d in self.decisions if d.plan is not None and d.plan.why]

    def slots_of(self, operator: str) -> tuple[int, ...]:
        return self.instances.get(operator) or tuple(range(self.slots))

    def loads(self, operator: str) -> Any:
        """Rows of the operator's slots."""
        slot = self.tables[operator].route(self.hashes[operator])
        return np.bincount(slot, minlength=self.slots)[list(self.slots_of(operator))]

    def spent(self) -> Any:
        """Milliseconds of every slot."""
        rows = {
            op: np.bincount(self.tables[op].route(h), minlength=self.slots)
            for op, h in self.hashes.items()
        }
        return sum(self.ms[op] * x for op, x in rows.items())

    @property
    def locality(self) -> float:
        here, there = (self.tables[op].route(self.hashes[op]) for op in ("a", "b"))
        return float((here == there).mean())

    def check(self, decision: Decision) -> None:
        """Every table keeps to its slots and says of every unit once who owns it."""
        for operator, table in decision.tables.items():
            own = decision.instances.get(operator) or self.slots_of(operator)
            Route(table, slots=own)
            assert table.buckets == BUCKETS and table.slots == self.slots
            assert (np.diff(table.pinned_h.astype(object)) > 0).all()
        for operator, dispatch in (decision.dispatch or {}).items():
            if isinstance(dispatch, Shares):
                assert set(dispatch.spread.slots.tolist()) <= set(self.slots_of(operator))

    def follow(self, decision: Decision) -> int:
        """Install it as a coordinator would; returns how many keys have another owner."""
        before = {op: self.tables[op].route(h) for op, h in self.hashes.items()}
        self.tables |= decision.tables
        self.instances |= decision.instances
        for operator, own in decision.instances.items():
            table, there = self.tables[operator], np.array(own, np.int32)
            owners = table.all_units()[1]
            lost = ~np.isin(owners, there)
            owners[lost] = there[np.arange(int(lost.sum())) % len(there)]
            self.tables[operator] = table.with_owners(owners)
        if decision.slots is not None and decision.slots < self.slots:
            self.renumber(decision.gone or range(decision.slots, self.slots))
            self.slots = decision.slots
            kept = {op: [s for s in own if s < self.slots] for op, own in self.instances.items()}
            assert all(kept.values()), "an operator has lost all of its instances"
            for operator, table in self.tables.items():
                assert table.all_units()[1].max() < self.slots, "a slot was released with units"
                self.tables[operator] = replace(table, slots=self.slots)
            self.instances = {op: tuple(own) for op, own in kept.items()}
        after = {op: self.tables[op].route(h) for op, h in self.hashes.items()}
        keys = {op: np.unique(h, return_index=True)[1] for op, h in self.hashes.items()}
        return sum(int((before[op] != after[op])[keys[op]].sum()) for op in keys)

    def renumber(self, gone: Sequence[int]) -> None:
        """Slots that stay and have a number too high change it with one that leaves."""
        left, name = self.slots - len(gone), np.arange(self.slots, dtype=np.int32)
        free = [slot for slot in gone if slot < left]
        for slot, other in zip((s for s in range(left, self.slots) if s not in gone), free):
            name[[slot, other]] = other, slot
        self.tables = {op: table.renamed(name, self.slots) for op, table in self.tables.items()}
        for operator, own in self.instances.items():
            self.instances[operator] = tuple(sorted(name[list(own)].tolist()))

    def observed(self) -> Observed:
        by_unit = units_of(self.loop)
        slot = {op: self.tables[op].route(h) for op, h in self.hashes.items()}
        counted = {
            op: self.tables[op].units(h) if op in by_unit else h for op, h in self.hashes.items()
        }
        tasks, state = [], dict[str, dict[int, StateSize]]({"a": {}, "b": {}})
        for s in range(self.slots):
            task = TaskStatistics(s)
            for op, h in counted.items():
                mine = slot[op] == s
                task.loads[op] = _sketch(h[mine], np.zeros(int(mine.sum()), np.uint64))
                task.state[op] = _sketch(
                    np.unique(h[mine]), np.zeros(len(np.unique(h[mine])), np.uint64)
                )
                units = len(np.unique(h[mine]))
                state[op][s] = StateSize(units, 100 * units)
            mine = slot["b"] == s
            task.pairs["a", "b"] = _sketch(counted["a"][mine], counted["b"][mine])
            tasks.append(task)
        rows = {op: np.bincount(s, minlength=self.slots) for op, s in slot.items()}
        local = int((slot["a"] == slot["b"]).sum())
        self.epoch += 1
        facts = EpochFacts(
            self.epoch,
            slots=self.slots,
            rows=len(slot["a"]),
            now_ms=1000 * self.epoch,
            loads={op: tuple(x.tolist()) for op, x in rows.items()},
            operator_ms={op: tuple((self.ms[op] * x).tolist()) for op, x in rows.items()},
            edges={"a->b": EdgeFacts(local, len(slot["a"]) - local)},
            state=state,
            instances={op: own for op, own in self.instances.items() if len(own) < self.slots},
        )
        return Observed(facts, tasks, counted_units=bool(by_unit))


def _sketch(a: Any, b: Any) -> PairSketch:
    found = PairSketch(1 << 12)
    found.update(a, b, np.ones(len(a)))
    return found


def groups(rows: int, count: int = 12, each: int = 3, mixing: float = 0.05, seed: int = 0) -> Any:
    """Rows whose keys a and b are of one group, but for a few."""
    draw = np.random.default_rng(seed)
    group = draw.integers(0, count, rows)
    other = np.where(draw.random(rows) < mixing, draw.integers(0, count, rows), group)
    a = group * each + draw.integers(0, each, rows)
    return np.stack([a, other * each + draw.integers(0, each, rows)], axis=1)
