"""Headgate as a contestant: the job of the baselines, with their signature and their clock.

Two chained counts; the first passes every row on, the second computes its updates, which nobody
takes (the Spark rivals write to the noop sink, which is the same). Both are split: rows are counted
where they are read and partial counts are shuffled, as Spark's own group-by does it. Seconds are
Spark's `triggerExecution`, as for them. State is durable and exactly once, as in Spark.
"""

from __future__ import annotations

from pathlib import Path

from headgate.demo import EpochFiles
from headgate.flow import Flow
from headgate.operator import Count
from headgate.runtime.query import FlowQuery
from headgate.topology.files import Files
from headgate_lab.baselines import spark_query
from headgate_lab.baselines.result import BaselineResult, counts_table, timed_rows


def run(
    epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int = 1, split: bool = True
) -> BaselineResult:
    """Count both keys in one flow. `work_dir` must be new: it takes the checkpoint."""
    rows = timed_rows(epochs, warmup)
    spark = spark_query.session(slots)
    flow = Flow("chain")
    pairs = flow.source(Files(epochs.directory, max_files=epochs.files_per_epoch))
    first = pairs.key_by("k1", grouping="partial" if split else "hash").process(
        Count(emit="rows"), name="by_k1"
    )
    second = first.key_by("k2", grouping="partial" if split else "hash")
    second.process(Count(), name="by_k2").discard()
    query = flow.start(
        spark,
        slots=slots,
        checkpoint=str(work_dir / "headgate"),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    seconds = epoch_seconds(query, len(epochs))
    counts = [query.state(f"by_{key}") for key in ("k1", "k2")]
    k1, k2 = (
        counts_table(state[key].to_numpy(), state["count"].to_numpy())
        for key, state in zip(("k1", "k2"), counts, strict=True)
    )
    return BaselineResult("headgate", rows, seconds[warmup:], k1, k2)


def epoch_seconds(query: FlowQuery, epochs: int) -> tuple[float, ...]:
    """Seconds of every micro-batch, by Spark's clock; how many rows tasks read it does not know."""
    assert query.sparkQuery is not None
    batches = [p for p in query.sparkQuery.recentProgress if "addBatch" in p.durationMs]
    if len(batches) != epochs:
        raise RuntimeError(f"{epochs} epochs became {len(batches)} micro-batches")
    return tuple(p.durationMs["triggerExecution"] / 1000 for p in batches)
