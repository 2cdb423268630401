"""Operators with instances in some slots only: their keys are placed there and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planner.graphs import blocks, key_graphs

from headgate.planner.distance import Distances
from headgate.planner.incremental import IncrementalPlanner, SeenKeys, SeenPairs
from headgate.planner.instances import allowed_slots
from headgate.planner.key_graph import KeyGraph, floors
from headgate.planner.partition import nearest_names, partition, relabel, spared
from headgate.planner.placing import KeyLoads, Observation, Pairs, Task, make_placing
from headgate.routing.hashing import mix
from headgate.routing.table import RoutingTable, hash_table
from strategies import examples, instances

GROUPS = blocks(seed=1, groups=48, keys_each=8, pairs=12_000, mixing=0.05, mixed_hash=True)
OPERATORS = ("op0", "op1", "op2")


@given(key_graphs(), st.integers(1, 5), st.data(), st.integers(0, 3))
@examples(50)
def test_a_partition_keeps_to_the_slots_of_each_operator(graph, slots, data, seed):
    allowed = allowed_slots(graph.operators, slots, data.draw(instances(OPERATORS, slots)))
    plan = partition(graph, slots, alpha=1.5, seed=seed, allowed=allowed)

    if allowed is None:
        assert np.array_equal(plan.slot, partition(graph, slots, alpha=1.5, seed=seed).slot)
        return
    assert allowed[graph.op, plan.slot].all()
    for i, own in enumerate(allowed):
        total = graph.total[i]
        assert plan.loads[i, ~own].sum() == 0
        if total:
            assert plan.imbalance[i] == pytest.approx(plan.loads[i].max() * own.sum() / total)
    assert (plan.imbalance >= floors(graph, slots, allowed) * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    ("slots", "where", "bound"),
    [
        (4, {"a": (0, 1, 2), "b": (1, 2, 3)}, 2 / 3),
        (12, {"b": (0, 1, 2, 3)}, 1 / 3),
        (6, {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5)}, 1 / 2),
        (5, {"a": (1,), "b": (1, 2, 3)}, 1 / 3),
        (5, {"a": (4,), "b": (4,)}, 1.0),
        (4, {"a": (0, 1), "b": (2, 3)}, 0.0),
    ],
)
def test_keys_that_belong_together_meet_where_both_operators_are(slots, where, bound):
    """Even over its own slots, an operator has so much of its load in the slots it shares."""
    allowed = allowed_slots(GROUPS.operators, slots, where)
    plan = partition(GROUPS, slots, allowed=allowed)

    assert plan.bound_holds
    assert 0.95 * bound <= plan.locality <= 1.04 * bound


def test_parts_change_names_only_with_slots_of_the_same_operators():
    allowed = allowed_slots(GROUPS.operators, 6, {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5)})
    assert allowed is not None
    plan = partition(GROUPS, 6, allowed=allowed).slot
    turned = np.array([1, 0, 3, 2, 5, 4], np.int32)[plan]

    assert np.array_equal(relabel(GROUPS, plan, turned, 6, allowed), turned)
    assert allowed[GROUPS.op, relabel(GROUPS, plan, np.roll(plan, 7), 6, allowed)].all()
    near = Distances.of(["x", "y", "x", "y", "x", "y"])
    assert allowed[GROUPS.op, nearest_names(GROUPS, plan, near, allowed)].all()
    placed = partition(GROUPS, 6, allowed=allowed, distances=near)
    assert allowed[GROUPS.op, placed.slot].all()


@given(key_graphs(), st.integers(1, 5), st.data(), st.integers(0, 3))
@examples(40)
def test_keys_stay_if_a_move_brings_nothing(graph, slots, data, seed):
    allowed = allowed_slots(graph.operators, slots, data.draw(instances(OPERATORS, slots)))
    plan = partition(graph, slots, alpha=1.5, seed=seed, allowed=allowed)
    one, other = (partition(graph, slots, seed=s, allowed=allowed).slot for s in (seed + 1, seed))
    for now in (one, other, plan.slot):
        kept = spared(graph, plan.slot, now, slots, alpha=1.5, allowed=allowed)
        assert np.isin(kept, (plan.slot, now)).all() and ((kept == plan.slot) | (kept == now)).all()
        assert allowed is None or allowed[graph.op, kept].all()
        assert graph.locality(kept) >= plan.locality - 1e-9
        before, after = (graph.loads(x, slots).max(axis=1) for x in (plan.slot, kept))
        most = (
            np.maximum(1.5, plan.floor)
            * graph.total
            / (allowed if allowed is not None else np.ones((len(before), slots))).sum(axis=1)
        )
        assert (after <= np.maximum(before, most) * (1 + 1e-6)).all()


@given(st.integers(2, 5), st.data(), st.integers(0, 5), st.booleans())
@examples(40)
def test_the_incremental_planner_gives_keys_to_instances_only(slots, data, seed, newborn):
    """Also keys that were born, or are said to live, in a slot without an instance."""
    allowed = allowed_slots(OPERATORS[:2], slots, data.draw(instances(OPERATORS[:2], slots)))
    planner = IncrementalPlanner(2, slots, horizon_rows=100, allowed=allowed, seed=seed)
    draw = np.random.default_rng(seed)
    for _ in range(3):
        rows = draw.integers(0, 9, (60, 2)).astype(np.uint64)
        seen, slot_rows = [], []
        for column in rows.T:
            h, count = np.unique(column, return_counts=True)
            slot = draw.integers(0, slots, len(h)).astype(np.int32)
            seen.append(SeenKeys(h, count * 1.0, slot, np.full(len(h), newborn, np.uint8)))
            slot_rows.append(np.bincount(slot, count, slots))
        pairs = SeenPairs(0, 1, rows[:, 0], rows[:, 1], np.ones(len(rows)))
        planner.observe(seen, [pairs], np.array(slot_rows))
        for moves in planner.plan():
            assert allowed is None or allowed[moves.operator, moves.target].all()
    graph = planner.graph(["a", "b"])
    assert np.isfinite(planner.expected_imbalance).all() and graph.vertices


SLOTS = 4
TASK = Task(
    operators=("a", "b"),
    edges=(("a", "b"),),
    slots=SLOTS,
    alpha=1.05,
    pins_max=10_000,
    moves_max=10_000,
    born_local=frozenset(),
    memory_epochs=8,
    seed=1,
)


def tables_for(where: dict[str, tuple[int, ...]]) -> dict[str, RoutingTable]:
    found = {}
    for operator in TASK.operators:
        own = np.array(where.get(operator, range(SLOTS)), np.int32)
        found[operator] = RoutingTable(SLOTS, own[hash_table(len(own)).bucket_slots])
    return found


def observe(
    graph: KeyGraph, tables: dict[str, RoutingTable], epoch: int, born: str = ""
) -> Observation:
    """The rows of a key graph, counted under these tables; keys of `born` where partners are."""
    loads, slot_rows = {}, {}
    for i, operator in enumerate(graph.operators):
        mine = slice(graph.starts[i], graph.starts[i + 1])
        h, rows = graph.h[mine], graph.load[mine]
        slot = tables[operator].route(h)
        slot_rows[operator] = np.bincount(slot, rows, SLOTS)
        if operator == born:
            slot = (mix(h) % np.uint64(SLOTS)).astype(np.int32)
        loads[operator] = KeyLoads(h, rows, slot)
    a, b = graph.h[graph.u], graph.h[graph.v]
    meet = tables["a"].route(a) == tables["b"].route(b)
    return Observation(
        epoch=epoch,
        epochs=1,
        rows=int(graph.weight),
        now_ms=epoch * 10**7,
        pairs={("a", "b"): Pairs(a, b, graph.w)},
        loads=loads,
        slot_rows=slot_rows,
        locality=float(graph.w[meet].sum() / graph.weight),
    )


@pytest.mark.parametrize("planner", ["headgate", "online", "offline", "worst-case", "hash"])
@pytest.mark.parametrize("born", [frozenset(), frozenset({"b"})])
@pytest.mark.parametrize(
    "where", [{"a": (0, 1, 2), "b": (1, 2, 3)}, {"b": (3,)}, {"a": (0, 1), "b": (2, 3)}]
)
def test_no_planner_of_keys_pins_a_key_where_its_operator_is_not(planner, born, where):
    placing = make_placing(planner, replace(TASK, instances=where, born_local=born))
    tables = tables_for(where)
    for epoch in range(5):
        seen = observe(GROUPS, tables, epoch, "b" if born else "")
        placing.observe(seen, tables)
        plan = placing.propose(seen, tables)
        for operator, pins in {} if plan is None else plan.pins.items():
            assert np.isin(pins.slot, where.get(operator, range(SLOTS))).all()
            tables[operator] = tables[operator].pin_hashes(pins.h, pins.slot)


@pytest.mark.parametrize(
    "where", [{}, {"a": (0, 1, 2), "b": (1, 2, 3)}, {"b": (3,)}, {"a": (0,)}, {"b": (2, 3)}]
)
def test_on_a_steady_stream_keys_come_to_rest_together_and_even(where):
    placing, tables = make_placing("headgate", replace(TASK, instances=where)), tables_for(where)
    moved = []
    for epoch in range(14):
        seen = observe(GROUPS, tables, epoch)
        placing.observe(seen, tables)
        plan = placing.propose(seen, tables)
        moved.append(0)
        for operator, pins in {} if plan is None else plan.pins.items():
            moved[-1] += int((tables[operator].route(pins.h) != pins.slot).sum())
            tables[operator] = tables[operator].pin_hashes(pins.h, pins.slot)

    shared = set(where.get("a", range(SLOTS))) & set(where.get("b", range(SLOTS)))
    widest = max(len(where.get(operator, range(SLOTS))) for operator in "ab")
    assert moved[0] > 0 and sum(moved[8:]) < 5, moved
    last = observe(GROUPS, tables, 99)
    assert last.locality is not None and last.locality > 0.9 * len(shared) / widest
    for operator in TASK.operators:
        own = last.slot_rows[operator][list(where.get(operator, range(SLOTS)))]
        assert own.max() < 1.125 * own.mean() and own.sum() == pytest.approx(GROUPS.weight)


def test_instances_in_every_slot_change_nothing():
    everywhere = {"a": tuple(range(SLOTS)), "b": tuple(range(SLOTS))}
    plans = []
    for where in ({}, everywhere):
        placing = make_placing("headgate", replace(TASK, instances=where))
        tables = tables_for({})
        seen = observe(GROUPS, tables, 0)
        placing.observe(seen, tables)
        plans.append(placing.propose(seen, tables))
    assert plans[0] is not None and plans[1] is not None
    for one, other in zip(plans[0].pins.values(), plans[1].pins.values(), strict=True):
        assert np.array_equal(one.h, other.h) and np.array_equal(one.slot, other.slot)
