from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.ds2 import Ds2, Ds2Options
from headgate.planner.tuning.rescaler import Load, RescaleOptions, Rescaler

ROW_S = 1e-4


def loads(*demands: float) -> list[Load]:
    return [Load(d / ROW_S, ROW_S) for d in demands]


def test_overload_is_corrected_once_it_is_no_blip():
    scaler = Rescaler(2, RescaleOptions(patience=2))

    assert scaler.observe(loads(3.0)[0]) is None
    decision = scaler.observe(loads(3.0)[0])

    assert decision is not None
    assert decision.instances == 4  # 3.0 keeps four at most 80 % busy
    assert "95% of 2" in decision.why


def test_nothing_is_given_back_before_a_whole_horizon_agrees():
    options = RescaleOptions(horizon=5, move_cost=1)
    scaler = Rescaler(8, options)

    assert [scaler.observe(load) for load in loads(1, 1, 1, 1)] == [None] * 4
    assert scaler.observe(loads(1)[0]).instances == 2


def test_a_saving_that_does_not_pay_for_the_move_is_left():
    scaler = Rescaler(3, RescaleOptions(horizon=5, move_cost=10))

    assert [scaler.observe(load) for load in loads(*[1.5] * 20)] == [None] * 20


def test_the_cluster_is_the_limit():
    scaler = Rescaler(2, RescaleOptions(patience=1, most=3))

    assert scaler.observe(loads(50)[0]).instances == 3
    assert scaler.observe(loads(50)[0]) is None


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
        assert decision.instances != last
        if decision.instances < last and grown_at is not None:
            assert at - grown_at >= options.horizon
        grown_at = at if decision.instances > last else grown_at
        last = decision.instances


@given(demand=st.floats(0.01, 100))
def test_a_steady_load_is_changed_for_at_most_once(demand):
    scaler = Rescaler(1)

    changes = [d for load in loads(*[demand] * 80) if (d := scaler.observe(load)) is not None]

    assert len(changes) <= 1
    assert scaler.instances >= demand


def test_options_that_would_undo_each_other_are_refused():
    with pytest.raises(DeclarationError, match="undone by the next"):
        RescaleOptions(high=0.7, low=0.9)


def test_ds2_takes_the_quotient_and_lets_a_change_settle():
    scaler = Ds2(2, Ds2Options(warm_up=1))

    decisions = [scaler.observe(load) for load in loads(2.5, 9.0, 4.2)]

    assert [d.instances if d else None for d in decisions] == [3, None, 5]


def test_ds2_takes_the_median_of_its_activation():
    scaler = Ds2(2, Ds2Options(activation=3))

    decisions = [scaler.observe(load) for load in loads(1.5, 9.0, 2.5)]

    assert [d.instances if d else None for d in decisions] == [None, None, 3]
