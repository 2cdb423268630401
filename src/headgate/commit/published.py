"""Rows that table sinks published: reading them checked, and their small files compacted.

A table sink publishes a file per epoch and task. Epochs are cut into aligned blocks of 8, of 64, of
512 and so on. When all epochs of a block are over, its files become one, named by the block:

    part-FLOW-SINK-e000000008-e000000015.parquet

Any two blocks are apart, or one is inside the other. So whatever files are there, a reader that
takes the largest block for each epoch, and passes over what it covers, sees every row once
(`visible`). A merged file appears whole, and what it covers is deleted some minutes later, when who
listed the folder before has read it. It is created only if it is absent: a driver that was paused
half-way through listing cannot replace it by one that lacks what has been deleted since. Rows are
copied once per level, of which there are few; files of some megabytes stay as they are.

The name of a file holds its digest; a block has it inside. How many rows a table sink has got so
far is in the manifest, whatever their files have become by now.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import BEFORE, Manifest
from headgate.commit.publishing import STAGING_GRACE_EPOCHS, places_of, published_prefix
from headgate.errors import StateFileError
from headgate.state.digest import (
    BLANK,
    DamagedFile,
    check_named,
    fill_within,
    read_filled,
    read_named,
)
from headgate.state.storage import Storage

log = logging.getLogger("headgate")
FANOUT = 8  # blocks that become one: a row is copied once for each power of it
MERGED_BYTES_MAX = 32 << 20  # what a driver may hold, twice
CHUNK_BYTES = 16 << 20  # of rows in memory while files are merged
GRACE_S = 600.0  # for readers that listed the folder before
_FOLDERS = r"(?:[^/=]+=[^/]+/)*"  # of a sink with partition_by
_EPOCHS = r"e(\d{9})-(?:e(\d{9})|[^/]*)\.parquet"
_AT_ONCE = 8  # files that are checked in parallel


@dataclass(frozen=True)
class Published:
    """A file of a table and the epochs it holds: one, or those of a block."""

    name: str
    first: int
    last: int
    is_block: bool


def published_files(names: Iterable[str], flow: str, sink: str) -> list[Published]:
    """The files of a sink among these, by epoch, larger blocks first."""
    found = []
    # tables, each in a folder of its own, were published without doubled hyphens for a while
    prefixes = published_prefix(flow, sink), f"part-{flow}-{sink}-"
    pattern = re.compile(f"{_FOLDERS}(?:{'|'.join(map(re.escape, prefixes))}){_EPOCHS}")
    for name in names:
        if match := pattern.fullmatch(name):
            first, last = int(match[1]), int(match[2] or match[1])
            found.append(Published(name, first, last, match[2] is not None))
    return sorted(found, key=lambda file: (file.first, -file.last, not file.is_block, file.name))


def visible(files: Sequence[Published]) -> tuple[list[Published], list[tuple[Published, str]]]:
    """What a reader takes; and what it passes over, each with the name of the block it is in."""
    taken, covered = [], []
    block: Published | None = None
    for file in files:
        if block is not None and file.last <= block.last:
            covered.append((file, block.name))
        else:
            taken.append(file)
            block = file if file.is_block else block
    return taken, covered


class TableCompaction:
    """Merges the files of one table sink, a block at a time, and deletes what that made useless."""

    def __init__(self, storage: Storage, flow: str, sink: str) -> None:
        self._storage, self._flow, self._sink = storage, flow, sink
        self._left: set[tuple[int, int]] = set()  # blocks that stay as they are
        self._is_behind = True

    def is_due(self, epoch: int) -> bool:
        """Is there something to do after this epoch? True until a first look found nothing."""
        return self._is_behind or (epoch - STAGING_GRACE_EPOCHS + 1) % FANOUT == 0

    def run(self, epoch: int, now_s: float) -> str | None:
        """Merge one block of epochs that nobody will publish again; returns its name, if any.

        The newest epochs are left alone: a start publishes the last one again if it must.
        """
        taken, covered = visible(published_files(self._storage.list(), self._flow, self._sink))
        self._delete(covered, now_s)
        self._is_behind = False
        for first, last, files in _blocks(taken, epoch - STAGING_GRACE_EPOCHS):
            if (first, last) in self._left:
                continue
            merged = self._merged(files)
            if merged is not None:
                name = f"{published_prefix(self._flow, self._sink)}e{first:09d}-e{last:09d}.parquet"
                self._storage.create(name, merged)
                self._is_behind = True
                return name
            self._left.add((first, last))
        return None

    def _delete(self, covered: Sequence[tuple[Published, str]], now_s: float) -> None:
        by_block: dict[str, list[str]] = defaultdict(list)
        for file, block in covered:
            by_block[block].append(file.name)
        for block, names in by_block.items():
            if now_s - self._storage.modified_s(block) >= GRACE_S:
                read_filled(self._storage, block)  # what it covers is all that could replace it
                self._storage.delete(*names)

    def _merged(self, files: Sequence[Published]) -> bytes | None:
        """All rows in one file; None if they are to stay where they are.

        That is if they are too many, if a file is damaged, or if a column has two types. Columns
        may come and go when a flow is changed: a reader finds null either way.
        """
        if sum(self._storage.size(file.name) for file in files) > MERGED_BYTES_MAX:
            return None
        try:
            reads = ((file.name, read_filled if file.is_block else read_named) for file in files)
            contents = (pa.BufferReader(read(self._storage, name)) for name, read in reads)
            opened = [pq.ParquetFile(content) for content in contents]
            schema = pa.unify_schemas([file.schema_arrow.remove_metadata() for file in opened])
            content = pa.BufferOutputStream()
            with pq.ParquetWriter(content, schema, compression="zstd") as writer:
                for chunk in _chunks(opened, schema):
                    writer.write_table(chunk)
                writer.add_key_value_metadata({"headgate": BLANK})
        except FileNotFoundError:
            raise
        except (DamagedFile, pa.ArrowException, OSError) as problem:
            log.warning("files of table %s stay as they are: %s", self._sink, problem)
            return None
        merged = fill_within(content.getvalue().to_pybytes())
        rows = pq.read_metadata(pa.BufferReader(merged)).num_rows
        assert rows == sum(file.metadata.num_rows for file in opened), "rows were lost or doubled"
        return merged


class CompactionsBeside:
    """Compacts the tables of a flow beside its epochs: in one thread, one block after the other."""

    def __init__(self, tables: Mapping[str, TableCompaction]) -> None:
        self._tables = tables
        self._thread = ThreadPoolExecutor(1, "headgate-compaction")
        self._running: dict[str, Future[None]] = {}

    def after(self, sink: str, epoch: int) -> None:
        """Ask for what is due after an epoch's files were published; returns at once."""
        running = self._running.get(sink)
        if self._tables[sink].is_due(epoch) and (running is None or running.done()):
            self._running[sink] = self._thread.submit(self._run, sink, epoch)

    def close(self) -> None:
        """Wait for the block at hand."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, sink: str, epoch: int) -> None:
        try:
            self._tables[sink].run(epoch, time.time())
        except Exception as problem:  # the table is whole without it, and a flow must not stop
            log.warning("table %s was not compacted: %s: %s", sink, type(problem).__name__, problem)


def _blocks(files: Sequence[Published], horizon: int) -> Iterator[tuple[int, int, list[Published]]]:
    """Blocks up to the horizon that have several files, the smallest ones first."""
    size = FANOUT
    while size <= horizon + 1:
        by_block: dict[int, list[Published]] = defaultdict(list)
        for file in files:
            if file.first // size == file.last // size:
                by_block[file.first // size].append(file)
        for number, inside in sorted(by_block.items()):
            first, last = number * size, (number + 1) * size - 1
            if last <= horizon and len(inside) > 1:
                yield first, last, inside
        size *= FANOUT


def _chunks(files: Sequence[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all files in order, in pieces of bounded size, as one schema."""
    waiting: list[pa.Table] = [schema.empty_table()]
    for file in files:
        for batch in file.iter_batches(use_threads=False):
            waiting.append(pa.Table.from_batches([batch]).replace_schema_metadata())
            if sum(table.nbytes for table in waiting) >= CHUNK_BYTES:
                yield pa.concat_tables(waiting, promote_options="default")
                waiting = [schema.empty_table()]
    if len(waiting) > 1:
        yield pa.concat_tables(waiting, promote_options="default")


def rows_published(checkpoint: Checkpoint, last: Manifest | None, sink: str) -> int:
    """How many rows a table sink has been given."""
    last = last or BEFORE
    waiting = () if checkpoint.is_marked(last.epoch, sink) else last.sinks.get(sink, ())
    return last.published.get(sink, 0) - sum(int(file["rows"]) for file in waiting)


def check_published(storage: Storage, files: Sequence[Published], sink: str, rows: int) -> None:
    """Refuse to read a sink's files if one is damaged, or if there are fewer rows than these.

    Contents are read only on a local disk; other stores check what they keep.
    """

    def refused(what: str, file: str | None = None) -> StateFileError:
        return StateFileError(
            f"rows that sink {sink!r} published: {what}. Bring the files in {storage.uri} back "
            f"from a copy; query.table({sink!r}, verify=False) reads what is there",
            operator=sink,
            sink=sink,
            file=file,
        )

    def rows_of(file: Published) -> int:
        try:
            if storage.is_local:
                (read_filled if file.is_block else check_named)(storage, file.name)
            with storage.open_input(file.name) as source:
                return int(pq.read_metadata(source).num_rows)
        except (DamagedFile, OSError, pa.ArrowException) as problem:
            raise refused(f"{file.name} cannot be used: {problem}", file.name) from problem

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = sum(pool.map(rows_of, files))
    if found < rows:
        raise refused(f"{rows - found} of {rows} rows are missing: files were deleted or moved")


def missing_files(
    checkpoint: Checkpoint, flow: str, sink: str, uri: str, manifests: Iterable[Manifest]
) -> list[str]:
    """Files that these epochs published, and that are no longer where they were put."""
    files = [
        places_of(flow, sink, file, uri)[-1]
        for manifest in manifests
        if checkpoint.is_marked(manifest.epoch, sink)
        for file in manifest.sinks.get(sink, ())
    ]
    return [f"{storage.uri}/{name}" for storage, name in files if not storage.exists(name)]
