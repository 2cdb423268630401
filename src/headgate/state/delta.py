"""State files: an Arrow IPC stream of rows in (route, h, check) order, cut into blocks.

Any Arrow reader can open one. The schema's metadata holds an index: per block its rows, bytes,
first and last route, and a digest. A range of routes (a bucket, a pinned key) is read by taking
just its blocks, each checked against its digest; a whole read is checked against the digest in
the file's name. The same rows give the same bytes, so a task run twice names the same file.

Columns: `_route`, `_h` (only with sub-keys; else it equals `_route`), `_check`, `_op` (0 put, 1
remove), `key.*`, `sub.*`, `value.*`, and `_touched_ms` if the state has a TTL. Removed rows have
zeros and nulls in the columns that describe them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headgate.state.chain import Kind, StateFile
from headgate.state.layout import TOUCHED, Mask, RowLayout, Values
from headgate.state.rows import RowIds
from headgate.state.schema import U64
from headgate.state.storage import Storage
from headgate.state.task import Task

FORMAT = 1
BLOCK_ROWS = 16384
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_META = b"headgate"


class DamagedFile(Exception):
    """The bytes are not what was written; the reader of the chain decides what to do."""


@dataclass(frozen=True)
class FileRows:
    """Rows of one file: identity, which of them are removals, and columns (None: not stored)."""

    ids: RowIds
    removed: Mask
    columns: Mapping[str, Values | None]


@dataclass(frozen=True)
class Block:
    rows: int
    byte_count: int
    first_route: int
    last_route: int
    digest: str


def encode(
    layout: RowLayout, ids: RowIds, removed: Mask, columns: Mapping[str, Values], kind: Kind
) -> tuple[list[Any], str]:
    """Buffers of a file and their digest. Rows must already be in order and distinct."""
    batch = _batch(layout, ids, removed, columns)
    messages = []
    blocks: list[list[Any]] = []
    for start in range(0, len(ids), BLOCK_ROWS):
        piece = batch.slice(start, BLOCK_ROWS)
        message = piece.serialize()
        last = start + piece.num_rows - 1
        blocks.append(
            [
                piece.num_rows,
                message.size,
                f"{int(ids.route[start]):016x}",
                f"{int(ids.route[last]):016x}",
                xxhash.xxh3_64_hexdigest(message),
            ]
        )
        messages.append(message)
    told = {
        "format": FORMAT,
        "kind": kind,
        "schema": layout.schema.describe(),
        "rows": len(ids),
        "blocks": blocks,
    }
    meta = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    head = batch.schema.with_metadata({_META: meta}).serialize()
    buffers: list[Any] = [head, *messages, _END]
    digest = xxhash.xxh3_128()
    for buffer in buffers:
        digest.update(buffer)
    return buffers, digest.hexdigest()


def write_file(
    task: Task,
    ids: RowIds,
    removed: Mask,
    columns: Mapping[str, Values],
    kind: Kind,
    replaces: tuple[StateFile, ...] = (),
) -> StateFile:
    """Write rows as one file, named by epoch, level and content; written even if it exists."""
    buffers, digest = encode(task.layout, ids, removed, columns, kind)
    name = f"{task.folder}/e{task.epoch:09d}-L{task.level:02d}-{digest}.arrow"
    task.storage.write(name, buffers)
    byte_count = sum(len(buffer) for buffer in buffers)
    return StateFile(name, kind, task.epoch, len(ids), byte_count, digest, replaces)


def read_whole(storage: Storage, file: StateFile, layout: RowLayout) -> FileRows:
    """All rows of a file, its digest checked."""
    data = _bytes_of(storage, file)
    if xxhash.xxh3_128_hexdigest(data) != file.digest:
        raise DamagedFile(f"its content does not match its checksum {file.digest}")
    schema, blocks, start = _open(data)
    return _rows(_take_blocks(data, schema, blocks, start, range(len(blocks)), False), layout)


def read_routes(
    storage: Storage, file: StateFile, layout: RowLayout, lows: U64, highs: U64
) -> FileRows:
    """Rows whose route lies in one of the closed intervals; reads only their blocks.

    Each block read is checked against its digest; the index itself is checked by its parse, by
    the row count and by the layout.
    """
    data = _bytes_of(storage, file)
    schema, blocks, start = _open(data)
    if sum(block.rows for block in blocks) != file.rows:
        raise DamagedFile(f"its index counts other rows than the {file.rows} it should have")
    first = np.array([block.first_route for block in blocks], np.uint64)
    last = np.array([block.last_route for block in blocks], np.uint64)
    wanted: set[int] = set()
    for begin, end in zip(
        np.searchsorted(last, lows, "left"), np.searchsorted(first, highs, "right"), strict=True
    ):
        wanted.update(range(int(begin), int(end)))
    rows = _rows(_take_blocks(data, schema, blocks, start, sorted(wanted), True), layout)
    begins = np.searchsorted(rows.ids.route, lows, "left")
    ends = np.searchsorted(rows.ids.route, highs, "right")
    spans = [np.arange(b, e) for b, e in zip(begins, ends, strict=True) if e > b]
    index = np.unique(np.concatenate(spans)) if spans else np.zeros(0, np.intp)
    columns = {n: None if v is None else v.take(index) for n, v in rows.columns.items()}
    return FileRows(rows.ids.take(index), rows.removed[index], columns)


def _batch(
    layout: RowLayout, ids: RowIds, removed: Mask, columns: Mapping[str, Values]
) -> pa.RecordBatch:
    names, arrays = ["_route"], [pa.array(ids.route)]
    if layout.has_route:
        names.append("_h")
        arrays.append(pa.array(ids.h))
    narrow = layout.narrow and not (len(ids) and int(ids.check.max()) > 255)
    names += ["_check", "_op"]
    arrays.append(pa.array(ids.check.astype(np.uint8) if narrow else ids.check))
    arrays.append(pa.array(removed.view(np.uint8)))
    for name, column in layout.columns.items():
        names.append(name)
        arrays.append(column.arrow(columns[name]))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _bytes_of(storage: Storage, file: StateFile) -> Any:
    """A buffer over the file: mapped if local, else read."""
    try:
        with storage.open_input(file.name) as source:
            size = source.size()
            if size != file.bytes:
                raise DamagedFile(f"it has {size} bytes instead of {file.bytes}")
            return source.read_buffer(size)
    except FileNotFoundError as error:
        raise DamagedFile("it is missing") from error
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"it cannot be read ({error})") from error


def _open(data: Any) -> tuple[pa.Schema, list[Block], int]:
    """Schema, block index and where the first block begins."""
    try:
        length = struct.unpack_from("<Ii", data, 0)[1]
        schema = pa.ipc.read_schema(data.slice(0, 8 + length))
        told = json.loads(schema.metadata[_META])
        if told["format"] != FORMAT:
            raise DamagedFile(f"it has format {told['format']}, and this version reads {FORMAT}")
        blocks = [
            Block(rows, size, int(first, 16), int(last, 16), digest)
            for rows, size, first, last, digest in told["blocks"]
        ]
        if 8 + length + sum(block.byte_count for block in blocks) + len(_END) != data.size:
            raise DamagedFile("its index does not cover its bytes")
        return schema.remove_metadata(), blocks, 8 + length
    except (pa.ArrowException, struct.error, KeyError, TypeError, ValueError, OSError) as error:
        raise DamagedFile(f"its head cannot be read ({error})") from error


def _take_blocks(
    data: Any, schema: pa.Schema, blocks: list[Block], start: int, wanted: Any, verify: bool
) -> pa.RecordBatch:
    starts = np.concatenate([[start], start + np.cumsum([block.byte_count for block in blocks])])
    batches = []
    for number in wanted:
        message = data.slice(int(starts[number]), blocks[number].byte_count)
        if verify and xxhash.xxh3_64_hexdigest(message) != blocks[number].digest:
            raise DamagedFile(f"block {number} does not match its checksum")
        try:
            batches.append(pa.ipc.read_record_batch(message, schema))
        except (pa.ArrowException, OSError) as error:
            raise DamagedFile(f"block {number} cannot be read ({error})") from error
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _rows(batch: pa.RecordBatch, layout: RowLayout) -> FileRows:
    there = set(batch.schema.names)
    lacking = [name for name in layout.columns if name not in there and name != TOUCHED]
    if lacking or ("_h" in there) != layout.has_route:
        raise DamagedFile(f"it was written for another schema (no {', '.join(lacking)})")
    rows = batch.num_rows
    route = batch.column("_route").to_numpy()
    h = batch.column("_h").to_numpy() if layout.has_route else route
    check = batch.column("_check").to_numpy().astype(np.uint64, copy=False)
    columns = {
        name: column.store(batch.column(name), rows) if name in there else None
        for name, column in layout.columns.items()
    }
    return FileRows(RowIds(route, h, check), batch.column("_op").to_numpy() != 0, columns)
