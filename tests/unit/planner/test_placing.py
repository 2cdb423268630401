"""Planners at work: fed with observations, they pin what belongs together and say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headgate.planner.distance import Distances
from headgate.planner.placing import (
    KeyLoads,
    Observation,
    Pairs,
    Pins,
    Proposal,
    Task,
    make_placing,
)
from headgate.routing.table import RoutingTable, hash_table

SLOTS = 4
TASK = Task(
    operators=("a", "b"),
    edges=(("a", "b"),),
    slots=SLOTS,
    alpha=1.05,
    pins_max=10_000,
    moves_max=10_000,
    born_local=frozenset(),
    memory_epochs=5,
    seed=1,
)
A, B = 24, 96


def h(keys: np.ndarray, operator: int) -> np.ndarray:
    spread = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return spread + np.uint64(operator)


def seen(epoch: int, turn: int = 0, hosts: Sequence[str] = ()) -> Observation:
    """Key b goes with a = (b + turn) mod A, but for a few strays."""
    draw = np.random.default_rng([9, epoch])
    b = draw.integers(0, B, 4_000)
    stray = draw.random(len(b)) < 0.05
    a = np.where(stray, draw.integers(0, A, len(b)), (b + turn) % A)
    loads = {}
    for name, keys, number in (("a", a, 0), ("b", b, 1)):
        found, rows = np.unique(keys, return_counts=True)
        slot = np.zeros(len(found), np.int32)
        loads[name] = KeyLoads(h(found, number), rows.astype(np.float64), slot)
    ones = np.ones(len(a))
    return Observation(
        epoch=epoch,
        epochs=1,
        rows=len(a),
        now_ms=epoch,
        pairs={("a", "b"): Pairs(h(a, 0), h(b, 1), ones)},
        loads=loads,
        slot_rows={"a": np.full(SLOTS, len(a) / SLOTS), "b": np.full(SLOTS, len(a) / SLOTS)},
        hosts=tuple(hosts),
    )


def tables_now() -> dict[str, RoutingTable]:
    return {"a": hash_table(SLOTS), "b": hash_table(SLOTS)}


def follow(proposal: Proposal | None, tables: dict[str, RoutingTable]) -> None:
    if proposal is not None:
        for name, pins in proposal.pins.items():
            tables[name] = tables[name].pin_hashes(pins.h, pins.slot)


def locality(tables: dict[str, RoutingTable], found: Observation) -> float:
    pairs = found.pairs["a", "b"]
    return float((tables["a"].route(pairs.a) == tables["b"].route(pairs.b)).mean())


@pytest.mark.parametrize("planner", ["headgate", "online", "offline"])
def test_what_goes_together_comes_together(planner: str) -> None:
    placing, tables = make_placing(planner, TASK), tables_now()
    for epoch in range(3):
        placing.observe(seen(epoch), tables)
        follow(placing.propose(seen(epoch), tables), tables)

    assert locality(tables, seen(99)) > 0.85


def test_when_partners_change_the_planner_follows() -> None:
    placing, tables = make_placing("headgate", TASK), tables_now()
    for epoch in range(12):
        found = seen(epoch, turn=0 if epoch < 4 else 7)
        placing.observe(found, tables)
        proposal = placing.propose(found, tables)
        follow(proposal, tables)

    assert locality(tables, seen(99, turn=7)) > 0.85


def test_a_plan_says_why_and_what_it_expects() -> None:
    placing, tables = make_placing("headgate", TASK), tables_now()
    placing.observe(seen(0), tables)
    first = placing.propose(seen(0), tables)

    assert first is not None and first.locality is not None and first.locality > 0.85
    assert "plan from scratch" in first.reason and set(first.imbalance) == {"a", "b"}
    assert "a new plan puts it there" in placing.why("b", first.pins["b"], 0)
    assert all(np.all(np.diff(pins.rows) <= 0) for pins in first.pins.values())


def test_born_local_keys_are_given_the_slot_they_were_born_in() -> None:
    task = replace(TASK, born_local=frozenset({"b"}), edges=(), alpha=3.0)
    placing, tables = make_placing("headgate", task), tables_now()
    born = replace(seen(0), pairs={})
    placing.observe(born, tables)
    proposal = placing.propose(born, tables)

    assert proposal is not None and "born" in proposal.reason
    assert len(proposal.pins["b"].h) == len(born.loads["b"].h)


def test_near_slots_are_preferred_on_several_hosts() -> None:
    hosts = ("h1", "h1", "h2", "h2")
    near = Distances.of(hosts)
    shares = []
    for known in ((), hosts):
        placing, tables = make_placing("headgate", TASK), tables_now()
        found = seen(0, hosts=known)
        placing.observe(found, tables)
        follow(placing.propose(found, tables), tables)
        pairs = found.pairs["a", "b"]
        classes = near.near[tables["a"].route(pairs.a), tables["b"].route(pairs.b)]
        shares.append(float((classes <= 1).mean()))
    assert shares[1] >= shares[0]


def test_a_second_look_at_the_same_rows_moves_nothing() -> None:
    placing, tables = make_placing("headgate", replace(TASK, memory_epochs=1)), tables_now()
    for epoch in range(3):
        placing.observe(seen(0), tables)
        proposal = placing.propose(seen(0), tables)
        assert epoch == 0 or proposal is None or "scratch" not in proposal.reason
        follow(proposal, tables)


def test_pins_split_where_the_budget_ends() -> None:
    pins = Pins.hottest_first(
        np.arange(5, dtype=np.uint64), np.zeros(5, np.int32), np.array([1.0, 5, 3, 5, 2])
    )
    now, later = pins.split(2)

    assert now.h.tolist() == [1, 3] and later.h.tolist() == [2, 4, 0]
