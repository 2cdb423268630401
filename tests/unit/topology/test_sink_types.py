"""A sink whose rows could not be delivered is refused when it is declared."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import SchemaMismatch
from headgate.testing import ListSource
from headgate.topology.schema import as_spark_reads

NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 250_000)
REFUSED: list[tuple[pa.DataType, Any, pa.DataType]] = [
    (pa.float16(), 1.5, pa.float32()),
    (pa.timestamp("ns"), NOON, pa.timestamp("us")),
    (pa.timestamp("ns", "UTC"), NOON, pa.timestamp("us", "UTC")),
    (pa.time32("s"), NOON.time(), pa.int32()),
    (pa.time64("us"), NOON.time(), pa.int64()),
    (pa.duration("s"), dt.timedelta(hours=1), pa.duration("us")),
    (pa.decimal256(50, 2), decimal.Decimal("1.50"), pa.string()),
    (pa.list_(pa.timestamp("ns")), [NOON], pa.list_(pa.timestamp("us"))),
    (pa.struct([("a", pa.float16())]), {"a": 1.5}, pa.struct([("a", pa.float32())])),
]


def declare(kind: pa.DataType) -> Any:
    return hg.Flow("f").source(ListSource(pa.schema({"k": pa.int64(), "x": kind}), []))


@pytest.mark.parametrize(("kind", "value", "cast"), REFUSED, ids=str)
def test_a_type_that_spark_cannot_read_is_refused_with_a_cast_that_works(
    kind: pa.DataType, value: Any, cast: pa.DataType
) -> None:
    stream = declare(kind)

    with pytest.raises(SchemaMismatch) as caught:
        stream.to(print, name="db")
    with pytest.raises(SchemaMismatch):
        stream.to_table("kept")

    said = str(caught.value)
    assert "'db'" in said and "'x'" in said and str(kind) in said and str(cast) in said
    assert (caught.value.sink, caught.value.column) == ("db", "x")
    assert pa.array([value], kind).cast(cast).null_count == 0
    declare(cast).to(print, name="db")


def test_sinks_that_spark_does_not_read_take_them() -> None:
    stream = declare(pa.timestamp("ns"))

    stream.to_memory("rows")
    stream.to_parquet("files", name="files")
    stream.to_console(name="shown")

    assert [node.name for node in stream.flow.graph().of_kind("sink")] == ["rows", "files", "shown"]


@pytest.mark.parametrize("kind", [pa.struct([]), pa.decimal128(5, -2)], ids=str)
def test_a_type_that_parquet_cannot_hold_is_refused_by_every_sink(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="Parquet") as caught:
        declare(kind).to_memory("rows")

    assert caught.value.column == "x"


def test_types_that_spark_reads_as_a_wider_one_stay_allowed() -> None:
    wide = as_spark_reads(
        "db",
        pa.schema(
            {
                "a": pa.uint8(),
                "b": pa.uint32(),
                "c": pa.list_view(pa.uint64()),
                "d": pa.date64(),
                "e": pa.map_(pa.string_view(), pa.struct([("f", pa.uint16())])),
            }
        ),
    )

    assert wide.types == [
        pa.int16(),
        pa.int64(),
        pa.list_(pa.decimal128(20, 0)),
        pa.date32(),
        pa.map_(pa.string(), pa.struct([("f", pa.int32())])),
    ]
