"""A flow of several operators on an engine, simulated exactly, slot by slot.

Every level takes as long as its busiest slot, and no less than its work takes on the processors.
What a slot does follows from which slots have an instance of an operator: rows go to instances by
chance, and those that stay in their slot are processed at once, before the others have arrived.
Tasks are those of slots that may have work. All times have seeded noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import headgate as hg
from headgate.commit.facts import (
    EdgeFacts,
    EngineFacts,
    EpochFacts,
    StateSize,
    TriggerFacts,
    TuningFacts,
)
from headgate.control.tuner import Tuner
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.testing import ListSource

CHAIN = ("first", "call", "second", "total")
ROW_BYTES = 40


@dataclass(frozen=True)
class Costs:
    """Seconds of a core, and of waiting, for a row of each operator."""

    cpu_s: Mapping[str, float] = field(
        default_factory=lambda: {"first": 2e-6, "call": 1e-5, "second": 2e-6, "total": 1e-8}
    )
    wait_s: Mapping[str, float] = field(default_factory=lambda: {"call": 2e-4})


@dataclass(frozen=True)
class Cluster:
    cores: int = 12  # tasks at once
    cpus: int = 2
    task_s: float = 0.05  # of a processor
    fixed_s: float = 0.3
    beside_s: float = 0.05
    noise: float = 0.03
    state_bytes: int = 0


def program(parallelism: Mapping[str, int] | None = None) -> Program:
    flow = hg.Flow("service")
    rows = flow.source(ListSource("a bigint, b bigint", []), name="in")
    first = rows.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="first")
    call = first.shuffle().map(lambda batch: batch, schema=first.schema, name="call")
    second = call.key_by("b", grouping="hash").process(hg.Count(emit="rows"), name="second")
    second.globally(grouping="hash").process(hg.Count(), name="total").to_memory("out")
    return compile_flow(flow.graph(parallelism or {}))


@dataclass
class Lived:
    """Changes as (epoch, operator, instances), the instances in the end, and rows per second."""

    changes: list[tuple[int, str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    said: list[TuningFacts] = field(default_factory=list)
    instances: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    batch_rows: dict[str, int] = field(default_factory=dict)

    def count(self, operator: str, slots: int) -> int:
        return len(self.instances.get(operator, range(slots)))


class Truth:
    """What an epoch really takes."""

    def __init__(self, costs: Costs, cluster: Cluster, slots: int) -> None:
        self.costs, self.cluster, self.slots = costs, cluster, slots

    def levels(
        self, rows: float, places: Mapping[str, tuple[int, ...]]
    ) -> tuple[np.ndarray, np.ndarray, int, dict[str, float]]:
        """Seconds of every level by slot, those on processors, tasks, and shares that stay."""
        count = len(CHAIN)
        wall, cpu = np.zeros((count + 1, self.slots)), np.zeros(count + 1)
        # Rows of each operator by level and slot.
        before = np.zeros((count + 1, self.slots))
        tasks = [set[int]() for _ in range(count + 1)]
        stays: dict[str, float] = {}
        for number, name in enumerate(CHAIN):
            mine = list(places[name])
            here = np.zeros_like(before)
            if number == 0:
                here[1, mine] = rows / len(mine)
            else:
                spread = np.zeros(self.slots)
                spread[mine] = 1.0 / len(mine)
                here += before * spread  # stay where they are
                leaves = (before * (1.0 - spread)).sum(axis=1)
                for level in range(1, count):
                    sent = before[level][:, None] * spread[None, :]
                    np.fill_diagonal(sent, 0.0)
                    here[level + 1] += sent.sum(axis=0)
                stays[name] = 1.0 - leaves.sum() / rows if rows else 0.0
            each = self.costs.cpu_s[name] + self.costs.wait_s.get(name, 0.0)
            wall += here * each
            cpu += here.sum(axis=1) * self.costs.cpu_s[name]
            for level in range(1, count + 1):
                if here[level].any() or level == number + 1:
                    tasks[level] |= set(mine) if level > 1 or number == 0 else set()
            before = here
        return wall[1:], cpu[1:], sum(max(1, len(found)) for found in tasks[1:]), stays

    def epoch_s(self, rows: float, places: Mapping[str, tuple[int, ...]]) -> float:
        wall, cpu, tasks, _ = self.levels(rows, places)
        longest = np.maximum(wall.max(axis=1), cpu / self.cluster.cpus).sum()
        fixed = self.cluster.fixed_s + tasks * self.cluster.task_s / self.cluster.cpus
        return float(fixed + longest + self.cluster.beside_s)


def live(
    tuner: Tuner,
    *,
    rows: int,
    epochs: int,
    slots: int = 12,
    costs: Costs | None = None,
    cluster: Cluster | None = None,
    refuses: tuple[str, ...] = (),
    seed: int = 1,
) -> Lived:
    """So many epochs of so many rows, without end of them; what is asked for comes at once."""
    truth = Truth(costs or Costs(), cluster or Cluster(), slots)
    rng, lived, now = np.random.default_rng(seed), Lived(), 0.0
    lived.instances = {"total": (0,)}
    everywhere = tuple(range(slots))
    for epoch in range(epochs):
        places = {op: lived.instances.get(op, everywhere) for op in CHAIN}
        facts, seconds = _epoch(truth, rng, epoch, rows, places, lived.instances, now)
        lived.rates.append(rows / seconds)
        advice = tuner.observe(facts)
        now += seconds
        if advice is None:
            continue
        lived.said.append(advice)
        if advice.note:
            lived.notes.append(advice.note)
        lived.batch_rows |= advice.batch_rows or {}
        for op, chosen in (advice.instances or {}).items():
            lived.changes.append((epoch, op, len(chosen)))
            if op not in refuses:
                lived.instances[op] = chosen
        lived.instances = {op: s for op, s in lived.instances.items() if s != everywhere}
    return lived


def _epoch(
    truth: Truth,
    rng: np.random.Generator,
    epoch: int,
    rows: int,
    places: Mapping[str, tuple[int, ...]],
    instances: Mapping[str, tuple[int, ...]],
    now: float,
) -> tuple[EpochFacts, float]:
    cluster, costs, slots = truth.cluster, truth.costs, truth.slots
    wall, cpu, tasks, stays = truth.levels(rows, places)
    noise = np.exp(rng.normal(0, cluster.noise))
    levels = np.maximum(wall.max(axis=1), cpu / cluster.cpus) * noise
    job = (cluster.fixed_s + tasks * cluster.task_s / cluster.cpus) * noise + levels.sum()
    spent: dict[str, Any] = {}
    for op in CHAIN:
        each = rows * (costs.cpu_s[op] + costs.wait_s.get(op, 0.0)) / len(places[op]) * 1e3
        spent[op] = tuple(each if slot in places[op] else 0.0 for slot in range(slots))
    names = ("in", *CHAIN)
    edges = {}
    for before, after in pairwise(names):
        local = round(stays.get(after, 0.0) * rows)
        edges[f"{before}->{after}"] = EdgeFacts(
            local_rows=local,
            remote_rows=rows - local,
            local_bytes=ROW_BYTES * local,
            remote_bytes=ROW_BYTES * (rows - local),
            between_slots=before != "in",
        )
    facts = EpochFacts(
        epoch=epoch,
        slots=slots,
        rows=rows,
        source_rows={"in": rows},
        sink_rows={"out": 1},
        source_tasks=2,
        operator_rows=dict.fromkeys(names, rows),
        operator_ms={"in": (1.0,) * slots} | spent,
        operator_cpu_ms={"in": 2.0} | {op: 1e3 * rows * costs.cpu_s[op] for op in CHAIN},
        operator_wait_ms={op: 1e3 * rows * wait for op, wait in costs.wait_s.items()},
        edges=edges,
        state={
            op: {s: StateSize(10, cluster.state_bytes // len(places[op])) for s in places[op]}
            for op in ("first", "second", "total")
        },
        instances=dict(instances),
        now_ms=round(1e3 * now),
        engine=EngineFacts(
            plan_ms=0.0,
            job_ms=1e3 * job,
            levels_ms={0: 2.0} | {n + 1: 1e3 * s for n, s in enumerate(levels.tolist())},
            task_ms={0: 4.0} | {n + 1: 1e3 * s for n, s in enumerate(wall.sum(axis=1).tolist())},
            task_cpu_ms={0: 4.0} | {n + 1: 1e3 * s for n, s in enumerate(cpu.tolist())},
            cores=cluster.cores,
            cpus=cluster.cpus,
        ),
        trigger=TriggerFacts(1e3 * (job + cluster.beside_s) if epoch else None, None),
    )
    return facts, job + cluster.beside_s
