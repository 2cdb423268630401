from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import (
    EngineCosts,
    FlowModel,
    Probe,
    Step,
    Stream,
    fit,
)
from headgate.planner.tuning.prediction import ship_s
from headgate_lab.papers.paper_flows import linear_road


def test_a_batch_shares_the_fixed_cost_of_its_message():
    costs = EngineCosts(message_s=1e-3, byte_s=1e-6)

    assert ship_s(costs, 100, 1) == pytest.approx(1.1e-3)
    assert ship_s(costs, 100, 10) == pytest.approx(0.2e-3)


def test_rates_follow_the_rows_that_each_step_makes():
    rates = linear_road(1_000_000).rate_in

    assert rates == pytest.approx(
        {"spout": 1e6, "parse": 1e6, "agg": 1e6, "mv": 100, "block": 100, "toll": 100}
    )


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


SHAPES = [
    (1, 1, 1, 0),
    (3, 1, 1, 0),
    (1, 2, 2, 0),
    (3, 2, 2, 0),
    (1, 4, 4, 0),
    (1, 2, 8_000, 64_000),
    (1, 2, 64, 64 << 20),
    (1, 2, 4_000, 32_000),
]


def probes(epoch_s, level_s, task_s, message_s, byte_s, noise=()):
    made = []
    for i, (levels, slots, messages, size) in enumerate(SHAPES):
        bare = Probe(levels, slots, 2, messages, size, 1.0)
        times = zip((epoch_s, level_s, task_s, message_s, byte_s), bare.charges, strict=True)
        seconds = sum(cost * charge for cost, charge in times)
        made.append(Probe(levels, slots, 2, messages, size, seconds * (noise[i] if noise else 1.0)))
    return made


@settings(max_examples=50)
@given(
    epoch_s=st.floats(0.01, 2),
    level_s=st.floats(1e-3, 0.2),
    task_s=st.floats(1e-3, 0.2),
    message_s=st.floats(1e-5, 1e-3),
    byte_s=st.floats(1e-10, 1e-7),
)
def test_known_costs_are_found_again(epoch_s, level_s, task_s, message_s, byte_s):
    found = fit(probes(epoch_s, level_s, task_s, message_s, byte_s), 8 << 20)

    costs = found.costs
    assert costs.message_s == pytest.approx(message_s, rel=1e-3)
    assert costs.byte_s == pytest.approx(byte_s, rel=1e-3)
    assert costs.epoch_s == pytest.approx(epoch_s, rel=1e-3, abs=1e-6)
    assert costs.task_s == pytest.approx(task_s, rel=1e-3)
    assert costs.level_s == pytest.approx(level_s, rel=1e-3)
    assert found.error < 1e-6


@settings(max_examples=50)
@given(noise=st.lists(st.floats(0.9, 1.1), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_noise_never_makes_a_cost_negative(noise):
    found = fit(probes(0.3, 0.05, 0.02, 1e-4, 5e-9, noise), 8 << 20)

    assert min(found.costs.message_s, found.costs.byte_s, found.costs.task_s) >= 0
    assert found.costs.message_s == pytest.approx(1e-4, rel=0.6)
    assert found.error < 0.2


def test_too_few_probes_are_refused():
    with pytest.raises(DeclarationError, match="make more"):
        fit(probes(1, 1, 1, 1, 1)[:4], 1)
