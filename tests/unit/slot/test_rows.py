"""Rows keep batch, lineage and hashes together, whatever is done to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.routing.hashing import hash_columns
from headgate.slot.rows import (
    FILE,
    NOWHERE,
    PARKED,
    ROW,
    Hashed,
    Rows,
    concat,
    is_parked,
    wire_schema,
)
from headgate.testing import ListSource
from strategies import examples, run_quickly

NAMES = ("order", "origin")


@st.composite
def row_sets(draw: st.DrawFn, lineage: bool = True, hashed: bool | None = None) -> Rows:
    values = draw(st.lists(st.none() | st.text(max_size=5), max_size=12))
    count = len(values)
    hidden: dict[str, Any] = {}
    if lineage:
        numbers = st.lists(st.integers(-(2**62), 2**62), min_size=count, max_size=count)
        hidden = {name: np.array(draw(numbers), np.int64) for name in NAMES}
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(range(count), pa.int64())], ["k", "n"]
    )
    with_hashes = draw(st.booleans()) if hashed is None else hashed
    return Rows(batch, hidden, hashed_by(batch, "k") if with_hashes else None)


def hashed_by(batch: pa.RecordBatch, *key: str) -> Hashed:
    return Hashed(key, hash_columns([batch.column(name) for name in key], batch.num_rows))


def told(rows: Rows) -> list[tuple[Any, ...]]:
    """Every row with all that must follow it."""
    hidden = zip(*(values.tolist() for values in rows.lineage.values()), strict=True)
    hidden = list(hidden) if rows.lineage else [()] * len(rows)
    hashes = [None] * len(rows)
    if rows.hashed is not None:
        hashes = rows.hashed.h.tolist()
    return list(zip(map(str, rows.batch.to_pylist()), hidden, hashes, strict=True))


@examples(60)
@given(rows=row_sets(), data=st.data())
def test_take_chooses_rows_with_all_that_follows_them(rows: Rows, data: st.DataObject) -> None:
    index = st.integers(0, max(0, len(rows) - 1))
    chosen = data.draw(st.lists(index, max_size=15 if len(rows) else 0))

    taken = rows.take(np.array(chosen, np.int64))

    assert told(taken) == [told(rows)[i] for i in chosen]


@examples(60)
@given(rows=row_sets(), start=st.integers(0, 12), length=st.integers(0, 12))
def test_slice_is_a_view_of_consecutive_rows(rows: Rows, start: int, length: int) -> None:
    start = min(start, len(rows))
    length = min(length, len(rows) - start)

    assert told(rows.slice(start, length)) == told(rows)[start : start + length]


@examples(60)
@given(parts=st.lists(row_sets(hashed=True), min_size=1, max_size=4))
def test_concat_keeps_the_rows_of_all_parts_in_order(parts: list[Rows]) -> None:
    assert told(concat(parts)) == [row for part in parts for row in told(part)]


@given(parts=st.lists(row_sets(hashed=True), min_size=1, max_size=3), bare=row_sets(hashed=False))
@examples(20)
def test_concat_forgets_hashes_that_not_every_part_has(parts: list[Rows], bare: Rows) -> None:
    joined = concat([*parts, bare])

    assert joined.hashed is None
    assert len(joined) == sum(map(len, parts)) + len(bare)


@examples(60)
@given(
    parts=st.lists(row_sets(), min_size=1, max_size=3),
    keys=st.lists(st.sampled_from([(), ("k",), ("n",), ("k", "n")]), min_size=4, max_size=4),
)
def test_whoever_asks_gets_the_hashes_of_the_key_they_ask_for(
    parts: list[Rows], keys: list[tuple[str, ...]]
) -> None:
    """Whatever key the rows were hashed by before: a filter passes its rows on as they came."""
    asked = keys.pop()
    rows = concat([part.hashed_by(key) for part, key in zip(parts, keys, strict=False)])
    kept = rows.take(np.arange(len(rows))[::2]).slice(0, len(rows) // 2)

    for some in (rows, kept):
        wanted = hashed_by(some.batch, *asked).h
        for found in (
            some.hashes_by(asked),
            some.hashed_by(asked).hashes_by(asked),
            some.at("operator", asked).hashes_by(asked),
        ):
            assert (found == wanted).all()


@examples(60)
@given(rows=row_sets(), offset=st.integers(0, 5))
def test_lineage_crosses_the_wire(rows: Rows, offset: int) -> None:
    rows = rows.slice(min(offset, len(rows)), len(rows) - min(offset, len(rows)))
    sent = rows.to_wire()
    schema = wire_schema(rows.batch.schema, NAMES)
    received = Rows.from_wire(pa.ipc.read_record_batch(sent.serialize(), schema), NAMES)

    assert sent.schema == schema
    assert received.hashed is None
    assert told(received) == told(Rows(rows.batch, rows.lineage))


@examples(20)
@given(rows=row_sets(lineage=False))
def test_rows_without_lineage_cross_the_wire_as_they_are(rows: Rows) -> None:
    assert rows.to_wire() is rows.batch
    assert told(Rows.from_wire(rows.to_wire(), ())) == told(Rows(rows.batch))


@examples(60)
@given(parts=st.lists(row_sets(), min_size=1, max_size=4), data=st.data())
def test_rows_of_which_nothing_waits_are_nowhere_among_others(
    parts: list[Rows], data: st.DataObject
) -> None:
    """And where columns wait is told last, as the wire wants it."""
    waiting = [data.draw(st.booleans()) for _ in parts]
    told = [
        {**part.lineage, FILE: np.full(len(part), 7), ROW: np.arange(len(part))}
        if waits
        else part.lineage
        for part, waits in zip(parts, waiting, strict=True)
    ]

    rows = concat([replace(p, lineage=mine) for p, mine in zip(parts, told, strict=True)])

    assert list(rows.lineage) == [*NAMES, *(PARKED if any(waiting) else ())]
    assert is_parked(rows.to_wire().schema) == any(waiting)
    if any(waiting):
        places = [
            place
            for part, waits in zip(parts, waiting, strict=True)
            for place in (range(len(part)) if waits else [NOWHERE] * len(part))
        ]
        assert rows.lineage[ROW].tolist() == places


def test_derived_rows_take_the_lineage_of_their_origins() -> None:
    rows = Rows(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), {"order": np.array([10, 20, 30])})
    made = pa.RecordBatch.from_pydict({"b": ["x", "y"]})

    assert rows.derived(made, np.array([2, 0])).lineage["order"].tolist() == [30, 10]
    assert rows.derived(made, None).lineage["order"].tolist() == [10, 20]
    assert rows.derived(made, np.array([2, 0])).batch is made


def test_derived_rows_drop_the_hashes_of_a_key_that_may_have_changed() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    rows = Rows(batch, {}, hashed_by(batch, "a"))

    assert rows.derived(batch, None).hashed is None


def test_select_keeps_what_follows_the_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    rows = Rows(batch, {"order": np.array([7])}, hashed_by(batch, "a"))

    chosen = rows.select(["b"])

    assert chosen.batch.schema.names == ["b"]
    assert chosen.lineage["order"].tolist() == [7]
    assert chosen.hashed is rows.hashed
    assert rows.select(["a", "b"]) is rows
    assert rows.select(["b", "a"]).batch.schema.names == ["b", "a"]


@pytest.mark.parametrize("strict_first", [True, False])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_union_of_strict_and_nullable_columns_runs(strict_first: bool, slots: int) -> None:
    """Through all that joins batches: exchanges, filters, ordered and split operators, sinks."""
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    sides = [(strict, [{"k": k} for k in range(20)]), ("k bigint", [{"k": None}, {"k": 1}])]
    flow = hg.Flow("f")
    one, two = (
        flow.source(ListSource(schema, [rows]))
        for schema, rows in (sides if strict_first else sides[::-1])
    )
    both = one.union(two)
    both.to_memory("all")
    both.filter(pc.is_null(pc.field("k"))).to_memory("nulls")
    both.key_by("k").process(hg.Count(), name="counts").to_memory("counted")
    both.key_by("k", grouping="partial").process(hg.Count(), name="split").to_memory("split_out")
    passed = both.key_by("k").process(hg.Count(emit="rows"), name="passing")
    last = passed.union(one.filter(lambda batch: [True] * batch.num_rows)).globally()
    last.process(hg.Count(ordered=True), name="ordered").to_memory("n")

    done = run_quickly(flow, slots=slots)

    assert len(done.rows("all")) == 22 and done.rows("nulls") == [{"k": None}]
    want = Counter([*range(20), None, 1])
    for sink in ("counted", "split_out"):
        assert {row["k"]: row["count"] for row in done.rows(sink)} == want
    assert done.rows("n") == [{"count": 22 + (20 if strict_first else 2)}]
