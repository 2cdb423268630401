"""Rows that were published: their files are as they were written, and none is missing.

The name of a file holds its digest; a block that was merged has it inside (`table_compaction`). How
many rows a table sink has got so far is in the manifest, whatever their files have become by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.commit.publishing import places_of
from headgate.commit.table_compaction import Published
from headgate.errors import StateFileError
from headgate.state.digest import DamagedFile, check_named, read_filled
from headgate.state.storage import Storage

_AT_ONCE = 8


def rows_published(checkpoint: Checkpoint, last: Manifest | None, sink: str) -> int | None:
    """How many rows a table sink has been given; None if that was not counted from the start."""
    if last is None or sink not in last.published:
        return None
    if checkpoint.is_marked(last.epoch, sink):
        return last.published[sink]
    return last.published[sink] - sum(int(file["rows"]) for file in last.sinks.get(sink, ()))


def check_published(
    storage: Storage, files: Sequence[Published], sink: str, rows: int | None
) -> None:
    """Refuse to read a sink's files if one is damaged, or if there are fewer rows than these.

    Contents are read only on a local disk; other stores check what they keep.
    """

    def rows_of(file: Published) -> int:
        try:
            if storage.is_local:
                (read_filled if file.is_block else check_named)(storage, file.name)
            with storage.open_input(file.name) as source:
                return int(pq.read_metadata(source).num_rows)
        except (DamagedFile, OSError, pa.ArrowException) as problem:
            raise _refused(
                sink, f"{file.name} cannot be used: {problem}", storage, file.name
            ) from (problem)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = sum(pool.map(rows_of, files))
    if rows is not None and found < rows:
        what = f"{rows - found} of {rows} rows are missing: files were deleted or moved"
        raise _refused(sink, what, storage)


def missing_files(
    checkpoint: Checkpoint, flow: str, sink: str, uri: str, manifests: Iterable[Manifest]
) -> list[str]:
    """Files that these epochs published, and that are no longer where they were put."""
    missing = []
    for manifest in manifests:
        if checkpoint.is_marked(manifest.epoch, sink):
            for file in manifest.sinks.get(sink, ()):
                storage, name = places_of(flow, sink, file, uri)[-1]
                if not storage.exists(name):
                    missing.append(f"{storage.uri}/{name}")
    return missing


def _refused(sink: str, what: str, storage: Storage, file: str | None = None) -> StateFileError:
    return StateFileError(
        f"rows that sink {sink!r} published: {what}. Bring the files in {storage.uri} back from a "
        f"copy; query.table({sink!r}, verify=False) reads what is there",
        operator=sink,
        sink=sink,
        file=file,
    )
