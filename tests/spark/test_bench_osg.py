"""`headgate-lab bench osg-spark`, small: every contestant processes every row, and figures fit."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.session import LOCAL, session_on

from headgate_lab.bench.osg_contestants import CONTESTANTS
from headgate_lab.bench.osg_spark import QUICK, run_on_spark


@pytest.mark.slow
def test_all_contestants_process_the_rows_that_were_written(spark: SparkSession) -> None:
    """Rows are compared with those written inside; here, that what is said of them holds."""
    found = run_on_spark(QUICK, lambda _: None, lambda k: session_on(f"local[{k}]"))
    session_on(LOCAL)

    assert {one["contestant"] for one in found["epochs"]} == set(CONTESTANTS)
    assert set(found["over_bound"]["drawn"]) == {"100", "400"}
    assert found["left_out"] == []
    for one in found["epochs"]:
        assert one["stage_ms"] >= 0.9 * one["span_ms"] - 20, one
        if one["contestant"] != "small_partitions":
            assert one["over_bound"] >= 0.999, one
            assert one["k"] > 1 or one["over_bound"] == pytest.approx(1.0), one
    gain = found["gain"]["interleaved"]["100"]
    assert gain["cost"]["most"] > 1.1, "round robin gives one of two slots all dear rows"
    assert found["over_bound_worst"]["cost"] < 1.5
