"""Workers and executors die under a task, on executors that are processes of their own."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.scenario.oracle import Case, chain
from tests.spark.feeding import Collected, check, declare, frames, run_case, write_case
from tests.spark.session import session_on
from tests.spark.task_hooks import (
    ExecutorDies,
    Hook,
    LeavesAZombie,
    ShufflesRows,
    SourceExecutorDies,
    WorkerDies,
)
from tests.waiting import wait_until

import headgate as hg

MASTER = "local-cluster[2,1,1024]"
CONF = {
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "4",
    "spark.stage.maxConsecutiveAttempts": "8",
    "spark.files.io.connectionTimeout": "10s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}
CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"
FULL_RETRY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
ROWS, SUMS = "k1 bigint, k2 string, v bigint", "k2 string, sum bigint"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkSession]:
    """Two executors of one core, each a JVM that a test may kill."""
    session = session_on(MASTER, CONF)
    yield session
    home, application = os.environ.get("SPARK_HOME"), session.sparkContext.applicationId
    session.stop()
    if home is None:
        from pyspark.find_spark_home import _find_spark_home

        home = _find_spark_home()
    shutil.rmtree(Path(home) / "work" / application, ignore_errors=True)


def hooked(case: Case, where: str, hook: Hook) -> Case:
    """The chain of the oracle, with a function that strikes in one of its levels."""

    def declare_(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        def maybe(stream: Any, level: str, schema: str) -> Any:
            return stream.map(hook, schema, name=level) if level == where else stream

        rows = maybe(sources["rows"], "level0", ROWS)
        first = rows.key_by("k1").process(hg.Count(emit="rows"), name="first")
        first = maybe(first, "level1", ROWS)
        second = first.key_by("k2").process(hg.Sum("v"), name="second")
        return {"sums": maybe(second, "level2", SUMS)}

    case.declare = declare_
    return case


@pytest.mark.parametrize("where", ["level0", "level1", "level2"])
def test_a_worker_that_dies_is_replaced_by_spark(
    where: str, cluster: SparkSession, tmp_path: Path
) -> None:
    hook = WorkerDies(tmp_path, "worker")
    case = hooked(chain(random.Random(21), epochs=2, rows=400, empty=False), where, hook)
    write_case(case, tmp_path / "in")
    collected = Collected()

    query = run_case(cluster, case, tmp_path, collected=collected, manager=None)

    assert hook.struck
    check(query, case, collected)


@pytest.mark.parametrize("checksums", ["true", "false"])
@pytest.mark.parametrize("where", ["level1", "level2"])
def test_an_executor_that_dies_takes_outputs_of_others_with_it(
    where: str, checksums: str, cluster: SparkSession, tmp_path: Path
) -> None:
    """With it go cached anchors, map outputs already read by some, and warm copies."""
    hook = ExecutorDies(tmp_path, "executor")
    case = hooked(chain(random.Random(22), epochs=3, rows=400, empty=False), where, hook)
    write_case(case, tmp_path / "in")
    collected = Collected()

    query = run_case(
        cluster,
        case,
        tmp_path,
        slots=4,
        collected=collected,
        conf={CHECKSUM: checksums, FULL_RETRY: checksums},
        manager=None,
    )

    assert hook.struck
    check(query, case, collected)


def test_consumers_that_read_two_attempts_of_an_impure_producer_are_caught(
    cluster: SparkSession, tmp_path: Path
) -> None:
    """Spark's own comparison is off; custody sees it, and the epoch is run again.

    The producer only puts its rows in another order each time, so the result is still defined.
    """
    impure, hook = ShufflesRows(tmp_path), SourceExecutorDies(tmp_path, "source")
    case = chain(random.Random(23), epochs=2, rows=400, empty=False)

    def declare_(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        rows = sources["rows"].map(impure, ROWS, name="impure")
        first = rows.key_by("k1").process(hg.Count(emit="rows"), name="first")
        first = first.map(hook, ROWS, name="level1")
        return {"sums": first.key_by("k2").process(hg.Sum("v"), name="second")}

    case.declare = declare_
    write_case(case, tmp_path / "in")
    collected = Collected()

    query = run_case(
        cluster,
        case,
        tmp_path,
        slots=4,
        collected=collected,
        conf={CHECKSUM: "false", FULL_RETRY: "false"},
        manager=None,
    )

    assert hook.struck
    check(query, case, collected)
    reasons = [r["reason"] for r in query.journal() if r["kind"] == "retry"]
    assert any("differ between sender and receiver" in reason for reason in reasons), reasons


def test_a_zombie_that_writes_after_the_commit_changes_nothing(
    cluster: SparkSession, tmp_path: Path
) -> None:
    """It writes under names that hold the digest of its content: the same files, once more."""
    hook = LeavesAZombie(tmp_path, "zombie")
    case = hooked(chain(random.Random(25), epochs=5, rows=400, empty=False), "level1", hook)
    write_case(case, tmp_path / "in", range(3))
    collected = Collected()
    flow = declare(case, frames(cluster, case, tmp_path / "in"), collected)
    query = flow.start(cluster, slots=2, checkpoint=str(tmp_path / "checkpoint"), manager=None)
    try:
        query.processAllAvailable()
        assert hook.struck
        check(query, case, collected, upto=2)
        before = _state_files(tmp_path)

        Path(hook.gate).touch()
        wait_until(Path(hook.wrote).exists, "the zombie to write")

        assert _state_files(tmp_path) == before, "the zombie named files of its own"
        write_case(case, tmp_path / "in", range(3, 5))
        query.processAllAvailable()
        check(query, case, collected)
    finally:
        Path(hook.gate).touch()
        query.stop()


def _state_files(folder: Path) -> set[str]:
    return {p.name for p in (folder / "checkpoint" / "state").rglob("*.arrow")}
