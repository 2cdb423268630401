"""The most throughput within a latency, against all configurations of small flows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.optimizer import optimize
from headgate.planner.tuning.prediction import Configuration, predict
from headgate_lab.planner.tuning.climb import Climb
from headgate_lab.planner.tuning.latency import HEADROOMS, fastest_in_time
from headgate_lab.planner.tuning.limits import Limits, optimize_within
from headgate_lab.planner.tuning.sharing import capped, shared
from headgate_lab.planner.tuning.trials import Trials
from unit.planner.tuning.flow_models import chain_of, chains, costs

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 1 << 16)


def two_steps(rate: float, first_s: float, second_s: float, rows_per_row: float) -> FlowModel:
    return FlowModel(
        (Step("source", source_rate=rate), Step("first", first_s), Step("second", second_s)),
        (Stream("source", "first"), Stream("first", "second", rows_per_row)),
    )


def best_in_time(flow, engine, instances, cores, target_s):
    """The highest share of all ways to share instances, with batches of many sizes."""
    trials = Trials(flow, engine, cores)
    counts = [(1,) if source else range(1, instances + 1) for source in trials.is_source]
    movable = int((~trials.is_source).sum())
    dops = [d for d in product(*counts) if sum(d) - len(d) + movable <= instances]
    sizes = [sorted({min(rows, int(most)) for rows in BATCHES}) for most in trials.largest]
    every = list(product(dops, product(*sizes)))
    told = trials.tell(np.array([d for d, _ in every]).T, np.array([b for _, b in every]).T)
    in_time = told.share[told.latency_s <= target_s]
    return float(in_time.max()) if len(in_time) else None


SMALL = {
    "flow": chains(),
    "engine": costs,
    "instances": st.integers(3, 6),
    "cores": st.none() | st.floats(0.5, 6),
    "part": st.floats(0.1, 1.5),
}
SLOW_SHIPPING = two_steps(78649.0, 1.3317855917544707e-4, 4.375842260964055e-06, 3.0)
UNSATURATED = two_steps(29964.477530766675, 3.8626968925354797e-4, 4.164853935911878e-05, 3.0)

SHIPS_TWICE = FlowModel(  # batches of both senders must grow together
    (Step("source", source_rate=3e5), Step("first", 2.5e-7), Step("second", 4.35e-6)),
    (Stream("source", "first", 0.124, 389), Stream("first", "second", 1.11, 215)),
)


@settings(max_examples=60)
@given(**SMALL)
@example(SLOW_SHIPPING, EngineCosts(1.2301706548443586e-4, 1e-9), 6, None, 0.1)
@example(SHIPS_TWICE, EngineCosts(9.18e-4, 0.0, message_bytes_max=8448), 5, None, 0.95)
@example(UNSATURATED, EngineCosts(4.5936578952509053e-4, 1e-9), 3, None, 0.3)
def test_no_configuration_in_time_lets_5_percent_more_through(flow, engine, instances, cores, part):
    """Against brute force; the target is a part of what the paper's configuration takes."""
    target_s = part * optimize(flow, engine).prediction.latency_s
    tuned = optimize_within(flow, engine, Limits(instances, cores, target_s))

    best = best_in_time(flow, engine, instances, cores, target_s)

    told, dop = tuned.prediction, tuned.configuration.dop
    assert sum(count for name, count in dop.items() if name != "source") <= instances
    assert ("cannot be met" in tuned.why) == (told.latency_s > target_s)
    if best is not None:
        assert told.latency_s <= target_s
        assert told.share >= best / 1.05


@settings(max_examples=40)
@given(
    flow=chains(),
    engine=costs,
    target=st.floats(1e-4, 1.0),
    cores=st.none() | st.integers(1, 16),
)
def test_it_is_never_much_below_all_steps_alike(flow, engine, target, cores):
    """Against every cap of batches with every headroom."""
    caps = [capped(flow, engine, 2**k) for k in range(17)]
    rooms = (*HEADROOMS, 4.0, 16.0)
    every = [shared(flow, engine, cap, None, cores, room) for cap in caps for room in rooms]
    told = [predict(flow, engine, configuration, cores) for configuration in every]
    in_time = [p.share for p in told if p.latency_s <= target]

    chosen = fastest_in_time(flow, engine, instances=None, cores=cores, target_s=target)

    found = predict(flow, engine, chosen, cores)
    if in_time:
        assert found.latency_s <= target
        assert found.share >= max(in_time) / 1.01
    else:
        assert found.latency_s <= 1.05 * min(p.latency_s for p in told) * (1 + 1e-6)


ONE_SLOW_STEP = FlowModel(
    (Step("source", source_rate=1000.0), Step("op", 0.01)), (Stream("source", "op"),)
)


@pytest.mark.parametrize("target_s", [0.02, 0.0125, 0.0115, 0.0108, 0.0105, 0.0102])
def test_instances_are_added_until_the_target_is_met(target_s):
    """A row takes 10 ms, and ten instances keep up: twice as many halve the time that it waits."""
    engine = EngineCosts(1e-4, 1e-9)

    tuned = optimize_within(ONE_SLOW_STEP, engine, Limits(latency_s=target_s))

    assert tuned.prediction.share == 1.0
    assert tuned.prediction.latency_s <= target_s
    chosen = tuned.configuration
    fewer = Configuration({**chosen.dop, "op": int(0.95 * chosen.dop["op"])}, chosen.batch_rows)
    assert predict(ONE_SLOW_STEP, engine, fewer).latency_s > target_s


def test_a_target_below_the_work_of_a_row_costs_no_thousands_of_instances():
    tuned = optimize_within(ONE_SLOW_STEP, EngineCosts(1e-4, 1e-9), Limits(latency_s=0.005))

    assert "cannot be met" in tuned.why
    assert tuned.prediction.latency_s <= 1.05 * 0.0102
    assert tuned.configuration.dop["op"] < 200


def test_the_last_bit_to_the_target_is_not_too_little():
    """A second instance takes 0.04 % off the latency, and the target is halfway."""
    flow = FlowModel((Step("source", source_rate=2.0), Step("op", 4e-4)), (Stream("source", "op"),))
    engine = EngineCosts(2e-5, 0.0)
    one, two = (
        predict(flow, engine, Configuration({"source": 1, "op": n}, {"source": 1, "op": 1}))
        for n in (1, 2)
    )
    assert two.latency_s > 0.999 * one.latency_s
    target_s = (one.latency_s + two.latency_s) / 2

    tuned = optimize_within(flow, engine, Limits(instances=3, latency_s=target_s))

    assert tuned.prediction.latency_s <= target_s


def test_an_instance_limit_ends_the_search_for_less_latency():
    limits = Limits(instances=25, latency_s=0.0105)

    tuned = optimize_within(ONE_SLOW_STEP, EngineCosts(1e-4, 1e-9), limits)

    assert tuned.configuration.dop["op"] <= 25
    assert "cannot be met" in tuned.why


def test_a_search_has_so_many_rounds_and_no_more():
    trials = Trials(chain_of(60), EngineCosts(1e-4, 1e-9))
    start = trials.point(np.ones(61, np.int64), np.where(trials.largest > 1, 64, 1))
    climb = Climb(trials, 100, rounds=3)

    found = climb.to_latency(start, 0.1, 0.0)

    assert climb.rounds == 0
    assert found.latency_s < start.latency_s
    assert found.dop.sum() <= 101
    assert climb.to_latency(found, 0.1, 0.0) is found


def test_two_paths_of_one_length_are_both_shortened():
    flow = FlowModel(
        (Step("source", source_rate=1e3), *(Step(name, 9e-4) for name in ("left", "right"))),
        (Stream("source", "left"), Stream("source", "right")),
    )
    engine = EngineCosts(1e-6, 0.0)
    limits = Limits(instances=8, latency_s=1.2e-3)

    tuned = optimize_within(flow, engine, limits)

    assert tuned.prediction.share == 1.0
    assert tuned.prediction.latency_s <= 1.2e-3
