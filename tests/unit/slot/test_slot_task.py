"""Tasks: pure in their input, checked on receipt, errors as data, `finish` once, at its level."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.slot.parts import BUCKETS, compiled, plan_for, source

from headgate import Count, EpochClock, Flow, KeyedRows, Output, StateFields, StatefulOperator
from headgate.commit.epoch_record import settle
from headgate.errors import CustodyMismatch, OperatorFailed
from headgate.routing.table import hash_table
from headgate.slot import task
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.slot_task import run_slot_task
from headgate.slot.task import Services, run_source_task
from headgate.slot.wire import BatchTuple, Kind
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.testing import ListSource
from strategies import quick_folder, run_quickly


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@dataclass
class Bench:
    """A program with a plan and a place for state and sinks: tasks can be run one by one."""

    program: Program
    plan: EpochPlan
    services: Services

    def read(self, batches: Sequence[pa.RecordBatch], partition: int = 0) -> list[BatchTuple]:
        rows = [(0, batch) for batch in batches]
        return list(run_source_task(self.program, self.plan, self.services, partition, rows))

    def run(self, level: int, slot: int, tuples: Sequence[BatchTuple]) -> list[BatchTuple]:
        mine = [t for t in tuples if t.slot == slot]
        return list(run_slot_task(self.program, self.plan, self.services, level, slot, mine))


def bench(flow: Flow, folder: Path, slots: int = 2, **options: Any) -> Bench:
    program = compiled(flow)
    uris = {sink.name: str(folder / "sinks" / sink.name) for sink in program.sinks}
    plan = plan_for(program, slots, storage_uri=str(folder / "state"), sink_uris=uris, **options)
    store = StateStore(Storage.at(plan.storage_uri), warm_dir=None, buckets=BUCKETS)
    return Bench(program, plan, Services(store, clock_ns=lambda: 0))


def counting(name: str = "f") -> Flow:
    flow = Flow(name)
    source(flow, "k bigint", name="in").key_by("k").process(Count(), name="count").to_memory("out")
    return flow


def keys(*values: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": pa.array(values, pa.int64())})


def control_of(tuples: Sequence[BatchTuple]) -> Control:
    assert tuples[-1].kind == Kind.CONTROL
    return Control.from_bytes(tuples[-1].payload)


# --- a whole epoch, by hand -------------------------------------------------------------------


def test_an_epoch_of_tasks_settles_and_its_sink_files_hold_the_result(folder: Path) -> None:
    at = bench(counting(), folder)
    sent = at.read([keys(1, 2, 3), keys(1)]) + at.read([keys(1, 3)], partition=1)
    controls = [control_of(at.run(1, slot, sent)) for slot in range(2)]

    total = settle(at.plan, controls)

    assert total.source_rows == {"in": 6}
    assert sum(total.loads["count"].values()) == 6
    files = total.sinks["out"]
    rows = [r for f in files for r in pq.read_table(folder / "sinks/out" / f["name"]).to_pylist()]
    assert sorted((r["k"], r["count"]) for r in rows) == [(1, 3), (2, 1), (3, 2)]
    assert sum(f["rows"] for f in files) == 3
    assert all(f["name"].startswith("e000000004-L01-") for f in files)


def test_a_task_is_a_pure_function_of_what_it_receives_in_any_order(folder: Path) -> None:
    """Invariant 7: the same bytes and the same file names."""
    at = bench(counting(), folder)
    batches = [keys(*range(i, i + 40)) for i in range(4)]
    sent = [t for i, batch in enumerate(batches) for t in at.read([batch], partition=i)]
    plain = at.run(1, 0, sent)

    for seed in range(3):
        shuffled = random.Random(seed).sample(sent, len(sent))
        again = at.run(1, 0, shuffled)
        assert [(t.order, t.payload.to_pybytes()) for t in again] == [
            (t.order, t.payload.to_pybytes()) for t in plain
        ]


def test_small_input_batches_are_joined_before_they_are_routed(folder: Path) -> None:
    at = bench(counting(), folder, slots=1)

    many = at.read([keys(i) for i in range(50)])

    assert [t.rows for t in many if t.kind == Kind.DATA] == [50]


def test_large_inputs_are_cut_into_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "CHUNK_ROWS", 10)
    seen: list[int] = []

    def noting(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.num_rows)
        return rows

    flow = Flow("f")
    source(flow, "k bigint").map(noting, "k bigint").to_memory("out")
    bench(flow, folder).read([keys(*range(6))] * 5)

    assert seen == [12, 12, 6]


def test_the_latest_event_time_of_a_source_is_noted(folder: Path) -> None:
    flow = Flow("f")
    source(flow, "k bigint, t timestamp", event_time="t", name="in").to_memory("out")
    at = bench(flow, folder)
    times = pa.array([5, None, 9, 7], pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_pydict({"k": pa.array([1, 2, 3, 4]), "t": times})

    assert control_of(at.read([rows, rows.slice(3)])).event_time == {"in": 9}
    assert control_of(at.read([rows.slice(1, 1)])).event_time == {}


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ns"), pa.timestamp("s", "UTC")])
def test_event_times_of_any_kind_are_microseconds(folder: Path, kind: pa.DataType) -> None:
    flow = Flow("f")
    source(flow, pa.schema({"t": kind}), event_time="t", name="in").to_memory("out")
    day = pa.array([86_400_000_000], pa.timestamp("us")).cast(
        pa.timestamp("us", getattr(kind, "tz", None))
    )

    told = control_of(bench(flow, folder).read([pa.RecordBatch.from_pydict({"t": day.cast(kind)})]))

    assert told.event_time == {"in": 86_400_000_000}


def test_of_an_event_time_in_nanoseconds_whole_microseconds_count(folder: Path) -> None:
    flow = Flow("f")
    source(flow, pa.schema({"t": pa.timestamp("ns")}), event_time="t", name="in").to_memory("out")
    rows = pa.RecordBatch.from_pydict({"t": pa.array([1_999, 1_001], pa.timestamp("ns"))})

    assert control_of(bench(flow, folder).read([rows])).event_time == {"in": 1}


def test_an_event_time_out_of_range_is_an_error_of_the_source(folder: Path) -> None:
    flow = Flow("f")
    source(flow, pa.schema({"t": pa.timestamp("s")}), event_time="t", name="in").to_memory("out")
    rows = pa.RecordBatch.from_pydict({"t": pa.array([2**62], pa.timestamp("s"))})

    told = control_of(bench(flow, folder).read([rows])).error

    assert (told["type"], told["fields"]["operator"]) == ("OperatorFailed", "in")


# --- custody on receipt -----------------------------------------------------------------------


def test_a_tuple_for_another_slot_is_refused(folder: Path) -> None:
    at = bench(counting(), folder)
    sent = at.read([keys(*range(20))])
    stray = next(t for t in sent if t.kind == Kind.DATA and t.slot == 1)

    answer = list(run_slot_task(at.program, at.plan, at.services, 1, 0, [stray]))

    assert [t.kind for t in answer] == [Kind.CONTROL]
    assert control_of(answer).error["type"] == "CustodyMismatch"


def test_a_payload_that_changed_on_the_way_is_refused(folder: Path) -> None:
    at = bench(counting(), folder)
    sent = [t for t in at.read([keys(*range(20))]) if t.slot == 0]
    spoilt = bytearray(sent[0].payload.to_pybytes())
    spoilt[-1] ^= 1

    answer = at.run(1, 0, [replace(sent[0], payload=pa.py_buffer(bytes(spoilt))), *sent[1:]])

    assert control_of(answer).error["type"] == "CustodyMismatch"
    with pytest.raises(CustodyMismatch):
        settle(at.plan, [control_of(answer)])


@pytest.mark.parametrize("mishap", ["lost", "twice"])
def test_a_tuple_lost_or_delivered_twice_keeps_the_epoch_from_settling(
    folder: Path, mishap: str
) -> None:
    at = bench(counting(), folder)
    sent = at.read([keys(*range(20))])
    victim = next(t for t in sent if t.kind == Kind.DATA)
    sent = [t for t in sent if t is not victim] if mishap == "lost" else [*sent, victim]

    controls = [control_of(at.run(1, slot, sent)) for slot in range(2)]

    with pytest.raises(CustodyMismatch):
        settle(at.plan, controls)


def two_levels() -> Flow:
    flow = Flow("f")
    first = source(flow, "k bigint").key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("k").process(Count(), name="second").to_memory("out")
    return flow


@pytest.mark.parametrize("level", [0, 1])
def test_the_whole_output_of_a_task_delivered_twice_is_refused(folder: Path, level: int) -> None:
    """With its control record doubled too, the books of sender and receiver would agree."""
    at = bench(two_levels(), folder, slots=1)
    sent = at.read([keys(1, 2)])
    if level == 1:
        sent = at.run(1, 0, sent)

    answer = at.run(level + 1, 0, [*sent, *sent])

    assert control_of(answer).error["type"] == "CustodyMismatch"


def test_a_slot_whose_earlier_level_got_lost_altogether_is_noticed(folder: Path) -> None:
    at = bench(two_levels(), folder)
    at.run(1, 0, at.read([keys(1, 2)]))

    assert control_of(at.run(2, 0, [])).error["type"] == "CustodyMismatch"


# --- errors as data ---------------------------------------------------------------------------


def test_an_error_in_a_source_task_reaches_the_driver_through_all_levels(folder: Path) -> None:
    flow = Flow("f")
    bad = source(flow, "k bigint").map(lambda b: 1 / 0, "k bigint", name="bad")
    first = bad.key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("k").process(Count(), name="second").to_memory("out")
    at = bench(flow, folder)

    moving = at.read([keys(1, 2)])
    assert [t.kind for t in moving] == [Kind.CONTROL]
    for level in (1, 2):
        moving = [t for slot in range(2) for t in at.run(level, slot, moving)]

    with pytest.raises(OperatorFailed) as caught:
        settle(at.plan, [Control.from_bytes(t.payload) for t in moving])
    assert caught.value.operator == "bad"
    assert not (folder / "sinks").exists()


def test_rows_that_do_not_fit_the_declared_source_are_an_error_of_the_source(folder: Path) -> None:
    at = bench(counting(), folder)

    told = control_of(at.read([pa.RecordBatch.from_pydict({"k": ["not a number"]})]))

    assert told.error["type"] == "OperatorFailed"
    assert told.error["fields"]["operator"] == "in"


# --- finish -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diary(StatefulOperator):
    """Writes down its calls: `process` rows ride in the carry, `finish` tells what it found."""

    ends_epochs: bool = False
    ordered: bool = False

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema({"seen": pa.int64()}))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema({"text": pa.string()})

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema({"rows": pa.int64()})

    def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> Output:
        return Output(carry=pa.RecordBatch.from_pydict({"rows": [len(rows)]}))

    def finish(
        self, state: Any, clock: EpochClock, carry: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        found = None if carry is None else pc.sum(carry.column("rows")).as_py()
        if self.ordered and carry is not None:
            found = f"{found} in {carry.num_rows}"
        return pa.RecordBatch.from_pydict({"text": [f"epoch {clock.epoch}: {found}"]})


def diary(operator: Diary, epochs: list[list[dict[str, int]]]) -> Flow:
    """The diary of slot 0: its rows come straight and through an operator, in two levels."""
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", epochs))
    detour = rows.key_by("k").process(Count(emit="rows"), name="detour")
    rows.union(detour).globally().process(operator, name="diary").to_memory("out")
    return flow


@pytest.mark.parametrize("slots", [1, 3])
def test_finish_is_called_once_and_finds_the_carries_of_all_levels(slots: int) -> None:
    flow = diary(Diary(), [[{"k": i} for i in range(10)]])

    done = run_quickly(flow, slots=slots)

    assert [row["text"] for row in done.rows("out")] == ["epoch 0: 20"]
    remote = done.records[0]["edges"]["detour->diary"]["remote_rows"]
    assert (remote > 0) == (slots > 1)  # with several slots some rows came a level later


def test_finish_is_called_where_rows_came_and_without_rows_only_if_asked_for() -> None:
    epochs = [[{"k": 1}], [], [{"k": 1}]]

    quiet = run_quickly(diary(Diary(), epochs), slots=2).rows("out")
    timed = run_quickly(diary(Diary(ends_epochs=True), epochs), slots=2).rows("out")

    assert [row["text"] for row in quiet] == ["epoch 0: 2", "epoch 2: 2"]
    assert [row["text"] for row in timed] == ["epoch 0: 2", "epoch 1: None", "epoch 2: 2"]


def test_an_ordered_operator_gets_all_rows_of_the_epoch_in_one_call() -> None:
    flow = diary(Diary(ordered=True), [[{"k": i} for i in range(10)]])

    told = run_quickly(flow, slots=3).rows("out")

    assert [row["text"] for row in told] == ["epoch 0: 20 in 1"]


# --- order ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorder(StatefulOperator):
    """Passes rows on with their place in the order of arrival, per key, over all epochs."""

    ordered: bool = True

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("seen", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows.append(pa.field("place", pa.int64()))

    def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> pa.RecordBatch:
        before = state.read(rows.groups)["seen"]
        state.write(rows.groups, {"seen": before + rows.groups.sizes})
        place = before[rows.groups.codes] + rows.groups.rank
        return rows.batch.append_column("place", pa.array(place))


def recorded(
    ordered: bool, slots: int, seed: int
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Per group: numbers in the order of the source, and in the order the recorder saw them."""
    rng = np.random.default_rng(seed)
    epochs, number, truth = [], 0, {}
    for size in (30, 0, 17, 40):
        rows = []
        for _ in range(size):
            row = {"n": number, "a": int(rng.integers(7)), "g": int(rng.integers(3))}
            rows.append(row)
            truth.setdefault(row["g"], []).append(number)
            number += 1
        epochs.append(rows)
    flow = Flow("f")
    rows = flow.source(ListSource("n bigint, a bigint, g bigint", epochs))
    even = rows.filter_rows(lambda r: r["n"] % 2 == 0)
    odd = rows.filter_rows(lambda r: r["n"] % 2 == 1)
    odd = odd.flat_map_rows(lambda r: [r], "n bigint, a bigint, g bigint")
    odd = odd.key_by("a").process(Count(emit="rows"), name="detour")
    longer = odd.key_by("n").process(Count(emit="rows"), name="longer_detour")
    both = even.union(longer).key_by("g").process(Recorder(ordered), name="recorder")
    both.to_memory("out")
    done = run_quickly(flow, slots=slots, partitions=3, seed=seed).rows("out")
    seen = {
        g: [r["n"] for r in sorted(done, key=lambda r: r["place"]) if r["g"] == g] for g in truth
    }
    return truth, seen


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_ordered_rows_arrive_in_source_order_however_long_their_ways_were(
    slots: int, seed: int
) -> None:
    truth, seen = recorded(True, slots, seed)

    assert seen == truth


def test_without_ordered_the_same_rows_arrive_in_another_order() -> None:
    """Shows that the test above has something to tell apart."""
    truth, seen = recorded(False, 3, 0)

    assert seen != truth
    assert {g: sorted(rows) for g, rows in seen.items()} == truth


def test_an_ordered_operator_must_say_where_its_rows_come_from() -> None:
    @dataclass(frozen=True)
    class Halves(Recorder):
        def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
            return rows

        def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> pa.RecordBatch:
            return rows.batch.slice(0, len(rows) // 2)

    flow = Flow("f")
    rows = flow.source(ListSource("g bigint", [[{"g": 1}] * 4]))
    rows.key_by("g").process(Halves(), name="halves").to_memory("out")

    with pytest.raises(OperatorFailed) as caught:
        run_quickly(flow)
    assert "origins" in caught.value.reason


# --- routing ----------------------------------------------------------------------------------


def test_rows_at_home_reach_the_next_operator_without_a_shuffle() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": i} for i in range(40)]]), name="in")
    first = rows.key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("k").process(Count(), name="second").to_memory("out")

    done = run_quickly(flow, slots=3)

    edge = done.records[0]["edges"]["first->second"]
    assert (edge["local_rows"], edge["remote_rows"]) == (40, 0)
    assert done.records[0]["locality"] == 1.0


def test_every_task_echoes_the_routing_version_it_used(folder: Path) -> None:
    table = hash_table(2, BUCKETS).resized(3).resized(2)
    at = bench(counting(), folder, tables={"count": table})

    assert control_of(at.read([keys(1)])).versions == [2]
    assert control_of(at.run(1, 0, [])).versions == [2]
