"""How rows reach Python: a byte limit only where rows can be wide."""

from __future__ import annotations

from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headgate.runtime.engine import BATCH_ROWS_MAX, batch_limits

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
