"""The driver program of `headgate-lab bench elastic`: 2 -> 4 -> 2 slots under load; prints JSON.

Rows come as long as the flow asks for them: a few epochs lie ready at any time. On a cluster two of
the four executors are given back before the start, so the first change has to bring them again.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from headgate.demo import write_epochs
from headgate.flow import Flow
from headgate.operator import Count
from headgate.runtime.exchange import executors
from headgate.runtime.executors import are_ours_to_change, give_back
from headgate.runtime.query import FlowQuery
from headgate_lab.streams import correlated_pairs

AHEAD = 4
POLL_SECONDS = 0.05


class Feed:
    """Writes epochs ahead of the flow, and knows the fold of all it wrote."""

    def __init__(self, folder: Path, rows: int, files: int, seed: int) -> None:
        self.folder, self.rows, self.files, self.seed = folder, rows, files, seed
        self.written = 0

    def upto(self, epochs: int) -> None:
        while self.written < epochs:
            table = correlated_pairs(self.rows, seed=self.seed, epoch=self.written)
            write_epochs([table], self.folder, files_per_epoch=self.files, first=self.written)
            self.written += 1

    def counts(self, column: str, epochs: int) -> dict[int, int]:
        total: Counter[int] = Counter()
        for epoch in range(epochs):
            table = correlated_pairs(self.rows, seed=self.seed, epoch=epoch)
            keys, counts = np.unique(table[column].to_numpy(), return_counts=True)
            total.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
        return dict(total)


def main(options: dict[str, Any], folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")  # every epoch counts
    few, many = options["slots"]
    give_back(spark, executors(spark)[:few])

    def are_few() -> bool:
        return len(executors(spark)) <= few or not are_ours_to_change(spark)

    _wait(are_few)
    feed = Feed(folder / "in", options["rows"], many, options["seed"])
    feed.upto(AHEAD)
    flow = Flow("elastic")
    source = spark.readStream.schema("k1 long, k2 long").option("maxFilesPerTrigger", many)
    pairs = flow.source(source.parquet(f"file://{folder / 'in'}"))
    first = pairs.key_by("k1", grouping="hash").process(Count(emit="rows"), name="by_k1")
    first.key_by("k2", grouping="hash").process(Count(), name="by_k2").discard()
    query = flow.start(spark, slots=few, checkpoint=str(folder / "checkpoint"), manager=None)
    held = [len(executors(spark))]
    epochs = options["epochs"]
    for slots, least in ((few, options["warmup"] + epochs), (many, epochs), (few, epochs)):
        if slots != query.slots:
            query.rescale(slots)
        _run_at(query, feed, slots, least)
        if slots == few and len(held) > 1:
            _wait(
                lambda: len(executors(spark)) <= few or not are_ours_to_change(spark), query, feed
            )
        held.append(len(executors(spark)))
    query.processAllAvailable()
    query.stop()
    records = [r for r in query.journal() if r["kind"] == "epoch"]
    spark_query: Any = query.sparkQuery
    seconds, gaps = _durations(spark_query.recentProgress)
    told = {
        "epochs": [
            {
                "epoch": r["epoch"],
                "slots": r["slots"],
                "seconds": seconds[r["epoch"]],
                "gap_s": gaps[r["epoch"]],
                "job_ms": r["job_ms"],
                "levels_ms": r["levels_ms"],
                "attempts": r["attempts"],
                "hosts": r["hosts"],
                "cores": r["cores"],
                "moved_rows": sum(r["moved_rows"].values()),
                "state_rows": sum(s["rows"] for op in r["state"].values() for s in op.values()),
            }
            for r in records
        ],
        "changes": [r for r in query.journal() if r["kind"] in ("scale", "elastic")],
        "executors": held,
        "equal_to_fold": all(
            dict(zip(state[key].to_pylist(), state["count"].to_pylist(), strict=True))
            == feed.counts(key, feed.written)
            for key, state in ((k, query.state(f"by_{k}")) for k in ("k1", "k2"))
        ),
    }
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")


def _durations(progress: Any) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of each epoch, from its trigger to its commit, and of the pause before it."""
    seconds, gaps, ended = {}, {}, None
    for p in progress:
        began = datetime.fromisoformat(p.timestamp).timestamp()
        if p.numInputRows > 0:
            seconds[p.batchId] = p.durationMs["triggerExecution"] / 1e3
            gaps[p.batchId] = 0.0 if ended is None else round(began - ended, 3)
            ended = began + seconds[p.batchId]
    return seconds, gaps


def _run_at(query: FlowQuery, feed: Feed, slots: int, epochs: int) -> None:
    """Feed the flow until so many epochs ran with so many slots, as it is asked for."""

    def there() -> bool:
        return _tail(query, slots) >= epochs

    _wait(there, query, feed)


def _tail(query: FlowQuery, slots: int) -> int:
    """How many of the latest epochs ran with so many slots."""
    count = 0
    for progress in reversed(query.recentProgress):
        if progress["headgate"]["slots"] != slots:
            break
        count += 1
    return count


def _wait(
    reached: Any, query: FlowQuery | None = None, feed: Feed | None = None, limit_s: float = 600
) -> None:
    until = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError("the cluster did not get there in time")
        if query is not None and feed is not None:
            if (problem := query.exception()) is not None:
                raise problem
            done = len(query.recentProgress) and query.recentProgress[-1]["batchId"] + 1
            feed.upto(int(done) + AHEAD)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
