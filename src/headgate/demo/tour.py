"""The tour: regions and hashtags of a social stream, counted twice in a row, then checked.

The running example of Caneill et al. 2016: every post is counted by region, passed on, and
counted by hashtag. Input is seeded and written to files, so a run can be repeated and its end
compared with a plain fold of the same rows in one thread.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from headgate.control.settings import Manager, PlannerSettings
from headgate.demo.workload import EpochFiles, trends, write_epochs
from headgate.errors import HeadgateError
from headgate.flow import Flow
from headgate.operator.aggregates import Count
from headgate.runtime.query import FlowQuery

MARKER = ".headgate-demo"
SCHEMA = "region string, hashtag string, ts timestamp"
BY_REGION, BY_HASHTAG, COUNTS = "by_region", "by_hashtag", "counts"
_PARTS_PER_EPOCH = 2  # files, so that an epoch has more than one source task


@dataclass(frozen=True)
class DemoOptions:
    """What the demo runs; the same options give the same rows, state and sink rows."""

    out: Path
    rows_per_epoch: int = 250_000
    epochs: int = 20
    slots: int = 4
    seed: int = 7
    hash_epochs: int = 8

    @property
    def input(self) -> Path:
        return self.out / "input"

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint"

    @property
    def counts(self) -> Path:
        return self.out / "counts"

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    @property
    def spark_log(self) -> Path:
        return self.out / "spark.log"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"out": str(self.out)}


@dataclass(frozen=True)
class Verdict:
    """The run's end against a plain fold; `differences` is empty when they agree."""

    rows: int
    by_region: Mapping[str, int]
    by_hashtag: Mapping[str, int]
    fold_seconds: float
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences

    @property
    def sentence(self) -> str:
        """What was compared, and how it came out."""
        if self.differences:
            return (
                f"The run differs from a plain fold in one thread: {'; '.join(self.differences)}."
            )
        return (
            f"Every count equals a plain fold in one thread: {len(self.by_region):,} regions and "
            f"{len(self.by_hashtag):,} hashtags, {self.rows:,} rows, in state and sink."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "agrees": self.agrees,
            "sentence": self.sentence,
            "rows": self.rows,
            "regions": len(self.by_region),
            "hashtags": len(self.by_hashtag),
            "fold_seconds": self.fold_seconds,
            "differences": list(self.differences),
        }


def clear(options: DemoOptions) -> None:
    """Make room for a run; deletes only what an earlier demo left there."""
    out = options.out
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise HeadgateError(
            f"{out} holds files that are not from an earlier demo; choose an empty folder "
            "with --out"
        )
    for folder in (options.input, options.checkpoint, options.counts):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (options.report, options.spark_log):
        file.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Made by `headgate demo`, which also clears this folder.\n")


def write_input(options: DemoOptions) -> EpochFiles:
    """The demo's rows as files, one epoch after the other."""
    rows, seed = options.rows_per_epoch, options.seed
    tables = (trends(rows, seed=seed, epoch=epoch) for epoch in range(options.epochs))
    return write_epochs(tables, options.input, files_per_epoch=_PARTS_PER_EPOCH)


def demo_flow(read: Callable[[SparkSession], DataFrame], counts: Path) -> Flow:
    """Posts, counted by region, passed on, counted by hashtag, written to Parquet."""
    flow = Flow("trends")
    posts = flow.source(read, schema=SCHEMA, name="posts")
    regions = posts.key_by("region").process(Count(emit="rows"), name=BY_REGION)
    hashtags = regions.key_by("hashtag").process(Count(), name=BY_HASHTAG)
    hashtags.to_parquet(str(counts), name=COUNTS)
    return flow


def start_demo(spark: SparkSession, options: DemoOptions, files: EpochFiles) -> FlowQuery:
    """Start the flow over all files, an epoch each; it ends by itself.

    Keys are hashed for the first `hash_epochs`; then the manager, who has watched, takes over.
    """

    def read(session: SparkSession) -> DataFrame:
        stream = session.readStream.schema(SCHEMA)
        stream = stream.option("maxFilesPerTrigger", files.files_per_epoch)
        return stream.parquet(str(files.directory.resolve()))

    flow = demo_flow(read, options.counts)
    return flow.start(
        spark,
        slots=options.slots,
        checkpoint=str(options.checkpoint),
        trigger={"availableNow": True},
        manager=Manager(
            warm_up_epochs=options.hash_epochs, tuning=PlannerSettings(seed=options.seed)
        ),
    )


def check(query: FlowQuery, options: DemoOptions, files: EpochFiles) -> Verdict:
    """Fold the same rows in one thread of plain Python, and compare state and sink with it."""
    begun = time.perf_counter()
    by_region: Counter[str] = Counter()
    by_hashtag: Counter[str] = Counter()
    for epoch in range(len(files)):
        rows = files.read(epoch, ["region", "hashtag"])
        by_region.update(rows["region"].to_pylist())
        by_hashtag.update(rows["hashtag"].to_pylist())
    seconds = time.perf_counter() - begun
    written = pq.read_table(options.counts, columns=["hashtag", "count"])
    latest = written.group_by("hashtag").aggregate([("count", "max")])
    differences = [
        *_differences(f"state of {BY_REGION}", by_region, query.state(BY_REGION)),
        *_differences(f"state of {BY_HASHTAG}", by_hashtag, query.state(BY_HASHTAG)),
        *_differences(f"sink {COUNTS}", by_hashtag, latest.rename_columns(["hashtag", "count"])),
    ]
    total = sum(by_region.values())
    return Verdict(total, by_region, by_hashtag, seconds, tuple(differences))


def _differences(what: str, truth: Mapping[str, int], found: pa.Table) -> list[str]:
    key, count = found.column(0).to_pylist(), found.column("count").to_pylist()
    got = dict(zip(key, count, strict=True))
    if got == truth:
        return []
    wrong = [k for k in truth.keys() | got.keys() if truth.get(k) != got.get(k)]
    first = min(wrong, key=str)
    return [
        f"{what} has {len(wrong):,} wrong keys, such as {first!r}: "
        f"{got.get(first)} instead of {truth.get(first)}"
    ]


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on."""

    cores: int
    system: str
    python: str
    spark: str
    pyarrow: str
    numpy: str

    @classmethod
    def here(cls) -> Machine:
        return cls(
            cores=len(os.sched_getaffinity(0)),
            system=platform.platform(),
            python=platform.python_version(),
            spark=_version("pyspark"),
            pyarrow=_version("pyarrow"),
            numpy=_version("numpy"),
        )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
