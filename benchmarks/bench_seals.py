"""Which share of an epoch on Spark are the seals of warm copies?

Two flows in one session (local[2], two slots) take turns, epoch by epoch: a sum per integer key,
with seals and digests as they are and with none. Both get the same rows. `steady` fills a state of
`--keys` keys and then touches random ones; `growing` brings nothing but new keys, so that tables
are rebuilt again and again. Prints JSON: for each the medians of both, and of the ratios of epochs,
by wall time, by CPU time of all (JVM and Python workers) and by that of a slot's task, which is
where sealing happens; what a slot takes more, as a share of an unsealed epoch's wall time; raw
numbers.

    python benchmarks/bench_seals.py [--rows 500000] [--keys 1000000] [--epochs 24] [--growing 14]

A table of which an epoch touches more than an eighth has a digest; `--keys 6000000 --warm-up 24`
measures one whose rows are sealed one by one, once all of them are.

Spark starts this file as its Python daemon, too: that is how its workers learn which operator has
no seals. Nothing in the product knows of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.state.columns import MappedMemory
from headgate.state.seals import Seals

UNSEALED = "unsealed"  # an operator of this name has none
SLOTS = 2
MEASURED = ("wall", "cpu", "slot_cpu")


def leave_out_seals() -> None:
    """Of tables of that operator: no room for seals, none made, no digest made or compared."""
    reserve, stamp, attach = MappedMemory.reserve, Seals.stamp, Seals.attach

    def is_unsealed(memory: Any) -> bool:
        return UNSEALED in os.readlink(f"/proc/self/fd/{memory.folder}")

    def maybe_reserve(self: MappedMemory, name: str, *rest: Any) -> None:
        if name != "seals" or not is_unsealed(self):
            reserve(self, name, *rest)

    def maybe_stamp(self: Seals, fewer: bool) -> dict[str, Any]:
        return {} if is_unsealed(self._table.memory) else stamp(self, fewer)

    def maybe_attach(self: Seals, told: dict[str, Any]) -> None:
        if told:
            attach(self, told)

    patched: Any = MappedMemory, Seals
    patched[0].reserve = maybe_reserve
    patched[1].stamp, patched[1].attach = maybe_stamp, maybe_attach


class Contestant:
    """One of the two flows, and what its epochs took."""

    def __init__(self, spark: Any, folder: Path, operator: str) -> None:
        import headgate as hg

        self._input = folder / operator / "in"
        self._input.mkdir(parents=True)
        flow = hg.Flow(operator)
        files = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1)
        rows = flow.source(files.parquet(str(self._input))).key_by("k", grouping="hash")
        rows.process(hg.Sum("v"), name=operator).discard()
        place = str(folder / operator / "checkpoint")
        self.query = flow.start(spark, slots=SLOTS, checkpoint=place, manager=None)
        self._epochs = 0

    def epoch(self, rows: pa.Table) -> tuple[float, float, float]:
        """Milliseconds it took: on the wall, of all CPUs, and of CPU per slot (level 1 alone)."""
        before = cpu_ms()
        hidden = self._input / f".{self._epochs}"
        pq.write_table(rows, hidden)
        hidden.rename(self._input / f"{self._epochs}.parquet")
        self._epochs += 1
        self.query.processAllAvailable()
        [took] = [p for p in self.query.recentProgress if p["batchId"] == self._epochs - 1]
        slots_ms = took["headgate"]["task_cpu_ms"]["1"]
        return took["durationMs"]["triggerExecution"], cpu_ms() - before, slots_ms / SLOTS


def cpu_ms() -> float:
    """Of all processes below this one."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:13]))
    found, layer, ticks = 0, {os.getpid()}, os.sysconf("SC_CLK_TCK")
    while layer:
        layer = {pid for pid, (parent, _) in stats.items() if parent in layer}
        found += sum(stats[pid][1] for pid in layer)
    return found * 1000 / ticks


def tables(numbers: Iterator[Any]) -> Iterator[pa.Table]:
    for keys in numbers:
        yield pa.table({"k": keys, "v": np.ones(len(keys), np.int64)})


def steady(rows: int, keys: int, epochs: int) -> Iterator[Any]:
    rng = np.random.default_rng(7)
    yield from np.array_split(rng.permutation(keys), -(-keys // rows))
    for _ in range(epochs):
        yield rng.integers(0, keys, rows)


def growing(rows: int, epochs: int) -> Iterator[Any]:
    rng = np.random.default_rng(8)
    for epoch in range(epochs):
        yield rng.permutation(np.arange(epoch * rows, (epoch + 1) * rows))


def compare(spark: Any, folder: Path, numbers: Iterator[Any], warm_up: int) -> dict[str, Any]:
    contestants = {name: Contestant(spark, folder, name) for name in ("sealed", UNSEALED)}
    took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contestants}
    for epoch, rows in enumerate(tables(numbers)):
        for name in sorted(contestants, reverse=epoch % 2 == 1):
            took[name].append(contestants[name].epoch(rows))
    for contestant in contestants.values():
        contestant.query.stop()
    result: dict[str, Any] = {"raw_ms": took}
    for index, what in enumerate(MEASURED):
        on, off = ([t[index] for t in took[name][warm_up:]] for name in ("sealed", UNSEALED))
        pairs = list(zip(on, off, strict=True))
        result[what] = {
            "median_ms": [statistics.median(on), statistics.median(off)],
            "median_more_ms": statistics.median(a - b for a, b in pairs),
            "mean_more_ms": statistics.mean(a - b for a, b in pairs),
            "median_of_ratios": statistics.median(a / b for a, b in pairs),
        }
    wall_ms = result["wall"]["median_ms"][1]
    result["share_of_epoch"] = result["slot_cpu"]["median_more_ms"] / wall_ms
    result["share_of_epochs"] = result["slot_cpu"]["mean_more_ms"] / wall_ms
    return result


def measure(rows: int, keys: int, epochs: int, growing_epochs: int, warm_up: int) -> dict[str, Any]:
    from headgate.runtime.session import local_session

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where Spark finds its daemon
    conf = {"spark.python.daemon.module": Path(__file__).stem}
    spark = local_session("seals", cores=SLOTS, conf=conf)
    filled = -(-keys // rows)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        found = {
            "steady": compare(
                spark,
                Path(folder) / "steady",
                steady(rows, keys, warm_up + epochs),
                filled + warm_up,
            ),
            "growing": compare(spark, Path(folder) / "growing", growing(rows, growing_epochs), 1),
        }
        spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--growing", type=int, default=14)
    parser.add_argument("--warm-up", type=int, default=6, help="steady epochs before it counts")
    given = parser.parse_args()
    found = measure(given.rows, given.keys, given.epochs, given.growing, given.warm_up)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark"):
        from pyspark import daemon

        leave_out_seals()
        daemon.manager()  # type: ignore[no-untyped-call]
    else:
        main()
