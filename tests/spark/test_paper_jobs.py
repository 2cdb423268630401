"""`bench balance --spark` and `bench albic --spark`, tiny: real tasks, planned from the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate_lab.bench.jobs_on_spark import (
    QUICK_ALBIC,
    QUICK_BALANCE,
    run_albic_on_spark,
    run_balance_on_spark,
)

NOWHERE = Path("no-such-file.parquet")


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.mark.usefixtures("planned_between")
def test_slots_of_the_edits_job_are_evened_within_the_budget(spark: SparkSession) -> None:
    options = replace(QUICK_BALANCE, planners=("milp",), periods=3)
    found = run_balance_on_spark(options, silent, NOWHERE, spark)

    assert found["equal_to_a_plain_fold"]
    lines = found["raw"]["milp"]
    assert len(lines) == 3
    assert 0 < max(line["moves"] for line in lines) <= options.units_max
    assert sum(line["moved_rows"] for line in lines) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("planned_between")
def test_flights_come_together_under_a_planner_and_not_without(spark: SparkSession) -> None:
    found = run_albic_on_spark(QUICK_ALBIC, silent, NOWHERE, spark)

    assert found["collocation_factor"]["headgate"] > found["collocation_factor"]["hash"] + 0.1
    assert max(line["moves"] for line in found["raw"]["headgate"]) <= QUICK_ALBIC.units_max
    assert found["moves"]["hash"] == 0
    assert found["load_index"]["hash"] == 100
