"""What `headgate demo` runs: a seeded stream, the flow that counts it, and the check of its result.

The running example of Caneill et al. 2016: every post is counted by region, passed on, and
counted by hashtag. Input is seeded and written to files, so a run can be repeated and its end
compared with a plain fold of the same rows in one thread.

A *world* (who is popular, who goes with whom) follows from the seed alone; the rows of an epoch
follow from seed and epoch. So epochs of one seed share their correlations, and any epoch can be
made without the ones before it. NumPy and Arrow only; no loop runs over rows.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.arrays import F64, I64
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.runtime.query import FlowQuery

MARKER = ".headgate-demo"
BY_REGION, BY_HASHTAG, COUNTS = "by_region", "by_hashtag", "counts"
_SCHEMA = "region string, hashtag string, ts timestamp"
_PARTS_PER_EPOCH = 2  # files, so that an epoch has more than one source task
_WORLD, _ROWS = 0, 1  # what a generator is for; keeps its two random streams apart
_FIRST_FILE_TIME_S = 1_700_000_000  # any time in the past: Spark reads files by age
_DEMO_START = np.datetime64("2026-01-01T00:00:00", "us")
_REGIONS = (
    "amsterdam athens bangkok bogota cairo chicago delhi dublin jakarta lagos lima london madrid "
    "manila mexico milan mumbai nairobi oslo paris santiago seoul sydney tokyo"
).split()
_SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu".split()


def trends(
    rows: int,
    *,
    seed: int,
    epoch: int,
    regions: int = 12,
    hashtags: int = 3_000,
    correlation: float = 0.8,
    born_per_epoch: int = 30,
    half_life_epochs: float = 20.0,
    home_epochs: int = 25,
    epoch_seconds: int = 60,
) -> pa.Table:
    """Rows (region, hashtag, ts) of a social stream that never stands still.

    `hashtags` are alive at a time; each epoch `born_per_epoch` new ones replace the oldest. A
    hashtag starts with a Zipfian popularity that halves every `half_life_epochs`, and is posted
    from its home region with probability `correlation`. Every `home_epochs` epochs, each at its own
    time, a hashtag finds another home. `ts` ascends within the epoch's `epoch_seconds`.
    """
    _, draw = generators(seed, epoch)
    tag = np.arange(hashtags, dtype=np.int64) + born_per_epoch * epoch
    age = (hashtags - 1 - np.arange(hashtags)) / max(1, born_per_epoch)

    fame = zipf_weights(hashtags, 1.0)[mixed(seed, 1, tag) % hashtags]
    weight = fame * 0.5 ** (age / half_life_epochs)
    stay = (epoch + mixed(seed, 2, tag) % home_epochs) // home_epochs
    home = mixed(seed, 3, tag * 1_000_003 + stay) % regions

    posted = draw.choice(hashtags, size=rows, p=weight / weight.sum())
    elsewhere = draw.choice(regions, size=rows, p=zipf_weights(regions, 0.7))
    region = np.where(draw.random(rows) < correlation, home[posted], elsewhere)
    offset = np.sort(draw.integers(0, epoch_seconds * 1_000_000, rows))
    ts = _DEMO_START + (epoch * epoch_seconds * 1_000_000 + offset).astype("timedelta64[us]")

    names = [*_REGIONS, *(f"region-{i}" for i in range(len(_REGIONS), regions))]
    return pa.table(
        {
            "region": pa.array(names).take(pa.array(region)),
            "hashtag": pa.array([_hashtag(int(i)) for i in tag]).take(pa.array(posted)),
            "ts": pa.array(ts).cast(pa.timestamp("us", tz="UTC")),
        }
    )


@dataclass(frozen=True)
class EpochFiles:
    """Parquet files in one directory, grouped by epoch, in the order Spark will read them.

    `hg.Files(directory, max_files=files_per_epoch)` turns epoch i into micro-batch i.
    """

    directory: Path
    files: tuple[tuple[Path, ...], ...]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def files_per_epoch(self) -> int:
        return len(self.files[0])

    @property
    def paths(self) -> list[Path]:
        """All files, oldest first."""
        return list(chain.from_iterable(self.files))

    def read(self, epoch: int, columns: list[str] | None = None) -> pa.Table:
        return pa.concat_tables(pq.read_table(path, columns=columns) for path in self.files[epoch])

    def rows(self, epoch: int) -> int:
        return sum(int(pq.read_metadata(path).num_rows) for path in self.files[epoch])


def write_epochs(
    tables: Iterable[pa.Table], directory: Path, *, files_per_epoch: int = 1, first: int = 0
) -> EpochFiles:
    """Write one epoch per table, so that Spark's file source meets them in that order.

    Modification times ascend strictly over all files, one second each, whatever the clock says. A
    file appears complete or not at all, so a running query may watch the directory; `first` is
    the number of epochs already there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for epoch, table in enumerate(tables, start=first):
        share = -(-table.num_rows // files_per_epoch)
        parts = []
        for part in range(files_per_epoch):
            path = directory / f"epoch-{epoch:06d}-{part:03d}.parquet"
            hidden = path.with_name(f".{path.name}")
            pq.write_table(table.slice(part * share, share), hidden)
            time_s = _FIRST_FILE_TIME_S + epoch * files_per_epoch + part
            os.utime(hidden, (time_s, time_s))
            hidden.rename(path)
            parts.append(path)
        written.append(tuple(parts))
    return EpochFiles(directory, tuple(written))


def generators(seed: int, epoch: int) -> tuple[np.random.Generator, np.random.Generator]:
    """One generator for the world, which all epochs share, and one for this epoch's rows."""
    return np.random.default_rng((seed, _WORLD)), np.random.default_rng((seed, _ROWS, epoch))


def zipf_weights(count: int, exponent: float) -> F64:
    weight = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent
    normal: F64 = weight / weight.sum()
    return normal


def mixed(seed: int, purpose: int, value: I64) -> I64:
    """A fixed pseudo-random non-negative number per (seed, purpose, value): splitmix64."""
    salt = (seed * 0xD1342543DE82EF95 + purpose * 0x2545F4914F6CDD1D) & (2**64 - 1)
    z = (value.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _hashtag(number: int) -> str:
    """A pronounceable name, another for every number; three syllables up to 8,000."""
    syllables: list[str] = []
    while number or len(syllables) < 3:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "#" + "".join(syllables)


# --- the tour ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Demo:
    """What the demo runs, in folder `out`; the same options give the same rows and results."""

    out: Path
    rows_per_epoch: int = 250_000
    epochs: int = 20
    slots: int = 4
    seed: int = 7
    hash_epochs: int = 8

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoint"

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    @property
    def spark_log(self) -> Path:
        return self.out / "spark.log"

    def clear(self) -> None:
        """Make room for a run; deletes only what an earlier demo left there."""
        out = self.out
        if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
            raise HeadgateError(
                f"{out} holds files that are not from an earlier demo; choose an empty folder "
                "with --out"
            )
        for folder in (out / "input", self.checkpoint, out / COUNTS):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.report, self.spark_log):
            file.unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).write_text("Made by `headgate demo`, which also clears this folder.\n")

    def write_input(self) -> EpochFiles:
        rows = (trends(self.rows_per_epoch, seed=self.seed, epoch=e) for e in range(self.epochs))
        return write_epochs(rows, self.out / "input", files_per_epoch=_PARTS_PER_EPOCH)

    def start(self, spark: SparkSession, files: EpochFiles) -> FlowQuery:
        """Start the flow over all files, an epoch each; it ends by itself.

        Keys are hashed for the first `hash_epochs`; then the manager, which has watched, takes
        over.
        """
        from headgate.control.settings import Manager, PlannerSettings
        from headgate.flow import Flow
        from headgate.operator.aggregates import Count
        from headgate.topology.files import Files

        flow = Flow("trends")
        rows = Files(files.directory, schema=_SCHEMA, max_files=files.files_per_epoch)
        posts = flow.source(rows, name="posts")
        regions = posts.key_by("region", grouping="hash").process(
            Count(emit="rows"), name=BY_REGION
        )
        hashtags = regions.key_by("hashtag", grouping="hash").process(Count(), name=BY_HASHTAG)
        hashtags.to_parquet(str(self.out / COUNTS), name=COUNTS)
        tuning = PlannerSettings(seed=self.seed)
        return flow.start(
            spark,
            slots=self.slots,
            checkpoint=str(self.checkpoint),
            trigger={"availableNow": True},
            manager=Manager(warm_up_epochs=self.hash_epochs, tuning=tuning),
        )

    def check(self, query: FlowQuery, files: EpochFiles) -> Verdict:
        """Fold the same rows in one thread of plain Python, and compare state and sink with it."""
        begun = time.perf_counter()
        by_region: Counter[str] = Counter()
        by_hashtag: Counter[str] = Counter()
        for epoch in range(len(files)):
            rows = files.read(epoch, ["region", "hashtag"])
            by_region.update(rows["region"].to_pylist())
            by_hashtag.update(rows["hashtag"].to_pylist())
        seconds = time.perf_counter() - begun
        written = pq.read_table(self.out / COUNTS, columns=["hashtag", "count"])
        latest = written.group_by("hashtag").aggregate([("count", "max")])
        differences = [
            *_differences(f"state of {BY_REGION}", by_region, query.state(BY_REGION)),
            *_differences(f"state of {BY_HASHTAG}", by_hashtag, query.state(BY_HASHTAG)),
            *_differences(f"sink {COUNTS}", by_hashtag, latest),
        ]
        return Verdict(by_region, by_hashtag, seconds, tuple(differences))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"out": str(self.out)}


@dataclass(frozen=True)
class Verdict:
    """The run's end against a plain fold; `differences` is empty when they agree."""

    by_region: Counter[str]
    by_hashtag: Counter[str]
    fold_seconds: float
    differences: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(self.by_region.values())

    @property
    def sentence(self) -> str:
        """What was compared, and the result."""
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
            "agrees": not self.differences,
            "sentence": self.sentence,
            "rows": self.rows,
            "regions": len(self.by_region),
            "hashtags": len(self.by_hashtag),
            "fold_seconds": self.fold_seconds,
            "differences": list(self.differences),
        }


def _differences(what: str, truth: Mapping[str, int], found: pa.Table) -> list[str]:
    """In one sentence, or none; `found` has the key in its first column, the count in its last."""
    got = dict(zip(found.column(0).to_pylist(), found.columns[-1].to_pylist(), strict=True))
    wrong = [k for k in truth.keys() | got.keys() if truth.get(k) != got.get(k)]
    if not wrong:
        return []
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
        cores, system = len(os.sched_getaffinity(0)), platform.platform()
        versions = (metadata.version(name) for name in ("pyspark", "pyarrow", "numpy"))
        return cls(cores, system, platform.python_version(), *versions)
