"""Ways to run a flow, drawn at random: slots, tables, groupings, managers, and several starts."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.scenario.born_local import born_local
from tests.scenario.choosing import restless_plans
from tests.scenario.oracle import Case, random_table
from tests.scenario.random_flows import WIDE, Recipe, Row
from tests.scenario.restless import Restless, restless_tuning

import headgate as hg
from headgate.slot.compile import compile_flow
from headgate.testing import LocalRun, ManualClock, run
from headgate.topology.schema import to_schema

BUCKETS = 16
WAYS = ("hash", "hash", "partial", "auto", "pkg", "d_choices", "w_choices", "cut", "dkg")
MANAGERS = ("none", "none", "headgate", "online", "restless", "restless")
Epochs = list[list[list[Row]]]


@dataclass
class Outcome:
    """What came of a run: rows by sink and epoch, late rows by epoch, state at the end."""

    rows: dict[tuple[str, int], Counter[Any]] = field(default_factory=dict)
    late: dict[int, Any] = field(default_factory=dict)
    state: dict[str, Counter[Any]] = field(default_factory=dict)

    def add(self, done: LocalRun, first: int) -> None:
        """What a start did, from its first epoch on; the one before it may be delivered again."""
        for sink, rows in done.outputs.items():
            by_epoch: dict[int, list[Any]] = {}
            for epoch, row in rows:
                by_epoch.setdefault(epoch, []).append(_told(sink, row))
            for epoch, some in by_epoch.items():
                if epoch >= first:
                    self.rows[sink, epoch] = Counter(some)
        self.late |= {
            record["epoch"]: record["late_rows"]
            for record in done.records
            if record.get("epoch", -1) >= first
        }
        self.state = {name: Counter(map(_plain, rows)) for name, rows in done.states.items()}


def _told(sink: str, row: Row) -> Any:
    return (row["operator"], row["row"]) if sink == "dead" else _plain(row)


def _plain(value: Any) -> Any:
    """A value that can be compared and counted: every NaN is one, lists are tuples."""
    if isinstance(value, dict):
        return tuple((name, _plain(part)) for name, part in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return "nan" if value != value else value


@dataclass
class Start:
    """How the flow runs up to an epoch."""

    until: int
    slots: int
    ways: dict[str, str]
    manager: str
    tables: bool
    away: bool
    few: bool
    tuned: bool
    parallelism: dict[str, int]
    options: dict[str, Any]


def draw_starts(rng: random.Random, recipe: Recipe, epochs: int, warm: str | None) -> list[Start]:
    ends = sorted({*rng.sample(range(1, epochs + 1), rng.randint(0, min(2, epochs))), epochs})
    slots = {until: rng.choice([1, 2, 3, 5]) for until in ends}
    return [
        Start(
            until,
            slots=slots[until],
            ways={step.name: rng.choice(WAYS) for step in recipe.steps},
            manager=rng.choice(MANAGERS),
            tables=rng.random() < 0.4,
            away=rng.random() < 0.4,
            few=rng.random() < 0.6,
            tuned=rng.random() < 0.4,
            parallelism=_draw_parallelism(rng, recipe, slots[until]),
            options={
                "batch_rows": rng.choice([None, None, 1, 7]),
                "sharing": rng.choice(["auto", "shared", "distinct"]),
                "warm_dir": warm,
                "park_bytes": rng.choice([None, 0, 0, 9]),
            },
        )
        for until in ends
    ]


def _draw_parallelism(rng: random.Random, recipe: Recipe, slots: int) -> dict[str, int]:
    """How many instances some operators are to have: any number from one to the slots."""
    share = rng.choice([0.0, 0.3, 0.8])
    return {
        step.name: 1 if step.grouping == "global" else rng.randint(1, slots)
        for step in recipe.steps
        if rng.random() < share and step.spreads
    }


def run_plainly(recipe: Recipe, epochs: Epochs, times: list[int], partitions: int) -> Outcome:
    """In one slot, every operator by its key, nothing that is decided while it runs."""
    clock = ManualClock()
    done = run(
        recipe.declare(epochs, {}, clock), slots=1, partitions=partitions, buckets=BUCKETS,
        clock=clock, before_epoch=lambda epoch: setattr(clock, "now_ms", times[epoch]),
        check_purity=False, input_ends=True, sharing="distinct",
    )  # fmt: skip
    outcome = Outcome()
    outcome.add(done, 0)
    return outcome


def run_start_by_start(
    recipe: Recipe,
    epochs: Epochs,
    times: list[int],
    partitions: int,
    starts: list[Start],
    folder: Path,
    rng: random.Random,
) -> Outcome:
    outcome, clock, first = Outcome(), ManualClock(), 0
    for start in starts:
        flow = recipe.declare(epochs[: start.until], start.ways, clock)
        program = compile_flow(flow.graph())
        case = Case("random", {}, {}, lambda flow, sources: {}, [], keys_of(recipe, epochs))
        case.near.update({step.name: step.near for step in recipe.steps})
        manager: Any = None
        if start.manager == "restless":
            manager = Restless(rng, case, program, BUCKETS, start.parallelism)
        elif start.manager != "none":
            manager = hg.Manager(planner=start.manager)
        tables = {
            name: random_table(rng, case, name, start.slots, BUCKETS)
            for name in case.keys
            if start.tables and name not in start.parallelism
        }
        with ExitStack() as stack:
            if start.manager == "restless" or start.manager == "none":
                stack.enter_context(restless_plans(case, recipe.seed, few=start.few))
            if start.away and start.manager == "none":
                stack.enter_context(born_local())
            if start.tuned:
                stack.enter_context(restless_tuning(rng, program))
            done = run(
                flow, slots=start.slots, partitions=partitions, buckets=BUCKETS, clock=clock,
                before_epoch=lambda epoch: setattr(clock, "now_ms", times[epoch]),
                checkpoint=folder / "checkpoint", tables=tables, manager=manager,
                input_ends=start.until == len(epochs), seed=recipe.seed,
                parallelism=start.parallelism, **start.options,
            )  # fmt: skip
        failed = [plan["failed"] for plan in done.journal if "failed" in plan]
        assert not failed, f"a plan failed: {failed[0]}"
        assert not done.coordinator.checkpoint.parked.list()
        outcome.add(done, first)
        first = start.until
    return outcome


def keys_of(recipe: Recipe, epochs: Epochs) -> dict[str, Any]:
    """Keys that come to the keyed operators with state, as far as sources show them."""
    schema = to_schema(WIDE)
    found: dict[str, Any] = {}
    for step in recipe.steps:
        if step.key and step.has_state:
            fields = pa.schema([schema.field(name) for name in step.key])
            rows = [row for epoch in epochs for rows in epoch for row in rows]
            keys = {repr(key): key for row in rows if (key := tuple(row[n] for n in step.key))}
            found[step.name] = (fields, list(keys.values()))
    return found
