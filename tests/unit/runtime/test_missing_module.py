"""What a worker cannot import is told with a way out, and nothing else is."""

from __future__ import annotations

import pytest

from headgate.runtime.missing_module import way_out

TRACE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 598, in read_single_udf
ModuleNotFoundError: No module named '{}'
"""


@pytest.mark.parametrize("module", ["headgate", "headgate.slot", "pyarrow"])
def test_headgate_itself_is_missing(module):
    told = way_out(TRACE.format(module), "python3", "/venv/bin/python")

    assert told is not None
    assert module in told and "(python3)" in told
    assert "set PYSPARK_PYTHON" in told and "/venv/bin/python" in told


def test_a_module_of_the_user_is_missing():
    told = way_out(TRACE.format("my_rules"), "python3")

    assert told is not None and "'my_rules'" in told and "addPyFile" in told


@pytest.mark.parametrize("reason", ["", "ImportError: cannot import name 'x'", "FetchFailed"])
def test_other_reasons_are_left_alone(reason):
    assert way_out(reason, "python3") is None
