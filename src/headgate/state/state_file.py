"""State files, and chains of them: what is durable of the state of one (operator, slot).

A file is an Arrow IPC stream of rows in (route, h, check) order, cut into blocks; any Arrow reader
can open one. The schema's metadata holds an index: per block its rows, bytes, first and last route,
and a digest. The file's own digest, which its name and the manifest hold, is that of this head, and
so covers every block: a range of routes (a bucket, a pinned key) is read, and checked, by taking
just its blocks. A file depends on its `Task` and its rows alone, so a task that runs again writes
the same bytes under the same name.

Columns: `_route`, `_h` (only with sub-keys; else it equals `_route`), `_check`, `_op` (0 put, 1
remove), `key.*`, `sub.*`, `value.*`, and `_touched_ms` if the state has a TTL. Removed rows have
zeros and nulls in the columns that describe them.

A chain is the files that, folded oldest first, are the state (`chain.py`). Rows are absolute, so
the newest file that names a row wins, and applying a file twice changes nothing. A file that was
folded from others remembers them (`replaces`, one generation): they are read in its place if it is
damaged.
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
from headgate.errors import StateFileError
from headgate.state.digest import DamagedFile, digest_of, matches
from headgate.state.layout import TOUCHED, ColumnLayout, Mask, RowLayout, Values
from headgate.state.rows import RowIds, distinct_order
from headgate.state.storage import Storage

FORMAT = 2
BLOCK_ROWS = 16384  # the least that is read of a file to move one key
LAST_ROUTE = (1 << 64) - 1
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_META = b"headgate"
Kind = Literal["delta", "run", "snapshot"]
Routes = tuple[U64, U64]  # first and last routes of closed intervals


@dataclass(frozen=True)
class StateFile:
    """One file of a chain. `replaces` are the files a run or snapshot was folded from.

    `piece` counts the pieces in which one was folded, from 1; the first knows what all of them
    replace. A file that is being folded has the number of the next piece in `folding`. Of either
    only the rows of routes from `first` to `last` count ("": all), in 16 digits of base 16.
    """

    name: str
    kind: Kind
    epoch: int
    rows: int
    bytes: int
    digest: str
    replaces: tuple[StateFile, ...] = ()
    first: str = ""
    last: str = ""
    piece: int = 0
    folding: int = 0

    @property
    def low(self) -> int:
        return int(self.first or "0", 16)

    @property
    def high(self) -> int:
        return int(self.last, 16) if self.last else LAST_ROUTE

    def to_json(self) -> dict[str, Any]:
        fields = dict(vars(self))
        replaces = fields.pop("replaces")
        for name in ("first", "last", "piece", "folding"):
            if not fields[name]:
                del fields[name]
        return {**fields, "replaces": [f.to_json() for f in replaces]} if replaces else fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StateFile:
        replaces = tuple(cls.from_json(file) for file in fields.get("replaces", ()))
        return cls(**{**fields, "replaces": replaces})


Chain = tuple[StateFile, ...]


def whole_files(chain: Chain) -> Iterator[Chain]:
    """The files of a chain, the pieces of one fold together."""
    begin = 0
    for at in range(1, len(chain) + 1):
        if (
            at == len(chain)
            or chain[at].piece <= 1
            or (chain[at].folding and not chain[at - 1].folding)
        ):
            yield chain[begin:at]
            begin = at


@dataclass(frozen=True)
class FileRows:
    """Rows of files: identity, which of them are removals, and columns.

    The TTL clock is not among the columns if one of the files has none.
    """

    ids: RowIds
    removed: Mask
    columns: Mapping[str, Values]

    def take(self, index: Any) -> FileRows:
        columns = {name: values.take(index) for name, values in self.columns.items()}
        return FileRows(self.ids.take(index), self.removed[index], columns)

    @classmethod
    def fold(cls, parts: list[FileRows], layout: RowLayout, keep_removed: bool) -> FileRows:
        """Distinct rows in file order: the newest row of each key, `parts` being oldest first.

        Removed rows are rows too: a run must keep them, a snapshot drops them.
        """
        if not parts:
            return cls(RowIds.none(), np.zeros(0, np.bool_), layout.blank(0))
        if len(parts) == 1:
            rows = parts[0]
            return rows if keep_removed or not rows.removed.any() else rows.take(~rows.removed)
        parts = parts[::-1]
        columns = {
            name: Values.concat([part.columns[name] for part in parts])
            for name in layout.columns
            if all(name in part.columns for part in parts)
        }
        ids = RowIds.concat([part.ids for part in parts])
        rows = cls(ids, np.concatenate([part.removed for part in parts]), columns)
        index = distinct_order(ids)
        return rows.take(index if keep_removed else index[~rows.removed[index]])


@dataclass(frozen=True, kw_only=True)
class SlotFiles:
    """Reads the files of one (operator, slot).

    Rows written before the state had a TTL count as touched at `now_ms`; if that is None they
    have no TTL clock, and then nor has any row read together with them.
    """

    storage: Storage
    layout: RowLayout
    operator: str
    slot: int
    now_ms: int | None = None

    def read(self, chain: Chain, routes: Routes | None = None) -> list[FileRows]:
        """Every file's rows, oldest first, digests checked; of some routes, only their blocks."""
        parts: list[FileRows] = []
        for pieces in whole_files(chain):
            for file in pieces:
                within = _within(file, routes)
                if within is not None and not len(within[0]):
                    continue
                try:
                    parts.append(self._read_file(file, within))
                except DamagedFile as damage:
                    parts.extend(self._instead_of(file, pieces[0].replaces, damage, within))
        return parts

    def state(self, chain: Chain, routes: Routes | None = None) -> FileRows:
        """The state that a chain describes, removed rows left out."""
        return FileRows.fold(self.read(chain, routes), self.layout, keep_removed=False)

    def _read_file(self, file: StateFile, routes: Routes | None) -> FileRows:
        rows = read_file(self.storage, file, self.layout, routes)
        if self.now_ms is None or not self.layout.ttl or TOUCHED in rows.columns:
            return rows
        clock = Values(np.full(len(rows.ids), self.now_ms, np.int64))
        return replace(rows, columns={**rows.columns, TOUCHED: clock})

    def _instead_of(
        self, file: StateFile, before: Chain, damage: DamagedFile, routes: Routes | None
    ) -> list[FileRows]:
        reason = str(damage)
        if before:
            try:
                return [self._read_file(older, _within(older, routes)) for older in before]
            except DamagedFile as second:
                reason += f", and of the files it was folded from one cannot be used: {second}"
        raise StateFileError(
            f"state file {file.name} of operator {self.operator!r}, slot {self.slot}, epoch "
            f"{file.epoch}, cannot be used: {reason}. Bring the file back from a copy of "
            f"{self.storage.uri}, or start with a new checkpoint folder",
            operator=self.operator,
            slot=self.slot,
            epoch=file.epoch,
            file=file.name,
        ) from damage


def encode(
    layout: RowLayout, rows: FileRows, kind: Kind, strong: bool = False
) -> tuple[list[Any], str]:
    """Buffers of a file and its digest. Rows must be in order, distinct and at least one."""
    messages = []
    blocks: list[list[Any]] = []
    narrow = layout.narrow and int(rows.ids.check.max()) <= 255
    for start in range(0, len(rows.ids), BLOCK_ROWS):
        # a block at a time: a whole column of strings may be too long for one Arrow array
        part = rows.take(slice(start, start + BLOCK_ROWS))
        batch = _batch(layout, part, narrow)
        message = batch.serialize()
        first, last = (f"{int(part.ids.route[at]):016x}" for at in (0, -1))
        blocks.append([len(part.ids), message.size, first, last, digest_of(message, strong=strong)])
        messages.append(message)
    index = {
        "format": FORMAT,
        "kind": kind,
        "schema": layout.schema.describe(),
        "rows": len(rows.ids),
        "blocks": blocks,
    }
    meta = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
    head = batch.schema.with_metadata({_META: meta}).serialize()
    return [head, *messages, _END], digest_of(head, strong=strong)


def _batch(layout: RowLayout, rows: FileRows, narrow: bool) -> pa.RecordBatch:
    ids = rows.ids
    arrays = {"_route": pa.array(ids.route)}
    if layout.has_route:
        arrays["_h"] = pa.array(ids.h)
    arrays["_check"] = pa.array(ids.check.astype(np.uint8) if narrow else ids.check)
    arrays["_op"] = pa.array(rows.removed.view(np.uint8))
    for name, column in layout.columns.items():
        arrays[column.in_files] = column.arrow(rows.columns[name])
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def read_file(
    storage: Storage, file: StateFile, layout: RowLayout, routes: Routes | None = None
) -> FileRows:
    """The rows of a file, or those in some closed intervals of routes, from their blocks only."""
    with _opened(storage, file) as source:
        if routes is None:
            source = pa.BufferReader(source.read_buffer())
        schema, blocks, start = _open(source, file)
        ends = start + np.cumsum([size for _, size, *_ in blocks])
        batches = []
        for number in _blocks_of(blocks, routes):
            _, size, _, _, digest = blocks[number]
            message = _buffer_at(source, int(ends[number]) - size, size)
            if not matches(digest, message):
                raise DamagedFile(f"block {number} does not match its digest")
            batches.append(pa.ipc.read_record_batch(message, schema))
        rows = _rows(batches or [pa.RecordBatch.from_pylist([], schema=schema)], layout)
    if routes is None:
        return rows
    begins = np.searchsorted(rows.ids.route, routes[0], "left")
    ends = np.searchsorted(rows.ids.route, routes[1], "right")
    if len(begins) == 1:
        return rows.take(slice(int(begins[0]), int(ends[0])))
    spans = [np.arange(b, e) for b, e in zip(begins, ends, strict=True) if e > b]
    return rows.take(np.unique(np.concatenate(spans)) if spans else np.zeros(0, np.intp))


def _within(file: StateFile, routes: Routes | None) -> Routes | None:
    """Those of some routes that count in a file; None: all it has."""
    if not file.first and not file.last:
        return routes
    low, high = np.uint64(file.low), np.uint64(file.high)
    if routes is None:
        routes = np.zeros(1, np.uint64), np.full(1, LAST_ROUTE, np.uint64)
    lows, highs = np.maximum(routes[0], low), np.minimum(routes[1], high)
    kept = lows <= highs
    return lows[kept], highs[kept]


def _blocks_of(blocks: list[list[Any]], routes: Routes | None) -> Iterable[int]:
    """Blocks that may hold rows of the intervals. Routes of one block and the next may be equal."""
    if routes is None:
        return range(len(blocks))
    first = np.array([int(block[2], 16) for block in blocks], np.uint64)
    last = np.array([int(block[3], 16) for block in blocks], np.uint64)
    begins, ends = (
        np.searchsorted(last, routes[0], "left"),
        np.searchsorted(first, routes[1], "right"),
    )
    return sorted({n for b, e in zip(begins, ends, strict=True) for n in range(int(b), int(e))})


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


def _open(source: Any, file: StateFile) -> tuple[pa.Schema, list[list[Any]], int]:
    """Schema, block index and where the first block begins."""
    start = 8 + int.from_bytes(source.read_at(8, 0)[4:8], "little")
    head = _buffer_at(source, 0, min(start, file.bytes))
    tail = source.read_at(len(_END) + 8, max(0, file.bytes - len(_END) - 8))
    if tail == _END + xxhash.xxh3_64_digest(head):
        raise DamagedFile(
            "headgate 0.1 wrote it, and headgate 0.2 does not read its format: finish the flow "
            "with headgate 0.1, or start a new checkpoint"
        )
    if not tail.endswith(_END) or not matches(file.digest, head):
        raise DamagedFile(f"its head does not match its digest {file.digest}")
    schema = pa.ipc.read_schema(head)
    index = json.loads(schema.metadata[_META])
    if index["format"] != FORMAT:
        raise DamagedFile(f"it has format {index['format']}, and this version reads {FORMAT}")
    return schema.remove_metadata(), index["blocks"], start


def _buffer_at(source: Any, start: int, size: int) -> pa.Buffer:
    source.seek(start)
    return source.read_buffer(size)


def _rows(batches: list[pa.RecordBatch], layout: RowLayout) -> FileRows:
    there = batches[0].schema.names
    found = layout.found_in(there)
    absent = [c for name, c in layout.columns.items() if name not in found and name != TOUCHED]
    lacking = [
        column.name for column in absent if column.stored is None or not column.stored.absent
    ]
    if lacking or ("_h" in there) != layout.has_route:
        raise DamagedFile(f"it was written for another schema (no {', '.join(lacking)})")

    def numbers(name: str) -> Any:
        parts = [batch.column(name).to_numpy() for batch in batches]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def values(name: str, column: ColumnLayout) -> Values:
        return Values.concat([column.store(b.column(found[name]), b.num_rows) for b in batches])

    route = numbers("_route")
    h = numbers("_h") if layout.has_route else route
    check = numbers("_check").astype(np.uint64, copy=False)
    columns = {name: values(name, c) for name, c in layout.columns.items() if name in found}
    columns |= {column.name: column.before(len(route)) for column in absent if column.stored}
    return FileRows(RowIds(route, h, check), numbers("_op") != 0, columns)
