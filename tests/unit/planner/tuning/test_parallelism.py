"""The search over instances against all combinations, and how much it asks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.groups import Groups
from headgate.planner.tuning.parallelism import InstanceSearch, instances_of_paper
from headgate.planner.tuning.tuned import tune_epochs
from headgate_lab.papers.paper_flows import STORM, linear_road


def random_model(seed: int, operators_max: int = 4) -> EpochModel:
    """A flow of up to so many operators: chains and branches, work and waiting, near and far."""
    rng = Random(seed)
    count = rng.randint(1, operators_max)
    names = ["source", *(f"op{n}" for n in range(count))]
    steps = [Step("source", rng.choice([0.0, 1e-6, 1e-5]), source_rate=1.0, at_source=True)]
    streams: list[Stream] = []
    for number, name in enumerate(names[1:]):
        ppt = 10 ** rng.uniform(-7, -3.5)
        steps.append(
            Step(
                name,
                ppt,
                wait_s=ppt * rng.choice([0.0, 0.0, 0.5, 0.95, 1.0]),
                instance_s=rng.choice([0.0, 0.0, 1e-3, 1e-2]),
                instances=1 if rng.random() < 0.15 else None,
                everywhere=rng.random() < 0.05,
                ordered=rng.random() < 0.1,
            )
        )
        before = names[: number + 1]
        for producer in rng.sample(before, k=min(len(before), rng.choice([1, 1, 1, 2]))):
            sends = producer == "source" or rng.random() < 0.85
            streams.append(
                Stream(
                    producer,
                    name,
                    10 ** rng.uniform(-2, 0.3),
                    10 ** rng.uniform(1, 3),
                    remote_share=1.0 if producer == "source" else rng.uniform(0, 1),
                    sends=sends,
                    between_slots=sends and producer != "source",
                )
            )
    flow = FlowModel(tuple(steps), tuple(streams))
    costs = EngineCosts(
        2e-5, 16e-9, 10 ** rng.uniform(-2.5, -0.5), 0.2, message_bytes_max=8 << 20, level_s=0.05
    )
    levels = max((group.home for group in Groups(flow, 1_000).of), default=1)
    cores = rng.choice([2, 4, 8, 12])
    return EpochModel(
        flow,
        costs,
        levels,
        cores,
        cpus=rng.choice([2, cores]),
        source_tasks=rng.choice([1, 2, 4]),
        slots_seen=cores,
    )


def best_of_all(engine: EpochModel, slots: int, rows: int) -> float:
    """The shortest epoch of all combinations of instances, by `predict`."""
    counts = [
        range(1, slots + 1) if group.is_free else [group.count(slots, slots)]
        for group in engine.groups.of
    ]
    names = [group.name for group in engine.groups.of]
    return min(
        engine.predict(EpochSettings(slots, rows, {}, dict(zip(names, every, strict=True)))).epoch_s
        for every in product(*counts)
    )


@given(seed=st.integers(0, 10**6), slots=st.integers(1, 3), rows=st.integers(100, 10**6))
def test_what_is_chosen_is_within_five_percent_of_the_best_of_all(seed, slots, rows):
    engine = random_model(seed)
    chosen = tune_epochs(engine, slots=slots, rows_max=rows)

    mine = engine.predict(replace(chosen.settings, batch_rows={}))
    best = best_of_all(engine, slots, chosen.settings.rows_per_epoch)
    assert mine.epoch_s <= 1.05 * best


def columns_of(engine: EpochModel, slots: int) -> np.ndarray:
    groups = engine.groups.of
    counts = [range(1, slots + 1) if g.is_free else [g.count(slots, slots)] for g in groups]
    return np.array(list(product(*counts)), np.int64).reshape(-1, len(groups)).T


def test_step_by_step_the_search_comes_close_too():
    """As in a flow that is too large to try all: 300 seeded flows, of up to 8 slots."""
    ratios = []
    for seed in range(300):
        engine, slots = random_model(seed), Random(seed).randint(1, 8)
        times, rows = engine.times(slots), 10 ** Random(-seed).uniform(2, 6.5)
        search = InstanceSearch(times, rows, {})
        found = float(times.of(search.descended(), rows, {}).epoch_s[0])
        ratios.append(found / float(times.of(columns_of(engine, slots), rows, {}).epoch_s.min()))

    assert np.quantile(ratios, 0.98) <= 1.01
    assert max(ratios) <= 1.1


def chain(count: int) -> EpochModel:
    """So many operators in a row, every fifth ten times as costly, and waiting."""
    names = ["source", *(f"op{n}" for n in range(count))]
    steps = [
        Step(name, 1e-5 if n % 5 == 0 else 1e-6, wait_s=9e-6 if n % 5 == 0 else 0.0)
        for n, name in enumerate(names[1:])
    ]
    streams = [
        Stream(a, b, 1, 50, between_slots=a != "source", remote_share=0.9)
        for a, b in pairwise(names)
    ]
    flow = FlowModel((Step("source", 1e-6, source_rate=1.0), *steps), tuple(streams))
    costs = EngineCosts(2e-5, 16e-9, 0.05, 0.2, message_bytes_max=8 << 20, level_s=0.05)
    return EpochModel(flow, costs, count, 12, cpus=2, source_tasks=2, slots_seen=12)


def asked_for(count: int) -> int:
    search = InstanceSearch(chain(count).times(12), 1e5, {})
    search.fewest(search.best())
    return search.asked


@pytest.mark.parametrize("count", [50, 100, 200])
def test_questions_to_the_model_grow_linearly_with_the_flow(count):
    """Some for every operator, whatever their number: 3 to 7."""
    assert asked_for(count) <= 8 * count + 100


def test_costly_operators_of_a_long_chain_get_more_instances():
    engine = chain(100)
    times = engine.times(12)
    search = InstanceSearch(times, 1e6, {})

    counts = dict(zip(times.names, search.fewest(search.best())[:, 0].tolist(), strict=True))

    costly = [counts[f"op{n}"] for n in range(0, 100, 5)]
    cheap = [counts[f"op{n}"] for n in range(100) if n % 5]
    assert min(costly) > 2 and np.mean(costly) > 1.5 * np.mean(cheap)


def test_fewer_instances_cost_no_more_than_was_spared():
    for seed in range(100):
        times = random_model(seed).times(6)
        search = InstanceSearch(times, 1e5, {})
        best = search.best()
        fewest = search.fewest(best)
        seconds = times.of(np.concatenate([best, fewest], axis=1), 1e5, {}).epoch_s

        assert (fewest <= best).all()
        assert seconds[1] <= seconds[0] * 1.0201


def test_declared_instances_are_left_alone():
    flow = FlowModel(
        (
            Step("source", source_rate=1.0),
            Step("two", 1e-3, instances=2),
            Step("every", 1e-9, everywhere=True),
            Step("free", 1e-3),
        ),
        (Stream("source", "two"), Stream("source", "every"), Stream("source", "free")),
    )
    times = EpochModel(flow, EngineCosts(0.0, 0.0), 1, 8).times(8)
    search = InstanceSearch(times, 1e4, {})

    counts = dict(zip(times.names, search.fewest(search.best())[:, 0].tolist(), strict=True))

    assert counts["two"] == 2 and counts["every"] == 8 and counts["free"] > 1


def test_the_search_begins_with_table_1_of_the_paper():
    """The paper's inputs, in groups: parse, agg, mv, toll and block behind the spout."""
    flow = linear_road()
    told = instances_of_paper(Groups(flow, 100), STORM, flow.rate_in["spout"])

    assert {name: told[name] for name in ("parse", "agg", "mv", "toll", "block")} == {
        "parse": 20,
        "agg": 7,
        "mv": 1,
        "toll": 1,
        "block": 1,
    }


@pytest.mark.parametrize("slots", [1, 20, 40])
def test_many_slots_are_searched_in_steps(slots):
    engine = replace(random_model(3), cores=40, cpus=40)
    search = InstanceSearch(engine.times(slots), 1e6, {})

    assert search.best().max() <= slots
