"""Split operators on Spark: no row of data is shuffled, and the results are those of the fold."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession
from tests.scenario.born_local import deep
from tests.scenario.oracle import Case, chain, random_table
from tests.scenario.splitting import splitting
from tests.spark.feeding import Collected, check, run_case, write_case

from headgate.routing.table import BUCKETS


def test_all_counts_split_shuffle_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(8)
    case = chain(rng, epochs=2, rows=300, empty=False)
    write_case(case, tmp_path / "in")
    collected = Collected()
    tables = {name: random_table(rng, case, name, 3, BUCKETS) for name in case.keys}

    with splitting():
        query = run_case(
            spark, case, tmp_path, slots=3, collected=collected, tables=tables, manager=None
        )

    check(query, case, collected)
    records = [r for r in query.journal() if r["kind"] == "epoch"]
    assert [r["away_rows"] for r in records] == [{"first": 300, "second": 300}] * 2
    assert all(e["remote_rows"] == 0 for r in records for e in r["edges"].values())
    assert all(list(r["levels_ms"]) == ["0", "1"] for r in records)
    assert all(0 < r["merge_rows"]["first"] <= 9 * 3 for r in records)


def test_a_deep_flow_with_one_operator_of_several_split(
    spark: SparkSession, tmp_path: Path
) -> None:
    case: Case = deep(random.Random(9), epochs=2, rows=200)
    write_case(case, tmp_path / "in")
    collected = Collected()

    with splitting(lambda name: name in ("first", "either")):
        query = run_case(spark, case, tmp_path, slots=2, collected=collected, manager=None)

    check(query, case, collected)
