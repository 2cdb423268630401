"""How epochs follow each other: what lies between them, how fast rows come, whether they wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

FULL = 0.9  # epochs this near to the largest one have met the source's limit
BESIDE_S = 1.0  # between two jobs of a flow that never waits for rows: commit, sinks, Spark's part


def overhead_s(told: Sequence[Mapping[str, Any]]) -> float:
    """Commit, sinks and Spark's own bookkeeping: what passes between the jobs of a busy flow.

    Waiting for rows looks the same, so the shorter gaps count.
    """
    gaps = gaps_s(told)
    return float(np.quantile(gaps, 0.25)) if gaps else 0.0


def gaps_s(told: Sequence[Mapping[str, Any]]) -> list[float]:
    """From the end of a job to the beginning of the next epoch."""
    return [
        max(0.0, (after["now_ms"] - before["now_ms"]) / 1e3 - job_s(before))
        for before, after in pairwise(told)
        if after["epoch"] == before["epoch"] + 1
    ]


def arriving_per_s(told: Sequence[Mapping[str, Any]]) -> float:
    """Rows of all epochs but the last, over the time until that one began."""
    seconds = (told[-1]["now_ms"] - told[0]["now_ms"]) / 1e3
    return sum(r["rows"] for r in told[:-1]) / seconds if seconds > 0 else 0.0


def has_backlog(told: Sequence[Mapping[str, Any]]) -> bool:
    """Epochs follow each other closely, and nearly all are as large as the largest.

    Without a limit each takes what has come meanwhile, and their sizes differ. Short waits look
    like Spark's own work between epochs.
    """
    rows = np.array([r["rows"] for r in told])
    full = float(np.quantile(rows, 0.25)) >= FULL * float(rows.max())
    gaps = gaps_s(told)
    job = float(np.median([job_s(r) for r in told]))
    return full and bool(gaps) and float(np.median(gaps)) <= max(BESIDE_S, job)


def job_s(record: Mapping[str, Any]) -> float:
    return float(record.get("plan_ms", 0.0) + record.get("job_ms", 0.0)) / 1e3
