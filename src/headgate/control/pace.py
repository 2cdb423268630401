"""Do rows wait for epochs, and how much of the time do epochs wait for rows?

A limited source with a backlog and a steady stream look alike: epochs without a break, all of about
one size. What tells them apart, the surest first:

- a run that ends with what was there when it began (`availableNow`): all rows wait;
- the source says so: when an epoch was planned, its latest offset was not the one taken (`kafka`
  does; the facts of the next epoch have it as `last_rows_wait`), or files that were listed were
  left to later epochs (`files_waiting`);
- epochs meet the limit that the sources were given, or stay far below it;
- rows do not follow time. A stream brings as many rows per second, a limit as many per epoch. That
  shows where epochs differ in length, and counts only where it is clear.

Otherwise nobody knows, and that is the answer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headgate.arrays import F64
from headgate.commit.facts import EngineFacts, EpochFacts
from headgate.planner.tuning.epochs import P95

FULL = 0.9  # epochs this near to a limit have met it
FAR_BELOW = 0.5  # epochs with less than this share of a limit do not meet it
BESIDE_S = 1.0  # at most, between two jobs of a flow that never waits, if Spark does not tell
IDLE_MOST = 0.1  # of the time that a busy flow may seem to wait
RECENT = 16  # epochs that say how it is now; whether rows follow time, all of them say
EPOCHS_MIN = 12  # to say so
STRAYS_MIN = 0.08  # of an epoch's rows: less may be chance
EVEN_STRAYS_MIN = 0.03  # the same where all epochs have one and the same number of rows
CLEARLY = 2.0  # times as far


@dataclass(frozen=True)
class Pace:
    """Do rows wait for epochs (None: nobody knows), and how much of the time do epochs for rows?"""

    rows_wait: bool | None
    idle_share: float

    @property
    def is_busy(self) -> bool:
        """Does an epoch follow the other, without waiting for rows or for a trigger?"""
        return self.idle_share <= IDLE_MOST


def pace_of(
    epochs: Sequence[EpochFacts],
    *,
    limit: int | None = None,
    interval: bool = False,
    all_there: bool = False,
) -> Pace:
    """What the last epochs say, all of them run with the same limit.

    Args:
        limit: Rows per epoch that sources were given, if any.
        interval: A trigger with an interval: idle time is then no sign of idle sources.
        all_there: All rows were there when the run began.
    """
    seen = [e for e in epochs if e.rows > 0]
    recent = seen[-RECENT:]
    idle = _idle_share(recent)
    reported = [w for e in recent if (w := e.trigger.last_rows_wait) is not None]
    files = [f > 0 for e in recent if (f := e.trigger.files_waiting) is not None]
    if 2 * sum(files) > len(files):  # none may mean that a listing has come to its end
        return Pace(True, idle)
    if all_there or reported:
        return Pace(all_there or 2 * sum(reported) > len(reported), idle)
    if idle > IDLE_MOST and not interval:
        return Pace(False, idle)
    waits = _wait_by_size(seen)
    if limit is not None and recent:
        met = [FULL * limit <= e.rows <= limit / FULL for e in recent]
        if sum(met) >= 0.75 * len(met):
            return Pace(True, idle)
        # Sources that count in files may miss a limit by a third.
        if waits is None and float(np.median([e.rows for e in recent])) < FAR_BELOW * limit:
            waits = False
    return Pace(waits, idle)


def overhead_s(seen: Sequence[EpochFacts]) -> float:
    """Commit, sinks and Spark's own bookkeeping: what passes between the jobs of a busy flow.

    Spark tells how long a trigger took; where it did not, the shorter gaps count, since waiting for
    rows looks the same.
    """
    known = [
        after.trigger.last_trigger_ms / 1e3 - before.engine.seconds
        for before, after in _consecutive(seen)
        if after.trigger.last_trigger_ms is not None
    ]
    if known:
        return max(0.0, float(np.median(known)))
    gaps = _gaps_s(seen)
    return min(BESIDE_S, float(np.quantile(gaps, 0.25))) if gaps else 0.0


def in_tasks_s(engine: EngineFacts) -> float:
    """What an epoch's time was spent inside tasks at the least: the longest of every level."""
    return min(engine.seconds, float(sum(engine.levels_ms.values())) / 1e3)


def _idle_share(seen: Sequence[EpochFacts]) -> float:
    """Of the time, what is neither an epoch's job nor the work between two."""
    gaps, passed = _gaps_s(seen), sum(apart_s(*pair) for pair in _consecutive(seen))
    return max(0.0, sum(gaps) - overhead_s(seen) * len(gaps)) / passed if passed > 0 else 0.0


def _gaps_s(seen: Sequence[EpochFacts]) -> list[float]:
    """From the end of a job to the beginning of the next epoch."""
    return [max(0.0, apart_s(a, b) - a.engine.seconds) for a, b in _consecutive(seen)]


def _consecutive(seen: Sequence[EpochFacts]) -> list[tuple[EpochFacts, EpochFacts]]:
    return [(a, b) for a, b in pairwise(seen) if b.epoch == a.epoch + 1]


def apart_s(before: EpochFacts, after: EpochFacts) -> float:
    return (after.now_ms - before.now_ms) / 1e3


def _wait_by_size(seen: Sequence[EpochFacts]) -> bool | None:
    """What do the rows that have come by an epoch follow: the time, or the number of epochs?

    Behind a limit every epoch adds as many rows, however long it took; in a stream rows keep to the
    time, give or take what one epoch may hold. So the sums are compared with straight lines over
    both. Rows wait if the sums stray clearly more from time, and do not if more from the count.
    Sums forgive what single sizes do not: clocks read late, and files that come whole.

    Less is enough if no epoch differs from another by a row. A limit does that, and a stream only
    if it comes in files of one size at just the pace of the epochs; more slots do that no harm.
    """
    breaks = [i for i, (a, b) in enumerate(pairwise(seen), 1) if b.epoch != a.epoch + 1]
    epochs = seen[max(breaks, default=0) + 1 :]  # the first came in a time that is not known
    if len(epochs) < EPOCHS_MIN:
        return None
    sums = np.cumsum([float(e.rows) for e in epochs]) / np.mean([e.rows for e in epochs])
    from_time = _strays(np.array([float(e.now_ms) for e in epochs]), sums)
    from_count = _strays(np.arange(len(epochs), dtype=np.float64), sums)
    even = len({e.rows for e in epochs}) == 1
    if from_time >= max(EVEN_STRAYS_MIN if even else STRAYS_MIN, CLEARLY * from_count):
        return True
    return False if from_count >= max(STRAYS_MIN, from_time) else None


def _strays(x: F64, y: F64) -> float:
    """How far y is from its line over x, as a standard deviation."""
    if np.ptp(x) == 0:
        return 0.0
    x = (x - x.mean()) / np.ptp(x)
    y = y - y.mean()
    return float((y - x * (x @ y) / (x @ x)).std())


def measured_p95_s(epochs: Sequence[EpochFacts]) -> float | None:
    """The 95th percentile of rows' latency, as epochs have it; None if none does.

    Where sources have no times of their own, an epoch's latency counts from its beginning. Until
    then rows waited for the epoch before it, and came evenly.
    """
    known = []
    for before, after in _consecutive([e for e in epochs if e.rows]):
        latency = after.latency
        if latency is None or latency.commit_ms is None:
            continue
        waited_s = 0.0 if latency.since == "arrival" else P95 * apart_s(before, after)
        known.append(latency.p95_ms / 1e3 + waited_s)
    return float(np.median(known)) if known else None
