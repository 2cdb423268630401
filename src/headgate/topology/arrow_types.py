"""Arrow schemas from what users have at hand: a DDL string, a mapping, or a DataFrame's schema.

Declaring a flow must not need a JVM, so Spark's schema is read through its JSON form and a DDL
string through a small parser of flat columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from headgate.errors import SchemaMismatch

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, Any] | str | SparkSchema"


class SparkSchema(Protocol):
    """A Spark StructType, by what is needed of it."""

    def jsonValue(self) -> dict[str, Any]: ...


_ATOMS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "int8": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int16": pa.int16(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "int32": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def to_schema(given: SchemaLike) -> pa.Schema:
    """An Arrow schema from an Arrow or Spark schema, a mapping name -> type, or "a string, b int".

    Examples:
        >>> to_schema("tag string, likes bigint").names
        ['tag', 'likes']
    """
    if isinstance(given, pa.Schema):
        return pa.schema([_plain(f) for f in given])
    if isinstance(given, str):
        return pa.schema([_ddl_column(part) for part in split_outside_brackets(given)])
    if isinstance(given, Mapping):
        return pa.schema([_plain(_field(name, kind, to_type)) for name, kind in given.items()])
    if hasattr(given, "jsonValue") and hasattr(given, "fieldNames"):
        return from_spark_json(given.jsonValue())
    raise SchemaMismatch(
        f"{given!r} is no schema; write 'k string, n bigint', or give a pyarrow schema, a Spark "
        "StructType or a dict of names and types"
    )


def _field(name: str, kind: Any, read: Callable[[Any], pa.DataType]) -> pa.Field:
    """A column of that type; if the type cannot be read, an error that names the column."""
    try:
        return pa.field(name, read(kind))
    except SchemaMismatch as problem:
        raise SchemaMismatch(f"column {name!r}: {problem}", column=name) from None


def _plain(field: pa.Field) -> pa.Field:
    """A dictionary column as its values: codes mean nothing in another task."""
    if pa.types.is_dictionary(field.type):
        return field.with_type(field.type.value_type)
    return field


def to_type(given: Any) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, str):
        text = given.strip().lower()
        if text in _ATOMS:
            return _ATOMS[text]
        decimal = re.fullmatch(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", text)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        array = re.fullmatch(r"array<(.+)>", text)
        if array:
            return pa.list_(to_type(array[1]))
    known = ", ".join(sorted(_ATOMS))
    raise SchemaMismatch(
        f"unknown column type {given!r}; known are {known}, decimal(p,s), array<…>"
    )


def from_spark_json(schema: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of `DataFrame.schema.jsonValue()`."""
    return pa.schema([_field(f["name"], f["type"], _spark_type) for f in schema["fields"]])


def _spark_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if kind.startswith(("varchar", "char", "string")):
            return pa.string()
        if kind == "void":
            return pa.null()
        return to_type(kind)
    if kind["type"] == "array":
        return pa.list_(_spark_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_spark_type(kind["keyType"]), _spark_type(kind["valueType"]))
    if kind["type"] == "struct":
        return pa.struct([(f["name"], _spark_type(f["type"])) for f in kind["fields"]])
    if kind["type"] == "udt":
        return _spark_type(kind["sqlType"])
    raise SchemaMismatch(f"Spark type {kind!r} has no Arrow counterpart here")


def split_outside_brackets(text: str) -> list[str]:
    """The parts between commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _ddl_column(text: str) -> pa.Field:
    match = re.fullmatch(r"`?([^`\s:]+)`?\s*[:\s]\s*(.+)", text)
    if not match:
        raise SchemaMismatch(f"cannot read column {text!r}; write it as 'name type'")
    return _field(match[1], match[2], to_type)
