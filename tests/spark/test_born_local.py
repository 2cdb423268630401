"""Born local on Spark: partials cross its shuffle and are merged before the epoch ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.scenario.born_local import born_local, deep
from tests.scenario.oracle import random_table
from tests.spark.feeding import Collected, check, run_case, write_case

from headgate.commit.epoch_record import settle
from headgate.routing.table import BUCKETS
from headgate.slot.plan import Control, EpochPlan


def test_state_and_output_are_those_of_the_fold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: set[str] = set()

    def watched(plan: EpochPlan, controls: Sequence[Control]) -> Control:
        total = settle(plan, controls)
        merged.update(total.merge_rows)
        return total

    monkeypatch.setattr("headgate.commit.coordinator.settle", watched)
    rng = random.Random(5)
    case = deep(rng, epochs=3, rows=400)
    write_case(case, tmp_path / "in")
    collected = Collected()
    tables = {name: random_table(rng, case, name, 3, BUCKETS) for name in case.keys}

    with born_local():
        query = run_case(
            spark, case, tmp_path, slots=3, collected=collected, tables=tables, manager=None
        )

    check(query, case, collected)
    assert merged == {"first", "second", "third", "either"}
