"""Where the milliseconds of an epoch of one row go, and what each more level and slot adds.

Chains of counts, each of which sends its rows on to another key, so that a level is one exchange;
one factor moves at a time. Parts of an epoch, from Spark's progress and the flow's journal:

- *Spark* plans the micro-batch and writes its two logs around our function (`triggerExecution`
  without `addBatch`);
- *driver* is our function, and Spark's call of it, without the job: plan, check, flush, manifest;
- *job* is Spark's job, of which *Python* is the time of each level's slowest task in its worker.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

from headgate.demo import EpochFiles
from headgate.flow import Flow
from headgate.operator import Count
from headgate.runtime.query import FlowQuery
from headgate.topology.files import Files
from headgate_lab.baselines import spark_query

LEVELS_MAX = 8


@dataclass(frozen=True)
class EpochParts:
    """Median milliseconds of an epoch, and of its parts."""

    epoch: float
    spark: float
    driver: float
    job: float
    python: float


def run_parts(
    epochs: EpochFiles, work: Path, *, levels: int, slots: int, warmup: int
) -> EpochParts:
    """The parts of the epochs after `warmup`, of a chain of so many exchanges."""
    spark = spark_query.session(2)
    flow = Flow("parts")
    rows = flow.source(Files(epochs.directory, max_files=epochs.files_per_epoch))
    for at in range(1, levels + 1):
        keyed = rows.key_by(f"k{at}", grouping="hash")
        rows = keyed.process(Count(emit="rows"), name=f"by_k{at}")
    rows.discard()
    query = flow.start(
        spark,
        slots=slots,
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
        manager=None,
    )
    query.awaitTermination()
    return _parts(query, warmup)


def _parts(query: FlowQuery, warmup: int) -> EpochParts:
    assert query.sparkQuery is not None
    progress = [p.durationMs for p in query.sparkQuery.recentProgress if "addBatch" in p.durationMs]
    engines = [record for record in query.journal() if record["kind"] == "epoch"]
    if len(progress) != len(engines):
        raise RuntimeError(f"{len(progress)} micro-batches, but {len(engines)} epochs are recorded")
    parts = [
        EpochParts(
            epoch=spent["triggerExecution"],
            spark=spent["triggerExecution"] - spent["addBatch"],
            driver=spent["addBatch"] - engine["job_ms"],
            job=engine["job_ms"],
            python=sum(engine["levels_ms"].values()),
        )
        for spent, engine in zip(progress, engines, strict=True)
    ][warmup:]
    return EpochParts(*(median(part) for part in zip(*map(astuple, parts), strict=True)))


def row_of_keys() -> pa.Table:
    """The one row of an epoch, with a key for each level."""
    return pa.table({f"k{at}": pa.array([at], pa.int64()) for at in range(1, LEVELS_MAX + 1)})
