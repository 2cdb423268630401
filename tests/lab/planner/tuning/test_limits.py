"""Sharing what is there, against every other way of sharing it."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import DeclarationError
from headgate.planner.tuning.optimizer import optimize
from headgate.planner.tuning.prediction import Configuration, predict, work_of
from headgate_lab.papers.paper_flows import STORM, linear_road
from headgate_lab.planner.tuning.limits import Limits, optimize_within
from unit.planner.tuning.flow_models import chains, costs


def movable(flow):
    return [s.name for s in flow.steps if not s.is_source]


def best_share(flow, engine, instances):
    """Brute force over all ways to share, with batches as large as may be."""
    names = movable(flow)
    largest = dict.fromkeys(flow.order, engine.message_bytes_max)
    shares = []
    for counts in product(range(1, instances + 1), repeat=len(names)):
        if sum(counts) <= instances:
            dop = {"source": 1, **dict(zip(names, counts, strict=True))}
            shares.append(predict(flow, engine, Configuration(dop, largest)).share)
    return max(shares)


@settings(max_examples=40)
@given(flow=chains(), engine=costs, instances=st.integers(3, 7))
def test_no_other_sharing_of_instances_is_faster(flow, engine, instances):
    tuned = optimize_within(flow, engine, Limits(instances=instances))

    used = sum(tuned.configuration.dop[name] for name in movable(flow))
    assert used <= instances
    assert tuned.prediction.share >= best_share(flow, engine, instances) * (1 - 1e-6)


@settings(max_examples=40)
@given(flow=chains(), engine=costs, instances=st.integers(3, 20))
def test_one_more_instance_never_slows_the_flow(flow, engine, instances):
    few = optimize_within(flow, engine, Limits(instances=instances)).prediction.share
    more = optimize_within(flow, engine, Limits(instances=instances + 1)).prediction.share

    assert more >= few * (1 - 1e-6)


@settings(max_examples=40)
@given(flow=chains(), engine=costs, cores=st.integers(1, 16))
def test_cores_are_never_overbooked_and_hardly_wasted(flow, engine, cores):
    tuned = optimize_within(flow, engine, Limits(cores=cores))

    busy = sum(s.busy * tuned.configuration.dop[n] for n, s in tuned.prediction.steps.items())
    assert busy <= cores * (1 + 1e-6)
    largest = dict.fromkeys(flow.order, engine.message_bytes_max)
    plenty = {s.name: 1 if s.is_source else 10**6 for s in flow.steps}
    at_best = predict(flow, engine, Configuration(plenty, largest), cores).share
    assert tuned.prediction.share >= at_best * 0.985


def test_without_need_the_papers_own_configuration_is_kept():
    flow = linear_road()

    tuned = optimize_within(flow, STORM, Limits(instances=30, cores=48, latency_s=10))

    assert tuned.configuration == optimize(flow, STORM).configuration


@settings(max_examples=40)
@given(flow=chains(), engine=costs, target=st.floats(1e-4, 1.0))
def test_a_latency_target_is_met_or_said_to_be_out_of_reach(flow, engine, target):
    tuned = optimize_within(flow, engine, Limits(latency_s=target))

    assert tuned.prediction.latency_s <= target or "cannot be met" in tuned.why


def test_latency_is_bought_with_throughput():
    flow = linear_road()
    targets = (0.001, 0.005, 0.05, 1.0)
    told = [optimize_within(flow, STORM, Limits(latency_s=t)).prediction for t in targets]

    assert all(p.latency_s <= t for p, t in zip(told, targets, strict=True))
    rates = [p.rows_per_s for p in told]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_fewer_instances_than_steps_are_refused_with_a_way_out():
    with pytest.raises(DeclarationError, match="Limit cores instead"):
        optimize_within(linear_road(), STORM, Limits(instances=3))


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(DeclarationError, match="above zero"):
        Limits(cores=0)


def test_a_limit_that_is_no_number_is_refused():
    with pytest.raises(DeclarationError, match="above zero"):
        Limits(latency_s=float("nan"))


@settings(max_examples=40)
@given(
    flow=chains(),
    engine=costs,
    instances=st.none() | st.integers(3, 12),
    cores=st.none() | st.floats(0.5, 8),
    target=st.floats(1e-4, 1.0),
)
def test_reasons_agree_with_what_is_chosen(flow, engine, instances, cores, target):
    """Nobody is said to be enough who is always busy, nor to be left few by a limit who is not."""
    limits = Limits(instances, cores, target)

    tuned = optimize_within(flow, engine, limits)

    if tuned.configuration == optimize(flow, engine).configuration:
        return  # with the paper's reasons
    work = work_of(flow, engine, tuned.configuration.batch_rows)
    for choice in tuned.choices:
        if choice.name == "source":
            continue
        if "the limits leave" in choice.why:
            assert choice.busy >= 1 - 1e-5
            assert choice.dop < work[choice.name]
        elif "for what gets through" in choice.why:
            assert choice.busy < 1
        else:
            assert choice.dop >= work[choice.name] * (1 - 1e-6)
        fewest = max(1, math.ceil(work[choice.name] * (1 - 1e-9)))
        assert ("so that rows wait less" in choice.why) == (choice.dop > fewest)
