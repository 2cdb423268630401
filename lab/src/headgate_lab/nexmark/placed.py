"""Joins that are placed: bytes over the network of q4, q6 and q9, in three ways.

On a real Spark standalone cluster of three hosts in network namespaces, over the same files, which
are in shards by auction as a topic's partitions would be. Keys are (shard, auction).

- `hash`: keys are hashed, and files are read anywhere.
- `tables`: an auction belongs to one seller and one category, so tables that keep it where its
  seller (q4: its category) is spare the way from the join to what comes behind it. They are made
  from the events: each auction is pinned to the slot of what it leads to.
- `near`: auctions live near their shard, and a shard is read on the host where they live.

`bytes_over_hosts` is what Spark's shuffle fetched from other hosts; `bytes_sent` all that hosts
sent over their links while a query ran, results of tasks and Spark's own talk included.
"""

from __future__ import annotations

import json
import select
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from headgate.demo import Machine
from headgate.errors import EngineError
from headgate_lab.cluster.namespace_cluster import NamespaceCluster, available, stop_driver
from headgate_lab.nexmark import placed_driver
from headgate_lab.record import work_folder

BYTES = ("bytes_over_hosts", "bytes_sent", "bytes_between_slots", "bytes_behind_the_join")
CONF = {"spark.locality.wait.node": "120s"}  # no slot leaves its host
PATIENCE_S = 600.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class PlacedOptions:
    """Sizes of the comparison."""

    queries: tuple[str, ...] = ("q4", "q6", "q9")
    events: int = 200_000
    events_per_second: float = 2_000.0
    epochs: int = 5
    slots: int = 6
    shards: int = 64
    hosts: int = 3
    link_mbit: int = 100
    seed: int = 17


def run_placed(options: PlacedOptions, say: Say) -> dict[str, Any]:
    """What each query sent, by way; raises if a result is wrong."""
    reason = available()
    if reason is not None:
        raise EngineError(f"nexmark --placed needs network namespaces: {reason}")
    queries: dict[str, dict[str, Any]] = {}
    with (
        work_folder() as folder,
        NamespaceCluster(hosts=options.hosts, link_mbit=options.link_mbit, conf=CONF) as cluster,
    ):
        say(f"{options.hosts} hosts up, links of {options.link_mbit} Mbit/s")
        log = Path(folder) / "driver.log"
        settings = json.dumps(asdict(options))
        process = cluster.start(placed_driver.__file__, settings, folder, log=log)
        try:
            while (ready := _answer(process, log)) is not None:
                before = sum(map(cluster.bytes_sent, cluster.hosts))
                done = _go_on(process, log)
                sent = sum(map(cluster.bytes_sent, cluster.hosts)) - before
                checked = _go_on(process, log)
                query, way = ready["query"], ready["way"]
                if not (checked["right"] and checked["equal"]):
                    raise EngineError(f"{query}, {way}: the result is wrong: {checked}")
                megabytes = [f"{count / 1e6:.2f}" for count in (done["bytes_over_hosts"], sent)]
                told = f"{megabytes[0]} MB shuffled between hosts, {megabytes[1]} sent in all"
                say(f"{query}, {way}: {told}, {checked['rows']} rows, right")
                del done["said"]
                queries.setdefault(query, {})[way] = {"bytes_sent": sent, **done}
                _write(process)
        finally:
            stop_driver(process)
    for ways in queries.values():
        for way in ("tables", "near"):
            ways[f"{way}_over_hash"] = {what: _ratio(ways, way, what) for what in BYTES}
    return {"queries": queries, "options": asdict(options), "machine": asdict(Machine.here())}


def _go_on(process: Popen[str], log: Path) -> dict[str, Any]:
    _write(process)
    answer = _answer(process, log)
    assert answer is not None, log.read_text(errors="replace")[-2000:]
    return answer


def _write(process: Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _answer(process: Popen[str], log: Path) -> dict[str, Any] | None:
    """The driver's next line; None when it has ended well."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    line = process.stdout.readline() if ready else ""
    if line:
        found: dict[str, Any] = json.loads(line)
        return found
    if ready and process.wait(PATIENCE_S) == 0:
        return None
    raise EngineError(f"the driver gave no answer: {log.read_text(errors='replace')[-2000:]}")


def _ratio(ways: dict[str, Any], way: str, what: str) -> float | None:
    return ways[way][what] / ways["hash"][what] if ways["hash"][what] else None
