"""Batches on Spark: tuple at a time and shared ones bring the same state as large distinct ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headgate as hg

ROWS = [(i % 7, i % 5, i) for i in range(90)]


@pytest.mark.parametrize(
    ("batch", "sharing"), [(1, "distinct"), (4, "shared")], ids=["tuple at a time", "shared"]
)
def test_state_is_that_of_a_fold(
    spark: SparkSession, tmp_path: Path, batch: int, sharing: Any
) -> None:
    flow = hg.Flow("batches")
    source = flow.source(spark.createDataFrame(ROWS, "a long, b long, v long"), name="spout")
    source.key_by("a").process(hg.Sum("v"), name="by_a")
    source.key_by("b").process(hg.Count(), name="by_b").discard()

    query = flow.start(
        spark,
        slots=3,
        checkpoint=str(tmp_path / "ck"),
        options=hg.Options(batch_rows=batch, sharing=sharing),
        manager=None,
    )
    query.awaitTermination()

    sums: Counter[int] = Counter()
    for a, _, v in ROWS:
        sums[a] += v
    found = {r["a"]: r["sum"] for r in query.state("by_a").to_pylist()}
    assert found == dict(sums)
    counts = {r["b"]: r["count"] for r in query.state("by_b").to_pylist()}
    assert counts == Counter(b for _, b, _ in ROWS)
    (record,) = [r for r in query.journal() if r["kind"] == "epoch"]
    tuples = {name: (b["tuples"], b["rows"]) for name, b in record["batches"].items()}
    if batch == 1:
        assert tuples == {"spout->by_a": (90, 90), "spout->by_b": (90, 90)}
    else:
        assert any(name.endswith("(shared)") for name in tuples)
        assert all(rows <= batch * count for count, rows in tuples.values())
