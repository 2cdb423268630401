"""Which tests run: the fast ones always, the others where they can."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: a busy machine is no failure. The same draws every time: what fails fails again, and
# what passed here passes elsewhere. `make fuzz` draws others, and more of them.
settings.register_profile("headgate", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile("headgate")

TESTS = Path(__file__).parent
CLUSTERS = TESTS / "lab" / "cluster"  # and tests/spark
MEMORY_DISK, ROOM_BYTES = Path("/dev/shm"), 4 << 30

# Temporary folders lie in memory where it has room: checkpoints are flushed to be durable, and on a
# disk tests would wait for that.
if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > ROOM_BYTES:
    os.environ.setdefault("TMPDIR", str(MEMORY_DISK))
    tempfile.tempdir = None  # asked for again

# Spark's Python workers are this interpreter, and import what a test defines under the same name:
# pytest calls a test module tests.spark.test_something, and helpers are imported from tests/.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    measured = config.pluginmanager.hasplugin("_cov")  # with --cov
    for item in items:
        # Scenarios and properties run the same lines many times; tracing costs 40 % on top.
        examples = item.path.is_relative_to(TESTS / "unit") and not item.get_closest_marker(
            "hypothesis"
        )
        if measured and not examples:
            item.add_marker(pytest.mark.no_cover)
        if item.path.is_relative_to(TESTS / "spark"):
            item.add_marker(pytest.mark.spark)
        elif item.get_closest_marker("cluster") and item.path.parent != CLUSTERS:
            raise pytest.UsageError(f"{item.nodeid}: tests of a cluster lie in {CLUSTERS}")
        if item.get_closest_marker("slow") and not config.getoption("--run-slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --run-slow"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster"):
        from headgate_lab.cluster.namespace_cluster import available

        if reason := available():
            pytest.skip(f"cluster: {reason}")


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """A local S3 server that pyarrow, Spark and headgate find through the environment."""
    from object_store import LocalS3

    with LocalS3.running() as server:
        yield server


@pytest.fixture
def row_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of the kit take as long as they have rows, so decisions from time can be repeated."""
    from row_time import RowTime

    monkeypatch.setattr("headgate.testing.Services", RowTime)
