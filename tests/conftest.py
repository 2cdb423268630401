"""Which tests run: the fast ones always, the others where they can."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# Spark's Python workers import the functions of a test module by its name, as pytest does.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_slow = pytest.mark.skip(reason="slow: run with --run-slow")
    skip_cluster = pytest.mark.skip(reason="cluster: needs root and iproute2 (network namespaces)")
    run_slow = config.getoption("--run-slow")
    has_namespaces = os.geteuid() == 0 and shutil.which("ip") is not None

    for item in items:
        if item.path.is_relative_to(TESTS / "spark"):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("slow") and not run_slow:
            item.add_marker(skip_slow)
        if item.get_closest_marker("cluster") and not has_namespaces:
            item.add_marker(skip_cluster)
