"""Options of a command as `flow.start` and Spark take them; what does not go together is refused.

All of it is checked before Spark starts: a slip should not cost ten seconds.
"""

from __future__ import annotations

from typing import Any

from headgate.control.settings import Manager, Scaling
from headgate.errors import HeadgateError, UnknownSlot
from headgate.routing.table import RoutingTable

DEFAULT_SLOTS = 4
SLOTS_MAX = Scaling().max_slots


def chosen(
    slots: int | None,
    has_tables: bool,
    scaled: bool,
    slots_max: int | None,
    latency_ms: float | None,
) -> dict[str, Any]:
    """Of `flow.start`, what --auto stands for; refuses what would choose slots too."""
    if slots is not None:
        raise HeadgateError(
            "--auto chooses the slots, --slots gives them: keep one. --slots-max N limits --auto"
        )
    if scaled:
        raise HeadgateError(
            "--auto and --min-slots or --max-slots would both change the number of slots: keep "
            "one. The limit of --auto is --slots-max N"
        )
    if has_tables:
        raise HeadgateError(
            "--tables are for a number of slots, and --auto changes it: leave one out. With "
            "--auto --manage keys are moved to where their rows are, whatever the slots"
        )
    latency_s = None if latency_ms is None else latency_ms / 1e3
    auto = {"parallelism": "auto", "batch": "auto"}
    return auto | {"slots_max": slots_max, "latency_s": latency_s}


def check_without_auto(slots_max: int | None, latency_ms: float | None) -> None:
    if slots_max is not None:
        raise HeadgateError(
            "--slots-max is the limit of --auto. Without it, --slots N gives a number, and "
            "--max-slots N lets the load decide up to it"
        )
    if latency_ms is not None:
        raise HeadgateError(
            "--latency-ms needs --auto, which chooses rows per epoch; --rows-per-epoch gives them"
        )


def slot_count(asked: int | None, tables: dict[str, RoutingTable]) -> int:
    """As asked, else as the tables need; checked before Spark starts."""
    for operator, table in tables.items():
        if asked is None:
            asked = table.slots
        elif table.slots != asked:
            raise UnknownSlot(
                f"the routing table of {operator!r} is for {table.slots} slots, the flow is to run "
                f"{asked}; give --slots {table.slots}, or analyse again with --slots {asked}",
                operator=operator,
                slots=asked,
            )
    return asked or DEFAULT_SLOTS


def manager_of(
    manage: bool, planner: str | None, min_slots: int | None, max_slots: int | None
) -> Manager | None:
    if min_slots is None and max_slots is None:
        return Manager(planner or "headgate") if manage or planner else None
    scaling = Scaling(min_slots or 1, max_slots or max(min_slots or 1, SLOTS_MAX))
    return Manager(planner or "allocation", scaling=scaling)


def trigger_of(once: bool, every: str | None) -> dict[str, Any] | None:
    if once:
        return {"availableNow": True}
    return {"processingTime": every} if every else None
