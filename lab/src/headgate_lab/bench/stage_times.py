"""How long stages took, by Spark's own clock: from its status store, also without its pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stages(spark: SparkSession) -> Iterator[Any]:
    """Completed stages as Spark's status store keeps them, newest first."""
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None and gateway is not None
    none = gateway.new_array(jvm.double, 0)
    store = context._jsc.sc().statusStore()
    all_of = jvm.java.util.ArrayList()
    found = store.stageList(all_of, False, False, none, all_of)
    for i in range(found.size()):
        stage = found.apply(i)
        if stage.status().toString() == "COMPLETE":
            yield stage


def last_stage(spark: SparkSession) -> int:
    return max((stage.stageId() for stage in stages(spark)), default=-1)


def stage_ms(spark: SparkSession, after: int, epochs: int) -> list[float]:
    """Per epoch the longest stage. Jobs are told apart by their description; a flow's first is no
    epoch: it builds the anchor of its slots.
    """
    longest: dict[str, tuple[int, float]] = {}
    for stage in stages(spark):
        if stage.stageId() <= after:
            continue
        begun, ended = stage.submissionTime().get(), stage.completionTime().get()
        took = float(ended.getTime() - begun.getTime())
        described = stage.description()
        key = described.get() if described.isDefined() else ""
        number, most = longest.get(key, (stage.stageId(), 0.0))
        longest[key] = min(number, stage.stageId()), max(most, took)
    took_ms = [ms for _, ms in sorted(longest.values())]
    if len(took_ms) < epochs:
        raise RuntimeError(f"{epochs} epochs, but stages of {len(took_ms)} descriptions")
    return took_ms[-epochs:]
