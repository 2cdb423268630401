"""Wide rows over a slow network: what tables that keep most rows local are worth.

A chain of four stateful operators over 4 kB rows, on a real Spark standalone cluster of three hosts
in network namespaces with throttled links; hash routing against tables, in the same engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from headgate.demo import Machine
from headgate.errors import EngineError
from headgate_lab.bench import wide_driver
from headgate_lab.cluster.namespace_cluster import NamespaceCluster, available
from headgate_lab.record import work_folder

Say = Callable[[str], None]


@dataclass(frozen=True)
class WideOptions:
    rows: int = 20_000
    row_bytes: int = 4_000
    chain: int = 4
    slots: int = 6
    hosts: int = 3
    links_mbit: tuple[int, ...] = (100, 40)
    locality: float = 0.8
    epochs: int = 4
    rounds: int = 2
    seed: int = 5


QUICK = WideOptions(rows=500, epochs=2, rounds=1, chain=2, links_mbit=(100,))


def run_wide(options: WideOptions, say: Say) -> dict[str, Any]:
    """Rows per second with hash routing and with tables, and their ratio, for each link speed."""
    reason = available()
    if reason is not None:
        raise EngineError(f"bench wide needs network namespaces: {reason}")
    links = {str(mbit): _at_speed(options, mbit, say) for mbit in options.links_mbit}
    return {
        "tables_over_hash": {mbit: found["tables_over_hash"] for mbit, found in links.items()},
        "links_mbit": links,
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def _at_speed(options: WideOptions, mbit: int, say: Say) -> dict[str, Any]:
    with (
        work_folder() as folder,
        NamespaceCluster(hosts=options.hosts, link_mbit=mbit) as cluster,
    ):
        say(f"{options.hosts} hosts up, links of {mbit} Mbit/s; running both ways")
        done = cluster.run(wide_driver.__file__, json.dumps(asdict(options)), folder, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise EngineError(f"the driver program gave no result: {done.stderr[-2000:]}")
    found = json.loads(lines[-1].removeprefix("RESULT "))
    seconds = {mode: [s for turn in f["epoch_s"] for s in turn] for mode, f in found.items()}
    rates = {mode: options.rows / median(s) for mode, s in seconds.items()}
    return {
        "rows_per_s": rates,
        "tables_over_hash": rates["tables"] / rates["hash"],
        "locality": {mode: _mean(f["locality"]) for mode, f in found.items()},
        "bytes_shuffled_per_epoch": {m: _mean(f["bytes_shuffled"]) for m, f in found.items()},
        "epoch_seconds_raw": {mode: f["epoch_s"] for mode, f in found.items()},
    }


def _mean(turns: list[list[float]]) -> float:
    values = [value for turn in turns for value in turn]
    return sum(values) / len(values)
