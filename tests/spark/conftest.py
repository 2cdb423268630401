"""Spark for the tests of this room: one JVM, local unless a module asks for a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.jvm import QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Files that take longest go first, so that no process works through one alone at the end.
LONGEST = (
    "crash_points", "soak", "task_faults", "flow", "kafka", "namespace_cluster", "tuning",
    "bad_input", "adapting_cluster", "elastic_cluster", "windows_as_spark", "quiet", "speculation",
)  # fmt: skip
HERE = Path(__file__).parent

os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)  # JVMs of programs that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {HERE / f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    from tests.spark.session import LOCAL, session_on

    return session_on(LOCAL)


@pytest.fixture
def planned_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager plans between epochs, not beside them: busy machines decide as idle ones do."""
    from functools import partial

    from headgate.control.loop import plan_with

    monkeypatch.setattr("headgate.runtime.start.plan_with", partial(plan_with, beside=False))


@pytest.fixture(scope="session", autouse=True)
def stop_spark_at_the_end() -> Iterator[None]:
    yield
    import sys

    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
