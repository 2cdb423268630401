"""The events as files: Parquet for most, CSV for Flink, the same rows; an epoch reads some of them.

Every table has a folder, every epoch the same span of events in each. `side` is the table that q13
looks values up in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from headgate.demo import EpochFiles, mixed, write_epochs
from headgate_lab.nexmark.events import TABLES, EventOptions, events

SIDE_KEYS = 10_000
_FIRST_TIME_S = 1_700_000_000  # of files; those of an epoch are of one second


@dataclass(frozen=True)
class EventFiles:
    """Where the events are: `tables["bid"]` and so on, cut into the same epochs."""

    folder: Path
    options: EventOptions
    tables: dict[str, EpochFiles]

    @property
    def epochs(self) -> int:
        return len(self.tables["bid"])

    @property
    def files_per_epoch(self) -> int:
        return self.tables["bid"].files_per_epoch

    @property
    def side(self) -> Path:
        return self.folder / "side.parquet"

    @property
    def csv(self) -> Path:
        return self.folder / "csv"

    @cached_property
    def rows_by_epoch(self) -> dict[str, tuple[int, ...]]:
        """Rows of each table in each epoch."""
        return {
            name: tuple(files.rows(epoch) for epoch in range(len(files)))
            for name, files in self.tables.items()
        }

    def rows(self, tables: tuple[str, ...], first_epoch: int = 0) -> int:
        """How many rows these tables have, from an epoch on."""
        return sum(sum(self.rows_by_epoch[name][first_epoch:]) for name in tables)

    def write_csv(self) -> None:
        """The same rows as CSV, `csv/TABLE/…`; those of the first epoch in `csv-first/TABLE/…`."""
        plain = csv.WriteOptions(include_header=False, quoting_style="none")
        for name, files in self.tables.items():
            for place, epochs in ((self.csv, range(len(files))), (self.csv_first, range(1))):
                (place / name).mkdir(parents=True, exist_ok=True)
                for epoch in epochs:
                    path = place / name / f"{epoch:06d}.csv"
                    csv.write_csv(_without_zone(files.read(epoch)), str(path), plain)
        (self.csv / "side").mkdir(exist_ok=True)
        csv.write_csv(pq.read_table(self.side), str(self.csv / "side" / "side.csv"), plain)

    @property
    def csv_first(self) -> Path:
        return self.folder / "csv-first"


def write_event_files(
    options: EventOptions, folder: Path, *, epochs: int, files_per_epoch: int = 2
) -> EventFiles:
    """Draw the events and write them as Parquet."""
    cuts = np.linspace(0, options.events, epochs + 1).astype(int).tolist()
    for epoch in range(epochs):
        tables = events(options, cuts[epoch], cuts[epoch + 1])
        for name in TABLES:
            write_epochs(
                [tables[name]], folder / name, files_per_epoch=files_per_epoch, first=epoch
            )
    keys = np.arange(SIDE_KEYS)
    side = pa.table({"key": keys, "value": [f"value-{key % 97}" for key in keys]})
    pq.write_table(side, folder / "side.parquet")
    return open_event_files(options, folder, files_per_epoch)


def write_shards(files: EventFiles, folder: Path, shards: int) -> EventFiles:
    """Auctions and bids again, as their producers would write them to a topic by auction.

    A file for every epoch and shard, in folders `TABLE/shard=7/`. The shard is a function of the
    auction alone.
    """
    tables = dict(files.tables)
    for name, column in (("auction", "id"), ("bid", "auction")):
        groups = []
        for epoch in range(files.epochs):
            rows = files.tables[name].read(epoch)
            shard = mixed(0, 0, rows[column].to_numpy()) % shards
            paths = []
            for number in range(shards):  # one without rows is a file, too: an epoch has so many
                path = folder / name / f"shard={number}" / f"epoch-{epoch:06d}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(rows.filter(pa.array(shard == number)), path)
                os.utime(path, (_FIRST_TIME_S + epoch, _FIRST_TIME_S + epoch))
                paths.append(path)
            groups.append(tuple(paths))
        tables[name] = EpochFiles(folder / name, tuple(groups))
    return EventFiles(folder, files.options, tables)


def open_event_files(options: EventOptions, folder: Path, files_per_epoch: int) -> EventFiles:
    """Files that `write_event_files` has written."""
    tables = {}
    for name in TABLES:
        paths = sorted((folder / name).glob("epoch-*.parquet"))
        starts = range(0, len(paths), files_per_epoch)
        groups = tuple(tuple(paths[at : at + files_per_epoch]) for at in starts)
        tables[name] = EpochFiles(folder / name, groups)
    return EventFiles(folder, options, tables)


def _without_zone(table: pa.Table) -> pa.Table:
    """Times as Flink reads them: milliseconds, no zone."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            times = table.column(place).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))
            table = table.set_column(place, field.name, times)
    return table
