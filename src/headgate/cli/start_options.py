"""Options of a command as `flow.start` and Spark take them; what does not go together is refused.

All of it is checked before Spark starts: a slip should not cost ten seconds.
"""

from __future__ import annotations

from typing import Any

from headgate.control.settings import Manager, Scaling
from headgate.errors import HeadgateError


def slots_of(
    slots: int | None, min_slots: int | None, max_slots: int | None
) -> int | Scaling | None:
    """What --slots, or --min-slots and --max-slots, stand for."""
    if min_slots is None and max_slots is None:
        return slots
    if slots is not None:
        raise HeadgateError(
            "--slots gives a number that stays, --min-slots and --max-slots limits within which it "
            "is chosen: keep one"
        )
    return Scaling(min_slots=min_slots or 1, max_slots=max_slots)


def manager_of(managed: bool, planner: str | None) -> Manager | None:
    if managed:
        return Manager(planner or "headgate")
    if planner is not None:
        raise HeadgateError(f"--no-manager plans nothing: leave it out, or --planner {planner}")
    return None


def trigger_of(once: bool, every: str | None) -> dict[str, Any] | None:
    if once:
        return {"availableNow": True}
    return {"processingTime": every} if every else None
