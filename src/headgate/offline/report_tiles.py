"""The figures at the top of a report: what the run is now, and what it was before keys moved.

Means over a whole run would hide what the manager did: half of the rows stayed, neither the few of
the beginning nor the many of the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from headgate.offline.views import EpochView, RunView, number, percent, short, times

Tile = tuple[str, str, str]


def tiles(views: Sequence[EpochView]) -> list[Tile]:
    """Name, value and note of each."""
    run = RunView.of(views)
    before, since = _parts(views)
    now = RunView.of(since)
    moved = run.bytes_local + run.bytes_shuffled

    def was(text: str) -> str:
        return f"; {text} before keys moved" if before else ""

    earlier = RunView.of(before)
    found = [
        ("rows", short(run.rows), f"in {run.epochs} epochs"),
        (
            "rows per second",
            number(now.rows_per_second_median),
            f"median epoch{was(number(earlier.rows_per_second_median))}",
        ),
        ("seconds per epoch", number(now.epoch_seconds_median, "s"), "median"),
        (
            "stay in their slot",
            percent(_locality(since)),
            f"of rows between operators{was(percent(_locality(before)))}",
        ),
        (
            "imbalance",
            times(now.imbalance_median),
            f"busiest slot over mean{was(times(earlier.imbalance_median))}",
        ),
        ("shuffled", short(run.bytes_shuffled, "B"), f"of {short(moved, 'B')} moved"),
    ]
    p95_ms = now.latency_p95_ms_median
    if p95_ms is not None:
        found.append(("latency", short(p95_ms / 1e3, "s"), "p95, median epoch"))
    return found


def changes(views: Sequence[EpochView]) -> list[int]:
    """Epochs from which keys are elsewhere, or the number of slots is another."""
    return [
        after.epoch
        for before, after in pairwise(views)
        if (before.slots, before.routing_version) != (after.slots, after.routing_version)
    ]


def _parts(views: Sequence[EpochView]) -> tuple[Sequence[EpochView], Sequence[EpochView]]:
    """The epochs before the first change, and all since; nothing and all if there is none."""
    changed = changes(views)
    if not changed:
        return (), views
    at = next(i for i, view in enumerate(views) if view.epoch == changed[0])
    return (views[:at], views[at:]) if any(v.rows for v in views[at:]) else ((), views)


def _locality(views: Sequence[EpochView]) -> float | None:
    known = [view.locality for view in views if view.rows and view.locality is not None]
    return median(known) if known else None
