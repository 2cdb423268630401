"""Algorithm 1, a period in, instructions out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.adaptation import PATIENCE_PERIODS, Adaptation, Adapted
from headgate.control.scaling import Scaling
from headgate.control.unit_statistics import Measured
from headgate.planner.allocation.allocator import make_allocator
from headgate.planner.allocation.milp import MilpPlanner
from headgate.planner.allocation.model import Nodes, Situation, Units
from headgate.planner.allocation.plan import Limits
from unit.planner.allocation.clusters import situations

ROUNDS = 12
"""Plans after which the loop is at rest under constant loads; docs/guide/scaling.md says so."""
RULE = Scaling(min_slots=1, max_slots=8, high_pct=75, low_pct=40, hold_periods=2)


def measured(loads: list[float], home: list[int], slots: int, *, leaving: int = 0) -> Measured:
    """Units of one operator, a state of one byte each; a move costs 1."""
    n = len(loads)
    units = Units(("op",), np.zeros(n, np.int32), np.array(loads), np.ones(n))
    nodes = Nodes.alike(slots, tuple(range(slots - leaving, slots)))
    situation = Situation(units, nodes, np.array(home, np.int32))
    return Measured(situation, "time", base=0.0, use={}, timed=True)


def loop(budget: float = np.inf, rule: Scaling | None = RULE) -> Adaptation:
    return Adaptation(MilpPlanner(), Limits(migration_cost_max=budget), rule)


def last(adaptation: Adaptation, seen: Measured, periods: int) -> Adapted:
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


def test_slots_leave_in_three_steps_marked_drained_released() -> None:
    """The budget lets two units move a period, so draining two slots of two units takes two."""
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
    assert marked == [0, 2, 2, 2]
    assert set(home) == {0, 1}
    assert told[1].endswith("slots 2, 3 are drained from now on")
    assert told[2:] == [
        "slots 2, 3 are drained: 0 units are left",
        "slots 2, 3 are released: drained, nothing lives there",
    ]


def test_no_slot_is_marked_if_the_others_could_not_share_the_load() -> None:
    """The mean of one slot would be 57 %, but a unit of 50 % beside others of 30 % is uneven."""
    rule = replace(RULE, high_pct=50, low_pct=45)
    found = last(loop(rule=rule), measured([44.0, 8.0, 8.0], [0, 1, 2], 3), 4)

    assert found.slots is None
    assert found.plan is not None


def test_draining_ends_when_the_load_comes_back() -> None:
    adaptation = loop(budget=1)
    last(adaptation, measured([5.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3], 4), 2)
    assert adaptation.leaving > 0

    back = measured([40.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3], 4, leaving=adaptation.leaving)
    found = last(adaptation, back, 2)

    assert adaptation.leaving == 0
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
    adaptation.slots_changed()

    assert adaptation.step(seen).slots is None
    assert adaptation.step(seen).slots is not None


@pytest.mark.parametrize("planner", ["milp", "albic", "headgate"])
@settings(max_examples=10, deadline=None)
@given(
    situation=situations(units_max=24, nodes_max=5),
    share=st.floats(0.2, 1),
    limit=st.sampled_from([1.0, 5.0, 20.0]),
)
def test_the_loop_comes_to_rest_whatever_plans(planner, situation, share, limit) -> None:
    """From random clusters, loads that follow collocation, and constant otherwise."""
    limits = Limits(share * situation.migration_cost.sum(), limit, seconds=0.2)
    adaptation = Adaptation(make_allocator(planner), limits, None)
    seen = {situation.home.tobytes()}
    for _ in range(ROUNDS):
        plan = adaptation.step(Measured(situation, "time", 0.0, {}, timed=True)).plan
        if plan is None or not plan.migrations:
            return
        assert plan.node.tobytes() not in seen, "it has come back"
        seen.add(plan.node.tobytes())
        situation = replace(situation.after(plan.node), period=situation.period + 1)
    pytest.fail(f"still moving after {ROUNDS} rounds")
