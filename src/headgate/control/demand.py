"""How many slots an epoch would have kept busy: what the rescaler decides by."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.commit.facts import EpochFacts
from headgate.control.pace import apart_s, in_tasks_s
from headgate.planner.tuning.rescaler import Load
from headgate.slot.program import Program

GROWTH_MOST = 2.0  # times the rows of an epoch: its cost per row says nothing about more
LEFT_LEAST = 0.25  # of the time, for slots: what source tasks may take of it at most in the demand


def load_between(
    before: EpochFacts, after: EpochFacts, fixed_s: float, cores: int, held: Iterable[int] = ()
) -> Load | None:
    """Rows that came while an epoch ran and until the next began, and what a row cost in it.

    `fixed_s` of its time was for no row, but what tasks took was. Slots have the time that source
    tasks leave: these run first, whatever the slots, and if they are what fills an epoch, more
    slots are no help. Nor are they in levels that are `held` back by operators with fewer instances
    than there are slots. None if nothing can be said.
    """
    seconds = apart_s(before, after)
    if seconds <= 0 or (before.rows == 0 and after.rows > 0):
        return None
    if after.rows == 0:
        return Load(0.0, 0.0)
    engine = before.engine
    on_rows = max(in_tasks_s(engine), engine.seconds - fixed_s)
    longest = sum(engine.levels_ms.values())
    others = sum(engine.levels_ms.get(level, 0.0) for level in {0, *held})
    in_slots = 1.0 - others / longest if longest > 0 else 1.0
    left = max(LEFT_LEAST, 1.0 - on_rows * (1.0 - in_slots) / seconds)
    work = on_rows * in_slots * min(before.slots, cores)
    alike = max(before.rows, after.rows / GROWTH_MOST)
    return Load(after.rows / seconds, work / alike / left)


def held_levels(program: Program, epoch: EpochFacts) -> set[int]:
    """Levels in which no operator has an instance in every slot: more slots do not shorten them."""
    grows = {
        max(1, program.home_level[node.id])
        for node in program.order
        if node.kind != "source" and node.name not in epoch.instances
        if any(edge.exchanges for edge in program.graph.inputs(node.id))
    }
    homes = {max(1, program.home_level[program.graph.node(op).id]) for op in epoch.instances}
    return homes - grows
