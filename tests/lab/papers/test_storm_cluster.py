"""The simulated cluster against the model, and the shapes of the paper's figures."""

from __future__ import annotations

import pytest

from headgate.planner.tuning.optimizer import optimize
from headgate.planner.tuning.prediction import predict
from headgate_lab.papers.paper_flows import (
    CORES,
    SPOUT_LIMIT,
    STORM,
    linear_road,
    run_storm,
    sentiment,
)
from headgate_lab.papers.storm_cluster import simulate
from headgate_lab.planner.tuning.configurations import four_configurations, unbatched

MESSAGES = 4_000


def test_the_simulated_rates_are_those_of_the_model():
    flow = linear_road(SPOUT_LIMIT)
    tuned = optimize(linear_road(), STORM).configuration
    for name, chosen in four_configurations(flow, tuned).items():
        found = simulate(flow, STORM, chosen, messages=MESSAGES).rows_per_s
        assert found == pytest.approx(predict(flow, STORM, chosen).rows_per_s, rel=0.35), name


def test_linear_road_has_the_shape_of_figure_3():
    """Batching 6 to 18 times, another 3 with parallelism; without batching nothing helps."""
    found = run_storm("linear-road", messages=MESSAGES)

    ratios, rate = found["ratios"], found["rows_per_s"]
    assert 12 < ratios["optimized_over_single_tuples"] < 24
    assert 4 < ratios["only_batching_over_single_tuples"] < 8
    assert 2 < ratios["optimized_over_only_batching"] < 4
    assert rate["no_batching"] < 1.4 * rate["not_optimized"]
    assert found["latency_ms"]["optimized"] > found["latency_ms"]["no_batching"]


def test_sentiment_has_the_shape_of_figure_3():
    """Parallelism more than 10 times, batching on its own next to nothing."""
    found = run_storm("sentiment", messages=MESSAGES)

    rate = found["rows_per_s"]
    assert rate["no_batching"] > 10 * rate["not_optimized"]
    assert rate["optimized"] > 10 * rate["only_batching"]
    assert found["ratios"]["only_batching_over_single_tuples"] == pytest.approx(1.0, rel=0.1)


def test_on_48_cores_batching_saves_some_of_them_for_rows():
    """Once queues are full, which takes long to simulate, cores are what counts."""
    flow = sentiment()
    tuned = optimize(flow, STORM).configuration
    with_it = predict(flow, STORM, tuned, CORES).rows_per_s

    assert with_it > predict(flow, STORM, unbatched(tuned), CORES).rows_per_s
