"""Scaling under load: 2 -> 4 -> 2 slots, embedded and on a real cluster.

Embedded only slots change. On the cluster, Spark standalone on four hosts in network namespaces,
executors come and go with them. All hosts share the machine's cores; with `own_cpus` it is run once
more with a share for each, as machines of their own would have.

The flow is fed as fast as it takes rows. Every epoch counts, from trigger to commit, and so does
every pause between two: the worst is held against the median of all. Rows moved are held against
what must move (the new slots' fair share, or all that the leaving slots had), and the state in the
end against a plain fold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headgate.demo import Machine
from headgate.errors import EngineError
from headgate_lab.bench import elastic_driver
from headgate_lab.cluster.host_cpu import quotas_available
from headgate_lab.cluster.namespace_cluster import NamespaceCluster, available
from headgate_lab.record import work_folder

Say = Callable[[str], None]
Run = Callable[[list[str], "ElasticOptions"], "subprocess.CompletedProcess[str]"]
TIMEOUT_S = 1500


@dataclass(frozen=True)
class ElasticOptions:
    """Sizes; `epochs` run at each of the three slot counts, after some for the JVM to warm up.

    `host_cpus` is a host's share of the machine where each has its own; the driver takes the rest.
    """

    rows: int = 100_000
    slots: tuple[int, int] = (2, 4)
    epochs: int = 10
    warmup: int = 8
    seed: int = 11
    host_cpus: float = 0.4


QUICK = ElasticOptions(rows=2_000, epochs=5, warmup=2)


def run_elastic(options: ElasticOptions, say: Say, *, own_cpus: bool = False) -> dict[str, Any]:
    """Seconds of every epoch, what moved, and whether anything was lost, in every place."""
    few, many = options.slots
    say(f"embedded: scaling {few} -> {many} -> {few} slots")
    found: dict[str, Any] = {"embedded": _measured(_embedded, options)}
    reason = available()
    if reason is None:
        say(f"{many} hosts that share the cores: scaling {few} -> {many} -> {few} slots")
        found["cluster"] = _measured(_on_cluster, options)
        found |= _own_cpus(options, say) if own_cpus else {}
    else:
        say(f"no cluster of network namespaces: {reason}")
    return found | {"options": asdict(options), "machine": asdict(Machine.here())}


def _own_cpus(options: ElasticOptions, say: Say) -> dict[str, Any]:
    reason = quotas_available()
    if reason is not None:
        say(f"hosts cannot have a share of the cores each: {reason}")
        return {}
    say(f"{options.slots[1]} hosts with {options.host_cpus:g} cores each: the same")
    return {"cluster_own_cpus": _measured(_on_cluster_with_quotas, options)}


def _measured(run: Run, options: ElasticOptions) -> dict[str, Any]:
    with work_folder() as folder:
        done = run([elastic_driver.__file__, json.dumps(asdict(options)), folder], options)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise EngineError(f"the driver program gave no result: {done.stderr[-3000:]}")
    found = json.loads(lines[-1].removeprefix("RESULT "))
    return {**_figures(found, options), **found}


def _embedded(command: list[str], options: ElasticOptions) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a Spark session is for life; as many cores as there are."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )


def _on_cluster(command: list[str], options: ElasticOptions) -> subprocess.CompletedProcess[str]:
    with NamespaceCluster(hosts=options.slots[1]) as cluster:
        return cluster.run(*command, timeout=TIMEOUT_S)


def _on_cluster_with_quotas(
    command: list[str], options: ElasticOptions
) -> subprocess.CompletedProcess[str]:
    hosts, cpus = options.slots[1], options.host_cpus
    with NamespaceCluster(hosts=hosts, host_cpus=cpus) as cluster:
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
        "worst_with_pause_over_median": max(e["seconds"] + e["gap_s"] for e in epochs) / usual,
        "median_epoch_s": usual,
        "median_epoch_s_by_slots": {
            str(n): median(e["seconds"] for e in epochs if e["slots"] == n) for n in options.slots
        },
        "slot_changes": changes,
    }
