"""Joins that are placed: bytes over the network of q4, q6 and q9, tables against hash.

On a real Spark standalone cluster of three hosts in network namespaces, over the same files. An
auction belongs to one seller and one category, so tables that keep an auction where its seller (q4:
its category) is spare the way from the join to what comes behind it. They are made from the
events: each auction is pinned to the slot of what it leads to. The way from the files to the join
stays: files lie anywhere.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headgate.demo import Machine
from headgate.errors import EngineError
from headgate_lab.cluster.namespace_cluster import NamespaceCluster, available
from headgate_lab.nexmark import placed_driver

Say = Callable[[str], None]


@dataclass(frozen=True)
class PlacedOptions:
    """Sizes of the comparison."""

    queries: tuple[str, ...] = ("q4", "q6", "q9")
    events: int = 200_000
    events_per_second: float = 2_000.0
    epochs: int = 5
    slots: int = 6
    hosts: int = 3
    link_mbit: int = 100
    seed: int = 17


def run_placed(options: PlacedOptions, say: Say) -> dict[str, Any]:
    """Bytes shuffled between slots, all and behind the join, for each query and way of routing."""
    reason = available()
    if reason is not None:
        raise EngineError(f"nexmark --placed needs network namespaces: {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="headgate-nexmark-") as folder,
        NamespaceCluster(hosts=options.hosts, link_mbit=options.link_mbit) as cluster,
    ):
        say(f"{options.hosts} hosts up, links of {options.link_mbit} Mbit/s; running both ways")
        program = placed_driver.__file__
        done = cluster.run(program, json.dumps(asdict(options)), folder, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise EngineError(f"the driver program gave no result: {done.stderr[-2000:]}")
    queries = json.loads(lines[-1].removeprefix("RESULT "))
    return {"queries": queries, "options": asdict(options), "machine": asdict(Machine.here())}
