"""Batching is transparent: whatever the batch size and scheme, results, state and order are equal.

And it is what was asked for: so many rows a tuple, shared where that is cheaper, all of it counted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import compiled, nothing, source

import headgate as hg
from headgate.errors import DeclarationError
from headgate.routing.table import hash_table
from headgate.slot.plan import Batching, batching_of
from headgate.slot.rows import Rows
from headgate.slot.sharing import STAYS, cells_of, shared_is_cheaper
from headgate.slot.wire import PAYLOAD_BYTES_MAX, Buffers
from headgate.testing import ListSource, LocalRun, run
from strategies import examples

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 99)), min_size=0, max_size=40
)
SCHEMES = ("auto", "distinct", "shared")


def branching(epochs: list[list[tuple[int, int, int]]], ordered: bool = False) -> hg.Flow:
    """Two consumers of the source with different keys; the second has two of its own.

    All of them depend on the order of a key's rows: a `Last`, running means, and one that keeps
    every row it sees.
    """
    rows = [[{"a": a, "b": b, "v": v} for a, b, v in epoch] for epoch in epochs]
    flow = hg.Flow("branching")
    stream = flow.source(ListSource("a bigint, b bigint, v bigint", rows), name="spout")
    stream.key_by("a").process(hg.Last("v"), name="last").to_memory("lasts")
    moving = hg.MeanOfLast("v", 3, ordered=ordered)
    passing = stream.key_by("b").process(moving, name="moving")
    passing.key_by("a").process(KEEPING, name="keeping").to_memory("kept")
    passing.key_by("v").process(hg.Count(), name="count").to_memory("counts")
    return flow


def keep(key: Any, rows: list[dict[str, Any]], state: list[Any] | None) -> tuple[Any, Any]:
    seen = [*(state or []), *((row["b"], row["v"], row["mean"]) for row in rows)]
    return seen, [{"a": key, "seen": len(seen)}]


KEEPING = hg.Update(keep, pa.schema({"a": pa.int64(), "seen": pa.int64()}), rows_as="dicts")


def told(done: LocalRun) -> dict[str, Any]:
    """All that users see: rows of every epoch in any order, states, and rows processed."""
    outputs = {
        name: sorted((epoch, sorted(row.items())) for epoch, row in rows)
        for name, rows in done.outputs.items()
    }
    states = {name: sorted(map(repr, rows)) for name, rows in done.states.items()}
    loads = [record["loads"] for record in done.records]
    return {"outputs": outputs, "states": states, "loads": loads}


@examples(25)
@given(
    epochs=st.lists(ROWS, min_size=1, max_size=3),
    slots=st.integers(1, 4),
    batch=st.none() | st.integers(1, 9),
    scheme=st.sampled_from(SCHEMES),
    ordered=st.booleans(),
)
def test_results_do_not_depend_on_batch_size_and_scheme(
    epochs: list[Any], slots: int, batch: int | None, scheme: Any, ordered: bool
) -> None:
    options: dict[str, Any] = {"slots": slots, "partitions": 2}
    plain = run(branching(epochs, ordered), sharing="distinct", **options)
    other = run(branching(epochs, ordered), batch_rows=batch, sharing=scheme, **options)

    assert told(other) == told(plain)
    for record in other.records:
        assert all(b["tuples"] >= 1 for b in record["batches"].values())


def test_shared_batches_keep_the_order_of_every_upstream_task() -> None:
    """From one partition a key gets its rows in source order, whichever cells they lie in."""
    draw = np.random.default_rng(5)
    rows = [tuple(map(int, row)) for row in draw.integers(0, 6, (200, 3))]
    flow = hg.Flow("order")
    table = [{"a": a, "b": b, "v": i} for i, (a, b, _) in enumerate(rows)]
    stream = flow.source(ListSource("a bigint, b bigint, v bigint", [table]))
    stream.key_by("a").process(hg.Update(in_order, NUMBERS, "dicts"), name="by_a").to_memory("a")
    stream.key_by("b").process(hg.Update(in_order, NUMBERS, "dicts"), name="by_b").to_memory("b")

    done = run(flow, slots=3, partitions=1, batch_rows=7, sharing="shared")

    for sink, place in (("a", 0), ("b", 1)):
        wanted = defaultdict(list)
        for i, row in enumerate(rows):
            wanted[row[place]].append(i)
        found = defaultdict(list)
        for row in done.rows(sink):
            found[row["key"]].append(row["v"])
        assert found == wanted


NUMBERS = pa.schema({"key": pa.int64(), "v": pa.int64()})


def in_order(key: int, rows: list[dict[str, Any]], state: Any) -> tuple[Any, Any]:
    return state, [{"key": key, "v": row["v"]} for row in rows]


# --- rows per batch -----------------------------------------------------------------------------


@examples(60)
@given(calls=st.lists(st.integers(0, 30), max_size=6), batch=st.none() | st.integers(1, 12))
def test_a_buffer_puts_out_full_batches_and_the_rest_at_the_end(
    calls: list[int], batch: int | None
) -> None:
    left: list[pa.RecordBatch] = []
    buffers = Buffers[tuple[int]](lambda _, piece: left.append(piece))
    numbers = iter(range(1000))
    for count in calls:
        rows = pa.RecordBatch.from_pydict({"v": pa.array([next(numbers) for _ in range(count)])})
        if count:
            buffers.put((0,), Rows(rows.cast(pa.schema({"v": pa.int64()}))), batch)
    buffers.close(lambda _: batch)

    total = sum(calls)
    assert [v for piece in left for v in piece["v"].to_pylist()] == list(range(total))
    sizes = [piece.num_rows for piece in left]
    if batch is None:
        assert len(sizes) == (total > 0)
    else:
        assert sizes == [batch] * (total // batch) + [total % batch] * (total % batch > 0)


def test_a_buffer_never_waits_for_more_than_a_payload() -> None:
    left: list[pa.RecordBatch] = []
    buffers = Buffers[tuple[int]](lambda _, piece: left.append(piece))
    wide = pa.record_batch({"text": ["x" * 1_000] * 1_000})
    for call in range(1, 21):
        buffers.put((0,), Rows(wide), 50_000)  # 50 MB, of which a payload has eight
        waiting = call * 1_000 - sum(piece.num_rows for piece in left)
        assert waiting * 1_000 < PAYLOAD_BYTES_MAX
    buffers.close(lambda _: 50_000)
    assert sum(piece.num_rows for piece in left) == 20_000
    assert all(piece.nbytes <= PAYLOAD_BYTES_MAX for piece in left)


def test_one_row_a_tuple_is_tuple_at_a_time() -> None:
    rows = [(a, a % 3, a) for a in range(30)]
    done = run(branching([rows]), slots=3, batch_rows=1, sharing="distinct")

    batches = done.records[0]["batches"]
    assert all(edge["tuples"] == edge["rows"] for edge in batches.values())
    assert batches["spout->last"]["tuples"] == batches["spout->moving"]["tuples"] == 30
    assert done.records[0]["messages"] >= 60
    assert done.records[0]["message_bytes"] >= sum(b["bytes"] for b in batches.values())


def test_an_edge_has_the_size_asked_for_then_the_one_declared() -> None:
    flow = hg.Flow("f")
    stream = source(flow, "k bigint, v bigint", name="spout")
    stream.key_by("k").batched(10).process(hg.Count(), name="declared")
    stream.shuffle().batched(20).map(nothing, "k bigint", name="other").to_memory("out")
    stream.key_by("v").process(hg.Count(), name="plain")
    graph = compiled(flow).graph
    edge = {graph.nodes[e.consumer].name: e for e in graph.edges}

    asked = batching_of(graph, {"spout->other": 5})
    assert [asked.rows_max(edge[n]) for n in ("declared", "other", "plain")] == [10, 5, None]
    assert asked.rows_max(edge["declared"], edge["plain"], edge["other"]) == 5
    everywhere = batching_of(graph, 3)
    assert {everywhere.rows_max(edge[n]) for n in ("declared", "other", "plain")} == {3}


def test_mistakes_have_a_way_out() -> None:
    flow = hg.Flow("f")
    stream = source(flow, name="spout")
    with pytest.raises(DeclarationError, match="put key_by"):
        stream.batched(5)
    with pytest.raises(DeclarationError, match="at least 1"):
        stream.shuffle().batched(0)
    stream.key_by("k").process(hg.Count(), name="count").to_memory("out")
    graph = compiled(flow).graph
    with pytest.raises(DeclarationError, match="spout->count"):
        batching_of(graph, {"spout->out": 5})
    with pytest.raises(DeclarationError, match="at least 1"):
        batching_of(graph, 0)
    with pytest.raises(DeclarationError, match="'distinct'"):
        batching_of(graph, None, "some")  # type: ignore[arg-type]


# --- what is shared -----------------------------------------------------------------------------


@examples(60)
@given(data=st.data(), slots=st.integers(1, 4), consumers=st.integers(2, 4))
def test_a_cell_is_a_combination_of_targets(data: Any, slots: int, consumers: int) -> None:
    rows = data.draw(
        st.lists(st.tuples(*[st.integers(STAYS, slots - 1)] * consumers), min_size=1, max_size=30)
    )
    targets = [np.array(column, np.int32) for column in zip(*rows, strict=True)]

    found = cells_of(targets, slots)

    assert found is not None
    order, cells = found
    expected = defaultdict(list)
    for i, row in enumerate(rows):
        expected[row].append(i)
    start = 0
    for cell, count in cells.items():
        assert order[start : start + count].tolist() == expected.pop(cell)
        start += count
    assert not expected


def test_a_matrix_that_is_too_large_is_none() -> None:
    zeros = np.zeros(3, np.int32)
    assert cells_of([zeros, zeros], 200) is not None
    assert cells_of([zeros, zeros], 300) is None


def consumers_of_a_key(*keys: str, **columns: str) -> hg.Flow:
    flow = hg.Flow("f")
    rows = [{"a": i % 7, "b": i % 5, "v": "x" * 50} for i in range(200)]
    stream = flow.source(ListSource("a bigint, b bigint, v string", [rows]), name="spout")
    for i, key in enumerate(keys):
        stream.key_by(key).process(hg.Last("v"), name=f"last_{i}").to_memory(f"out_{i}")
    return flow


def test_consumers_of_one_key_get_their_rows_once() -> None:
    """The paper's first case: equal keys, so every cell is one slot."""
    apart = run(consumers_of_a_key("a", "a"), slots=3, sharing="distinct").records[0]
    auto = run(consumers_of_a_key("a", "a"), slots=3).records[0]

    assert set(auto["batches"]) == {"spout->last_0+last_1 (shared)"}
    assert auto["messages"] == apart["messages"] / 2
    assert auto["message_bytes"] < 0.65 * apart["message_bytes"]
    assert auto["bytes_shuffled"] < 0.65 * apart["bytes_shuffled"]
    assert auto["loads"] == apart["loads"]


def test_consumers_whose_targets_rarely_meet_are_not_shared() -> None:
    auto = run(consumers_of_a_key("a", "b"), slots=4).records[0]

    assert set(auto["batches"]) == {"spout->last_0", "spout->last_1"}


def test_a_shared_batch_for_two_slots_goes_to_both() -> None:
    done = run(consumers_of_a_key("a", "b"), slots=4, sharing="shared").records[0]

    kinds = set(done["batches"])
    assert "spout->last_0+last_1 (shared)" in kinds and "spout->last_0 (shared)" in kinds
    both = done["batches"]["spout->last_0+last_1 (shared)"]["rows"]
    for alone in ("last_0", "last_1"):
        assert both + done["batches"][f"spout->{alone} (shared)"]["rows"] == 200
    assert sum(done["loads"]["last_0"]) == sum(done["loads"]["last_1"]) == 200


def test_the_choice_is_by_messages_and_bytes() -> None:
    program = compiled(consumers_of_a_key("a", "b"))
    (group,) = program.share_groups.values()
    same = np.arange(100, dtype=np.int32) % 4
    other = (np.arange(100, dtype=np.int32) // 4) % 4
    equal, apart = [same, same], [same, other]

    def cheaper(targets: Any, **costs: float) -> bool:
        found = cells_of(targets, 4)
        assert found is not None
        return shared_is_cheaper(group, Batching(**costs), targets, [50, 50], 60, found[1])

    assert cheaper(equal, message_s=1e-4, byte_s=1e-9)
    assert not cheaper(apart, message_s=1e-4, byte_s=1e-9)
    assert not cheaper(apart, message_s=0, byte_s=1e-9)  # the same bytes or more, whatever messages


def test_rows_that_stay_take_no_part() -> None:
    """With all keys of one consumer at home, the other's rows are all that travels."""
    flow = hg.Flow("f")
    rows = [{"k": i % 4, "b": i % 7, "v": i} for i in range(100)]
    stream = flow.source(ListSource("k bigint, b bigint, v bigint", [rows]), name="spout")
    first = stream.key_by("k").process(hg.Count(emit="rows"), name="first")
    first.key_by("k").process(hg.Last("v"), name="at_home").to_memory("x")
    first.key_by("b").process(hg.Last("v"), name="far").to_memory("y")
    table = {name: hash_table(3) for name in ("first", "at_home")}

    record = run(flow, slots=3, sharing="shared", tables=table).records[0]

    assert record["edges"]["first->at_home"]["remote_rows"] == 0
    assert "first->at_home (shared)" not in record["batches"]
    assert record["edges"]["first->far"]["remote_rows"] == sum(
        b["rows"] for name, b in record["batches"].items() if name.startswith("first->")
    )


def test_operators_that_split_or_drop_rows_share_nothing() -> None:
    flow = hg.Flow("f")
    stream = source(flow, "a bigint, b bigint", name="spout")
    stream.key_by("a").process(hg.Count(), name="plain")
    stream.key_by("b", nulls="drop").process(hg.Count(), name="drops")
    stream.key_by("b", grouping="partial").process(hg.Count(), name="splits")
    stream.key_by("b", grouping="pkg").process(hg.Count(), name="hot")

    assert compiled(flow).share_groups == {}
