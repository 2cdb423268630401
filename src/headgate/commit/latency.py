"""How long an epoch's rows took, from their arrival to the commit of the last sink.

Tasks count ages at the clock of the plan (`slot/latency.py`), which is all that the manifest can
hold: sinks are called after it is written. When they have been, the rest of the way is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from headgate.slot.latency import NO_TIME, mean_and_quantiles
from headgate.slot.plan import Control
from headgate.slot.program import Program

Since = Literal["arrival", "trigger"]
SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class LatencyFacts:
    """Latency of an epoch's rows, in milliseconds; before its commit, their age when it began.

    `since` says what it counts from. "arrival": the source's own times, of `rows` rows; those in
    `rows_without_time` have none. "trigger": no source has times, so it counts from the beginning
    of the epoch, before which all its rows had come: rows are at least so late. `commit_ms` is the
    part from there to the commit; None: the epoch's sinks have not been called yet.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    since: Since
    rows: int
    rows_without_time: Annotated[int, "sparse"] = 0
    commit_ms: float | None = None

    def committed(self, after_ms: int) -> LatencyFacts:
        """With the way from the beginning of the epoch to its commit, which it has in common."""
        rest = float(max(0, after_ms))  # a clock that was set back
        return replace(
            self,
            p50_ms=self.p50_ms + rest,
            p95_ms=self.p95_ms + rest,
            p99_ms=self.p99_ms + rest,
            mean_ms=self.mean_ms + rest,
            commit_ms=rest,
        )


def ages_of(program: Program, total: Control) -> LatencyFacts | None:
    """The ages of an epoch's rows at its beginning; None if it has no row."""
    timed = sum(rows for name, rows in total.ages.items() if name != NO_TIME)
    if timed:
        mean, p50, p95, p99 = mean_and_quantiles(total.ages, SHARES)
        missing = total.ages.get(NO_TIME, 0)
        return LatencyFacts(p50, p95, p99, round(mean, 1), "arrival", timed, missing)
    rows = sum(total.source_rows.values())
    if not rows or any(node.spec.arrival for node in program.sources):
        return None
    return LatencyFacts(0.0, 0.0, 0.0, 0.0, "trigger", rows)
