"""Policies and operators with instances in some slots only: plans keep to these slots."""

from __future__ import annotations

import numpy as np
import pytest

import headgate as hg
from headgate.commit.planning import Decision
from headgate.control.loop import DecisionLoop
from headgate.control.placement import HeadgatePlacement, KeyPlacement, task_of
from headgate.control.units import UnitPlacement
from headgate.planner.hot_keys import expected_loads
from headgate.routing.route import Here, Shares, Spread
from unit.control.instance_world import Instances, World, groups, loop_of, program

SLOTS = 4
ROWS = groups(2_000)
OVERLAP = {"a": (0, 1, 2), "b": (1, 2, 3)}


# --- keys -----------------------------------------------------------------------------------
@pytest.mark.parametrize("born_local", [True, False])
def test_keys_are_brought_together_where_both_operators_are(born_local: bool) -> None:
    manager = hg.Manager(born_local=born_local, alpha=1.1)
    world = World(loop_of(manager, SLOTS), SLOTS, OVERLAP, ROWS)
    before = world.locality
    world.run(12)

    assert world.locality > before + 0.2
    assert not any(world.moved[6:]), "the same rows again move nothing"
    for operator in ("a", "b"):
        loads = world.loads(operator)
        assert loads.max() < 1.3 * loads.mean() and loads.sum() == len(ROWS)


def test_other_instances_are_another_problem_for_a_planner_of_keys() -> None:
    world = World(loop_of(hg.Manager(alpha=1.1), SLOTS), SLOTS, {}, ROWS)
    world.run(6)
    everywhere = world.locality
    world.follow(Decision(instances={"b": (3,)}))
    world.run(6)

    assert everywhere > 0.8
    assert set(np.unique(world.tables["b"].pinned_slots)) == {3}
    assert world.locality == pytest.approx(0.25, abs=0.1), "a slot of a has room for a quarter"


# --- units ----------------------------------------------------------------------------------
SLOW = {"a": 0.4, "b": 0.2}  # ms a row: slots have some hundred of the 1,000 ms of an epoch


@pytest.mark.parametrize("planner", ["headgate", "milp", "albic", "flux", "cola"])
def test_units_are_evened_over_the_slots_of_their_operators(planner: str) -> None:
    """All of a begins in slot 0, all of b in slot 1, and both may be in slot 2."""
    world = units_of_two(planner, {"a": (0, 2), "b": (1, 2)})
    world.run(8)

    spent = world.spent()
    assert spent.max() < 1.4 * spent.mean() and spent.sum() == pytest.approx(0.6 * len(ROWS))


def units_of_two(planner: str, instances: Instances, slots: int = 3) -> World:
    """Only units are placed; every operator is in the first of its slots."""
    settings = hg.Manager(planner, migration_seconds_max=60.0, alpha=1.1)
    loop = DecisionLoop(placing=UnitPlacement(("a", "b"), settings))
    world = World(loop, slots, instances, ROWS, SLOW)
    for operator, table in world.tables.items():
        first = np.full(table.buckets, world.slots_of(operator)[0], np.int32)
        world.tables[operator] = table.with_buckets(first)
    return world


def draining(instances: Instances, leaving: int, which: tuple[int, ...] = ()) -> World:
    settings = hg.Manager(migration_seconds_max=60.0, alpha=1.1)
    task = task_of(program(), settings, SLOTS)
    units = UnitPlacement(("a", "b"), settings)
    placing = HeadgatePlacement(KeyPlacement(task, settings), units)
    world = World(DecisionLoop(placing=placing), SLOTS, instances, ROWS, SLOW)
    placing.drain(leaving)
    if which:
        units.adaptation.drain(0)
        units.adaptation.leaving = which
    world.run(8)
    return world


def test_instances_in_slots_that_leave_are_emptied_if_one_stays() -> None:
    world = draining({"b": (1, 3)}, 2, which=(2, 3))

    assert (world.slots, world.instances) == (2, {"b": (1,)})
    assert not any(decision.instances for decision in world.decisions)
    assert set(world.tables["b"].all_units()[1]) == {1}


def test_an_operator_all_of_whose_slots_leave_gets_others() -> None:
    world = draining({"a": (0, 1, 2), "b": (2, 3)}, 2, which=(2, 3))

    assert world.slots == 2 and world.slots_of("b") == (0, 1)
    asked = [decision.instances for decision in world.decisions if decision.instances]
    assert asked == [{"b": (0, 1)}], "once: then it has them"
    assert any("b gets its instances in slots 0, 1: all it has leave" in why for why in world.why)


def test_slots_with_least_state_leave_and_others_take_their_numbers() -> None:
    """Slots 1 and 3 have both operators: they stay, and 3 becomes 0."""
    world = draining({"b": (1, 3)}, 2)

    assert world.slots == 2 and world.slots_of("b") == (0, 1)
    (released,) = [decision for decision in world.decisions if decision.slots]
    assert released.gone == (0, 2)
    assert any("slots 0, 2 are drained" in why for why in world.why)


def test_fewer_slots_are_thought_of_though_an_operator_is_only_in_the_last() -> None:
    scaling = hg.Scaling(min_slots=1, max_slots=SLOTS, hold_periods=1)
    manager = hg.Manager("milp", migration_seconds_max=60.0, alpha=1.1)
    loop = loop_of(manager, SLOTS, scaling=scaling)
    world = World(loop, SLOTS, {"b": (SLOTS - 1,)}, ROWS)
    world.run(6)

    assert world.slots == 1 and world.instances in ({}, {"b": (0,)})


def test_slots_that_an_operator_gains_are_filled_with_the_next_plan() -> None:
    world = units_of_two("headgate", {"a": (0,), "b": (1, 2)})
    world.run(3)
    world.follow(Decision(instances={"a": (0, 1, 2)}))
    world.run(1)

    assert world.spent().max() < 1.3 * world.spent().mean()


# --- hot keys -------------------------------------------------------------------------------
HOT = np.concatenate([ROWS, np.full((2_000, 2), 5)])  # key 5 of both operators has half the rows


def spread_of(decision: Decision, operator: str) -> Spread:
    assert decision.dispatch is not None
    dispatch = decision.dispatch[operator]
    assert isinstance(dispatch, Shares)
    return dispatch.spread


def test_a_hot_key_is_cut_over_the_slots_of_its_operator() -> None:
    world = World(loop_of(None, SLOTS, "cut"), SLOTS, OVERLAP, HOT)
    world.run(2)

    for operator, h in world.hashes.items():
        keys, rows = np.unique(h, return_counts=True)
        spread, own = spread_of(world.decisions[-1], operator), list(OVERLAP[operator])
        table = world.tables[operator]
        loads = expected_loads(keys, rows * 1.0, float(len(h)), table, spread)
        assert len(spread.cut) >= 1 and loads[own].max() < 1.02 * loads[own].mean()
        assert loads.sum() == pytest.approx(loads[own].sum())


def test_keys_placed_by_load_keep_to_the_slots_of_their_operator() -> None:
    world = World(loop_of(None, SLOTS, "dkg"), SLOTS, OVERLAP, ROWS)
    world.run(3)

    for operator in ("a", "b"):
        assert world.loads(operator).max() < 1.15 * world.loads(operator).mean()


def test_other_instances_make_a_layout_void_and_keys_are_cut_anew() -> None:
    world = World(loop_of(None, SLOTS, "cut"), SLOTS, {}, HOT)
    world.run(2)
    world.follow(Decision(instances={"b": (1, 3)}))
    world.run(1)  # which checks that no share is elsewhere

    assert set(spread_of(world.decisions[-1], "b").slots) == {1, 3}
    assert spread_of(world.decisions[-1], "a") is spread_of(world.decisions[-2], "a")


@pytest.mark.parametrize("grouping", ["cut", "dkg"])
def test_one_instance_has_nothing_to_lay_out(grouping: str) -> None:
    world = World(loop_of(None, SLOTS, grouping), SLOTS, {"a": (2,), "b": (0,)}, HOT)
    world.run(3)

    assert not any(d.tables or d.plan for d in world.decisions)


def folded(instances: Instances) -> bool:
    """Is b, which has few keys, folded where its rows are?"""
    few = np.stack([ROWS[:, 0], ROWS[:, 1] % 7], axis=1)
    world = World(loop_of(hg.Manager(warm_up_epochs=99), SLOTS, "auto"), SLOTS, instances, few)
    world.run(3)
    dispatch = world.decisions[-1].dispatch
    return dispatch is not None and isinstance(dispatch.get("b"), Here)


def test_rows_are_not_folded_in_fewer_slots_than_their_operator_has() -> None:
    """One slot of a would do all the work of b's four."""
    assert folded({}) and folded({"b": (1,)})
    assert not folded({"a": (1,)})
