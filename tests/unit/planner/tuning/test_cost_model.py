from __future__ import annotations

import pytest

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate_lab.papers.paper_flows import linear_road
from headgate_lab.planner.tuning.prediction import ship_s


def test_a_batch_shares_the_fixed_cost_of_its_message():
    costs = EngineCosts(message_s=1e-3, byte_s=1e-6)

    assert ship_s(costs, 100, 1) == pytest.approx(1.1e-3)
    assert ship_s(costs, 100, 10) == pytest.approx(0.2e-3)


def test_rates_follow_the_rows_that_each_step_makes():
    rates = linear_road(1_000_000).rate_in

    assert rates == pytest.approx(
        {"spout": 1e6, "parse": 1e6, "agg": 1e6, "mv": 100, "block": 100, "toll": 100}
    )


def test_costs_survive_json():
    costs = EngineCosts(1e-4, 8e-9, task_s=0.01, epoch_s=0.3, message_bytes_max=8 << 20)

    assert EngineCosts.from_json(costs.to_json()) == costs


@pytest.mark.parametrize(
    ("steps", "streams"),
    [
        ((Step("a", source_rate=1), Step("a")), ()),
        ((Step("a", source_rate=1),), (Stream("a", "b"),)),
        ((Step("a", source_rate=1), Step("b")), ()),
        ((Step("a", source_rate=1), Step("b")), (Stream("a", "b"), Stream("b", "a"))),
        (
            (Step("a", source_rate=1), Step("b"), Step("c")),
            (Stream("a", "b"), Stream("b", "c"), Stream("c", "b")),
        ),
    ],
)
def test_what_is_no_flow_is_refused(steps, streams):
    with pytest.raises(DeclarationError):
        FlowModel(steps, streams)


def test_negative_costs_are_refused():
    with pytest.raises(DeclarationError):
        EngineCosts(-1.0, 0.0)
