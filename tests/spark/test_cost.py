"""A cost-aware shuffle on Spark: measured in workers, scheduled by sources, kept over starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from tests.scenario.oracle import bag
from tests.spark.feeding import ONCE, Collected, read_files, write_epoch
from tests.spark.task_hooks import WorkerDies

import headgate as hg

ROWS, OUT = "author bigint, n bigint", "author bigint, n bigint, total bigint"
ROWS_PER_EPOCH, AUTHORS, SLOTS = 160, 8, 2


def epoch_of(epoch: int) -> list[dict[str, int]]:
    """As many rows of every author, so that they can be dealt out evenly whatever each takes."""
    in_turn = np.arange(ROWS_PER_EPOCH) % AUTHORS
    authors = np.random.default_rng([3, epoch]).permutation(in_turn).tolist()
    return [{"author": a, "n": epoch * ROWS_PER_EPOCH + i} for i, a in enumerate(authors)]


def weigh(row: dict[str, Any]) -> dict[str, Any]:
    """Work that grows with the author."""
    total = sum(range(int(row["author"]) * 2_000))
    return {"author": row["author"], "n": row["n"], "total": total % 11}


def run(spark: SparkSession, folder: Path, collected: Collected, hook: Any = None) -> Any:
    flow = hg.Flow("weighing")
    rows = flow.source(read_files(spark, folder / "in", ROWS))
    shuffled = rows.shuffle(grouping="cost", attribute="author")
    weighed = shuffled.map_rows(weigh, OUT, name="weigh")
    if hook is not None:
        weighed = weighed.map(hook, OUT, name="hook")
    weighed.to(collected.sink("out"), name="out")
    query = flow.start(spark, slots=SLOTS, checkpoint=str(folder / "checkpoint"), trigger=ONCE)
    query.awaitTermination()
    return query


def test_rows_costs_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Epochs until costs are known, usually five; then two more, in which a worker dies.

    Costs are believed when they have been alike for some time, which on a busy machine is later.
    """
    collected, epochs = Collected(), 0
    for epochs in range(5, 100, 5):
        for epoch in range(epochs - 5, epochs):
            write_epoch(tmp_path / "in", ROWS, epoch, epoch_of(epoch))
        query = run(spark, tmp_path, collected)
        last = [r for r in query.journal() if r["kind"] == "epoch"][-1]
        if last["costs"]["weigh"]["speed"] is not None:
            break
    for epoch in (epochs, epochs + 1):
        write_epoch(tmp_path / "in", ROWS, epoch, epoch_of(epoch))
    hook = WorkerDies(tmp_path, "weigh")
    query = run(spark, tmp_path, collected, hook)
    assert hook.struck

    for epoch in range(epochs + 2):
        assert collected.rows["out"][epoch] == bag(map(weigh, epoch_of(epoch))), epoch

    journal = query.journal()
    told = [r["costs"]["weigh"] for r in journal if r["kind"] == "epoch"]
    assert [len(t["measured_ms"]) for t in told] == [SLOTS] * (epochs + 2)
    assert all(min(t["measured_ms"]) > 0 for t in told)
    assert all(sum(t["rows"]) >= ROWS_PER_EPOCH for t in told)
    assert told[0]["estimated_ms"] == [None] * SLOTS, "nothing is known yet"
    after = told[epochs - 1 :]
    assert all(min(t["estimated_ms"]) > 0 for t in after), "and after the restart all is"
    assert any(r["kind"] == "retry" for r in journal)
    for t in after:
        assert max(t["estimated_ms"]) < 1.2 * min(t["estimated_ms"]), "slots get equal work"
