"""Rows sent equal rows received, for every pair of tasks, before anything is committed.

Spark may run a task again after others have read its first output. If the two runs differ, some
consumer holds rows that the accepted producer never sent; the seals show it, whatever the reason
(an impure operator, a source that reads differently, a lost block).
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import CustodyMismatch, EngineError
from headgate.slot.failure import from_record
from headgate.slot.plan import Control, EpochPlan


def settle(plan: EpochPlan, controls: Sequence[Control]) -> Control:
    """The epoch's one control record, or the reason why it may not be committed."""
    total = Control()
    for control in controls:
        total.absorb(control)
    if total.error is not None:
        raise from_record(total.error)
    check_slots(plan, total)
    check_custody(plan, total)
    return total


def check_slots(plan: EpochPlan, total: Control) -> None:
    expected = list(range(plan.slots))
    if sorted(total.slots) != expected:
        raise EngineError(
            f"epoch {plan.epoch} ran on slots {sorted(total.slots)} instead of {expected}: the "
            "union of data and anchor did not keep its partitions; "
            "set spark.sql.unionOutputPartitioning=true and remove plugins that rewrite unions",
            epoch=plan.epoch,
        )
    if total.versions != [plan.routing_version]:
        raise EngineError(
            f"tasks of epoch {plan.epoch} used routing versions {total.versions}, "
            f"the plan has {plan.routing_version}",
            epoch=plan.epoch,
        )


def check_custody(plan: EpochPlan, total: Control) -> None:
    if total.sent == total.received:
        return
    pairs = sorted({*total.sent, *total.received})
    wrong = [p for p in pairs if total.sent.get(p) != total.received.get(p)]
    first = wrong[0]
    raise CustodyMismatch(
        f"epoch {plan.epoch}: {len(wrong)} of {len(pairs)} transfers differ between sender and "
        f"receiver; first is level:producer>slot {first}, sent {total.sent.get(first)}, "
        f"received {total.received.get(first)} (tuples, rows, seal, bytes)",
        epoch=plan.epoch,
        pairs=wrong,
    )
