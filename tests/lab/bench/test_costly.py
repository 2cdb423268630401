"""The flow with a costly operator and flows at random: what they compute, and who is searched."""

from __future__ import annotations

import pytest

from headgate.control.measured_flow import WARM_UP
from headgate.testing import ListSource, run
from headgate_lab.bench.costly_flow import CALLS, KEYS_B, MOVABLE, costly, service_calls
from headgate_lab.bench.flow_runs import Setting
from headgate_lab.bench.predict import (
    PAIRS,
    PAIRS_MAX,
    ROWS_MAX,
    PredictOptions,
    errors_of,
    probe_rows,
)
from headgate_lab.bench.random_flows import OPERATORS_MAX, draw, flow_of
from headgate_lab.bench.tune_costly import CostlyOptions, Try, _Search, costly_options, ratios
from headgate_lab.bench.tune_flows import flow_named

FLOWS = range(PredictOptions().flows)


def test_the_costly_flow_counts_every_key_that_was_touched() -> None:
    from headgate.flow import Flow

    rows = service_calls(300, seed=1, epoch=0)
    flow = Flow("costly")
    costly(flow.source(ListSource(CALLS, [rows.to_pylist()]), name="spout"), row_s=0.0)

    result = run(flow, slots=3)

    touched = len(set(rows["b"].to_pylist()))
    assert [row["touched"] for row in result.rows("totals")] == [touched] and touched <= KEYS_B
    assert sum(row["count"] for row in result.state("by_a")) == 300


def test_the_costly_flow_has_four_operators_and_a_level_for_each() -> None:
    program = flow_named("costly", seed=1).program

    names = [n.name for n in program.graph.nodes if n.kind not in ("source", "sink")]
    assert names == [*MOVABLE, "total"]
    assert program.levels == 4


class Hill(_Search):
    """A search whose runs are looked up: the best counts are known."""

    def __init__(self, options: CostlyOptions, peak: dict[str, int]) -> None:
        self._options, self._peak = options, peak
        self._tried = {}

    def _run(self, setting: Setting) -> Try:
        away = sum(abs(setting.parallelism[n] - count) for n, count in self._peak.items())
        return Try(setting, 100.0 - away, 0.0)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_a_search_finds_the_best_counts_and_tries_none_twice(exhaustive: bool) -> None:
    hill = Hill(CostlyOptions(), {"costly": 10, "by_a": 3, "by_b": 2})

    tried = hill.all_combinations() if exhaustive else hill.by_coordinates()

    assert max(tried, key=lambda t: t.rows_per_s).setting.parallelism == hill._peak
    counts = [tuple(t.setting.parallelism.values()) for t in tried]
    assert len(set(counts)) == len(counts)
    assert len(counts) == 100 if exhaustive else len(counts) < 30


def test_ratios_are_those_of_the_goals() -> None:
    rates = {"uniform_best": 100.0, "optimized": 120.0, "live": 110.0, "search_best": 125.0}

    assert ratios(rates) == {
        "optimized_over_uniform_best": 1.2,
        "search_best_over_uniform_best": 1.25,
        "optimized_over_search_best": 0.96,
        "live_over_uniform_best": 1.1,
        "live_over_search_best": 0.88,
    }


def test_the_quick_form_tries_few() -> None:
    quick, full = costly_options(quick=True), costly_options()

    assert full.uniform == tuple(range(1, full.slots + 1))
    assert quick.rows < full.rows and len(quick.uniform) < len(full.uniform)


@pytest.mark.parametrize("number", FLOWS)
def test_flows_at_random_compile_and_are_the_same_every_time(number: int) -> None:
    drawn = draw(number, seed=11)
    flow = flow_of(drawn, seed=11)

    assert drawn == draw(number, seed=11)
    assert 1 <= len(drawn.steps) <= OPERATORS_MAX and drawn.row_s > 0
    assert flow.program.levels >= max(1, len(drawn.keyed))
    assert flow.make(7, 0).schema == flow.schema
    sizes = probe_rows(drawn, 3.0)
    assert max(sizes) >= 4 * min(sizes) - 3 and set(sizes) == {*sizes[:WARM_UP]}


def test_flows_of_cheap_rows_are_probed_for_more_epochs() -> None:
    lengths = set()
    for number in FLOWS:
        drawn = draw(number, seed=11)
        sizes = probe_rows(drawn, 3.0)
        lengths.add(len(sizes))
        assert (len(sizes) == 1 + 2 * PAIRS) == (max(sizes) < ROWS_MAX), "those have the work"

    assert len(lengths) > 1 and max(lengths) <= 1 + 2 * PAIRS_MAX


def test_flows_at_random_differ() -> None:
    drawn = [draw(number, seed=11) for number in FLOWS]

    waits = [step.spends.wait_s > 0 for flow in drawn for step in flow.steps]
    assert {len(flow.steps) for flow in drawn} == set(range(1, OPERATORS_MAX + 1))
    assert 0.2 < sum(waits) / len(waits) < 0.8
    assert {flow.total for flow in drawn} == {False, True}


def test_errors_are_summed_up_by_their_middle_and_their_worst() -> None:
    found = errors_of([0.3, 0.1, 0.2, 0.0])

    assert found == {
        "median": pytest.approx(0.15),
        "mean": pytest.approx(0.15),
        "p90": 0.3,
        "max": 0.3,
    }
