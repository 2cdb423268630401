from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.rescaler import Load, RescaleOptions, Rescaler
from headgate_lab.planner.tuning.ds2 import Ds2, Ds2Options

ROW_S = 1e-4


def loads(*demands: float) -> list[Load]:
    return [Load(d / ROW_S, ROW_S) for d in demands]


def test_overload_is_corrected_once_it_is_no_blip():
    scaler = Rescaler(2, RescaleOptions(patience=2))

    assert scaler.observe(loads(3.0)[0]) is None
    decision = scaler.observe(loads(3.0)[0])

    assert decision is not None
    assert decision.count == 4  # 3.0 keeps four at most 80 % busy
    assert "95% of 2" in decision.why


def test_nothing_is_given_back_before_a_whole_horizon_agrees():
    options = RescaleOptions(horizon=5, move_cost=1)
    scaler = Rescaler(8, options)

    assert [scaler.observe(load) for load in loads(1, 1, 1, 1)] == [None] * 4
    assert scaler.observe(loads(1)[0]).count == 2


@pytest.mark.parametrize(("instances", "waits"), [(3, 30), (4, 15), (5, 10), (12, 5)])
def test_idle_instances_are_kept_until_they_have_cost_as_much_as_a_move(instances, waits):
    """Two would do. The more are idle, the sooner they have cost 30; never within the horizon."""
    scaler = Rescaler(instances, RescaleOptions(horizon=5, move_cost=30))

    said = [scaler.observe(load) for load in loads(*[1.5] * waits)]

    assert said[:-1] == [None] * (waits - 1)
    assert said[-1].count == 2


def test_a_peak_is_remembered_for_as_long_as_waiting_is_cheaper_than_a_move():
    """One of three is idle for long enough, but for a moment it was not."""
    scaler = Rescaler(3, RescaleOptions(horizon=5, move_cost=30))

    said = [scaler.observe(load) for load in loads(*[1.5] * 20, 2.5, *[1.5] * 30)]

    assert [at for at, decision in enumerate(said) if decision] == [50]


def test_the_cluster_is_the_limit():
    scaler = Rescaler(2, RescaleOptions(patience=1, most=3))

    assert scaler.observe(loads(50)[0]).count == 3
    assert scaler.observe(loads(50)[0]) is None


def test_bounds_hold_for_what_is_asked_for_and_leave_what_runs():
    scaler = Rescaler(4, RescaleOptions(patience=1, horizon=2, move_cost=1))

    scaler.limit(4, 4)
    assert [scaler.observe(load) for load in loads(9, 9, 1, 1, 1)] == [None] * 5
    scaler.limit(2, 6)
    assert [d.count for load in loads(1, 1, 1) if (d := scaler.observe(load))] == [2]
    assert scaler.observe(loads(9)[0]).count == 6


@settings(max_examples=50)
@given(demands=st.lists(st.floats(0.01, 40), min_size=1, max_size=150), start=st.integers(1, 20))
def test_opposite_decisions_are_a_horizon_apart(demands, start):
    options = RescaleOptions(horizon=10)
    scaler = Rescaler(start, options)
    last, grown_at = start, None
    for at, load in enumerate(loads(*demands)):
        decision = scaler.observe(load)
        if decision is None:
            continue
        assert decision.count != last
        if decision.count < last and grown_at is not None:
            assert at - grown_at >= options.horizon
        grown_at = at if decision.count > last else grown_at
        last = decision.count


@given(demand=st.floats(0.01, 100))
def test_a_steady_load_is_changed_for_at_most_once(demand):
    scaler = Rescaler(1)

    changes = [d for load in loads(*[demand] * 80) if (d := scaler.observe(load)) is not None]

    assert len(changes) <= 1
    assert scaler.instances >= demand


def test_options_that_would_undo_each_other_are_refused():
    with pytest.raises(DeclarationError, match="undone by the next"):
        RescaleOptions(high=0.7, low=0.9)


def decided(scaler: Ds2, *demands: float) -> list[int | None]:
    return [d.count if (d := scaler.observe(load)) else None for load in loads(*demands)]


def test_ds2_skips_its_warm_up_at_the_start_and_after_a_change():
    scaler = Ds2(2, Ds2Options(warm_up=2))

    assert decided(scaler, 9.0, 9.0, 2.5, 9.0, 9.0, 4.2) == [None, None, 3, None, None, 5]


def test_ds2_as_released_leaves_one_instance_too_many_alone():
    """`consider_change` in its manager.rs; the bare rule gives it back."""
    assert decided(Ds2(4, Ds2Options(warm_up=0)), 2.5, 1.5) == [None, 2]
    assert decided(Ds2(4, Ds2Options(warm_up=0, spares_one=False)), 2.5, 1.5) == [3, 2]


def test_the_scaling_factor_of_ds2_adds_a_share_of_what_is_needed():
    assert decided(Ds2(1, Ds2Options(warm_up=0, factor=0.5)), 3.8) == [6]


def test_the_last_evaluation_of_the_activation_time_decides_unless_the_median_does():
    as_released = Ds2Options(warm_up=0, activation=3)
    with_median = Ds2Options(warm_up=0, activation=3, takes_median=True)

    assert decided(Ds2(2, as_released), 1.5, 2.5, 9.0) == [None, None, 9]
    assert decided(Ds2(2, with_median), 1.5, 2.5, 9.0) == [None, None, 3]


def test_evaluations_that_changed_nothing_count_for_the_activation_time():
    scaler = Ds2(2, Ds2Options(warm_up=0, activation=2))

    assert decided(scaler, 1.5, 1.5, 1.5, 4.5, 6.0) == [None, None, None, 5, None]
