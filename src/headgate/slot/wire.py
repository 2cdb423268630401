"""Batch tuples: the only rows that Spark shuffles.

A batch tuple is many rows of one edge for one slot, as one Arrow payload, with the name of its
producer and a digest. Nothing in it may differ between two runs of the same task: no clock, host,
attempt number or random id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Any, Generic, TypeVar

import pyarrow as pa
import xxhash

from headgate.slot.rows import Rows, concat

YIELD_BYTES_MAX = 32 << 20  # what a worker hands to the JVM at once: bounds its memory
PAYLOAD_BYTES_MAX = 8 << 20  # of one tuple; a single larger row still travels whole


class Kind(IntEnum):
    """What a payload is: rows of an edge, an operator's carry, a control record, an anchor,
    partial states for the owner of their keys, rows for several edges at once, or rows of an edge
    some of whose columns wait in files.
    """

    DATA = 0
    CARRY = 1
    CONTROL = 2
    ANCHOR = 3
    PARTIAL = 4
    SHARED = 5
    PARKED = 6


# label places the row (Spark hashes it); head holds the fixed-width fields of the tuple. Three
# columns instead of ten: Spark's planner and its row codec pay per column.
TUPLE_SCHEMA = pa.schema(
    [
        pa.field("label", pa.int32(), nullable=False),
        pa.field("head", pa.binary(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_HEAD = struct.Struct("<6i2q")


@dataclass(frozen=True, slots=True)
class BatchTuple:
    """`slot` says where it belongs; `channel` is the edge of data, the channel of a share group for
    shared rows, the node of all else.

    `level` and `producer` say which task made it, `seq` in which order.
    """

    slot: int
    kind: Kind
    channel: int
    level: int
    producer: int
    seq: int
    rows: int
    digest: int
    payload: pa.Buffer
    widths: bytes = b""  # how to read the payload (see slot/narrow.py)

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        kind = Kind.DATA if self.kind == Kind.PARKED else self.kind  # rows of one edge: as sent
        return (kind, self.channel, self.level, self.producer, self.seq)

    def head(self) -> bytes:
        fixed = _HEAD.pack(
            self.slot,
            self.kind,
            self.channel,
            self.level,
            self.producer,
            self.seq,
            self.rows,
            self.digest,
        )
        return fixed + self.widths

    @property
    def seal(self) -> int:
        """The payload's digest bound to its place, so that swapped tuples do not cancel out."""
        place = f"{self.kind}/{self.channel}/{self.seq}/{self.digest}"
        return xxhash.xxh3_64_intdigest(place.encode())


def digest_of(payload: Any, widths: bytes = b"") -> int:
    """xxh3-64 of a payload, and of how to read it, as a signed number of 64 bits."""
    seed = xxhash.xxh3_64_intdigest(widths) if widths else 0
    unsigned = xxhash.xxh3_64_intdigest(payload, seed)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def encode(tuples: Iterable[BatchTuple], labels: list[int]) -> Iterator[pa.RecordBatch]:
    """Arrow batches of batch tuples, none larger than a worker should hand over at once."""
    held: list[BatchTuple] = []
    size = 0
    for item in tuples:
        if held and size + item.payload.size > YIELD_BYTES_MAX:
            yield _batch(held, labels)
            held, size = [], 0
        held.append(item)
        size += item.payload.size
    if held:
        yield _batch(held, labels)


def decode(batch: pa.RecordBatch) -> Iterator[BatchTuple]:
    """The tuples of a batch; payloads are views of it, not copies."""
    payloads = batch.column(2)
    for row, head in enumerate(batch.column(1).to_pylist()):
        slot, kind, channel, level, producer, seq, rows, digest = _HEAD.unpack_from(head)
        payload, widths = payloads[row].as_buffer(), head[_HEAD.size :]
        yield BatchTuple(
            slot, Kind(kind), channel, level, producer, seq, rows, digest, payload, widths
        )


def anchor_row(slot: int, label: int) -> tuple[int, bytes, bytes]:
    """The row by which a slot knows its name; carries nothing."""
    return label, _HEAD.pack(slot, Kind.ANCHOR, 0, 0, 0, 0, 0, 0), b""


def _batch(tuples: list[BatchTuple], labels: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([labels[t.slot] for t in tuples], pa.int32()),
            pa.array([t.head() for t in tuples], pa.binary()),
            _one_column([t.payload for t in tuples]),
        ],
        schema=TUPLE_SCHEMA,
    )


def _one_column(payloads: list[pa.Buffer]) -> pa.Array:
    """Payloads as a binary column: one copy of each byte, into memory that Arrow frees.

    Not `pa.array` over memoryviews: it never releases them, so every byte sent would stay.
    """
    ends = pa.array([0, *accumulate(payload.size for payload in payloads)], pa.int32())
    bytes_held = pa.allocate_buffer(ends[-1].as_py())
    writer = pa.FixedSizeBufferWriter(bytes_held)
    for payload in payloads:
        writer.write(payload)
    return pa.Array.from_buffers(pa.binary(), len(payloads), [None, ends.buffers()[1], bytes_held])


Target = TypeVar("Target", bound=tuple[object, ...])


class Buffers(Generic[Target]):
    """Rows wait here, one buffer per target, until they make a batch; `emit` gets it in wire form.

    A buffer with a batch size puts out batches of exactly that many rows and keeps the rest until
    more come or the task ends. None holds more than a payload may be large, so memory is bounded by
    the number of targets. Below that size, what comes out depends on the rows alone, not on how
    they were cut into calls.
    """

    def __init__(self, emit: Callable[[Target, pa.RecordBatch], None]) -> None:
        self._emit = emit
        self._waiting: dict[Target, list[Rows]] = {}
        self._rows: dict[Target, int] = {}
        self._bytes: dict[Target, int] = {}

    def put(self, target: Target, rows: Rows, batch_rows: int | None) -> None:
        """Add rows; whatever is full leaves at once."""
        plain = Rows(rows.batch, rows.lineage)
        self._waiting.setdefault(target, []).append(plain)
        self._rows[target] = self._rows.get(target, 0) + len(rows)
        self._bytes[target] = self._bytes.get(target, 0) + rows.bytes
        is_full = batch_rows is not None and self._rows[target] >= batch_rows
        if is_full or self._bytes[target] >= PAYLOAD_BYTES_MAX:
            self._flush(target, batch_rows, everything=not is_full)

    def close(self, batch_rows: Callable[[Target], int | None]) -> None:
        """Put out all that is left, in a fixed order."""
        for target in sorted(self._waiting):
            self._flush(target, batch_rows(target), everything=True)

    def _flush(self, target: Target, batch_rows: int | None, *, everything: bool) -> None:
        rows = concat(self._waiting.pop(target))
        step = batch_rows or len(rows)
        end = len(rows) if everything else len(rows) - len(rows) % step
        wire = rows.to_wire()
        for start in range(0, end, step):
            for piece in pieces(wire.slice(start, min(step, end - start))):
                self._emit(target, piece)
        rest = rows.slice(end, len(rows) - end)
        self._rows[target], self._bytes[target] = len(rest), rest.bytes
        if len(rest):
            self._waiting[target] = [rest]


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Consecutive parts, none above the size of a payload unless a single row is."""
    if batch.nbytes <= PAYLOAD_BYTES_MAX or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))
