"""Which slots have an operator's instances: as asked for, kept as long as possible, remembered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.commit.instances import InstancesInUse, talking_operators
from headgate.errors import DeclarationError, EngineError, UnknownName
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.testing import ListSource, run

ROWS = [[{"a": i % 7, "b": i % 5} for i in range(60)] for _ in range(3)]


def declared(**first: int) -> hg.Flow:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("a bigint, b bigint", ROWS), name="rows")
    kept = rows.shuffle().filter(lambda batch: batch["a"].is_valid(), name="kept", parallelism=2)
    first_counts = kept.key_by("a").process(hg.Count(emit="rows"), name="first", **first)
    counts = first_counts.filter(lambda batch: batch["b"].is_valid(), name="local")
    counts.key_by("b").process(hg.Count(emit="rows"), name="second").globally().process(
        hg.Count(), name="all"
    ).to_memory("out")
    return flow


def program(**first: int) -> Program:
    return compile_flow(declared(**first).graph())


def test_what_nobody_asked_for_is_in_every_slot_and_one_key_in_one() -> None:
    used = InstancesInUse(program(), 4)

    assert {op: len(slots) for op, slots in used.all().items()} == {
        "kept": 2, "first": 4, "second": 4, "all": 1,
    }  # fmt: skip
    assert used.slots_of.keys() == {"kept", "all"}


def test_operators_talk_through_what_stays_in_their_slots() -> None:
    assert set(talking_operators(program())) == {
        ("kept", "first"), ("first", "second"), ("second", "all"),
    }  # fmt: skip


def test_counts_stay_when_slots_change_and_come_back_with_them() -> None:
    used = InstancesInUse(program(parallelism=3), 4)
    used.place(2)
    assert used.all()["first"] == (0, 1)
    used.place(5)
    assert len(used.all()["first"]) == 3
    assert used.all()["second"] == (0, 1, 2, 3, 4)


def test_what_was_decided_is_kept_by_who_decides_and_forgotten_otherwise() -> None:
    used = InstancesInUse(program(), 4)
    used.choose({"second": (1, 3), "kept": (2,)})

    assert used.all()["second"] == (1, 3)
    assert len(used.all()["kept"]) == 2  # the user asked for that
    stored = dict(used.slots_of)
    assert InstancesInUse(program(), 4, stored, keep=True).all()["second"] == (1, 3)
    assert InstancesInUse(program(), 4, stored).all()["second"] == (0, 1, 2, 3)


def test_a_sink_of_an_operators_name_is_not_in_its_way() -> None:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k string", []), name="same")
    rows.key_by("k").process(hg.Count(), name="same").to_memory("same")
    placed = InstancesInUse(compile_flow(flow.graph()), 2)

    placed.ask({"same": 1})
    assert {*placed.all()} == {"same"} and len(placed.all()["same"]) == 1


def test_what_cannot_be_asked_for() -> None:
    used = InstancesInUse(program(), 4)
    with pytest.raises(UnknownName, match="those are kept, first, second, all"):
        used.check({"local": 1}, 4)
    with pytest.raises(EngineError, match="Ask for more slots too"):
        used.check({"first": 5}, 4)
    with pytest.raises(DeclarationError, match="one key has one instance"):
        used.check({"all": 2}, 4)
    with pytest.raises(DeclarationError, match="stay in the slots they are in"):
        declared().graph({"local": 2})
    with pytest.raises(UnknownName, match="no operator of the flow"):
        declared().graph({"frist": 2})


def test_an_operator_with_a_parallelism_of_its_own_keeps_its_shuffle() -> None:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("a bigint", []))
    for name in ("one", "two"):
        rows = rows.shuffle().map(lambda batch: batch, "a bigint", name=name)
    rows.to_memory("out")

    def exchanges(graph: object) -> int:
        return sum(edge.exchanges for edge in graph.edges)  # type: ignore[attr-defined]

    assert exchanges(flow.graph()) == 1
    assert exchanges(flow.graph({"two": 2})) == 2


@settings(max_examples=settings.default.max_examples // 4)  # an example runs a whole random flow
@given(seed=st.integers(0, 10_000))
def test_whoever_asks_for_what_results_are_those_of_one_slot(seed: int) -> None:
    rng = random.Random(seed)
    slots = rng.randint(1, 5)
    wanted = {op: rng.randint(1, slots) for op in ("kept", "first", "second")}

    done = run(declared(), slots=max(2, slots), parallelism=wanted)

    plain = run(declared(), slots=2)
    assert sorted(map(repr, done.states["second"])) == sorted(map(repr, plain.states["second"]))
    assert done.rows("out")[-1]["count"] == 180
    for record in done.records:
        loads = {op: sum(rows > 0 for rows in record["loads"][op]) for op in wanted}
        assert all(loads[op] <= wanted[op] for op in wanted)
