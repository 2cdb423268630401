"""Which operators share their instances, and in which levels they work."""

from __future__ import annotations

import pytest

from headgate.planner.tuning.cost_model import FlowModel, Step, Stream
from headgate.planner.tuning.groups import Groups

FLOW = FlowModel(
    (
        Step("source", 1e-6, source_rate=10.0),
        Step("parse", 2e-6, at_source=True),
        Step("a", 1e-5, wait_s=4e-6),
        Step("b", 3e-5, instances=1),
        Step("mapped", 2e-5),
        Step("sink"),
    ),
    (
        Stream("source", "parse", sends=False),
        Stream("parse", "a", 2.0, 10),
        Stream("parse", "b", 1.0, 30),
        Stream("a", "b", 0.5, 10, between_slots=True),
        Stream("a", "mapped", 1.0, sends=False),
        Stream("mapped", "sink", sends=False),
        Stream("b", "sink", sends=False),
    ),
)


def test_what_follows_without_an_exchange_belongs_to_the_group():
    groups = Groups(FLOW, 2)

    a, b = groups.of
    assert (a.name, a.home, a.last) == ("a", 1, 1)
    assert (b.name, b.home, b.last, b.fixed) == ("b", 2, 2, 1)
    assert a.cpu_s == pytest.approx(2 * (1e-5 - 4e-6 + 2e-5)) and a.wait_s == pytest.approx(8e-6)
    assert a.bytes == pytest.approx(20) and b.bytes == pytest.approx(30 + 10)
    assert groups.source_s == pytest.approx((3e-6, 0.0))


def test_rows_of_several_producers_are_processed_where_each_is():
    shares = Groups(FLOW, 2).shares

    assert shares["parse"] == {None: 1.0}
    assert shares["mapped"] == {"a": 1.0}
    assert shares["sink"] == pytest.approx({"a": 0.5, "b": 0.5})


def test_rows_arrive_a_level_behind_their_producer_and_stay_in_its_level():
    legs = {(leg.producer, leg.consumer): leg for leg in Groups(FLOW, 2).legs}

    assert legs[None, "a"].arrives == 1
    assert (legs[None, "b"].arrives, legs["a", "b"].stays, legs["a", "b"].arrives) == (1, 1, 2)
    assert legs["a", "b"].rows == pytest.approx(1.0)


def test_an_ordered_operator_takes_all_its_rows_at_home():
    steps = tuple(Step("b", ordered=True) if s.name == "b" else s for s in FLOW.steps)
    legs = Groups(FlowModel(steps, FLOW.streams), 2).legs

    assert {leg.arrives for leg in legs if leg.consumer == "b"} == {2}


def test_a_number_that_is_given_is_not_chosen():
    a, b = Groups(FLOW, 2).of

    assert a.is_free and not b.is_free
    assert [a.count(n, 4) for n in (0, 3, 9)] == [1, 3, 4]
    assert [b.count(n, 4) for n in (0, 3, 9)] == [1, 1, 1]


def test_levels_end_where_the_flow_ends():
    assert max(group.home for group in Groups(FLOW, 1).of) == 1
