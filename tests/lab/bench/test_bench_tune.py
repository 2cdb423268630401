"""The bench of batch size and parallelism: the paper's configurations, flows that compile."""

from __future__ import annotations

import pytest

from headgate.slot.plan import batching_of
from headgate_lab.bench.choosing import p95_s, parallelism_of
from headgate_lab.bench.flow_runs import LOAD, Setting
from headgate_lab.bench.optimize_time import chain_of, optimize_times
from headgate_lab.bench.tune import (
    CONFIGURATIONS,
    NAMES,
    four_settings,
    is_same,
    options_for,
    ratios,
)
from headgate_lab.bench.tune_curves import curves_for
from headgate_lab.bench.tune_flows import flow_named


def test_the_four_configurations_are_the_papers() -> None:
    tuned = Setting(4, {"a->b": 500}, 90_000, parallelism={"a": 3})

    found = four_settings(tuned, single_rows=100)

    assert tuple(found) == CONFIGURATIONS
    assert found["optimized"] == tuned
    assert found["not_optimized"] == Setting(1, 1, 100)
    assert found["no_batching"] == Setting(4, 1, 100, {"a": 3})
    assert found["only_batching"] == Setting(1, {"a->b": 500}, 90_000)


def test_ratios_compare_with_each_and_with_the_grid() -> None:
    rates = {"optimized": 90.0, "not_optimized": 3.0, "no_batching": 5.0, "only_batching": 60.0}

    assert ratios(rates, grid_best=100.0) == {
        "optimized_over_not_optimized": 30.0,
        "optimized_over_no_batching": 18.0,
        "optimized_over_only_batching": 1.5,
        "optimized_over_grid_best": 0.9,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_flows_compile_and_take_a_batch_size_on_every_exchange(name: str) -> None:
    program = flow_named(name, seed=1).program

    batching = batching_of(program.graph, 1)
    exchanging = {e.id for e in program.graph.edges if e.exchanges}
    assert set(batching.rows) == exchanging
    assert program.levels == {"linear-road": 4, "sentiment": 1}[name]


@pytest.mark.parametrize(
    ("best", "same"),
    [
        (Setting(2, None, 100), True),
        (Setting(2, 10, 100), False),
        (Setting(4, None, 100), False),
        (Setting(2, None, 50), False),
    ],
)
def test_a_grid_whose_best_is_the_optimizers_own_setting_is_told(best: Setting, same: bool) -> None:
    assert is_same(Setting(2, {"a->b": 8_388_608}, 100), best) is same


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_reaches_as_far_as_the_optimizer_may_go(name: str) -> None:
    options = options_for(name)

    assert max(options.grid_rows) == options.rows_max


@pytest.mark.parametrize("name", NAMES)
def test_quick_is_smaller(name: str) -> None:
    quick, full = options_for(name, quick=True), options_for(name)

    assert quick.flow == full.flow == name
    assert quick.rows_max < full.rows_max and quick.rounds <= full.rounds


@pytest.mark.parametrize("name", NAMES)
def test_curves_end_with_the_largest_epoch_the_optimizer_may_choose(name: str) -> None:
    full, quick = curves_for(name), curves_for(name, quick=True)

    assert full.flow == quick.flow == name
    assert full.rows_per_epoch[-1] == full.rows_max and full.batch_rows[-1] is None
    assert list(full.rows_per_epoch) == sorted(full.rows_per_epoch)
    assert max(quick.rows_per_epoch) < full.batch_curve_rows


def test_instances_are_told_for_operators_only() -> None:
    found = parallelism_of(flow_named("costly", seed=1), Setting(12, None, 100, {"by_a": 2}))
    chained = parallelism_of(flow_named("sentiment", seed=1), Setting(4, None, 100, {"filter": 3}))

    assert found == {"costly": 12, "by_a": 2, "by_b": 12, "total": 1}
    assert len(chained) == 15 and set(chained.values()) == {3}


def test_nearly_all_rows_wait_for_less_than_the_time_between_epochs_and_their_own() -> None:
    """Ranks of evenly spread rows: the last 5 % of an epoch's time come too late to count."""
    waits = [(1 - (row + 0.5) / 1_000) / LOAD for row in range(1_000)]

    assert p95_s(1.0) == pytest.approx(sorted(waits)[949] + 1.0, rel=1e-3)


def test_the_optimizer_is_timed_by_the_number_of_operators() -> None:
    seen: list[int] = []

    found = optimize_times(lambda model: seen.append(len(model.flow.steps)), (2, 4))

    assert list(found) == ["2", "4"] and min(found.values()) >= 0
    assert set(seen) == {3, 5}
    assert chain_of(6, cores=2, seed=1).levels == 2
