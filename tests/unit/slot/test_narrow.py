"""What is narrowed is read as it was, and nobody can change how it is read unnoticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.slot.narrow import ROWS_MIN, narrowed, read
from headgate.slot.wire import BatchTuple, Kind, decode, digest_of, encode

WHOLE = [
    pa.int64(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.time64("us"),
    pa.duration("ms"),
    pa.date64(),
]
LEAST, MOST = -(1 << 63), (1 << 63) - 1


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column of some base and range, with nulls or without, whole or a slice of a longer one."""
    kind = draw(st.sampled_from(WHOLE))
    base = draw(st.sampled_from([0, 1, -5, 1_700_000_000_000_000, LEAST, MOST - 255]))
    span = draw(st.sampled_from([0, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, MOST]))
    cut = draw(st.integers(0, 9))
    seed = draw(st.integers(0, 9))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, span, ROWS_MIN + cut, endpoint=True)
    values = [min(base + int(distance), MOST) for distance in drawn]
    values[-2:] = base, min(base + span, MOST)
    nulls = draw(st.sampled_from(["none", "some", "all"]))
    mask = {"none": None, "some": rng.random(len(values)) < 0.3, "all": np.ones(len(values), bool)}
    numbers = pa.array(np.array(values, np.int64), mask=mask[nulls])
    return numbers.view(kind).slice(cut)


@given(st.lists(columns(), min_size=1, max_size=3))
@example([pa.array(np.arange(ROWS_MIN) + LEAST), pa.array(np.arange(ROWS_MIN) % 7)])
def test_a_batch_is_read_as_it_was_sent(made: list[pa.Array]) -> None:
    texts = pa.array([f"{i}" for i in range(ROWS_MIN)])
    batch = pa.RecordBatch.from_arrays([*made, texts], [str(i) for i in range(len(made) + 1)])

    sent, widths = narrowed(batch)
    found = read(sent.serialize(), batch.schema, widths)

    found.validate()
    assert found.schema == batch.schema and found.equals(batch)
    assert sent.nbytes <= batch.nbytes


@pytest.mark.parametrize(
    ("base", "span", "width"),
    [
        (0, 255, 1),
        (0, 256, 2),
        (-1, 254, 1),
        (-1, 255, 1),
        (-1, 256, 2),
        (10**15, 65_535, 2),
        (-(10**15), 65_536, 4),
        (LEAST, (1 << 32) - 1, 4),
        (0, 1 << 32, 8),
    ],
)
def test_a_column_takes_as_many_bytes_as_its_range_needs(base: int, span: int, width: int) -> None:
    values = np.full(ROWS_MIN, base)
    values[-1] = base + span
    sent, _ = narrowed(pa.record_batch([pa.array(values)], ["a"]))
    assert sent.nbytes == ROWS_MIN * width


def test_few_rows_and_what_is_no_whole_number_travel_as_they_are() -> None:
    few = pa.record_batch([pa.array([1, 2, 3])], ["a"])
    wide = pa.record_batch([pa.array(np.arange(ROWS_MIN) / 3)], ["a"])
    unsigned = pa.record_batch([pa.array(np.arange(ROWS_MIN, dtype=np.uint64))], ["a"])
    for batch in few, wide, unsigned:
        assert narrowed(batch) == (batch, b"")


def test_widths_travel_in_the_head_and_are_part_of_the_digest() -> None:
    sent, widths = narrowed(pa.record_batch([pa.array(np.arange(ROWS_MIN) + 10**9)], ["a"]))
    payload = sent.serialize()
    made = BatchTuple(
        0, Kind.DATA, 0, 0, 0, 0, ROWS_MIN, digest_of(payload, widths), payload, widths
    )
    (batch,) = encode([made], [0])

    (found,) = decode(batch)

    assert found.widths == widths and found.digest == digest_of(found.payload, found.widths)
    other = replace(found, widths=widths[:-1] + b"\x01")
    assert other.digest != digest_of(other.payload, other.widths)
