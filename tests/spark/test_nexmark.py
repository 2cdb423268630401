"""Queries of Nexmark on Spark, epoch by epoch, answer as DuckDB does: one of each kind.

Sliding windows and an interval join, timers and rows in order, a window join, files, windows of
processing time, a lookup, last rows. `headgate-lab nexmark --rivals ''` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.baselines import spark_query
from headgate_lab.nexmark.contestants import check_headgate, run_native
from headgate_lab.nexmark.event_files import EventFiles, write_event_files
from headgate_lab.nexmark.events import EventOptions
from headgate_lab.nexmark.oracle import Oracle
from headgate_lab.nexmark.queries import QUERIES


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> EventFiles:
    options = EventOptions(events=6_000, events_per_second=60)
    return write_event_files(options, tmp_path_factory.mktemp("events"), epochs=3)


@pytest.mark.parametrize("name", ["q5", "q6", "q8", "q10", "q12", "q13", "q18"])
def test_a_query_on_spark_answers_as_duckdb_does(
    spark: object, files: EventFiles, tmp_path: Path, name: str
) -> None:
    answer = check_headgate(QUERIES[name], files, Oracle(files), tmp_path, 2)
    assert answer.rows > 0
    assert answer.right, str(answer)


def test_native_spark_reads_the_same_epochs(
    spark: object, files: EventFiles, tmp_path: Path
) -> None:
    ran = run_native(QUERIES["q18"], files, tmp_path, 2, spark_query.ROCKSDB)
    assert len(ran.epoch_seconds) >= files.epochs
