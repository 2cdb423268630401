"""Rows that wait instead of computing, so that ten instances run on two cores.

A row says how long it takes. Sleeping takes a little longer than asked for, so rows that follow
each other make up for it: together they take what they say, on a machine that is not overloaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SLACK_S = 0.020  # a pause longer than this is no oversleeping: the next row begins anew
_due_s = 0.0


def wait(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with when it was begun and ended, and by which task."""
    begun_s = time.time()
    wait_ms(row["ms"])
    return {**row, "task": _task(), "begun_s": begun_s, "ended_s": time.time()}


def wait_ms(
    ms: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until the row is done, counted from when the one before should have been."""
    global _due_s
    now_s = clock()
    begun_s = _due_s if now_s - SLACK_S < _due_s < now_s else now_s
    _due_s = begun_s + ms / 1000
    if _due_s > now_s:
        sleep(_due_s - now_s)


def _task() -> int:
    """Who computes: Spark's number of the task's attempt, 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())
