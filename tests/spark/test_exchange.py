"""Exchanges in one process: no place to choose, so labels alone say which slot a task is."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.runtime.exchange import (
    ANCHOR_CONF,
    TUPLE_TYPE,
    anchored,
    build_anchor,
    slot_labels,
    with_conf,
)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_in_one_process_a_label_leads_to_the_partition_of_its_slot(
    spark: SparkSession, slots: int
) -> None:
    labels = slot_labels(slots)
    tuples = [(label, b"head", b"payload") for label in labels * 3]
    anchor = build_anchor(spark, ["here"] * slots)

    with with_conf(spark, ANCHOR_CONF):
        exchanged = anchored(spark.createDataFrame(tuples, TUPLE_TYPE), anchor)
        rows = exchanged.select("label", F.spark_partition_id().alias("slot")).collect()
        partitions = exchanged.rdd.getNumPartitions()

    assert partitions == slots
    assert sorted((row.slot, row.label) for row in rows) == sorted([*enumerate(labels)] * 3)


def test_in_one_process_nothing_is_cached(spark: SparkSession) -> None:
    anchor = build_anchor(spark, ["here", "here"])
    assert anchor.hosts == ("here", "here") and anchor.frame is None
    anchor.release()
