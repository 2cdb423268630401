"""State files: an Arrow IPC stream of rows in (route, h, check) order, cut into blocks.

Any Arrow reader can open one. The schema's metadata holds an index: per block its rows, bytes,
first and last route, and a digest. The file's own digest, which its name and the manifest hold, is
that of this head, and so covers every block: a range of routes (a bucket, a pinned key) is read,
and checked, by taking just its blocks. Files of format 1 are read too: they end with a digest of
their head, and their name holds that of the whole file. A file depends on its `Task` and its rows
alone, so a task that runs again writes the same bytes under the same name.

Columns: `_route`, `_h` (only with sub-keys; else it equals `_route`), `_check`, `_op` (0 put, 1
remove), `key.*`, `sub.*`, `value.*`, and `_touched_ms` if the state has a TTL. Removed rows have
zeros and nulls in the columns that describe them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from headgate.arrays import U64
from headgate.state.digest import DamagedFile, digest_of, matches
from headgate.state.layout import TOUCHED, Array, ColumnLayout, Mask, RowLayout, Values
from headgate.state.rows import RowIds
from headgate.state.storage import Storage

FORMAT = 2
BLOCK_ROWS = 16384  # the least that is read of a file to move one key
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OLD_TAIL_BYTES = len(_END) + 8
_META = b"headgate"
Kind = Literal["delta", "run", "snapshot"]


@dataclass(frozen=True)
class Task:
    """One task's view of one (operator, slot); `now_ms` is the plan's clock.

    `identity` says how keys of equal hash are told apart; only key batches look into it.
    """

    storage: Storage
    layout: RowLayout
    operator: str
    slot: int
    epoch: int
    level: int
    now_ms: int
    ttl_ms: int | None
    buckets: int
    compact_after: int
    strong_digests: bool = False
    identity: Any = None

    @property
    def folder(self) -> str:
        return f"{self.operator}/{self.slot:05d}"


@dataclass(frozen=True)
class StateFile:
    """One file of a chain. `replaces` are the files a run or snapshot was folded from."""

    name: str
    kind: Kind
    epoch: int
    rows: int
    bytes: int
    digest: str
    replaces: tuple[StateFile, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told = dict(vars(self))
        replaces = told.pop("replaces")
        return {**told, "replaces": [f.to_json() for f in replaces]} if replaces else told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> StateFile:
        replaces = tuple(cls.from_json(file) for file in told.get("replaces", ()))
        return cls(**{**told, "replaces": replaces})

    def bare(self) -> StateFile:
        """The same file without what it replaces, so that chains do not nest."""
        return replace(self, replaces=())


Chain = tuple[StateFile, ...]


@dataclass(frozen=True)
class FileRows:
    """Rows of one file: identity, which of them are removals, and columns (None: not stored)."""

    ids: RowIds
    removed: Mask
    columns: Mapping[str, Values | None]

    @property
    def complete(self) -> dict[str, Values]:
        """The columns that every row has."""
        return {name: values for name, values in self.columns.items() if values is not None}

    def take(self, index: Array) -> FileRows:
        taken = {n: None if v is None else v.take(index) for n, v in self.columns.items()}
        return FileRows(self.ids.take(index), self.removed[index], taken)

    @classmethod
    def concat(cls, parts: list[FileRows], names: Iterable[str]) -> FileRows:
        """A column that one of them has not stored counts as not stored."""
        columns: dict[str, Values | None] = {}
        for name in names:
            known = [v for part in parts if (v := part.columns[name]) is not None]
            columns[name] = Values.concat(known) if len(known) == len(parts) else None
        ids = RowIds.concat([part.ids for part in parts])
        return cls(ids, np.concatenate([part.removed for part in parts]), columns)


@dataclass(frozen=True)
class Block:
    rows: int
    byte_count: int
    first_route: int
    last_route: int
    digest: str


def encode(
    layout: RowLayout,
    ids: RowIds,
    removed: Mask,
    columns: Mapping[str, Values],
    kind: Kind,
    *,
    strong: bool = False,
) -> tuple[list[Any], str]:
    """Buffers of a file and its digest. Rows must be in order, distinct and at least one."""
    messages = []
    blocks: list[list[Any]] = []
    narrow = layout.narrow and int(ids.check.max()) <= 255
    for start in range(0, len(ids), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(ids))
        some = {name: values.cut(start, stop) for name, values in columns.items()}
        part = ids.take(slice(start, stop))
        # a block at a time: a whole column of strings may be too long for one Arrow array
        batch = _batch(layout, part, removed[start:stop], some, narrow)
        message = batch.serialize()
        first, last = f"{int(part.route[0]):016x}", f"{int(part.route[-1]):016x}"
        blocks.append([len(part), message.size, first, last, digest_of(message, strong=strong)])
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
    return [head, *messages, _END], digest_of(head, strong=strong)


def write_file(
    task: Task,
    ids: RowIds,
    removed: Mask,
    columns: Mapping[str, Values],
    kind: Kind,
    replaces: tuple[StateFile, ...] = (),
) -> StateFile:
    """Write rows as one file, named by epoch, level and content; written even if it exists."""
    strong = task.strong_digests
    buffers, digest = encode(task.layout, ids, removed, columns, kind, strong=strong)
    name = f"{task.folder}/e{task.epoch:09d}-L{task.level:02d}-{digest}.arrow"
    task.storage.write(name, buffers)
    byte_count = sum(len(buffer) for buffer in buffers)
    return StateFile(name, kind, task.epoch, len(ids), byte_count, digest, replaces)


def read_whole(storage: Storage, file: StateFile, layout: RowLayout) -> FileRows:
    """All rows of a file, every block checked."""
    with _opened(storage, file) as source, pa.BufferReader(source.read_buffer()) as whole:
        schema, blocks, start = _open(whole, file)
        return _rows(_take_blocks(whole, schema, blocks, start, range(len(blocks))), layout)


def read_routes(
    storage: Storage, file: StateFile, layout: RowLayout, lows: U64, highs: U64
) -> FileRows:
    """Rows whose route lies in one of the closed intervals; reads the head and their blocks."""
    with _opened(storage, file) as source:
        schema, blocks, start = _open(source, file)
        wanted = _blocks_of(blocks, lows, highs)
        rows = _rows(_take_blocks(source, schema, blocks, start, wanted), layout)
    begins = np.searchsorted(rows.ids.route, lows, "left")
    ends = np.searchsorted(rows.ids.route, highs, "right")
    spans = [np.arange(b, e) for b, e in zip(begins, ends, strict=True) if e > b]
    index = np.unique(np.concatenate(spans)) if spans else np.zeros(0, np.intp)
    return rows.take(index)


def _blocks_of(blocks: list[Block], lows: U64, highs: U64) -> list[int]:
    """Blocks that may hold rows of the intervals. Routes of one block and the next may be equal."""
    first = np.array([block.first_route for block in blocks], np.uint64)
    last = np.array([block.last_route for block in blocks], np.uint64)
    wanted: set[int] = set()
    for begin, end in zip(
        np.searchsorted(last, lows, "left"), np.searchsorted(first, highs, "right"), strict=True
    ):
        wanted.update(range(int(begin), int(end)))
    return sorted(wanted)


def _batch(
    layout: RowLayout, ids: RowIds, removed: Mask, columns: Mapping[str, Values], narrow: bool
) -> pa.RecordBatch:
    names, arrays = ["_route"], [pa.array(ids.route)]
    if layout.has_route:
        names.append("_h")
        arrays.append(pa.array(ids.h))
    names += ["_check", "_op"]
    arrays.append(pa.array(ids.check.astype(np.uint8) if narrow else ids.check))
    arrays.append(pa.array(removed.view(np.uint8)))
    for name, column in layout.columns.items():
        names.append(name)
        arrays.append(column.arrow(columns[name]))
    return pa.RecordBatch.from_arrays(arrays, names=names)


@contextmanager
def _opened(storage: Storage, file: StateFile) -> Iterator[Any]:
    """The file for random access (mapped if local); trouble with reading it is damage."""
    try:
        with storage.open_input(file.name) as source:
            size = source.size()
            if size != file.bytes:
                raise DamagedFile(f"it has {size} bytes instead of {file.bytes}")
            yield source
    except FileNotFoundError as error:
        raise DamagedFile("it is missing") from error
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"it cannot be read ({error})") from error


def _open(source: Any, file: StateFile) -> tuple[pa.Schema, list[Block], int]:
    """Schema, block index and where the first block begins."""
    start = 8 + int.from_bytes(source.read_at(8, 0)[4:8], "little")
    head = _buffer_at(source, 0, min(start, file.bytes))
    tail = source.read_at(_OLD_TAIL_BYTES, max(0, file.bytes - _OLD_TAIL_BYTES))
    is_old = tail == _END + xxhash.xxh3_64_digest(head)
    if not is_old and not (tail.endswith(_END) and matches(file.digest, head)):
        raise DamagedFile(f"its head does not match its digest {file.digest}")
    schema = pa.ipc.read_schema(head)
    told = json.loads(schema.metadata[_META])
    if told["format"] != (1 if is_old else FORMAT):
        raise DamagedFile(f"it has format {told['format']}, and this version reads {FORMAT}")
    blocks = [
        Block(rows, size, int(first, 16), int(last, 16), digest)
        for rows, size, first, last, digest in told["blocks"]
    ]
    return schema.remove_metadata(), blocks, start


def _buffer_at(source: Any, start: int, size: int) -> pa.Buffer:
    source.seek(start)
    return source.read_buffer(size)


def _take_blocks(
    source: Any, schema: pa.Schema, blocks: list[Block], start: int, wanted: Any
) -> list[pa.RecordBatch]:
    starts = np.concatenate([[start], start + np.cumsum([block.byte_count for block in blocks])])
    batches = []
    for number in wanted:
        message = _buffer_at(source, int(starts[number]), blocks[number].byte_count)
        if not matches(blocks[number].digest, message):
            raise DamagedFile(f"block {number} does not match its digest")
        batches.append(pa.ipc.read_record_batch(message, schema))
    return batches or [pa.RecordBatch.from_pylist([], schema=schema)]


def _rows(batches: list[pa.RecordBatch], layout: RowLayout) -> FileRows:
    there = set(batches[0].schema.names)
    lacking = [name for name in layout.columns if name not in there and name != TOUCHED]
    if lacking or ("_h" in there) != layout.has_route:
        raise DamagedFile(f"it was written for another schema (no {', '.join(lacking)})")

    def numbers(name: str) -> Any:
        parts = [batch.column(name).to_numpy() for batch in batches]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def values(name: str, column: ColumnLayout) -> Values:
        return Values.concat([column.store(b.column(name), b.num_rows) for b in batches])

    route = numbers("_route")
    h = numbers("_h") if layout.has_route else route
    check = numbers("_check").astype(np.uint64, copy=False)
    columns = {
        name: values(name, column) if name in there else None
        for name, column in layout.columns.items()
    }
    return FileRows(RowIds(route, h, check), numbers("_op") != 0, columns)
