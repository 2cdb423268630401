"""Batch tuples survive the wire, keep their size, and tell apart what was swapped."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.slot import wire
from headgate.slot.wire import (
    TUPLE_SCHEMA,
    BatchTuple,
    Kind,
    anchor_row,
    decode,
    digest_of,
    encode,
)
from strategies import examples

LABELS = [70, 71, 72, 73]
SMALL = st.integers(0, 2**31 - 1)


def tuple_of(payload: bytes = b"rows", **fields: int) -> BatchTuple:
    given = {"slot": 1, "channel": 2, "level": 3, "producer": 4, "seq": 5, "rows": 6}
    buffer = pa.py_buffer(payload)
    return BatchTuple(kind=Kind.DATA, digest=digest_of(buffer), payload=buffer, **given | fields)


batch_tuples = st.builds(
    lambda slot, kind, channel, level, producer, seq, rows, payload: BatchTuple(
        slot, kind, channel, level, producer, seq, rows, digest_of(payload), pa.py_buffer(payload)
    ),
    st.integers(0, 3),
    st.sampled_from(Kind),
    SMALL,
    SMALL,
    SMALL,
    SMALL,
    st.integers(0, 2**62),
    st.binary(max_size=40),
)


@examples(60)
@given(sent=st.lists(batch_tuples, max_size=12), cap=st.integers(1, 100))
def test_tuples_come_back_as_they_were_sent_in_batches_of_bounded_size(
    sent: list[BatchTuple], cap: int
) -> None:
    with patch.object(wire, "YIELD_BYTES_MAX", cap):
        batches = list(encode(sent, LABELS))

    received = [item for batch in batches for item in decode(batch)]
    assert received == sent
    for batch in batches:
        assert batch.schema == TUPLE_SCHEMA
        payloads = [len(p) for p in batch.column("payload").to_pylist()]
        assert sum(payloads) <= cap or len(payloads) == 1
    labels = [label for batch in batches for label in batch.column("label").to_pylist()]
    assert labels == [LABELS[item.slot] for item in sent]


def test_nothing_sent_is_no_batch() -> None:
    assert list(encode([], LABELS)) == []


def test_no_byte_that_was_sent_stays_in_memory() -> None:
    before = pa.total_allocated_bytes()

    for _ in range(5):
        payloads = [pa.allocate_buffer(size) for size in (0, 1, 1 << 20)]
        sent = [replace(tuple_of(), payload=payload) for payload in payloads]
        for batch in encode(sent, LABELS):
            assert [item.payload for item in decode(batch)] == payloads
        del payloads, sent, batch

    assert pa.total_allocated_bytes() == before


def test_a_digest_fits_a_spark_bigint() -> None:
    digests = [digest_of(bytes([n])) for n in range(64)]

    assert all(-(2**63) <= digest < 2**63 for digest in digests)
    assert min(digests) < 0 < max(digests)
    assert len(set(digests)) == 64


def test_a_seal_binds_a_payload_to_its_place() -> None:
    item = tuple_of()
    others = [
        tuple_of(b"other"),
        replace(item, seq=6),
        replace(item, channel=9),
        replace(item, kind=Kind.CARRY),
    ]

    assert len({item.seal, *(other.seal for other in others)}) == 5
    one, two = tuple_of(b"a", seq=0), tuple_of(b"b", seq=1)
    swapped = [replace(one, seq=1), replace(two, seq=0)]
    assert one.seal + two.seal != sum(other.seal for other in swapped)


def test_tuples_are_ordered_by_edge_then_producer_then_sequence() -> None:
    items = [
        tuple_of(channel=1, level=0, producer=0, seq=0),
        tuple_of(channel=1, level=0, producer=0, seq=2),
        tuple_of(channel=1, level=0, producer=3, seq=1),
        tuple_of(channel=1, level=1, producer=0, seq=0),
        tuple_of(channel=2, level=0, producer=0, seq=0),
        replace(tuple_of(channel=0), kind=Kind.CARRY),
    ]

    shuffled = [items[i] for i in (4, 0, 5, 2, 1, 3)]
    assert sorted(shuffled, key=lambda t: t.order) == items


def test_rows_of_one_edge_keep_their_sequence_whether_some_of_them_wait_in_files_or_not() -> None:
    kinds = [Kind.PARKED, Kind.DATA, Kind.PARKED]
    items = [replace(tuple_of(seq=seq), kind=kind) for seq, kind in enumerate(kinds)]

    shuffled = [items[i] for i in (1, 2, 0)]
    assert sorted(shuffled, key=lambda t: t.order) == items


def test_an_anchor_is_a_tuple_that_carries_nothing() -> None:
    label, head, payload = anchor_row(2, 72)
    row = pa.RecordBatch.from_arrays(
        [pa.array([label], pa.int32()), pa.array([head]), pa.array([payload])], schema=TUPLE_SCHEMA
    )

    (item,) = decode(row)

    assert (item.slot, item.kind, item.rows, item.payload.size) == (2, Kind.ANCHOR, 0, 0)
