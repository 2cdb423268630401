"""A seeded stream, skewed, correlated, drifting, repeatable, and epochs of any stream as files.

A *world* (who is popular, who goes with whom) follows from the seed alone; the rows of an epoch
follow from seed and epoch. So epochs of one seed share their correlations, and any epoch can be
made without the ones before it. NumPy and Arrow only; no loop runs over rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.arrays import F64, I64

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

    return pa.table(
        {
            "region": pa.array(_region_names(regions)).take(pa.array(region)),
            "hashtag": pa.array([_hashtag(int(i)) for i in tag]).take(pa.array(posted)),
            "ts": pa.array(ts).cast(pa.timestamp("us", tz="UTC")),
        }
    )


@dataclass(frozen=True)
class EpochFiles:
    """Parquet files in one directory, grouped by epoch, in the order Spark will read them.

    `spark.readStream.option("maxFilesPerTrigger", files_per_epoch).parquet(directory)` turns
    epoch i into micro-batch i.
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


def _region_names(count: int) -> list[str]:
    return [_REGIONS[i] if i < len(_REGIONS) else f"region-{i}" for i in range(count)]


def _hashtag(number: int) -> str:
    """A pronounceable name, another for every number; three syllables up to 8,000."""
    syllables: list[str] = []
    while number or len(syllables) < 3:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "#" + "".join(syllables)
