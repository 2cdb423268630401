"""Limits of the batches that reach Python, and what to do about workers that lack a module."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headgate.runtime.engine import BATCH_ROWS_MAX, batch_limits, way_out

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def of(*kinds: object) -> dict[str, str]:
    return batch_limits(StructType([StructField(f"c{i}", k) for i, k in enumerate(kinds)]))  # type: ignore[arg-type]


def test_rows_of_fixed_width_are_limited_by_number_alone() -> None:
    few, many = of(LongType(), LongType()), of(*[LongType()] * 100)

    assert few == {ROWS: str(BATCH_ROWS_MAX), BYTES: "2147483647b"}
    assert int(many[ROWS]) * 800 <= 16 << 20 < (int(many[ROWS]) + 1) * 800


def test_rows_that_may_be_wide_are_limited_by_bytes_too() -> None:
    for wide in (StringType(), BinaryType()):
        assert of(LongType(), wide)[BYTES] == f"{16 << 20}b"


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
