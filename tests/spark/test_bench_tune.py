"""Flows of `bench tune` on a real session: throughput, and latency while rows come evenly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.runtime.auto import ProbeSizes
from headgate.slot.latency import ERROR
from headgate_lab.bench.choosing import parallelism_of
from headgate_lab.bench.flow_runs import LOAD, Ground, Setting
from headgate_lab.bench.predict import QUICK as PREDICT
from headgate_lab.bench.predict import run_predict
from headgate_lab.bench.sax import QUICK, run_sax
from headgate_lab.bench.sax_page import page
from headgate_lab.bench.tune import CONFIGURATIONS, TuneOptions, run_tune
from headgate_lab.bench.tune_costly import costly_options, run_costly
from headgate_lab.bench.tune_curves import CurveOptions, run_curves
from headgate_lab.bench.tune_flows import flow_named

FEW = ProbeSizes(messages=50, mega_bytes=1, levels=2, rounds=1, warm_ups=1)
EPOCH_S = 0.4


def silent(text: str) -> None:
    """Nobody listens."""


def test_latency_counts_from_the_arrival_of_rows_that_come_evenly(
    spark: SparkSession, tmp_path: Path
) -> None:
    ground, setting = Ground(spark, tmp_path), Setting(2, None, 400)

    found = ground.run_steadily(flow_named("costly", 7), setting, EPOCH_S, epochs=2, warmup=1)

    apart_ms = 1e3 * EPOCH_S / LOAD
    assert len(found.p95_ms) == 2
    assert found.rate == pytest.approx(LOAD * 400 / EPOCH_S)
    for p50, p95 in zip(found.p50_ms, found.p95_ms, strict=True):
        assert p95 > 0.95 * apart_ms * 0.97  # the first rows had come so long before the last
        read_off_ms = ERROR * (p50 + p95)  # much, where a busy machine let them wait for long
        off_ms = max(0.1 * apart_ms, read_off_ms)
        assert abs(p95 - p50 - 0.45 * apart_ms) < off_ms  # all others wait for the same
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]  # no checkpoint is left


def test_a_run_is_timed_without_its_first_epochs(spark: SparkSession, tmp_path: Path) -> None:
    ground, flow = Ground(spark, tmp_path), flow_named("costly", 7)

    timed = ground.run_once(flow, Setting(2, 50, 200), epochs=3, warmup=1)
    facts = ground.probe(flow, Setting(1, None, 0), (20, 40))

    assert len(timed.seconds) == 2 and timed.rows_per_s > 0
    assert [e.rows for e in timed.epochs] == [200, 200, 200]
    assert timed.epochs[0].batches["spout->costly"].tuples == 4  # 50 rows of each task to each slot
    assert [e.rows for e in facts] == [20, 40] and facts[0].slots == 1


def test_operators_have_the_instances_of_a_setting(spark: SparkSession, tmp_path: Path) -> None:
    flow = flow_named("costly", 7)
    setting = Setting(3, None, 60, {"costly": 3, "by_a": 2, "by_b": 1})

    facts = Ground(spark, tmp_path).run_once(flow, setting, epochs=1, warmup=0).epochs[0]

    counts = {name: len(slots) for name, slots in facts.instances.items()}
    assert counts == {"by_a": 2, "by_b": 1, "total": 1}
    assert parallelism_of(flow, setting) == {"costly": 3, **counts}


@pytest.mark.slow
def test_a_tiny_search_over_instances_tells_all_it_promises(spark: SparkSession) -> None:
    options = replace(
        costly_options(quick=True), rows=60, probe_rows=(20, 60, 20, 60), probe_sizes=FEW
    )

    found = run_costly(options, silent)

    names = {"uniform_best", "optimized", "search_best"}
    for name in ("rows_per_s", "latency_p95_ms", "predicted_rows_per_s"):
        assert set(found[name]) == names and min(found[name].values()) > 0
    assert found["uniform_best_slots"] in options.uniform and found["uniform_best_rows_per_s"] > 0
    assert set(found["parallelism"]) == {"costly", "by_a", "by_b", "total"}
    assert len(found["tried"]["uniform"]) == 2 and len(found["tried"]["search"]) >= 3


@pytest.mark.slow
def test_predictions_are_compared_with_what_was_measured(spark: SparkSession) -> None:
    found = run_predict(replace(PREDICT, epoch_work_s=0.02, probe_sizes=FEW), silent)

    assert len(found["flows"]) == 2 and set(found["errors"]) == set(found["goals"])
    for flow in found["flows"]:
        predicted, measured = flow["predicted"]["rows_per_s"], flow["measured"]["rows_per_s"]
        assert flow["error"]["rows_per_s"] == pytest.approx(abs(predicted - measured) / measured)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["linear-road", "sentiment"])
def test_a_tiny_bench_tells_all_it_promises(spark: SparkSession, flow: str) -> None:
    options = TuneOptions(
        flow,
        probe_rows=(20, 40, 20, 40),
        single_rows=40,
        epochs=2,
        rounds=1,
        grid_slots=(2,),
        grid_batch=(None,),
        grid_rows=(100,),
        latency_epochs=1,
        probe_sizes=FEW,
        simulated_messages=500,
    )

    found = run_tune(options, silent)

    for name in ("rows_per_s", "latency_ms", "latency_p95_ms", "predicted_rows_per_s"):
        assert set(CONFIGURATIONS) <= set(found[name]) and min(found[name].values()) > 0
    assert found["uniform_best_rows_per_s"] > 0
    assert min(found["parallelism"].values()) >= 1
    assert set(found["optimize_seconds_by_operators"]) == {"25", "50", "100", "200"}


@pytest.mark.slow
def test_tiny_curves_have_measured_and_predicted_points(spark: SparkSession) -> None:
    options = CurveOptions(
        "sentiment",
        batch_rows=(1, None),
        batch_curve_rows=40,
        rows_per_epoch=(20, 160),
        epochs=2,
        rounds=1,
        latency_epochs=1,
        probe_rows=(10, 20, 10, 20),
        probe_sizes=FEW,
    )

    found = run_curves(options, silent)

    assert [p["batch_rows"] for p in found["curves"]["batch_rows"]] == [1, None]
    assert [p["rows_per_epoch"] for p in found["curves"]["rows_per_epoch"]] == [20, 160]
    for points in found["curves"].values():
        assert all(p["rows_per_s"] > 0 and p["predicted_latency_p95_ms"] > 0 for p in points)


@pytest.mark.slow
def test_tiny_tables_and_figures_of_the_paper(spark: SparkSession) -> None:
    found = run_sax(QUICK, silent)

    for name, told in found["flows"].items():
        series = told["figures"]["emitted"]["optimized"]
        assert series["rows"] == sorted(series["rows"]) and series["rows"][-1] > 0
        assert told["figures"]["emitted"]["not_optimized"]["rows"][-1] > told["figures"]["rows"]
        assert set(told["tables"]["algorithm_1"]["dop"]) == set(told["paper"]["tables"][0]["dop"])
        assert name in ("linear-road", "sentiment")
    assert "Algorithm 1" in page(found)
