"""A flow that runs for long, and what it holds on to: memory, open files, files on disk.

The flow has everything that keeps something: state with a TTL and keys that never end, windows,
rows that are split, pieces of a hot key, a manager that moves keys, sinks of two kinds, and other
numbers of slots again and again. After an epoch, when no task runs, `Watch` reads what every
process holds; `growth` says how much of it comes with each epoch.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.runtime.query import FlowQuery

ROWS = 400  # of an epoch
PAGES = 30
NOTE_BYTES = 1_000
EPOCH_S = 1
TTL_S, WINDOW_S, LATE_S = 3, 4, 2
SLOTS = (3, 1, 2)  # one after the other, again and again
SOAK_CONF = {
    # Spark remembers so many of the last jobs and batches; the fewer, the sooner it is full.
    "spark.ui.retainedJobs": "5",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "20",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


@dataclass(frozen=True)
class Held:
    """What is held after an epoch. Memory is anonymous: files that are mapped are not in it."""

    epoch: int
    worker_bytes: int  # the largest Python worker
    driver_bytes: int  # the driver's Python
    heap_bytes: int  # the JVM's, after a collection
    descriptors: int  # of all processes
    local_files: int  # shuffles and warm copies
    local_bytes: int
    checkpoint_files: int  # without tables and journal
    checkpoint_bytes: int
    table_files: int
    journal_bytes: int


# What may be more after n epochs: so much at once, as allocators and caches fill, and so much with
# each of them.
ALLOWED = {
    "worker_bytes": (6 << 20, 2_048),
    "driver_bytes": (6 << 20, 2_048),
    "heap_bytes": (6 << 20, 2_048),
    "descriptors": (12, 0),
    "local_files": (60, 0),
    "local_bytes": (2 << 20, 0),
    "checkpoint_files": (120, 0),
    "checkpoint_bytes": (2 << 20, 0),
    "table_files": (12, 1),
    "journal_bytes": (3 << 20, 0),
}


def rows(spark: SparkSession) -> DataFrame:
    """The same rows in every run: epoch e has the values from e * ROWS on, at second e."""
    source = spark.readStream.format("rate-micro-batch")
    counted = source.options(rowsPerBatch=ROWS, advanceMillisPerBatch=1_000 * EPOCH_S).load()
    value = F.col("value")
    return counted.select(
        "value",
        F.col("timestamp").alias("at"),
        F.floor(value / 8).alias("visitor"),
        F.when(value % 3 == 0, 0).otherwise(value % PAGES).alias("page"),
        F.concat(value.cast("string"), F.lit("." * NOTE_BYTES)).alias("note"),
    )


def declared(spark: SparkSession, after_epoch: Any) -> hg.Flow:
    flow = hg.Flow("soak")
    source = flow.source(rows(spark), event_time="at", watermark=f"{LATE_S} seconds")
    visits = hg.Count(emit="rows", ttl=f"{TTL_S} seconds")
    seen = source.key_by("visitor").process(visits, name="visits")
    seen.key_by("page").process(hg.Last("note", by="value"), name="notes")
    window = hg.Tumbling(f"{WINDOW_S} seconds", time="at")
    windows = source.key_by("page", grouping="partial").process(
        hg.Count(window=window), name="windows"
    )
    windows.to_table("closed")
    hot = source.key_by("page", grouping="cut").process(hg.Count(), name="hot")
    hot.to(after_epoch, name="watch")
    return flow


def check(query: FlowQuery) -> None:
    """State and closed windows are those of a plain fold over all rows.

    A busy machine may tick between two batches: an epoch without rows, for which time stands still.
    """
    last = query.coordinator.last
    assert last is not None and last.used_watermark_us is not None
    value = np.arange((last.batch + 1) * ROWS)
    page = np.where(value % 3 == 0, 0, value % PAGES)
    counts = Counter(page.tolist())
    assert {r["page"]: r["count"] for r in query.state("hot").to_pylist()} == counts
    written_s = value // ROWS * EPOCH_S  # a batch is as many seconds old as others came since
    recent = Counter((value[written_s > last.now_ms // 1_000 - TTL_S] // 8).tolist())
    assert last.batch * EPOCH_S <= last.now_ms // 1_000 <= (last.batch + 1) * EPOCH_S
    assert {r["visitor"]: r["count"] for r in query.state("visits").to_pylist()} == recent
    notes = {r["page"]: int(r["note"].rstrip(".")) for r in query.state("notes").to_pylist()}
    assert notes == {p: int(value[page == p].max()) for p in counts}
    closed = query.table("closed").toArrow().to_pylist()
    window = value // ROWS * EPOCH_S // WINDOW_S
    fold = Counter(zip(window.tolist(), page.tolist(), strict=True))
    found = {
        (int(r["window_start"].timestamp()) // WINDOW_S, r["page"]): r["count"] for r in closed
    }
    assert len(found) == len(closed)
    watermark_s = last.used_watermark_us // 1_000_000  # it follows from the epoch before
    assert last.batch - 1 - LATE_S <= watermark_s <= last.batch - LATE_S
    assert found == {k: n for k, n in fold.items() if k[0] < watermark_s // WINDOW_S}


class Watch:
    """Reads what is held after every n-th epoch, and changes the number of slots."""

    def __init__(self, spark: SparkSession, checkpoint: Path, *, every: int, rescale: int) -> None:
        self._spark, self._checkpoint, self._every = spark, checkpoint, every
        self._rescale, self._slots = rescale, itertools.cycle(SLOTS)
        self._local = Path(spark.conf.get("spark.local.dir"))
        self.seen: list[Held] = []
        self.query: FlowQuery | None = None
        self.epoch = -1
        self.now_ms = 0

    def after_epoch(self, frame: DataFrame, epoch: int) -> None:
        last = None if self.query is None else self.query.coordinator.last
        self.now_ms = 1_000 * (epoch - (last.ticks if last else 0) + 1) * EPOCH_S
        if epoch % self._every == 0:
            self.seen.append(self.held(epoch))
        if epoch % self._rescale == self._rescale - 1 and self.query is not None:
            self.query.rescale(next(self._slots))
        self.epoch = epoch

    def held(self, epoch: int) -> Held:
        runtime: Any = self._spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
        gc.collect()  # Java objects that only a cycle of Python's still names
        runtime.gc()  # and then what Spark's cleaner deletes when nothing names it
        driver, children = os.getpid(), descendants(os.getpid())
        workers = [pid for pid in children if is_python_worker(pid)]
        local, checkpoint = files_below(self._local), files_below(self._checkpoint)
        tables = {path for path in checkpoint if "/tables/" in path}
        journal = {path for path in checkpoint if "/journal/" in path}
        others = checkpoint.keys() - tables - journal
        return Held(
            epoch,
            worker_bytes=max(map(anonymous_bytes, workers), default=0),
            driver_bytes=anonymous_bytes(driver),
            heap_bytes=runtime.totalMemory() - runtime.freeMemory(),
            descriptors=sum(map(open_descriptors, [driver, *children])),
            local_files=len(local),
            local_bytes=sum(local.values()),
            checkpoint_files=len(others),
            checkpoint_bytes=sum(checkpoint[path] for path in others),
            table_files=len(tables),
            journal_bytes=sum(checkpoint[path] for path in journal),
        )


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those they started, and so on."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _read(f"/proc/{entry.name}/stat")
            if stat:
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, layer = [], {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return found


def is_python_worker(pid: int) -> bool:
    """Spark's daemon, or what it forked."""
    return "pyspark.daemon" in _read(f"/proc/{pid}/cmdline").split("\0")


def anonymous_bytes(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def open_descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


def files_below(folder: Path) -> dict[str, int]:
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            try:
                found[path] = os.stat(path).st_size
            except FileNotFoundError:
                pass
    return found


def growth(seen: Sequence[Held], what: str) -> float:
    """How much more of it an epoch leaves: the median slope over all pairs of readings (Theil-Sen).

    Up to three readings in ten may be as far off as they like, and it hardly moves.
    """
    epochs = np.array([held.epoch for held in seen], float)
    values = np.array([getattr(held, what) for held in seen], float)
    one, other = np.triu_indices(len(seen), 1)
    return float(np.median((values[other] - values[one]) / (epochs[other] - epochs[one])))


def allowed(seen: Sequence[Held], what: str) -> float:
    """How much more of it an epoch may leave, on average over these readings."""
    at_once, each = ALLOWED[what]
    return each + at_once / (seen[-1].epoch - seen[0].epoch)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
