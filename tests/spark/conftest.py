"""Spark for the tests of this room: one JVM, local unless a module asks for a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.spark.jvm import QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)  # JVMs of programs that tests start


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
