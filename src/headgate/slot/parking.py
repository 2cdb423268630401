"""Columns that nobody on the way reads do not travel: they wait in a file for who does.

A source task writes such columns of the rows that it sends away (`slot/parked_columns.py` says
which), and each row takes the file's digest and its place in it along as lineage; the columns
themselves are null on the way. Whoever is the first to read one of them puts the values back. So a
wide column is written once, and read once by each slot, however many exchanges lie between.

It is custody of another kind: a file is named by epoch and content, a reader checks its digest, and
attempts that differ have different files. What is not there, or is not what was written, is a
mismatch, and the epoch is run again. Nothing of it outlives its epoch, so nothing is flushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headgate.arrays import I64, Bools
from headgate.errors import CustodyMismatch
from headgate.native import Kernels
from headgate.slot.parked_columns import is_text_or_bytes
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program
from headgate.slot.rows import FILE, NOWHERE, PARKED, ROW, Rows
from headgate.state import kernels
from headgate.state.storage import Storage
from headgate.topology.graph import Edge, Node

SLOTS_MAX = 32  # each slot checks whole files, for its share of their rows; more had better not
ROWS_MIN = 256  # a file for fewer has to hold as much as for so many
_OFFSET_MAX = (1 << 31) - 1


class Parking:
    """What one task writes of its rows, and reads of others'."""

    def __init__(self, program: Program, plan: EpochPlan, slot: int | None) -> None:
        self._program, self._plan, self._slot = program, plan, slot
        self._storage = Storage.at(plan.parking_uri) if plan.parking_uri else None
        self._read: dict[int, pa.RecordBatch] = {}

    def leaving(self, edge: Edge, rows: Rows) -> Rows:
        """Rows as they leave on an edge: without columns, if it pays, that wait in a file."""
        names = self._program.parked.on.get(edge.id)
        if names is None or FILE in rows.lineage:
            return rows
        if self._storage is None or self._slot is not None or not len(rows):
            return rows
        columns = rows.batch.select(list(names))
        if columns.nbytes < self._plan.park_bytes * max(len(rows), ROWS_MIN):
            return rows
        payload = [columns.schema.serialize(), columns.serialize()]
        digest = _digest(payload)
        self._storage.write(self._name(digest), payload)
        batch, schema = rows.batch, rows.batch.schema
        arrays = [
            pa.nulls(len(rows), field.type) if field.name in names else batch.column(at)
            for at, field in enumerate(schema)
        ]
        empty = replace(rows, batch=pa.RecordBatch.from_arrays(arrays, schema=schema))
        places = np.arange(len(rows), dtype=np.int64)
        told = zip(PARKED, (np.full(len(rows), digest, np.int64), places), strict=True)
        return replace(empty, lineage={**rows.lineage, **dict(told)})

    def whole(self, node: Node, rows: Rows) -> Rows:
        """Rows as an operator takes them in: with all values, but for those that it passes on."""
        if FILE not in rows.lineage:
            return rows
        passed = self._program.parked.passed.get(node.id, frozenset())
        found = {name for e in self._program.graph.inputs(node.id) for name in self._of(e)}
        names = [name for name in rows.batch.schema.names if name in found - passed]
        if names:
            rows = replace(rows, batch=self._with(rows, names))
        return rows if found & passed else rows.without(PARKED)

    def _of(self, edge: Edge) -> tuple[str, ...]:
        return self._program.parked.on.get(edge.id, ())

    def _with(self, rows: Rows, names: Sequence[str]) -> pa.RecordBatch:
        place = rows.lineage[ROW]
        parked = place >= 0
        if not parked.any():
            return rows.batch
        digests, which = np.unique(rows.lineage[FILE], return_inverse=True)
        files = {
            number: self._file(int(digests[number])) for number in np.unique(which[parked]).tolist()
        }
        which = np.where(parked, which, NOWHERE)
        batch = rows.batch
        for name in names:
            at = batch.schema.get_field_index(name)
            made = _gathered(batch.column(at), name, which, place, files)
            batch = batch.set_column(at, batch.schema.field(at), made)
        return batch

    def _name(self, digest: int) -> str:
        return f"e{self._plan.epoch:09d}-{digest & (1 << 64) - 1:016x}.arrow"

    def _file(self, digest: int) -> pa.RecordBatch:
        """What a source task has written, once it is sure that this is it."""
        if digest in self._read:
            return self._read[digest]
        name = self._name(digest)
        if self._storage is None:
            raise self._lost(f"{name} was written by a task with another plan")
        try:
            with self._storage.open_input(name) as opened:
                held = opened.read_buffer()
        except FileNotFoundError:
            raise self._lost(f"{name} is gone") from None
        if _digest([held]) != digest:
            raise self._lost(f"{name} is not what was written")
        self._read[digest] = pa.ipc.open_stream(held).read_next_batch()
        return self._read[digest]

    def _lost(self, what: str) -> CustodyMismatch:
        return CustodyMismatch(
            f"columns of epoch {self._plan.epoch} that wait for slot {self._slot} in "
            f"{self._plan.parking_uri}: {what}",
            slot=self._slot,
            epoch=self._plan.epoch,
        )


def _digest(parts: Sequence[pa.Buffer]) -> int:
    """xxh3-64 as a signed number, which is what lineage holds."""
    seen = xxhash.xxh3_64()
    for part in parts:
        seen.update(part)
    unsigned = seen.intdigest()
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def _gathered(
    inline: pa.Array, name: str, which: I64, place: I64, files: Mapping[int, pa.RecordBatch]
) -> pa.Array:
    """A column of values from where each row has it: file `which` at `place`, or the row itself."""
    parts: list[tuple[pa.Array, I64, I64]] = []  # values, which of them, for which rows
    own = which < 0
    for number, batch in files.items():
        mine = which == number
        if name in batch.schema.names:
            rows = np.flatnonzero(mine)
            parts.append((batch.column(name), place[rows], rows))
        else:
            own |= mine
    if own.any():
        rows = np.flatnonzero(own)
        parts.append((inline, rows, rows))
    if kernels.compiled is not None and is_text_or_bytes(inline.type):
        made = _copied(kernels.compiled, inline.type, len(which), parts)
        if made is not None:
            return made
    if len(parts) == 1:
        return parts[0][0].take(pa.array(parts[0][1]))
    values = pa.concat_arrays([column.take(pa.array(at)) for column, at, _ in parts])
    order = np.empty(len(which), np.int64)
    order[np.concatenate([rows for _, _, rows in parts])] = np.arange(len(which))
    return values.take(pa.array(order))


def _copied(
    compiled: Kernels,
    kind: pa.DataType,
    count: int,
    parts: Sequence[tuple[pa.Array, I64, I64]],
) -> pa.Array | None:
    """The same of text or bytes, each value copied once; None if the offsets are too small."""
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    width: Any = np.int64 if large else np.int32
    start, size = np.empty(count, np.int64), np.empty(count, np.int64)
    valid: Bools | None = None
    for column, at, rows in parts:
        _, ends, data = column.buffers()
        offsets = np.frombuffer(ends, width)[column.offset : column.offset + len(column) + 1]
        lengths = offsets[at + 1].astype(np.int64) - offsets[at]
        start[rows] = offsets[at] + np.int64(0 if data is None else data.address)
        if column.null_count:
            there = pc.is_valid(column).to_numpy(zero_copy_only=False)[at]
            lengths = np.where(there, lengths, 0)
            valid = np.ones(count, np.bool_) if valid is None else valid
            valid[rows] = there
        size[rows] = lengths
    placed = np.zeros(count + 1, np.int64)
    np.cumsum(size, out=placed[1:])
    if not large and placed[-1] > _OFFSET_MAX:
        return None
    data = pa.allocate_buffer(int(placed[-1]))
    kernels.gather(compiled, start, size, data.address)
    mask = None if valid is None else pa.array(valid).buffers()[1]
    buffers = [mask, pa.py_buffer(placed.astype(width, copy=False)), data]
    return pa.Array.from_buffers(kind, count, buffers)
