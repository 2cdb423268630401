"""A coordinator with an engine made of controls, for tests of the commit path alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate import Count, Flow
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.coordinator import Coordinator, EpochResult
from headgate.commit.planning import Planning
from headgate.commit.settings import Settings
from headgate.slot.compile import compile_flow
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.testing import ManualClock
from headgate.topology.graph import Node


def flow(name: str = "f", sinks: tuple[str, ...] = ("out",), schema: str = "k bigint") -> Flow:
    made = Flow(name)
    rows = made.source(lambda: None, schema=schema, name="in")
    counted = rows.key_by("k").process(Count(), name="count")
    for sink in sinks:
        counted.to_memory(sink)
    return made


def program(
    name: str = "f", sinks: tuple[str, ...] = ("out",), schema: str = "k bigint"
) -> Program:
    return compile_flow(flow(name, sinks, schema).graph())


def quiet(plan: EpochPlan, **facts: Any) -> EpochResult:
    """An epoch in which every slot answered and nothing happened."""
    tasks = [[1, slot] for slot in plan.slots_at(1)]
    return EpochResult([Control(tasks=tasks, versions=[plan.routing_version], **facts)])


class Calls:
    """A sink that notes who was called for what; `fail` names one that raises."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, list[str]]] = []
        self.fail: str | None = None

    def __call__(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        self.made.append((sink.name, epoch, [f["name"] for f in files]))
        if sink.name == self.fail:
            raise RuntimeError(f"{sink.name} is down")


def coordinator(
    folder: Path,
    *,
    of: Program | None = None,
    deliver: Any = None,
    clock: Callable[[], int] | None = None,
    planning: Planning | None = None,
    **settings: Any,
) -> Coordinator:
    return Coordinator(
        of or program(),
        Checkpoint(str(folder)),
        Settings(**{"slots": 2} | settings),
        deliver or Calls(),
        clock_ms=clock or ManualClock(),
        sink_uris={},
        planning=planning,
    )
