"""Stateful operators in their slot: migration to any table, bad rows, wrong answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import (
    Count,
    EpochClock,
    Flow,
    KeyedRows,
    Output,
    StateFields,
    StatefulOperator,
    TopK,
    Tumbling,
)
from headgate.errors import OperatorFailed
from headgate.routing.table import RoutingTable, hash_table
from headgate.state.store import StateStore
from headgate.testing import ListSource, LocalRun, run
from strategies import examples, owner_by_hand, quick_folder, run_quickly, second, tables

KEYS = [*range(14), None]
KEY_COLUMN = pa.array(KEYS, pa.int64())
BUCKETS = 16
FOREVER = Tumbling("1000 days", time="t")


def counted(epochs: list[list[int | None]]) -> Flow:
    """Per key one row of state (`count`), and several that move together (`top`)."""
    flow = Flow("f")
    rows = [
        [{"k": k, "item": f"item {i % 3}", "t": second(i)} for i, k in enumerate(epoch)]
        for epoch in epochs
    ]
    source = ListSource("k bigint, item string, t timestamp", rows)
    keyed = flow.source(source, event_time="t").key_by("k")
    keyed.process(Count(), name="count").to_memory("out")
    keyed.process(TopK("item", k=2, window=FOREVER), name="top")
    return flow


def placed(done: LocalRun, operator: str) -> list[tuple[int, dict[str, Any]]]:
    """(slot, row) of all state of an operator, by the last manifest."""
    coordinator = done.coordinator
    assert coordinator.last is not None
    store = StateStore(coordinator.checkpoint.state, warm_dir=None, buckets=BUCKETS)
    schema = coordinator.program.state_schemas[coordinator.program.graph.node(operator).id]
    return [
        (slot, row)
        for slot, chain in coordinator.last.chains[operator].items()
        for row in store.scan(operator, slot, schema, chain).to_pylist()
    ]


def check(done: LocalRun, epochs: list[list[int | None]], now: dict[str, RoutingTable]) -> None:
    """Every state row is in exactly the slot its table names, and is what the input makes it."""
    rows = placed(done, "count")
    owner = dict(zip(KEYS, owner_by_hand(now["count"], KEY_COLUMN), strict=True))
    expected = Counter(k for epoch in epochs for k in epoch)
    assert sorted(map(repr, rows)) == sorted(
        repr((owner[k], {"k": k, "count": n})) for k, n in expected.items()
    )
    owner = dict(zip(KEYS, owner_by_hand(now["top"], KEY_COLUMN), strict=True))
    items = Counter((k, f"item {i % 3}") for epoch in epochs for i, k in enumerate(epoch))
    got = [(slot, row["k"], row["item"], row["count"]) for slot, row in placed(done, "top")]
    assert sorted(map(repr, got)) == sorted(
        repr((owner[k], k, item, n)) for (k, item), n in items.items()
    )


@examples(20)
@given(data=st.data())
def test_after_any_change_of_tables_and_slots_every_row_is_in_one_slot_and_right(
    data: st.DataObject,
) -> None:
    epochs: list[list[int | None]] = []
    with quick_folder() as folder:
        for _ in range(3):
            slots = data.draw(st.integers(1, 4))
            now = {name: data.draw(tables(slots, KEY_COLUMN, BUCKETS)) for name in ("count", "top")}
            epochs.append(data.draw(st.lists(st.sampled_from(KEYS), max_size=12)))
            done = run(
                counted(epochs), slots=slots, tables=now, checkpoint=folder, buckets=BUCKETS,
                partitions=1, check_purity=False,
            )  # fmt: skip
            check(done, epochs, now)


@pytest.mark.parametrize("ways", [(2, 4, 1, 3), (3, 3, 5, 2)])
def test_slots_come_and_go_with_tables_that_the_flow_makes_itself(ways: tuple[int, ...]) -> None:
    epochs: list[list[int | None]] = []
    with quick_folder() as folder:
        for slots in ways:
            epochs.append([*KEYS, *KEYS[: len(epochs)]])
            done = run(counted(epochs), slots=slots, checkpoint=folder, buckets=BUCKETS)
            check(done, epochs, dict(done.coordinator.tables))
            assert all(table.slots == slots for table in done.coordinator.tables.values())


def test_a_key_that_moves_in_the_epoch_of_its_rows_meets_its_state() -> None:
    with quick_folder() as folder:
        run(counted([[1] * 5]), slots=2, checkpoint=folder, buckets=BUCKETS)
        table = hash_table(2, BUCKETS)
        other = 1 - int(owner_by_hand(table, pa.array([1]))[0])
        pinned = table.pin([pa.array([1])], [other])

        done = run(
            counted([[1] * 5, [1] * 2]), slots=2, checkpoint=folder, buckets=BUCKETS,
            tables={"count": pinned},
        )  # fmt: skip

        assert done.rows("out") == [{"k": 1, "count": 7}]
        assert placed(done, "count") == [(other, {"k": 1, "count": 7})]
        assert done.records[-1]["moved_rows"]["count"] == 1


def test_only_what_changes_owner_is_moved() -> None:
    with quick_folder() as folder:
        run(counted([KEYS]), slots=2, checkpoint=folder, buckets=BUCKETS)
        grown = hash_table(2, BUCKETS).resized(3)
        owners = zip(
            owner_by_hand(hash_table(2, BUCKETS), KEY_COLUMN),
            owner_by_hand(grown, KEY_COLUMN),
            strict=True,
        )
        changed = sum(1 for was, now in owners if was != now)

        done = run(counted([KEYS, []]), slots=3, checkpoint=folder, buckets=BUCKETS)

        assert 0 < changed < len(KEYS)
        assert done.records[-1]["moved_rows"]["count"] == changed
        again = run(counted([KEYS, [], []]), slots=3, checkpoint=folder, buckets=BUCKETS)
        assert again.records[-1]["moved_rows"] == {}


def test_an_operator_that_joins_a_running_flow_starts_with_nothing() -> None:
    def flow(epochs: list[list[dict[str, int]]], more: bool) -> Flow:
        made = Flow("f")
        keyed = made.source(ListSource("k bigint", epochs)).key_by("k")
        keyed.process(Count(), name="old").discard()
        if more:
            keyed.process(Count(), name="new").discard()
        return made

    with quick_folder() as folder:
        run(flow([[{"k": 1}]], False), slots=2, checkpoint=folder)
        done = run(flow([[{"k": 1}]] * 2, True), slots=3, checkpoint=folder)

    assert done.state("old") == [{"k": 1, "count": 2}]
    assert done.state("new") == [{"k": 1, "count": 1}]


# --- bad rows ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picky(StatefulOperator):
    """Adds up, writing before it looks: a failed call must not leave a trace."""

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        return StateFields(pa.schema([pa.field("seen", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return rows

    def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> Output:
        assert len(rows), "asked about nothing"
        before = state.read(rows.groups)["seen"]
        state.write(rows.groups, {"seen": before + rows.groups.sizes})
        values = rows.column("v").to_pylist()
        if "bad" in values:
            raise ValueError("a bad value")
        dead = {i: "refused" for i, v in enumerate(values) if v == "refused"}
        good = [i for i in range(len(rows)) if i not in dead]
        return Output(rows.batch.take(pa.array(good, pa.int64())), np.array(good, np.int64), dead)


def picky(values: list[list[str]], dead: bool) -> Flow:
    flow = Flow("f")
    rows = [[{"k": i % 3, "v": v} for i, v in enumerate(epoch)] for epoch in values]
    keyed = flow.source(ListSource("k bigint, v string", rows)).key_by("k")
    keyed.process(Picky(), name="picky").to_memory("out")
    if dead:
        flow.dead_letters().to_memory("dead")
    return flow


def test_bad_rows_are_set_aside_and_leave_no_trace_in_the_state() -> None:
    values = [["ok", "bad", "ok", "ok", "ok", "refused", "bad"], ["ok"], ["bad"]]

    done = run_quickly(picky(values, dead=True), slots=2, partitions=1)

    assert [row["v"] for row in done.rows("out")] == ["ok"] * 5
    letters = Counter(row["reason"] for row in done.rows("dead"))
    assert letters == {"ValueError: a bad value": 3, "refused": 1}
    assert {row["operator"] for row in done.rows("dead")} == {"picky"}
    # k=0: ok, ok, (bad), ok, (bad); k=1: (bad), ok; k=2: ok and one that it counted and refused
    assert sorted((row["k"], row["seen"]) for row in done.state("picky")) == [
        (0, 3),
        (1, 1),
        (2, 2),
    ]
    assert sum(r["dead_rows"].get("picky", 0) for r in done.records) == 4


@pytest.mark.parametrize("keys", [[3], range(6)])
def test_a_failed_call_does_not_change_what_the_search_for_bad_rows_finds(
    keys: Sequence[int],
) -> None:
    @dataclass(frozen=True)
    class Once(Picky):
        def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> Any:
            if state.read(rows.groups).found.any():
                raise ValueError("again")
            return super().process(rows, state, clock)

    flow = Flow("f")
    rows = [{"k": k, "v": "bad" if k == 3 else "ok"} for k in keys]
    keyed = flow.source(ListSource("k bigint, v string", [rows])).key_by("k")
    keyed.process(Once(), name="once").to_memory("out")
    flow.dead_letters().to_memory("dead")

    done = run_quickly(flow, slots=1)

    assert [row["reason"] for row in done.rows("dead")] == ["ValueError: a bad value"]
    assert sorted(row["k"] for row in done.rows("out")) == [k for k in keys if k != 3]


@pytest.mark.parametrize("value", ["bad", "refused"])
def test_without_dead_letters_a_bad_row_stops_the_flow_and_nothing_is_committed(
    value: str, tmp_path: Path
) -> None:
    with pytest.raises(OperatorFailed) as caught:
        run(picky([["ok"], ["ok", value]], dead=False), checkpoint=tmp_path)

    assert caught.value.operator == "picky"
    assert caught.value.epoch == 1
    done = run(picky([["ok"], ["ok", "ok"]], dead=False), checkpoint=tmp_path)
    assert sorted((row["k"], row["seen"]) for row in done.state("picky")) == [(0, 2), (1, 1)]


def test_an_answer_in_the_wrong_schema_stops_the_flow() -> None:
    @dataclass(frozen=True)
    class Liar(Picky):
        def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> Any:
            return pa.RecordBatch.from_pydict({"other": [1]})

    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, v string", [[{"k": 1, "v": "a"}]]))
    rows.key_by("k").process(Liar(), name="liar").to_memory("out")

    with pytest.raises(OperatorFailed) as caught:
        run_quickly(flow)
    assert "no column 'k'" in caught.value.reason


@dataclass(frozen=True)
class Carrying(Picky):
    """Returns `carry` and declares `says`."""

    carry: Any = None
    says: pa.Schema | None = None

    def carry_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema | None:
        return self.says

    def process(self, rows: KeyedRows, state: Any, clock: EpochClock) -> Output:
        return Output(rows.batch, carry=self.carry)


@pytest.mark.parametrize(
    ("carry", "declared", "reason"),
    [
        (pa.record_batch({"n": [1]}), None, "carry_schema declares none"),
        (pa.record_batch({"n": [1]}), pa.schema({"z": pa.string()}), "no column 'z'"),
        (pa.record_batch({"n": ["a"]}), pa.schema({"n": pa.int64()}), "declared int64"),
        ("x", pa.schema({"z": pa.string()}), "returned str"),
    ],
)
def test_a_carry_that_is_not_as_declared_stops_the_flow(
    carry: Any, declared: pa.Schema | None, reason: str
) -> None:
    flow = Flow("f")
    rows = [{"k": k, "v": "a"} for k in range(20)]
    chained = flow.source(ListSource("k bigint, v string", [rows])).key_by("k")
    chained = chained.process(Count(emit="rows"), name="first").key_by("v")
    chained.process(Carrying(carry, declared), name="carrying").to_memory("out")

    with pytest.raises(OperatorFailed, match="carry") as caught:
        run_quickly(flow, slots=3)

    assert reason in caught.value.reason
    assert (caught.value.operator, caught.value.epoch) == ("carrying", 0)


def test_a_carry_is_cast_to_what_is_declared() -> None:
    seen = pa.schema({"n": pa.int64()})

    @dataclass(frozen=True)
    class Telling(Carrying):
        def finish(self, state: Any, clock: EpochClock, carry: Any = None) -> Any:
            assert carry.schema == seen
            return pa.RecordBatch.from_pydict({"k": carry.column("n"), "v": ["carried"]})

    flow = Flow("f")
    keyed = flow.source(ListSource("k bigint, v string", [[{"k": 1, "v": "a"}]])).key_by("k")
    telling = Telling(pa.record_batch({"n": pa.array([7], pa.int32())}), seen)
    keyed.process(telling, name="telling").to_memory("out")

    assert {"k": 7, "v": "carried"} in run_quickly(flow, slots=1).rows("out")
