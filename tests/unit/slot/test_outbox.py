"""The outbox: every row reaches the slot its grouping names, once, and local rows stay rows."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import batch, compiled, nothing, plan_for, source

from headgate import Count, Flow
from headgate.errors import OperatorFailed
from headgate.slot import outbox as outbox_module
from headgate.slot import wire
from headgate.slot.outbox import Outbox
from headgate.slot.plan import Control, EpochPlan, pair
from headgate.slot.program import Program
from headgate.slot.rows import Rows
from headgate.slot.wire import BatchTuple, Kind, digest_of
from headgate.topology.stream import Stream
from strategies import examples, owner_by_hand, tables

KEYS = pa.array([*range(12), None], pa.int64())


def grouped(grouping: str, nulls: Any = "key") -> Program:
    """A source with one edge of that grouping, to an operator called `next`."""
    flow = Flow("f")
    rows: Stream = source(flow)
    edges = {
        "fields": lambda: rows.key_by("k", nulls=nulls),
        "global": rows.globally,
        "shuffle": rows.shuffle,
        "all": rows.broadcast,
    }
    edges[grouping]().map(nothing, "k bigint, v string", name="next").to_memory("out")
    return compiled(flow)


def rows_of(keys: list[int | None], lineage: bool = False) -> Rows:
    made = batch(k=pa.array(keys, pa.int64()), v=pa.array([str(i) for i in range(len(keys))]))
    hidden = {"order": np.arange(len(keys), dtype=np.int64)} if lineage else {}
    return Rows(made, hidden)


class Post:
    """An outbox of one task, with what became of everything that was put in."""

    def __init__(self, program: Program, plan: EpochPlan, slot: int | None, level: int = 0) -> None:
        self.program, self.control, self.slot = program, Control(), slot
        self.box = Outbox(program, plan, self.control, level=level, producer=slot or 0, slot=slot)
        self.kept: list[Rows] = []
        self.sent: list[BatchTuple] = []

    def send(self, rows: Rows) -> None:
        kept = self.box.send(self.program.graph.edges[0], rows)
        self.kept += [] if kept is None else [kept]
        self.sent += self.box.drain()

    def close(self) -> None:
        self.sent += self.box.close()

    def arrived(self) -> list[tuple[int, dict[str, Any]]]:
        """(slot, row) of everything, remote and local."""
        schema = self.program.wire_schemas[0]
        remote = [
            (item.slot, row)
            for item in self.sent
            for row in pa.ipc.read_record_batch(item.payload, schema).to_pylist()
        ]
        assert self.slot is not None or not self.kept
        return remote + [(self.slot or 0, r) for part in self.kept for r in part.batch.to_pylist()]


@examples(100)
@given(
    calls=st.lists(st.lists(st.sampled_from(KEYS.to_pylist()), max_size=15), max_size=3),
    slots=st.integers(1, 4),
    at=st.none() | st.integers(0, 3),
    data=st.data(),
)
def test_every_row_of_a_keyed_edge_reaches_the_slot_of_its_key_once(
    calls: list[list[int | None]], slots: int, at: int | None, data: st.DataObject
) -> None:
    table = data.draw(tables(slots, KEYS))
    program = grouped("fields")
    post = Post(
        program, plan_for(program, slots, {"next": table}), None if at is None else at % slots
    )
    expected: Counter[Any] = Counter()
    for keys in calls:
        rows = rows_of(keys)
        for owner, row in zip(
            owner_by_hand(table, rows.batch.column("k")), rows.batch.to_pylist(), strict=True
        ):
            expected[owner, *row.values()] += 1
        post.send(rows)
    post.close()

    assert Counter((slot, *row.values()) for slot, row in post.arrived()) == expected


@examples(40)
@given(counts=st.lists(st.integers(0, 20), max_size=4), slots=st.integers(1, 4))
def test_shuffle_spreads_rows_evenly_over_all_calls(counts: list[int], slots: int) -> None:
    program = grouped("shuffle")
    post = Post(program, plan_for(program, slots), None)
    for count in counts:
        post.send(rows_of(list(range(count))))
    post.close()

    arrived = post.arrived()
    load = [sum(1 for slot, _ in arrived if slot == s) for s in range(slots)]
    assert sum(load) == sum(counts)
    assert max(load) - min(load) <= 1
    assert Counter(row["v"] for _, row in arrived) == Counter(
        str(i) for count in counts for i in range(count)
    )


@pytest.mark.parametrize("at", [None, 1])
def test_broadcast_brings_a_copy_to_every_slot(at: int | None) -> None:
    program = grouped("all")
    post = Post(program, plan_for(program, 3), at)
    post.send(rows_of([5, 6]))
    post.close()

    assert sorted((slot, row["k"]) for slot, row in post.arrived()) == [
        (slot, key) for slot in range(3) for key in (5, 6)
    ]
    assert len(post.sent) == (3 if at is None else 2)


def test_global_rows_share_one_slot() -> None:
    program = grouped("global")
    post = Post(program, plan_for(program, 3), None)
    post.send(rows_of(list(range(20))))
    post.close()

    assert {slot for slot, _ in post.arrived()} == {0}


def test_a_local_edge_passes_the_very_same_rows() -> None:
    flow = Flow("f")
    source(flow).map(nothing, "k bigint", name="next").to_memory("out")
    program = compiled(flow)
    post = Post(program, plan_for(program), 1)
    rows = rows_of([1, 2])

    post.send(rows)
    post.close()

    assert post.kept == [rows]
    assert post.sent == []


def test_rows_that_stay_in_the_slot_never_become_bytes() -> None:
    program = grouped("fields")
    table = plan_for(program, 2).routes["next"].table.pin([KEYS], [1] * len(KEYS))
    post = Post(program, plan_for(program, 2, {"next": table}), 1)

    with patch.object(outbox_module, "digest_of", nothing):
        post.send(rows_of([1, 2, None]))
        post.close()

    assert post.sent == []
    assert post.kept[0].batch.to_pylist() == rows_of([1, 2, None]).batch.to_pylist()
    assert post.kept[0].hashed is not None
    assert post.control.sent == {}


def test_order_from_one_task_to_one_slot_is_kept() -> None:
    program = grouped("fields")
    post = Post(program, plan_for(program, 3), 0)
    keys = [int(k) for k in np.random.default_rng(3).integers(0, 12, 60)]
    post.send(rows_of(keys[:25]))
    post.send(Rows(rows_of(keys).batch.slice(25)))
    post.close()

    for slot in range(3):
        numbers = [int(row["v"]) for where, row in post.arrived() if where == slot]
        assert numbers == sorted(numbers)


# --- custody ----------------------------------------------------------------------------------


def test_what_is_sent_is_counted_per_pair_of_tasks() -> None:
    program = grouped("shuffle")
    post = Post(program, plan_for(program, 2), None, level=0)
    post.send(rows_of(list(range(5))))
    post.close()

    for slot in range(2):
        mine = [t for t in post.sent if t.slot == slot]
        tuples, rows, seal, size = post.control.sent[pair(0, 0, slot)]
        assert tuples == len(mine) == 1
        assert rows == sum(t.rows for t in mine) in (2, 3)
        assert seal == sum(t.seal for t in mine) % 2**64
        assert size == sum(t.payload.size for t in mine) > 0
    assert [t.seq for t in post.sent] == [0, 1]
    assert all(t.digest == digest_of(t.payload) and t.kind == Kind.DATA for t in post.sent)


def test_local_and_remote_rows_of_an_edge_are_told_apart() -> None:
    program = grouped("shuffle")
    post = Post(program, plan_for(program, 4), 2)
    post.send(rows_of(list(range(8))))
    post.close()

    local_rows, remote_rows, local_bytes, remote_bytes = post.control.edges["0"]
    assert (local_rows, remote_rows) == (2, 6)
    assert 0 < local_bytes < remote_bytes


def test_the_same_rows_give_the_same_bytes() -> None:
    program = grouped("fields")

    def send() -> list[tuple[Any, bytes]]:
        post = Post(program, plan_for(program), 0)
        post.send(rows_of([1, None, 3, 4, 5]))
        post.close()
        return [(t.order, t.payload.to_pybytes()) for t in post.sent]

    assert send() == send() != []


# --- size -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["even", "heavy head", "one giant"])
def test_no_payload_is_larger_than_its_cap_unless_a_single_row_is(shape: str) -> None:
    sizes = {
        "even": [100] * 100,
        "heavy head": [900] * 8 + [1] * 300,
        "one giant": [1] * 20 + [5000] + [1] * 20,
    }[shape]
    program = grouped("global")
    post = Post(program, plan_for(program), None)
    texts = ["x" * size for size in sizes]

    with patch.object(wire, "PAYLOAD_BYTES_MAX", 1500):
        post.send(Rows(batch(k=pa.array(range(len(sizes)), pa.int64()), v=pa.array(texts))))
        post.close()

    schema = program.wire_schemas[0]
    received = [pa.ipc.read_record_batch(t.payload, schema) for t in post.sent]
    assert all(part.nbytes <= 1500 or part.num_rows == 1 for part in received)
    assert [row["v"] for part in received for row in part.to_pylist()] == texts


def test_full_tuples_leave_before_the_task_ends() -> None:
    program = grouped("global")
    post = Post(program, plan_for(program), None)

    with patch.object(wire, "PAYLOAD_BYTES_MAX", 100):
        post.send(rows_of(list(range(50))))

    assert sum(t.rows for t in post.sent) == 50


# --- nulls ------------------------------------------------------------------------------------


def test_a_null_key_is_a_key_of_its_own_unless_told_otherwise() -> None:
    program = grouped("fields")
    post = Post(program, plan_for(program), None)
    post.send(rows_of([None, 1, None]))
    post.close()

    assert len({slot for slot, row in post.arrived() if row["k"] is None}) == 1
    assert len(post.arrived()) == 3


def test_rows_with_a_null_key_can_be_dropped() -> None:
    program = grouped("fields", nulls="drop")
    post = Post(program, plan_for(program), None)
    post.send(rows_of([None, 1, None, 2]))
    post.send(rows_of([None]))
    post.close()

    assert sorted(row["k"] for _, row in post.arrived()) == [1, 2]
    assert sum(rows for _, rows, *_ in post.control.sent.values()) == 2


def test_a_null_key_can_stop_the_flow() -> None:
    program = grouped("fields", nulls="error")
    post = Post(program, plan_for(program), 1)
    post.send(rows_of([1, 2]))

    with pytest.raises(OperatorFailed) as caught:
        post.send(rows_of([3, None]))

    error = caught.value
    assert (error.operator, error.slot, error.epoch) == ("next", 1, 4)
    assert error.sample == "{'k': None, 'v': '1'}"
    assert "slot 1, epoch 4" in str(error) and "nulls='error'" in error.reason
    assert "dead_letters" not in str(error)


def test_a_null_key_in_a_source_task_names_the_partition() -> None:
    program = grouped("fields", nulls="error")
    post = Post(program, plan_for(program), None)

    with pytest.raises(OperatorFailed) as caught:
        post.send(rows_of([None]))

    assert caught.value.slot == post.box.producer


def test_any_null_part_makes_a_composite_key_null() -> None:
    flow = Flow("f")
    source(flow).key_by("k", "v", nulls="drop").map(nothing, "k bigint", name="next").to_memory("o")
    program = compiled(flow)
    post = Post(program, plan_for(program), None)

    made = batch(k=pa.array([1, None, 3, None]), v=pa.array(["a", "b", None, None]))
    post.send(Rows(made))
    post.close()

    assert [row for _, row in post.arrived()] == [{"k": 1, "v": "a"}]


# --- ordered consumers ------------------------------------------------------------------------


def test_rows_for_an_ordered_operator_wait_even_if_they_are_at_home() -> None:
    flow = Flow("f")
    first = source(flow).key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("v").process(Count(ordered=True), name="second").to_memory("out")
    program = compiled(flow)
    edge = program.graph.inputs(program.graph.node("second").id)[0]
    everything_here = plan_for(program, 1)
    box = Outbox(program, everything_here, Control(), level=1, producer=0, slot=0)

    assert box.send(edge, rows_of([1, 2], lineage=True)) is None
    (sent,) = box.close()
    assert (sent.slot, sent.rows) == (0, 2)
    received = Rows.from_wire(
        pa.ipc.read_record_batch(sent.payload, program.wire_schemas[edge.id]), program.lineage
    )
    assert received.lineage["order"].tolist() == [0, 1]


def test_nothing_may_be_sent_after_the_last_level() -> None:
    program = grouped("fields")
    post = Post(program, plan_for(program, 2), None, level=1)

    with pytest.raises(AssertionError):
        post.send(rows_of(list(range(8))))


def test_more_slots_than_a_byte_can_name_are_routed_right() -> None:
    program = grouped("fields")
    table = plan_for(program, 1).routes["next"].table.resized(300)
    pinned = table.pin([KEYS], [280 + i for i in range(len(KEYS))])
    post = Post(program, plan_for(program, 300, {"next": pinned}), None)
    keys = KEYS.to_pylist()
    post.send(rows_of(keys[::-1]))
    post.close()

    assert sorted(
        (slot, row["k"] is None or row["k"] + 280 == slot) for slot, row in post.arrived()
    ) == [(280 + i, True) for i in range(len(keys))]
