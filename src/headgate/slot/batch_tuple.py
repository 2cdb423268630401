"""Batch tuples: the only rows that Spark shuffles.

A batch tuple is many rows of one edge for one slot, as one Arrow payload, with the name of its
producer and a digest. Nothing in it may differ between two runs of the same task: no clock, host,
attempt number or random id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa
import xxhash

YIELD_BYTES_MAX = 32 << 20
PAYLOAD_BYTES_MAX = 8 << 20


class Kind(IntEnum):
    """What a payload is: rows of an edge, an operator's carry, a control record, or an anchor."""

    DATA = 0
    CARRY = 1
    CONTROL = 2
    ANCHOR = 3


# label places the row (Spark hashes it), slot says where it belongs; channel is the edge of data,
# the node of a carry; level and producer say which task made it, seq in which order.
TUPLE_SCHEMA = pa.schema(
    [
        pa.field("label", pa.int32(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("level", pa.int32(), nullable=False),
        pa.field("producer", pa.int32(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("digest", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class BatchTuple:
    slot: int
    kind: Kind
    channel: int
    level: int
    producer: int
    seq: int
    rows: int
    digest: int
    payload: pa.Buffer

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        return (self.kind, self.channel, self.level, self.producer, self.seq)

    @property
    def seal(self) -> int:
        """The payload's digest bound to its place, so that swapped tuples do not cancel out."""
        place = f"{self.kind}/{self.channel}/{self.seq}/{self.digest}"
        return xxhash.xxh3_64_intdigest(place.encode())


def digest_of(payload: Any) -> int:
    """xxh3-64 of a payload as a signed number, which is what a Spark bigint holds."""
    unsigned = xxhash.xxh3_64_intdigest(payload)
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
    columns = [batch.column(i).to_pylist() for i in range(1, len(TUPLE_SCHEMA) - 1)]
    payloads = batch.column(len(TUPLE_SCHEMA) - 1)
    for row, (slot, kind, channel, level, producer, seq, rows, digest) in enumerate(
        zip(*columns, strict=True)
    ):
        payload = payloads[row].as_buffer()
        yield BatchTuple(slot, Kind(kind), channel, level, producer, seq, rows, digest, payload)


def _batch(tuples: list[BatchTuple], labels: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([labels[t.slot] for t in tuples], pa.int32()),
            pa.array([t.slot for t in tuples], pa.int32()),
            pa.array([int(t.kind) for t in tuples], pa.int32()),
            pa.array([t.channel for t in tuples], pa.int32()),
            pa.array([t.level for t in tuples], pa.int32()),
            pa.array([t.producer for t in tuples], pa.int32()),
            pa.array([t.seq for t in tuples], pa.int32()),
            pa.array([t.rows for t in tuples], pa.int64()),
            pa.array([t.digest for t in tuples], pa.int64()),
            pa.array([memoryview(t.payload) for t in tuples], pa.binary()),
        ],
        schema=TUPLE_SCHEMA,
    )
