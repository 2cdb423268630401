"""Schemas from what users have at hand: DDL, mappings, Arrow, Spark's JSON."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import SchemaMismatch
from headgate.topology.schema import from_spark_json, to_schema, to_type

UTC_TIME = pa.timestamp("us", tz="UTC")


def test_a_ddl_string_becomes_a_schema() -> None:
    schema = to_schema("a string, b BIGINT,c: int, `d` decimal(9, 2), e array<double>, f timestamp")

    assert schema == pa.schema(
        {
            "a": pa.string(),
            "b": pa.int64(),
            "c": pa.int32(),
            "d": pa.decimal128(9, 2),
            "e": pa.list_(pa.float64()),
            "f": UTC_TIME,
        }
    )


@pytest.mark.parametrize(
    ("spark_name", "kind"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", UTC_TIME),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("array<decimal(5,1)>", pa.list_(pa.decimal128(5, 1))),
    ],
)
def test_type_names_mean_what_they_mean_in_spark(spark_name: str, kind: pa.DataType) -> None:
    assert to_type(spark_name) == kind
    assert to_schema(f"c {spark_name}").field("c").type == kind


def test_a_mapping_may_mix_names_and_arrow_types() -> None:
    assert to_schema({"a": "string", "b": pa.int16()}) == pa.schema(
        {"a": pa.string(), "b": pa.int16()}
    )


def test_an_arrow_schema_stays_as_it_is_but_for_dictionaries() -> None:
    plain = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    coded = pa.schema({"a": pa.dictionary(pa.int8(), pa.string())})

    assert to_schema(plain) == plain
    assert to_schema(coded) == pa.schema({"a": pa.string()})
    assert to_schema({"a": pa.dictionary(pa.int8(), pa.string())}) == pa.schema({"a": pa.string()})


@pytest.mark.parametrize("ddl", ["a", "a string, b", "a nonsense", "a decimal(x)", "a map<a,b>"])
def test_a_schema_that_cannot_be_read_is_refused(ddl: str) -> None:
    with pytest.raises(SchemaMismatch):
        to_schema(ddl)


def test_the_json_of_a_spark_schema_becomes_a_schema() -> None:
    def field(name: str, kind: object) -> dict[str, object]:
        return {"name": name, "type": kind, "nullable": True, "metadata": {}}

    array = {"type": "array", "elementType": "long", "containsNull": True}
    nested = {"type": "struct", "fields": [field("x", "double"), field("y", array)]}
    a_map = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}
    told = {
        "type": "struct",
        "fields": [
            field("a", "long"),
            field("b", "varchar(10)"),
            field("c", "decimal(12,3)"),
            field("d", "timestamp"),
            field("e", nested),
            field("f", a_map),
            field("g", "void"),
            field("h", {"type": "udt", "sqlType": "binary"}),
        ],
    }

    assert from_spark_json(told) == pa.schema(
        {
            "a": pa.int64(),
            "b": pa.string(),
            "c": pa.decimal128(12, 3),
            "d": UTC_TIME,
            "e": pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int64()))]),
            "f": pa.map_(pa.string(), pa.int32()),
            "g": pa.null(),
            "h": pa.binary(),
        }
    )


@pytest.mark.parametrize("kind", ["calendar_interval", {"type": "variant"}])
def test_a_spark_type_without_a_counterpart_is_refused(kind: object) -> None:
    with pytest.raises(SchemaMismatch):
        from_spark_json({"fields": [{"name": "a", "type": kind}]})
