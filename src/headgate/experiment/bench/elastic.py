"""Scaling under load: 2 -> 4 -> 2 slots, embedded and on a real cluster.

Embedded only slots change. On the cluster, Spark standalone on four hosts in network namespaces,
executors come and go with them. The flow is fed as fast as it takes rows. Epochs that change the
slot count are held against the median of all, rows moved against what must move (the new slots'
fair share, or all that the leaving slots had), and the state in the end against a plain fold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headgate.errors import EngineError
from headgate.experiment.bench import elastic_driver
from headgate.experiment.namespace_cluster import NamespaceCluster, available
from headgate.experiment.record import Machine

Say = Callable[[str], None]
Run = Callable[[list[str], "ElasticOptions"], "subprocess.CompletedProcess[str]"]
TIMEOUT_S = 1500


@dataclass(frozen=True)
class ElasticOptions:
    """Sizes; `epochs` run at each of the three slot counts."""

    rows: int = 100_000
    slots: tuple[int, int] = (2, 4)
    epochs: int = 14
    warmup: int = 8
    seed: int = 11


QUICK = ElasticOptions(rows=2_000, epochs=5, warmup=2)


def run_elastic(options: ElasticOptions, say: Say) -> dict[str, Any]:
    """Seconds of every epoch, what moved, and whether anything was lost, in both places."""
    few, many = options.slots
    say(f"embedded: scaling {few} -> {many} -> {few} slots")
    found: dict[str, Any] = {"embedded": _measured(_embedded, options)}
    reason = available()
    if reason is None:
        say(f"{many} hosts: scaling {few} -> {many} -> {few} slots")
        found["cluster"] = _measured(_on_cluster, options)
    else:
        say(f"no cluster of network namespaces: {reason}")
    return found | {"options": asdict(options), "machine": asdict(Machine.here())}


def _measured(run: Run, options: ElasticOptions) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        done = run([elastic_driver.__file__, json.dumps(asdict(options)), folder], options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise EngineError(f"the driver program gave no result: {done.stderr[-3000:]}")
    found = json.loads(lines[-1].removeprefix("RESULT "))
    return {**_figures(found, options), **found}


def _embedded(command: list[str], options: ElasticOptions) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a Spark session is for life; as many cores as there are."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def _on_cluster(command: list[str], options: ElasticOptions) -> subprocess.CompletedProcess[str]:
    with NamespaceCluster(hosts=options.slots[1]) as cluster:
        return cluster.run(*command, timeout=TIMEOUT_S)


def _figures(found: dict[str, Any], options: ElasticOptions) -> dict[str, Any]:
    epochs = found["epochs"][options.warmup :]
    usual = median(e["seconds"] for e in epochs)
    few, many = options.slots
    changes = []
    for before, now in pairwise(epochs):
        if before["slots"] != now["slots"]:
            changes.append(
                {
                    "from": before["slots"],
                    "to": now["slots"],
                    "epoch_over_median": now["seconds"] / usual,
                    "moved_share": now["moved_rows"] / max(1, before["state_rows"]),
                    "must_move_share": 1 - few / many,
                }
            )
    worst = max(epochs, key=lambda e: float(e["seconds"]))
    return {
        "lost_nothing": found["equal_to_fold"],
        "worst_epoch_over_median": worst["seconds"] / usual,
        "median_epoch_s": usual,
        "median_epoch_s_by_slots": {
            str(n): median(e["seconds"] for e in epochs if e["slots"] == n) for n in options.slots
        },
        "slot_changes": changes,
    }
