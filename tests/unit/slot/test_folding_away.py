"""Born local: rows of keys without a pin stay, partials go to the owner, nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.routes import local_only, may_be_local
from tests.scenario.born_local import born_local
from tests.unit.slot.parts import BUCKETS, compiled, plan_for, source

import headgate as hg
from headgate import Count, Flow, KeyedRows, RoutingTable, Sum
from headgate.commit.epoch_record import settle
from headgate.errors import CustodyMismatch, OperatorFailed
from headgate.operator import Partials
from headgate.routing.table import hash_table
from headgate.slot import wire
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.slot_task import run_slot_task
from headgate.slot.statistics import TaskStatistics
from headgate.slot.task import Services, run_source_task
from headgate.slot.wire import BatchTuple, Kind
from headgate.state.state_file import StateFile
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.testing import ListSource, LocalRun, ManualClock
from strategies import examples, quick_folder, run_quickly, second, tables

SLOTS = 3
Row = dict[str, Any]


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


def chain(operator: hg.StatefulOperator | None = None) -> Flow:
    """Rows stay with their first key in slot `a mod 3`; the second key is what may be away."""
    flow = Flow("chain")
    rows = source(flow, "a bigint, b bigint, v bigint", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    made = first.key_by("b").process(operator or Count(), name="second")
    made.to_memory("out")
    return flow


def pinned(column: Sequence[int], slots: Sequence[int]) -> RoutingTable:
    """These keys pinned; all buckets in slot 0."""
    table = hash_table(SLOTS, BUCKETS).with_buckets(np.zeros(BUCKETS, np.int32))
    return table.pin([pa.array(column, pa.int64())], list(slots)) if len(column) else table


@dataclass
class Epoch:
    """One epoch by hand, its tuples level by level."""

    program: Program
    plan: EpochPlan
    services: Services

    def run(self, rows: Sequence[Row]) -> tuple[Control, list[list[BatchTuple]]]:
        return self.run_in_pieces([rows])

    def run_in_pieces(
        self, pieces: Sequence[Sequence[Row]]
    ) -> tuple[Control, list[list[BatchTuple]]]:
        schema = pa.schema({n: pa.int64() for n in ("a", "b", "v")})
        wanted = self.program.node_schema[self.program.sources[0].id].names
        given = [
            (0, pa.RecordBatch.from_pylist(list(rows), schema).select(wanted)) for rows in pieces
        ]
        moving = list(run_source_task(self.program, self.plan, self.services, 0, given))
        sent = [moving]
        for level in range(1, self.program.levels + 1):
            moving = [
                t
                for slot in range(self.plan.slots)
                for t in run_slot_task(
                    self.program, self.plan, self.services, level, slot,
                    [t for t in sent[-1] if t.slot == slot],
                )
            ]  # fmt: skip
            sent.append(moving)
        controls = [Control.from_bytes(t.payload) for t in moving if t.kind == Kind.CONTROL]
        return settle(self.plan, controls), sent

    def state(self, operator: str, total: Control) -> dict[int, list[Row]]:
        node = self.program.graph.node(operator)
        schema = self.program.state_schemas[node.id]
        held = {}
        for slot, files in total.chains.get(operator, {}).items():
            chain_ = tuple(StateFile.from_json(file) for file in files)
            batch = self.services.store.scan(operator, int(slot), schema, chain_)
            held[int(slot)] = batch.to_pylist()
        return held


def epoch(
    flow: Flow,
    folder: Path,
    owners: RoutingTable,
    local: frozenset[str] = frozenset({"second"}),
    **options: Any,
) -> Epoch:
    program = compiled(flow)
    first = pinned(range(6), [a % SLOTS for a in range(6)])
    plan = plan_for(
        program,
        SLOTS,
        {"first": first, "second": owners},
        storage_uri=str(folder / "state"),
        sink_uris={sink.name: str(folder / sink.name) for sink in program.sinks},
        **options,
    )
    plan = local_only(program, plan, local)
    store = StateStore(Storage.at(plan.storage_uri), warm_dir=None, buckets=BUCKETS)
    return Epoch(program, plan, Services(store, clock_ns=lambda: 0))


def kinds(sent: Sequence[BatchTuple]) -> Counter[tuple[Kind, int]]:
    return Counter((t.kind, t.slot) for t in sent if t.kind != Kind.CONTROL)


# --- one epoch, by hand -----------------------------------------------------------------------
def test_rows_without_a_pin_stay_and_one_partial_per_key_goes_to_the_owner(folder: Path) -> None:
    rows = [{"a": a, "b": b, "v": 0} for a in range(6) for b in (7, 7, 8)]
    at = epoch(chain(), folder, pinned([], []))

    total, sent = at.run(rows)

    edge = next(e for e in at.program.graph.edges if e.grouping.key == ("b",))
    assert total.edges[str(edge.id)][:2] == [18, 0]  # all local
    assert kinds(sent[1]) == {(Kind.PARTIAL, 0): 2, (Kind.CARRY, 0): 1}  # from slots 1 and 2
    assert sum(t.rows for t in sent[1] if t.kind == Kind.PARTIAL) == 4  # keys 7 and 8 each
    assert total.loads["second"] == {"0": 6, "1": 6, "2": 6}
    assert total.away_rows == {"second": {"1": 6, "2": 6}}
    assert total.merge_rows == {"second": {"0": 4}}
    held = at.state("second", total)
    assert sorted((r["b"], r["count"]) for r in held.pop(0)) == [(7, 12), (8, 6)]
    assert not any(held.values())


def test_pinned_keys_go_to_their_pin_as_ever(folder: Path) -> None:
    rows = [{"a": a, "b": b, "v": 0} for a in range(6) for b in (7, 8)]
    at = epoch(chain(), folder, pinned([7], [2]))

    total, sent = at.run(rows)

    assert kinds(sent[1]) == {
        (Kind.DATA, 2): 2, (Kind.PARTIAL, 0): 2, (Kind.CARRY, 0): 1, (Kind.CARRY, 2): 1,
    }  # fmt: skip
    held = at.state("second", total)
    assert held[0] == [{"b": 8, "count": 6}]
    assert held[2] == [{"b": 7, "count": 6}]
    assert total.merge_rows == {"second": {"0": 2}}


def test_nothing_changes_for_operators_that_the_plan_does_not_name(folder: Path) -> None:
    rows = [{"a": a, "b": b, "v": 0} for a in range(6) for b in (7, 8)]
    total, sent = epoch(chain(), folder, pinned([], []), local=frozenset()).run(rows)

    assert all(t.kind != Kind.PARTIAL for level in sent for t in level)
    assert not total.merge_rows and not total.away_rows
    assert total.loads["second"] == {"0": 12}


def test_a_source_task_sends_keys_without_a_pin_to_their_owner(folder: Path) -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint, v bigint", name="in")
    rows.key_by("b").process(Count(), name="second").to_memory("out")
    rows.key_by("a").process(Count(), name="first").to_memory("others")
    at = epoch(flow, folder, pinned([], []))

    total, _ = at.run([{"a": a, "b": 7, "v": 0} for a in range(6)])

    assert may_be_local(at.program) == frozenset()
    assert total.loads["second"] == {"0": 6}
    assert not total.merge_rows


def test_the_state_of_a_slot_is_not_opened_for_rows_that_are_away(folder: Path) -> None:
    at = epoch(chain(), folder, pinned([], []))
    total, _ = at.run([{"a": 1, "b": 7, "v": 0}])

    assert set(total.state["second"]) == {"0"}


def test_no_level_is_added() -> None:
    """Partials take the exchange that their rows did not."""
    assert compiled(chain()).levels == 2


def test_a_lost_partial_is_noticed(folder: Path) -> None:
    at = epoch(chain(), folder, pinned([], []))
    _, sent = at.run([{"a": 1, "b": 7, "v": 0}])
    lost = [t for t in sent[1] if t.kind != Kind.PARTIAL]
    last = [
        Control.from_bytes(t.payload)
        for slot in range(SLOTS)
        for t in run_slot_task(
            at.program, at.plan, at.services, 2, slot, [t for t in lost if t.slot == slot]
        )
    ]
    with pytest.raises(CustodyMismatch):
        settle(at.plan, last)


def test_many_partials_are_cut_into_payloads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PAYLOAD_BYTES_MAX", 256)
    at = epoch(chain(), folder, pinned([], []))
    total, sent = at.run([{"a": 1, "b": b, "v": 0} for b in range(100)])

    parts = [t for t in sent[1] if t.kind == Kind.PARTIAL]
    assert len(parts) > 4 and sum(t.rows for t in parts) == 100
    assert len(at.state("second", total)[0]) == 100


# --- which operators can ----------------------------------------------------------------------
def test_splittable_operators_are_mergeable_and_behind_a_slot_or_look_ahead_to_one() -> None:
    flow = Flow("f")
    rows = source(flow, "a bigint, b bigint, x double", name="in")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b").process(Count(), name="count").to_memory("m1")
    first.key_by("b").process(Sum("x"), name="float_sum").to_memory("m2")
    first.key_by("b").process(Sum("x", exact=False), name="rough_sum").to_memory("m3")
    first.key_by("b").process(hg.Deduplicate(), name="dedup").to_memory("m4")
    first.globally().process(hg.Max("x"), name="largest").to_memory("m5")
    rows.union(first).key_by("b").process(Count(), name="both").to_memory("m6")
    rows.shuffle().key_by("b").process(Count(), name="straight").to_memory("m7")

    assert may_be_local(compiled(flow)) == {"first", "count", "rough_sum", "largest", "both"}


# --- bad rows ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Picky(hg.StatefulOperator):
    """Adds up, and raises when it meets a 13: mergeable code of somebody else's."""

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> hg.StateFields:
        return hg.StateFields(pa.schema([pa.field("total", pa.int64(), nullable=False)]))

    def output_schema(self, rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
        return pa.schema({"slot_of_keys": pa.int64()})

    def mergeable(self, rows: pa.Schema, key: Sequence[str]) -> bool:
        return True

    def process(self, rows: KeyedRows, state: Any, clock: Any) -> None:
        values = rows.column("v").to_numpy()
        if (values == 13).any():
            raise ValueError("a 13")
        self._add(rows.groups, values, state)

    def absorb(self, partials: Partials, state: Any, clock: Any) -> None:
        self._add(partials.groups, partials.column("total").to_numpy(), state)

    def finish(self, state: Any, clock: Any, carry: Any = None) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"slot_of_keys": pa.array([len(state.all())])})

    def _add(self, groups: Any, values: Any, state: Any) -> None:
        added = np.bincount(groups.codes, values, len(groups)).astype(np.int64)
        state.write(groups, {"total": state.read(groups)["total"] + added})


def two_epochs(operator: hg.StatefulOperator, rows: list[list[Row]], dead: bool) -> LocalRun:
    """All first keys in slot 1, all second keys owned by slot 0: every row is away."""
    flow = Flow("chain")
    given = flow.source(ListSource("a bigint, b bigint, v bigint", rows))
    if dead:
        flow.dead_letters().to_memory("dead")
    first = given.key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b").process(operator, name="second").to_memory("out")
    there = {"first": pinned([1], [1]), "second": pinned([], [])}
    with born_local():
        return run_quickly(flow, slots=SLOTS, buckets=BUCKETS, tables=there)


def test_a_bad_row_is_found_and_the_others_are_merged() -> None:
    rows = [{"a": 1, "b": v % 2, "v": v} for v in (1, 2, 13, 4, 13, 5)]
    done = two_epochs(Picky(), [rows], dead=True)

    assert sorted((r["b"], r["total"]) for r in done.state("second")) == [(0, 6), (1, 6)]
    assert [(r["operator"], r["slot"], r["reason"]) for r in done.rows("dead")] == [
        ("second", 1, "ValueError: a 13")
    ] * 2


def test_a_bad_row_stops_the_flow_if_nobody_takes_it() -> None:
    with pytest.raises(OperatorFailed, match="'second' failed in slot 1, epoch 0: ValueError"):
        two_epochs(Picky(), [[{"a": 1, "b": 1, "v": 13}]], dead=False)


def test_a_carry_of_absorb_must_be_declared() -> None:
    @dataclass(frozen=True)
    class Carrying(Picky):
        def absorb(self, partials: Partials, state: Any, clock: Any) -> Any:
            return hg.Output(carry=partials.batch)

    with pytest.raises(OperatorFailed, match=r"'second' failed in slot 0, epoch 0: .*carry_schema"):
        two_epochs(Carrying(), [[{"a": 1, "b": 1, "v": 1}]], dead=False)


def test_all_rows_may_be_bad() -> None:
    done = two_epochs(Picky(), [[{"a": 1, "b": 1, "v": 13}]], dead=True)

    assert not done.state("second") and len(done.rows("dead")) == 1


def test_finish_runs_where_the_keys_are_owned_and_only_there() -> None:
    done = two_epochs(Picky(), [[{"a": 1, "b": b, "v": 1} for b in range(4)], []], dead=False)

    assert done.outputs["out"] == [(0, {"slot_of_keys": 4})]


def test_a_partial_that_would_overflow_is_a_dead_letter_of_the_owner() -> None:
    rows = [[{"a": 1, "b": 5, "v": 2**62}, {"a": 1, "b": 6, "v": 1}]] * 2
    done = two_epochs(Sum("v"), rows, dead=True)

    assert sorted((r["b"], r["sum"]) for r in done.state("second")) == [(5, 2**62), (6, 2)]
    (letter,) = done.rows("dead")
    assert (letter["operator"], letter["slot"], letter["epoch"]) == ("second", 0, 1)
    assert "leaves the 64-bit range" in letter["reason"]
    with pytest.raises(OperatorFailed, match="64-bit range"):
        two_epochs(Sum("v"), rows, dead=False)


def test_a_dead_partial_shows_its_key_though_the_value_is_called_like_it() -> None:
    rows = [[{"a": 1, "b": 5, "v": 2**62}]] * 2
    flow = Flow("chain")
    given = flow.source(ListSource("a bigint, b bigint, v bigint", rows))
    renamed = given.map(lambda b: b.rename_columns(["a", "sum", "v"]), "a long, sum long, v long")
    renamed.key_by("sum", grouping="partial").process(
        Sum("v", name="total"), name="sums"
    ).to_memory("out")
    flow.dead_letters().to_memory("dead")

    (letter,) = run_quickly(flow, slots=1).rows("dead")

    assert letter["row"] == f'{{"sum": 5, "value.sum": {2**62}}}'


def test_key_loads_are_counted_where_the_work_was_done(folder: Path) -> None:
    at = epoch(chain(), folder, pinned([], []), statistics_bytes=1 << 16)
    at.run([{"a": 1, "b": 7, "v": 0}] * 3 + [{"a": 0, "b": 7, "v": 0}])

    loads = {
        told.slot: told.loads["second"].count.tolist()
        for told in map(TaskStatistics.from_bytes, at.services.statistics.values())
        if "second" in told.loads
    }
    assert loads == {0: [1], 1: [3]}


# --- many epochs, any tables ------------------------------------------------------------------
def many(epochs: list[list[Row]]) -> Flow:
    """Several levels, branches, a union, a window, a global operator, dead letters."""
    flow = Flow("many")
    schema = "a bigint, b bigint, c string, v bigint, t timestamp"
    rows = flow.source(ListSource(schema, epochs), event_time="t", watermark="0 seconds")
    flow.dead_letters().to_memory("dead")
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    summed = first.key_by("b").process(Sum("v", emit="rows"), name="second")
    third = summed.key_by("c").process(Count(), name="third")
    third.to_memory("third_out")
    third.key_by("count").process(hg.Max("c"), name="by_count").to_memory("by_count_out")
    window = hg.Tumbling("10 seconds", time="t")
    summed.key_by("b").process(hg.TopK("c", k=2, window=window), name="top").to_memory("top_out")
    first.union(rows).key_by("b", "c").process(hg.Min("v"), name="least").to_memory("least_out")
    summed.globally().process(hg.Mean("v", exact=False), name="mean").to_memory("mean_out")
    last = hg.Last("v", by="t", ttl=timedelta(milliseconds=15))
    summed.key_by("c").process(last, name="last").to_memory("last_out")
    return flow


row = st.fixed_dictionaries(
    {
        "a": st.integers(0, 5),
        "b": st.none() | st.integers(0, 4),
        "c": st.sampled_from(["x", "y", "z"]),
        "v": st.none() | st.integers(-9, 9),
    }
)
OPERATORS = {"first": "a", "second": "b", "third": "c", "top": "b", "last": "c"}
KEYS = {
    "a": pa.array(range(6)),
    "b": pa.array([None, 0, 1, 2, 3, 4]),
    "c": pa.array(["x", "y", "z"]),
}


def outcome(done: LocalRun) -> Any:
    sinks = {
        name: Counter((epoch, tuple(sorted(r.items(), key=str))) for epoch, r in rows)
        for name, rows in done.outputs.items()
    }
    return sinks, {op: Counter(map(repr, held)) for op, held in done.states.items()}


def run_all(epochs: list[list[Row]], chosen: list[dict[str, RoutingTable]], slots: int) -> Any:
    """Epoch by epoch, each with its own tables, on one checkpoint."""
    clock = ManualClock()
    with quick_folder() as place:
        outputs: dict[str, list[Any]] = {}
        records: list[Row] = []
        for number in range(len(epochs)):
            clock.now_ms = number * 10
            done = run_quickly(
                many(epochs[: number + 1]),
                slots=slots, buckets=BUCKETS, checkpoint=place / "c", tables=chosen[number],
                clock=clock,
            )  # fmt: skip
            for name, rows in done.outputs.items():
                outputs.setdefault(name, []).extend(r for r in rows if r[0] == number)
            records += [r for r in done.records if r.get("epoch") == number]
        done.outputs = outputs
        late = [(r["epoch"], r["late_rows"]) for r in records]
        return outcome(done), late


@examples(6)
@given(
    epochs=st.lists(st.lists(row, max_size=16), min_size=1, max_size=3),
    slots=st.sampled_from([2, 3]),
    data=st.data(),
)
def test_born_local_gives_what_plain_routing_gives(
    epochs: list[list[Row]], slots: int, data: st.DataObject
) -> None:
    number = 0
    for some in epochs:
        for r in some:
            r["t"] = second(number % 7 * 3 + number)  # unique, some late
            number += 1
    chosen = [
        {name: data.draw(tables(slots, KEYS[key], BUCKETS)) for name, key in OPERATORS.items()}
        for _ in epochs
    ]
    plain = run_all(epochs, [{}] * len(epochs), slots)
    with born_local():
        assert run_all(epochs, chosen, slots) == plain
