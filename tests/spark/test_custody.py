"""Custody on Spark: an epoch whose books do not balance is discarded and run again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.scenario.oracle import chain
from tests.spark.feeding import Collected, check, run_case, write_case

from headgate.commit.coordinator import ATTEMPTS_MAX, EngineAborted
from headgate.errors import CustodyMismatch, EngineError
from headgate.runtime.engine import SparkEngine


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


class Runs:
    """Stands between coordinator and engine; changes the answer of chosen attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []
        self.spoil: Any = lambda plan, result: result
        real = SparkEngine.run

        def run(engine: SparkEngine, frame: Any, plan: Any, **options: Any) -> Any:
            self.seen.append((plan.epoch, plan.attempt))
            return self.spoil(plan, real(engine, frame, plan, **options))

        monkeypatch.setattr(SparkEngine, "run", run)


def one_row_less(result: Any) -> Any:
    """As if one consumer had read another attempt of its producer than all others."""
    control = next(c for c in result.controls if c.received)
    pair = min(control.received)
    control.received[pair][1] -= 1
    return result


def test_a_mismatch_discards_the_epoch_and_runs_it_again(
    runs: Runs, spark: SparkSession, tmp_path: Path
) -> None:
    case = chain(random.Random(31), epochs=3, rows=200, empty=False)
    write_case(case, tmp_path / "in")
    collected = Collected()
    bad = {(1, 0), (1, 1)}
    runs.spoil = lambda plan, result: (
        one_row_less(result) if (plan.epoch, plan.attempt) in bad else result
    )

    query = run_case(spark, case, tmp_path, collected=collected, manager=None)

    check(query, case, collected)
    assert runs.seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    journal = query.journal()
    retries = [(r["epoch"], r["attempt"]) for r in journal if r["kind"] == "retry"]
    assert retries == [(1, 0), (1, 1)]
    assert [r["attempts"] for r in journal if r["kind"] == "epoch"] == [1, 3, 1]
    assert len(collected.calls) == 3, "sinks saw only what was committed"


def test_an_epoch_that_never_settles_stops_the_flow_and_commits_nothing(
    runs: Runs, spark: SparkSession, tmp_path: Path
) -> None:
    case = chain(random.Random(32), epochs=2, rows=100, empty=False)
    write_case(case, tmp_path / "in")
    collected = Collected()
    runs.spoil = lambda plan, result: one_row_less(result) if plan.epoch == 1 else result

    with pytest.raises(CustodyMismatch) as caught:
        run_case(spark, case, tmp_path, collected=collected, manager=None)

    assert caught.value.epoch == 1
    assert runs.seen.count((1, ATTEMPTS_MAX - 1)) == 1 and len(runs.seen) == 1 + ATTEMPTS_MAX
    runs.spoil = lambda plan, result: result
    check(run_case(spark, case, tmp_path, collected=collected, manager=None), case, collected)


def test_a_job_that_spark_gives_up_is_run_again(
    runs: Runs, spark: SparkSession, tmp_path: Path
) -> None:
    """The first attempt ran to its end, and wrote all its files, before it was lost."""
    case = chain(random.Random(33), epochs=2, rows=100, empty=False)
    write_case(case, tmp_path / "in")
    collected = Collected()
    always = False

    def spoil(plan: Any, result: Any) -> Any:
        if always or plan.attempt == 0:
            raise EngineAborted("executor lost")
        return result

    runs.spoil = spoil
    query = run_case(spark, case, tmp_path, collected=collected, manager=None)

    check(query, case, collected)
    assert [r["attempts"] for r in query.journal() if r["kind"] == "epoch"] == [2, 2]
    always = True
    write_case(case, tmp_path / "in2")
    (tmp_path / "again").mkdir()
    (tmp_path / "in2").rename(tmp_path / "again" / "in")
    with pytest.raises(EngineError, match="executor lost"):
        run_case(spark, case, tmp_path / "again")
