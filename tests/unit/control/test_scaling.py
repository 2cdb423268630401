"""When slots are added and removed: thresholds, patience, and no going back and forth."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.adaptation import Watch
from headgate.control.settings import Scaling
from headgate.errors import DeclarationError
from strategies import examples

RULE = Scaling(min_slots=1, max_slots=16, high_pct=75, low_pct=40, hold_periods=3)


def after(watch: Watch, slots: int, total: float, periods: int) -> int:
    """Slots after so many periods of an even load, taking every step the watch asks for."""
    for _ in range(periods):
        wanted = watch.step(slots, total, total / slots)
        if wanted != slots:
            slots = wanted
            watch.begin_anew()
    return slots


def test_a_load_has_to_hold_before_slots_are_added() -> None:
    watch = Watch(RULE)

    assert [watch.step(2, 180, 90) for _ in range(3)] == [2, 2, 4]


def test_one_quiet_period_starts_the_count_again() -> None:
    watch = Watch(RULE)

    loads = [180, 180, 100, 180, 180]
    assert [watch.step(2, total, total / 2) for total in loads] == [2] * 5


def test_slots_go_when_fewer_would_still_be_at_the_aim() -> None:
    watch = Watch(RULE)

    assert [watch.step(4, 100, 25) for _ in range(3)] == [4, 4, 2]
    assert RULE.aim_pct == 57.5


def test_a_number_outside_the_limits_is_brought_back_at_once() -> None:
    rule = Scaling(min_slots=2, max_slots=4)

    assert Watch(rule).step(1, 10, 10) == 2
    assert Watch(rule).step(9, 10, 2) == 4


@examples(200)
@given(
    total=st.floats(0, 2000),
    slots=st.integers(1, 16),
    low=st.floats(5, 60),
    gap=st.floats(1, 35),
    hold=st.integers(1, 4),
)
def test_under_a_constant_even_load_slots_settle_and_never_turn_back(
    total: float, slots: int, low: float, gap: float, hold: int
) -> None:
    """At most a handful of changes, all in one direction."""
    watch = Watch(Scaling(1, 16, high_pct=low + gap, low_pct=low, hold_periods=hold))
    seen = [slots]
    for _ in range(6):
        seen.append(after(watch, seen[-1], total, hold))

    steps = [b - a for a, b in pairwise(seen) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert seen[-1] == seen[-2]
    mean = total / seen[-1]
    assert mean <= low + gap or seen[-1] == 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_slots": 0},
        {"min_slots": 5, "max_slots": 4},
        {"low_pct": 80.0},
        {"high_pct": 120.0},
        {"hold_periods": 0},
    ],
)
def test_a_rule_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DeclarationError):
        Scaling(**wrong)  # type: ignore[arg-type]
