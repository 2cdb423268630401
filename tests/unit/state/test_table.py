"""The hash table alone: hard cases of hashing, growth and removal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.state.columns import PrivateMemory
from headgate.state.layout import RowLayout, StateSchema, Values
from headgate.state.rows import RowIds
from headgate.state.table import HashTable, home_of

SCHEMA = StateSchema(key=pa.schema([("k", pa.int64())]), values=pa.schema([("v", pa.int64())]))


def empty(schema: StateSchema = SCHEMA) -> HashTable:
    layout = RowLayout(schema)
    blank = {name: column.blank(0) for name, column in layout.columns.items()}
    return HashTable.build(layout, PrivateMemory(), RowIds.none(), blank)


def ids_of(pairs: list[tuple[int, int]]) -> RowIds:
    h = np.array([pair[0] for pair in pairs], np.uint64)
    return RowIds(h, h, np.array([pair[1] for pair in pairs], np.uint64))


def put(table: HashTable, ids: RowIds, values: list[int]) -> None:
    pos, found = table.find(ids.h, ids.check)
    new = np.flatnonzero(~found)
    if len(new):
        table.insert(ids.take(new), pos[new])
    pos, found = table.find(ids.h, ids.check)
    assert found.all()
    table.scatter(ids, pos, {"value.v": Values(np.array(values, np.int64))})


pairs = st.tuples(st.integers(0, 3), st.sampled_from([1, 4, 5, 254, 255, 256, 2**64 - 1]))
batches = st.lists(st.tuples(st.booleans(), st.lists(pairs, unique=True, max_size=20)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(batches=batches)
def test_rows_with_equal_hashes_are_told_apart_by_check(
    batches: list[tuple[bool, list[tuple[int, int]]]],
) -> None:
    """Also when a check does not fit the one byte that integer keys start with."""
    table, truth = empty(), {}
    for number, (adding, batch) in enumerate(batches):
        ids = ids_of(batch)
        if adding:
            put(table, ids, [number] * len(batch))
            truth.update(dict.fromkeys(batch, number))
        else:
            pos, found = table.find(ids.h, ids.check)
            assert found.tolist() == [pair in truth for pair in batch]
            table.remove(pos[found])
            for pair in batch:
                truth.pop(pair, None)
    everything = ids_of(list(truth))
    pos, found = table.find(everything.h, everything.check)
    assert found.all() and table.live == len(truth) == len(table.live_positions())
    assert table.gather(pos)["value.v"].data.tolist() == list(truth.values())


def test_many_rows_of_one_hash_survive_growth() -> None:
    table = empty()
    for start in range(0, 3000, 300):
        batch = [(7, 1000 + number) for number in range(start, start + 300)]
        put(table, ids_of(batch), list(range(start, start + 300)))
    ids = ids_of([(7, 1000 + number) for number in range(3000)])
    pos, found = table.find(ids.h, ids.check)
    assert found.all() and len(np.unique(pos)) == 3000


def test_rows_that_crowd_at_the_end_may_have_checks_of_more_than_a_byte() -> None:
    """Then the table needs more room and wider checks at once."""
    h = np.random.default_rng(3).integers(0, 1 << 64, 200_000, np.uint64)
    last = h[home_of(h, 1 << 20) >= (1 << 20) - (1 << 10)]
    table = empty()
    put(table, ids_of([(int(one), 1) for one in last[:20]]), list(range(20)))
    assert table.check.dtype == np.uint8
    ids = ids_of([(int(one), 1000) for one in last[20:]])
    put(table, ids, list(range(len(ids))))

    assert len(ids) > 100 and table.live == 20 + len(ids)
    assert table.check.dtype == np.uint64
    pos, found = table.find(ids.h, ids.check)
    assert found.all() and table.gather(pos)["value.v"].data.tolist() == list(range(len(ids)))


def test_rows_of_few_buckets_do_not_pile_up() -> None:
    """A slot sees only some top bits of the hash; positions must not care."""
    rng = np.random.default_rng(1)
    h = rng.integers(0, 1 << 54, 20_000).astype(np.uint64) | np.uint64(5 << 54)
    counts = np.bincount(home_of(np.unique(h), 40_000), minlength=40_000)
    assert counts.max() < 10


def test_removing_and_adding_for_ever_does_not_grow_the_table() -> None:
    table = empty()
    for epoch in range(60):
        put(table, ids_of([(epoch * 100 + n, 1) for n in range(100)]), [0] * 100)
        if epoch:
            old = ids_of([((epoch - 1) * 100 + n, 1) for n in range(100)])
            table.remove(table.find(old.h, old.check)[0])
    assert table.live == 100
    assert table.capacity < 1000


def test_overwritten_strings_are_collected() -> None:
    schema = StateSchema(key=SCHEMA.key, values=pa.schema([("s", pa.string())]))
    table = empty(schema)
    ids = ids_of([(n, 1) for n in range(100)])
    table.insert(ids, table.find(ids.h, ids.check)[0])
    for epoch in range(200):
        text = pa.array([f"{epoch:05d}-{n:05d}".encode() for n in range(100)], pa.large_binary())
        table.scatter(ids, table.find(ids.h, ids.check)[0], {"value.s": Values(text)})
        extra = ids_of([(1000 + epoch, 1)])
        table.insert(extra, table.find(extra.h, extra.check)[0])
    assert table.byte_count < 300_000
    got = table.gather(table.find(ids.h, ids.check)[0])["value.s"].data
    assert got.equals(text)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 5000])
def test_bulk_building_and_inserting_give_the_same_rows(rows: int) -> None:
    rng = np.random.default_rng(rows)
    h = np.unique(rng.integers(0, 2**63, rows).astype(np.uint64))
    ids = RowIds(h, h, np.ones(len(h), np.uint64))
    values = {"key.k": Values(h.astype(np.int64)), "value.v": Values(np.arange(len(h)))}
    built = HashTable.build(RowLayout(SCHEMA), PrivateMemory(), ids, values)
    pos, found = built.find(ids.h, ids.check)
    assert found.all()
    assert built.gather(pos)["value.v"].data.tolist() == list(range(len(h)))
