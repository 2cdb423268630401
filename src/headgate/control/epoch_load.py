"""What an epoch says about the demand for slots: rows that came, and what one takes of a slot."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.commit.facts import EpochFacts
from headgate.control.measured_flow import in_tasks_s
from headgate.planner.tuning.rescaler import Load

GROWTH_MOST = 2.0  # times the rows of an epoch: its cost per row says nothing about more
LEFT_LEAST = 0.25  # of the time, for slots: what source tasks may take of it at most in the demand


def load_between(before: EpochFacts, after: EpochFacts, fixed_s: float, cores: int) -> Load | None:
    """Rows that came while an epoch ran and until the next began, and what a row cost in it.

    `fixed_s` of its time was for no row, but what tasks took was. Slots have the time that source
    tasks leave: these run first, whatever the slots, and if they are what fills an epoch, more
    slots are no help. None if nothing can be said.
    """
    seconds = (after.now_ms - before.now_ms) / 1e3
    if seconds <= 0 or (before.rows == 0 and after.rows > 0):
        return None
    if after.rows == 0:
        return Load(0.0, 0.0)
    on_rows = max(in_tasks_s(before.engine), before.engine.seconds - fixed_s)
    in_slots = _share_of_slots(before.engine.levels_ms)
    left = max(LEFT_LEAST, 1.0 - on_rows * (1.0 - in_slots) / seconds)
    work = on_rows * in_slots * min(before.slots, cores)
    alike = max(before.rows, after.rows / GROWTH_MOST)
    return Load(after.rows / seconds, work / alike / left)


def _share_of_slots(levels_ms: Mapping[int, float]) -> float:
    """The part of an epoch's time that its slots take, by the longest task of each level."""
    total = sum(levels_ms.values())
    return 1.0 - levels_ms.get(0, 0.0) / total if total > 0 else 1.0
