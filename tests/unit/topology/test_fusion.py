"""A shuffle behind shuffled stateless steps is left out; all others stay."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headgate as hg
from headgate.slot.compile import compile_flow
from headgate.testing import ListSource, run
from headgate.topology.stream import Stream

ROWS = pa.schema({"k": pa.int64()})


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def source(flow: hg.Flow) -> Stream:
    return flow.source(ListSource("k bigint", [[{"k": i} for i in range(40)]]), name="in")


SHAPES = {
    "a chain of shuffles": (1, lambda s: s.shuffle().map(same, ROWS).shuffle().map(same, ROWS)),
    "a local step in between": (
        1,
        lambda s: s.shuffle().map(same, ROWS).map(same, ROWS).shuffle().map(same, ROWS),
    ),
    "rows as the source has them": (1, lambda s: s.map(same, ROWS).shuffle().map(same, ROWS)),
    "with a batch size": (
        2,
        lambda s: s.shuffle().map(same, ROWS).shuffle().batched(5).map(same, ROWS),
    ),
    "behind a key": (
        2,
        lambda s: s.key_by("k").process(hg.Count(emit="rows")).shuffle().map(same, ROWS),
    ),
    "behind everything in one slot": (
        2,
        lambda s: s.globally().process(hg.Count(emit="rows")).shuffle().map(same, ROWS),
    ),
    "behind a copy to all": (2, lambda s: s.broadcast().map(same, ROWS).shuffle().map(same, ROWS)),
    "one side of a union as it came": (
        2,
        lambda s: (
            s.shuffle()
            .map(same, ROWS)
            .union(s.map(same, ROWS))
            .map(same, ROWS)
            .shuffle()
            .map(same, ROWS)
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_levels(shape):
    levels, declare = SHAPES[shape]
    flow = hg.Flow("f")
    declare(source(flow)).to_memory("out")

    assert compile_flow(flow.graph()).levels == levels


def test_no_row_is_lost_and_slots_stay_even():
    flow = hg.Flow("f")
    stream = source(flow)
    for _ in range(4):
        stream = stream.shuffle().map(same, ROWS)
    stream.to_memory("out")

    ran = run(flow, slots=4)

    assert sorted(row["k"] for row in ran.rows("out")) == list(range(40))
    assert len(ran.records[0]["batches"]) == 1
