"""Algorithm 1, a period in, instructions out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.adaptation import (
    PATIENCE_PERIODS,
    UNEVEN_PCT,
    UNFORESEEN,
    Adaptation,
    Adapted,
    MeasuredUnits,
)
from headgate.control.settings import Scaling
from headgate.planner.allocation.integrated import IntegratedPlanner, IntegratedSettings
from headgate.planner.allocation.model import Nodes, Situation, Traffic, Units, load_distance
from headgate.planner.allocation.plan import Limits, Planner, make_allocator
from headgate.planner.distance import Distances
from headgate_lab.planner.albic import AlbicPlanner, AlbicSettings
from headgate_lab.planner.milp import MilpPlanner, MilpSettings
from unit.planner.allocation.clusters import airline, situations

ROUNDS, QUIET = 12, 3
"""Periods after which small clusters are at rest under constant loads, and periods it is watched
for after that; docs/guide/scaling.md says so."""
RULE = Scaling(min_slots=1, max_slots=8, high_pct=75, low_pct=40, hold_periods=2)


def measured(
    loads: list[float], home: list[int], slots: int, *, leaving: tuple[int, ...] = ()
) -> MeasuredUnits:
    """Units of one operator, a state of one byte each; a move costs 1."""
    n = len(loads)
    units = Units(("op",), np.zeros(n, np.int32), np.array(loads), np.ones(n))
    nodes = Nodes.alike(slots, leaving)
    situation = Situation(units, nodes, np.array(home, np.int32))
    return MeasuredUnits(situation, "time", base=0.0, timed=True)


def loop(budget: float = np.inf, rule: Scaling | None = RULE) -> Adaptation:
    return Adaptation(MilpPlanner(), Limits(migration_cost_max=budget), rule)


def last(adaptation: Adaptation, seen: MeasuredUnits, periods: int) -> Adapted:
    for _ in range(periods - 1):
        adaptation.step(seen)
    return adaptation.step(seen)


def test_an_overload_that_balance_cures_adds_no_slots() -> None:
    """Slot 0 is at 120 %; planned, both are at 60 %."""
    found = last(loop(), measured([20.0] * 6, [0] * 6, 2), 5)

    assert found.slots is None
    assert found.plan is not None and found.plan.migrations == 3


def test_an_overload_that_balance_does_not_cure_adds_slots() -> None:
    seen = measured([20.0] * 9, [0, 1] * 4 + [0], 2)
    adaptation = loop()

    assert adaptation.step(seen).slots is None, "it has to hold"
    found = adaptation.step(seen)

    assert found.slots == 4
    assert "mean 90 %" in found.why


def test_slots_that_were_asked_for_are_waited_for_and_then_asked_for_again() -> None:
    seen = measured([20.0] * 9, [0, 1] * 4 + [0], 2)
    adaptation = loop()

    asked = [adaptation.step(seen).slots for _ in range(PATIENCE_PERIODS + 4)]

    assert [i for i, slots in enumerate(asked) if slots] == [1, PATIENCE_PERIODS + 1]


def test_one_unit_too_heavy_for_a_slot_adds_none_for_ever() -> None:
    """It cannot be cut, so a third slot would not take anything off the busiest one."""
    found = last(loop(), measured([95.0, 5.0, 5.0], [0, 1, 1], 2), 6)

    assert found.slots is None
    assert "would not help" in found.why


def test_fewer_slots_than_allowed_are_brought_up_whatever_the_load() -> None:
    rule = replace(RULE, min_slots=3)

    assert loop(rule=rule).step(measured([1.0, 1.0], [0, 0], 1)).slots == 3


def test_more_slots_than_allowed_are_drained_whatever_the_load() -> None:
    """Four slots of at most two, at 180 %: somebody has asked for more by hand."""
    adaptation = loop(rule=replace(RULE, max_slots=2))
    seen = measured([20.0] * 9, [i % 4 for i in range(9)], 4)
    found = adaptation.step(seen)

    assert adaptation.leaving == (2, 3)
    assert found.why == "more slots than max_slots=2; slots 2, 3 are drained from now on"
    assert found.plan is not None and set(found.plan.node.tolist()) == {0, 1}
    drained = measured([20.0] * 9, found.plan.node.tolist(), 4, leaving=(2, 3))
    assert adaptation.step(drained).slots == 2


def test_slots_leave_in_three_steps_marked_drained_released() -> None:
    """The budget lets two units move a period, so draining two slots of two units takes two.

    Of equal slots the last ones leave.
    """
    adaptation = loop(budget=2)
    loads, home = [10.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3]
    released = None
    marked, told = [], []
    for _ in range(8):
        found = adaptation.step(measured(loads, home, 4, leaving=adaptation.leaving))
        marked.append(adaptation.leaving)
        told.append(found.why)
        if found.slots is not None:
            released = found.slots
            break
        if found.plan is not None:
            home = found.plan.node.tolist()

    assert released == 2
    assert marked == [(), (2, 3), (2, 3), (2, 3)]
    assert set(home) == {0, 1}
    assert told[1].endswith("slots 2, 3 are drained from now on")
    assert told[2:] == [
        "slots 2, 3 are drained: 0 units are left",
        "slots 2, 3 are released: drained, nothing lives there",
    ]


@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
def test_a_drain_ends_though_units_without_load_are_left_for_later(planner: str) -> None:
    """The budget takes two units a period; the busy ones go first, then those that are idle."""
    adaptation = Adaptation(make_allocator(planner), Limits(2.0, seconds=20), RULE)
    loads, home = [10.0] * 4 + [5.0, 0, 0, 0] * 2, [0, 0, 1, 1] + [2] * 4 + [3] * 4
    state, told = [9.0, 9.0] + [1.0] * 10, []
    for _ in range(12):
        seen = measured(loads, home, 4, leaving=adaptation.leaving)
        found = adaptation.step(with_states(seen, state))
        told.append(found.why)
        if found.slots is not None:
            break
        if found.plan is not None:
            home = found.plan.node.tolist()

    assert found.slots == 1
    left = [int(why.split(": ")[1].split()[0]) for why in told if "units are left" in why]
    assert left == [6, 4, 2, 0], "two fewer in every period"


def with_states(seen: MeasuredUnits, state: list[float]) -> MeasuredUnits:
    units = replace(seen.situation.units, state_bytes=np.array(state))
    return replace(seen, situation=replace(seen.situation, units=units))


@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
def test_a_drain_ends_though_units_cost_more_than_a_period_has(planner: str) -> None:
    """Two on slot 1 and one on slot 2 are above the budget; others go as the budget allows.

    Slot 0 has most state, so it stays.
    """
    adaptation = Adaptation(make_allocator(planner), Limits(10.0, 20.0, seconds=20), RULE)
    home, state = [i % 3 for i in range(12)], [1.0] * 12
    state[1] = state[4] = state[11] = 50.0
    state[0] = state[3] = 60.0
    told, slots = [], 3
    for _ in range(12):
        seen = measured([4.0] * 12, home, slots, leaving=adaptation.leaving)
        found = adaptation.step(with_states(seen, state))
        told.append(found.why)
        if found.plan is not None:
            home = found.plan.node.tolist()
        if found.slots is not None:
            slots = found.slots
            adaptation.slots_changed(slots)
        if slots == 1:
            break

    assert slots == 1 and set(home) == {0}
    alone = [why for why in told if "costs 50, more than the 10 of a period: it moves alone" in why]
    assert len(alone) == 3, told


def test_what_is_too_big_waits_for_all_that_is_not() -> None:
    seen = measured([9.0, 9.0, 1.0, 1.0, 1.0], [0, 1, 2, 2, 2], 3, leaving=(2,))
    seen = with_states(seen, [1.0, 1.0, 100.0, 1.0, 60.0])
    adaptation = Adaptation(
        MilpPlanner(), Limits(2.0, 20.0, seconds=20), replace(RULE, min_slots=2)
    )
    adaptation.leaving = (2,)
    told = []
    for _ in range(3):
        found = adaptation.step(seen)
        told.append(found.why)
        assert found.plan is not None
        seen = replace(seen, situation=replace(seen.situation, home=found.plan.node))

    assert told == [
        "slot 2 is drained: 2 units are left",
        "slot 2 is drained: 1 units are left; "
        "op[4] costs 60, more than the 2 of a period: it moves alone",
        "slot 2 is drained: 0 units are left; "
        "op[2] costs 100, more than the 2 of a period: it moves alone",
    ]


def test_a_drain_goes_on_while_even_fewer_slots_are_thought_of() -> None:
    """Two slots would be enough on average, but three units do not fit: said in every period."""
    rule = replace(RULE, high_pct=50, low_pct=45, hold_periods=1)
    adaptation = Adaptation(MilpPlanner(), Limits(2.0, 20.0, seconds=20), rule)
    adaptation.leaving = (3,)
    seen = measured([26.0, 26.0, 26.0, 0.0], [0, 1, 2, 3], 4, leaving=(3,))
    found = adaptation.step(with_states(seen, [1.0, 1.0, 1.0, 100.0]))

    assert found.why == (
        "2 slots would not do: busiest 52 %; slot 3 is drained: 0 units are left; "
        "op[3] costs 100, more than the 2 of a period: it moves alone"
    )
    assert found.plan is not None and found.plan.node[3] < 3


def test_slots_at_the_end_go_before_others_are_empty() -> None:
    adaptation = loop(budget=1)
    adaptation.leaving = (2, 3)
    found = adaptation.step(measured([10.0] * 4, [0, 1, 2, 2], 4, leaving=(2, 3)))

    assert found.slots == 3
    assert found.why.startswith("slot 3 is released: drained, nothing lives there; slot 2 is drai")
    adaptation.slots_changed(3)
    assert adaptation.leaving == (2,), "slot 2 has to go yet"
    adaptation.slots_changed(2)
    assert adaptation.leaving == (), "nobody has asked for that"


def test_units_are_planned_when_slots_are_released_and_while_they_have_not_gone() -> None:
    """Slot 2 is empty; slots 0 and 1 are uneven, and a period may move one unit."""
    adaptation = loop(budget=1)
    adaptation.leaving = (2,)
    first = adaptation.step(measured([10.0] * 6, [0] * 6, 3, leaving=(2,)))

    assert first.slots == 2
    assert first.why == "slot 2 is released: drained, nothing lives there"
    assert first.plan is not None and first.plan.migrations == 1
    home = first.plan.node.tolist()
    for _ in range(2):
        waiting = adaptation.step(measured([10.0] * 6, home, 3, leaving=(2,)))
        assert waiting.slots is None and waiting.plan is not None
        home = waiting.plan.node.tolist()
    assert sorted(home) == [0, 0, 0, 1, 1, 1], "nothing goes to the slot that leaves"


def test_slots_that_do_not_go_are_released_again() -> None:
    adaptation = loop()
    adaptation.leaving = (2,)
    seen = measured([10.0] * 4, [0, 0, 1, 1], 3, leaving=(2,))
    asked = [adaptation.step(seen).slots for _ in range(PATIENCE_PERIODS + 2)]

    assert [i for i, slots in enumerate(asked) if slots] == [0, PATIENCE_PERIODS]


@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
def test_a_flow_without_any_load_drains_too(planner: str) -> None:
    adaptation = Adaptation(make_allocator(planner), Limits(2.0, seconds=20), RULE)
    adaptation.leaving = (2,)
    idle = replace(measured([0.0] * 4, [0, 1, 2, 2], 3, leaving=(2,)), timed=False)
    plan = adaptation.step(idle).plan

    assert plan is not None and set(plan.node.tolist()) <= {0, 1}


def test_a_plan_that_only_brings_partners_nearer_is_applied() -> None:
    """Each unit fills a slot, so partners cannot share one; at home they are racks apart."""
    hosts = [f"h{slot // 4}" for slot in range(16)]
    racks = {f"h{host}": f"r{host // 2}" for host in range(4)}
    distances = Distances.of(hosts, racks)
    flow = Traffic(np.arange(8), 8 + np.arange(8), np.full(8, 10.0))
    operator = np.repeat(np.arange(2, dtype=np.int32), 8)
    units = Units(("a", "b"), operator, np.full(16, 50.0), np.ones(16))
    nodes = replace(Nodes.alike(16), distances=distances)
    situation = Situation(units, nodes, np.arange(16, dtype=np.int32), flow)
    adaptation = Adaptation(make_allocator("headgate"), Limits(16.0, 5.0, seconds=20), None)
    plan = adaptation.step(MeasuredUnits(situation, "time", 0.0, timed=True)).plan

    assert plan is not None and plan.collocation == 0
    assert distances.near[np.arange(8), 8 + np.arange(8)].tolist() == [3] * 8
    assert distances.near[plan.node[:8], plan.node[8:]].max() <= 2, "one rack at most"
    assert "stay on its host" in plan.reasons[0] or "stay in its rack" in plan.reasons[0]


def test_loads_of_every_operator_are_evened_if_that_is_asked_for() -> None:
    """Slots are even in total, but each operator is on one of them."""
    operator = np.array([0, 0, 1, 1], np.int32)
    units = Units(("a", "b"), operator, np.full(4, 5.0), np.ones(4))
    situation = Situation(units, Nodes.alike(2), np.array([0, 0, 1, 1], np.int32))
    seen = MeasuredUnits(situation, "time", 0.0, timed=True)
    by_operator = Adaptation(
        make_allocator("headgate", balance="operator"), Limits(seconds=20), None, balance="operator"
    )
    plan = by_operator.step(seen).plan

    assert plan is not None and plan.migrations == 2
    assert sorted(plan.node[:2]) == sorted(plan.node[2:]) == [0, 1]
    assert plan.reasons[0].endswith(
        "evens loads of a: without it node 0 would have 200.0 % of the mean, node 1 0.0 %"
    )
    in_total = Adaptation(make_allocator("headgate"), Limits(seconds=20), None).step(seen).plan
    assert in_total is not None and not in_total.migrations


def test_no_slot_is_marked_if_the_others_could_not_share_the_load() -> None:
    """The mean of one slot would be 57 %, but a unit of 50 % beside others of 30 % is uneven."""
    rule = replace(RULE, high_pct=50, low_pct=45)
    found = last(loop(rule=rule), measured([44.0, 8.0, 8.0], [0, 1, 2], 3), 4)

    assert found.slots is None
    assert found.plan is not None


def test_draining_ends_when_the_load_comes_back() -> None:
    adaptation = loop(budget=1)
    last(adaptation, measured([5.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3], 4), 2)
    assert adaptation.leaving

    back = measured([40.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3], 4, leaving=adaptation.leaving)
    found = last(adaptation, back, 2)

    assert not adaptation.leaving
    assert "stay after all" in found.why


def test_without_a_rule_or_without_a_clock_only_units_move() -> None:
    seen = measured([50.0] * 6, [0] * 6, 2)

    assert last(loop(rule=None), seen, 5).slots is None
    assert last(loop(), replace(seen, timed=False), 5).slots is None


@pytest.mark.parametrize("slots", [1, 3])
def test_a_change_of_slots_forgets_what_was_counted(slots: int) -> None:
    adaptation = loop()
    full = [30.0] * 3 * slots
    seen = measured(full, [i % slots for i in range(len(full))], slots)
    adaptation.step(seen)
    adaptation.slots_changed(slots)

    assert adaptation.step(seen).slots is None
    assert adaptation.step(seen).slots is not None


def by_steps(name: str, solver: MilpSettings | None = None) -> Planner:
    """A planner that ends by the steps it makes: its clock goes on when it is looked at."""
    ticks = itertools.count()
    solver = solver or MilpSettings(branches_max=20)
    if name == "headgate":
        few = IntegratedSettings(steps_min=4_000, steps_per_unit=200)
        return IntegratedPlanner(few, lambda: next(ticks) / 1000)
    if name == "albic":
        return AlbicPlanner(AlbicSettings(milp=solver), lambda: 4.0 * next(ticks))
    return MilpPlanner(solver, lambda: 4.0 * next(ticks))


@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
@settings(max_examples=8, deadline=None)
@given(
    situation=situations(units_max=24, nodes_max=5),
    share=st.floats(0.2, 1),
    limit=st.sampled_from([1.0, 5.0, 20.0]),
)
def test_the_loop_comes_to_rest_whatever_plans(planner, situation, share, limit) -> None:
    """From random clusters, loads that follow collocation, and constant otherwise."""
    limits = Limits(share * situation.migration_cost.sum(), limit, seconds=20.0)
    adaptation = Adaptation(by_steps(planner), limits, None)
    seen, quiet = {situation.home.tobytes()}, 0
    draws = planner == "albic"  # a pair in every period: it may move again after a pause
    for _ in range(ROUNDS + QUIET):
        plan = adaptation.step(MeasuredUnits(situation, "time", 0.0, timed=True)).plan
        situation = replace(situation, period=situation.period + 1)
        if plan is None or not plan.migrations:
            quiet += 1
            continue
        assert plan.node.tobytes() not in seen, "it has come back"
        assert draws or quiet < QUIET, "it was at rest"
        seen.add(plan.node.tobytes())
        situation, quiet = situation.after(plan.node), 0
    assert draws or quiet >= QUIET, f"still moving after {ROUNDS} rounds"


def test_albic_goes_on_collocating_in_the_loop() -> None:
    """It does not foresee what collocation saves, so loads come to more than it allows."""
    situation = airline(1, nodes=8)
    greedy = MilpSettings(variables_per_second=0, whole_variables_max=0)
    adaptation = Adaptation(by_steps("albic", greedy), Limits(10_000.0, 5.0, seconds=20.0), None)
    seen = {situation.home.tobytes()}
    for period in range(25):
        now = replace(situation, period=period)
        plan = adaptation.step(MeasuredUnits(now, "time", 0.0, timed=True)).plan
        if plan is not None and plan.migrations:
            assert plan.node.tobytes() not in seen, "it has come back"
            seen.add(plan.node.tobytes())
            situation = now.after(plan.node)

    assert situation.collocation(situation.home) > 0.5
    assert load_distance(situation, situation.home) <= UNFORESEEN * 5.0


@pytest.mark.parametrize("limit_pct", [5.0, 30.0])
@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
def test_a_new_slot_is_filled_however_wide_the_limit(planner: str, limit_pct: float) -> None:
    """An empty slot is as far from the mean as can be. Algorithm 1 plans again when it is there.

    On each of two slots every unit sends to four others, so whatever moves parts rows.
    """
    a, b = np.divmod(np.arange(64), 8)
    together = a % 2 == b % 2
    flow = Traffic(a[together], 8 + b[together], np.full(32, 25.0), 0.001)
    units = Units(("a", "b"), np.repeat([0, 1], 8).astype(np.int32), np.full(16, 5.0), np.ones(16))
    home = (np.arange(16) % 2).astype(np.int32)
    situation = Situation(units, Nodes.alike(3), home, flow)
    adaptation = Adaptation(by_steps(planner), Limits(4.0, limit_pct, seconds=20.0), None)
    for period in range(6):
        now = replace(situation, period=period)
        plan = adaptation.step(MeasuredUnits(now, "time", 0.0, timed=True)).plan
        if plan is not None and plan.migrations:
            situation = now.after(plan.node)

    assert load_distance(situation, situation.home) <= max(limit_pct, UNEVEN_PCT)
