"""Schemas: read from what users have at hand, checked, and fit for a sink.

Declaring a flow must not need a JVM, so Spark's schema is read through its JSON form and a DDL
string through a small parser of flat columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import DeclarationError, NameClash, SchemaMismatch, UnknownColumn

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, Any] | str | SparkSchema"


class SparkSchema(Protocol):
    """A Spark StructType, by what is needed of it."""

    def jsonValue(self) -> dict[str, Any]: ...


_ATOMS: dict[str, pa.DataType] = {
    name: kind
    for names, kind in (
        ("boolean bool", pa.bool_()),
        ("byte tinyint int8", pa.int8()),
        ("short smallint int16", pa.int16()),
        ("integer int int32", pa.int32()),
        ("long bigint int64", pa.int64()),
        ("float real float32", pa.float32()),
        ("double float64", pa.float64()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp timestamp_ltz", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
    )
    for name in names.split()
}


def to_schema(given: SchemaLike) -> pa.Schema:
    """An Arrow schema from an Arrow or Spark schema, a mapping name -> type, or "a string, b int".

    A dictionary column becomes one of its values: codes mean nothing in another task.

    Examples:
        >>> to_schema("tag string, likes bigint").names
        ['tag', 'likes']
    """
    if isinstance(given, str):
        return pa.schema([_ddl_column(part) for part in split_outside_brackets(given)])
    if isinstance(given, Mapping):
        given = pa.schema([_field(name, kind, to_type) for name, kind in given.items()])
    if isinstance(given, pa.Schema):
        return pa.schema(
            [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in given]
        )
    if hasattr(given, "jsonValue"):
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
        return pa.null() if kind == "void" else to_type(kind)
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
    for position, char in enumerate(text + ","):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and (depth == 0 or position == len(text)):
            parts.append(text[start:position].strip())
            start = position + 1
    return [part for part in parts if part]


def _ddl_column(text: str) -> pa.Field:
    match = re.fullmatch(r"`?([^`\s:]+)`?\s*[:\s]\s*(.+)", text)
    if not match:
        raise SchemaMismatch(f"cannot read column {text!r}; write it as 'name type'")
    return _field(match[1], match[2], to_type)


# Checks ---------------------------------------------------------------------------------------


def source_schema(frame: Any, schema: SchemaLike | None) -> pa.Schema:
    found = getattr(frame, "schema", None)
    if schema is None and (isinstance(found, pa.Schema | str) or hasattr(found, "jsonValue")):
        schema = found
    if schema is None and callable(frame):
        raise DeclarationError("a source given as a function needs schema='k bigint, …'")
    if schema is None:
        raise DeclarationError(f"a source is a DataFrame or a function, not {type(frame).__name__}")
    return check_columns(to_schema(schema), "a source")


def check_columns(schema: pa.Schema, where: str) -> pa.Schema:
    """Raise unless there are columns, all of different names (Spark takes 'a' and 'A' for one)."""
    if not schema.names:
        raise SchemaMismatch(f"{where} has no columns; a stream needs at least one")
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise NameClash(
                f"{where} has columns {seen[name.lower()]!r} and {name!r}; names must differ, and "
                "not only in upper and lower case: rename one",
                column=name,
            )
        seen[name.lower()] = name
    return schema


def column_of(schema: pa.Schema, name: str, who: str) -> pa.Field:
    """The field of that name, or an UnknownColumn that lists what there is."""
    if name not in schema.names:
        raise UnknownColumn(
            f"{who} reads column {name!r}, but the stream has {', '.join(schema.names)}",
            column=name,
            operator=who,
        )
    return schema.field(name)


def time_of(schema: pa.Schema, name: str, who: str) -> pa.Field:
    """The same, of a column of times."""
    field = column_of(schema, name, who)
    if not (pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)):
        raise SchemaMismatch(
            f"{who} takes event times from column {name!r}, which is {field.type}; cast it to a "
            "timestamp",
            column=name,
            operator=who,
        )
    return field


def check_arrival(schema: pa.Schema, name: str) -> None:
    """Raise unless a source has such a column, and it says when rows came into being."""
    field = column_of(schema, name, "arrival= of a source")
    if not pa.types.is_timestamp(field.type):
        raise SchemaMismatch(
            f"arrival={name!r} of a source is {field.type}; latency is measured from a timestamp",
            column=name,
        )


def names_of(schema: pa.Schema, columns: Iterable[Any], where: str) -> tuple[str, ...]:
    """Names of different columns of the stream; a Spark column that is just a name counts as it."""
    names: list[str] = []
    for given in columns:
        name = given if isinstance(given, str) else shown_name(given, schema)
        if name is None:
            raise DeclarationError(
                f"{where} takes names of columns, one by one, such as {schema.names[0]!r}; got "
                f"{given!s}. Compute a column with with_columns(...) first"
            )
        column_of(schema, name, where)
        if name in names:
            raise NameClash(f"{where} names column {name!r} twice", column=name)
        names.append(name)
    return tuple(names)


def shown_name(given: Any, schema: pa.Schema) -> str | None:
    """The column of which a Spark Column is just the name, classic or of Spark Connect."""
    shown = re.fullmatch(r"Column<'(.*)'>", str(given))
    return shown[1] if shown is not None and shown[1] in schema.names else None


def key_of(schema: pa.Schema, columns: Iterable[Any], where: str) -> tuple[str, ...]:
    """The same, of columns whose types can be hashed."""
    types, names = pa.types, names_of(schema, columns, where)
    for name in names:
        kind = schema.field(name).type
        views = types.is_string_view(kind) or types.is_binary_view(kind)
        if types.is_nested(kind) or types.is_null(kind) or types.is_interval(kind) or views:
            raise SchemaMismatch(
                f"column {name!r} is {kind}, which cannot be a key; "
                "key by its parts, or map it to a string first",
                column=name,
            )
    return names


def check_union(one: pa.Schema, other: pa.Schema) -> None:
    """Raise unless both sides have the same columns and types, in whatever order."""
    if {f.name: f.type for f in one} != {f.name: f.type for f in other}:
        raise SchemaMismatch(
            f"union needs equal columns; one side has {_short_text(one)}, the other "
            f"{_short_text(other)}: use select() or map() first"
        )


def merged(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Schemas of equal names and types as one: nullable where one is, in the order of the first."""
    first = schemas[0]
    if all(schema is first or schema == first for schema in schemas):
        return first
    return pa.schema(
        [f.with_nullable(any(s.field(f.name).nullable for s in schemas)) for f in first]
    )


def _short_text(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)


# Sinks ----------------------------------------------------------------------------------------
# What Parquet can write, and what Spark reads back whole. A sink is called after its epoch is
# committed, so a type that it cannot have must be found before. The tables were found by writing a
# value of every Arrow type with pyarrow and reading it with Spark 4.3: some types Spark reads as
# another one without loss, some not at all, and durations in a wrong unit.

READ_BY_SPARK = frozenset({"function", "table"})
DECIMAL_DIGITS_MAX = 38
_READ_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_CASTS: dict[pa.DataType, pa.DataType] = {
    pa.float16(): pa.float32(),
    pa.time32("s"): pa.int32(),
    pa.time32("ms"): pa.int32(),
    pa.time64("us"): pa.int64(),
    pa.time64("ns"): pa.int64(),
}


def check_sink(sink: str, kind: str, schema: pa.Schema) -> None:
    """Can the rows be written, and can Spark read them if this kind of sink wants it to?"""
    for field in {field.type: field for field in reversed(list(schema))}.values():
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowException, OSError) as problem:
            raise SchemaMismatch(
                f"sink {sink!r}: Parquet, in which sink rows are kept, cannot hold column "
                f"{field.name!r} of type {field.type} ({problem}); map it to another type first",
                sink=sink,
                column=field.name,
            ) from problem
    if kind in READ_BY_SPARK:
        as_spark_reads(sink, schema)


def check_layout(
    sink: str, schema: pa.Schema, partition_by: Sequence[str], epoch_column: str | None
) -> None:
    """Raise unless a Parquet sink can have these folders, and the column with the epoch."""
    if epoch_column is not None:
        schema = check_columns(schema.append(pa.field(epoch_column, pa.int64())), f"sink {sink!r}")
    for name in names_of(schema, partition_by, f"partition_by= of sink {sink!r}"):
        kind = schema.field(name).type
        types = pa.types
        plain = types.is_string(kind) or types.is_signed_integer(kind) or types.is_date32(kind)
        if not (plain or types.is_boolean(kind)):
            raise SchemaMismatch(
                f"sink {sink!r}: column {name!r} is {kind}, which cannot name folders; partition "
                "by a text, a whole number, a date or a boolean, such as "
                f"with_columns(day={f'to_date({name})'!r})",
                sink=sink,
                column=name,
            )
    if schema.names and set(partition_by) >= set(schema.names):
        raise SchemaMismatch(
            f"sink {sink!r}: all columns name folders, and none is left for the files", sink=sink
        )


def as_spark_reads(sink: str, schema: pa.Schema) -> pa.Schema:
    """The columns of the sink's files as Spark reads them, in types that it has a word for."""
    for field in schema:
        wanted = _rebuilt(field.type, _cast_of)
        if wanted != _rebuilt(field.type, lambda kind: kind):
            raise SchemaMismatch(
                f"sink {sink!r}: Spark cannot read column {field.name!r} of type {field.type}; "
                f"cast it to {wanted} in a map() before",
                sink=sink,
                column=field.name,
            )
    return pa.schema([f.with_type(_rebuilt(f.type, lambda k: _READ_AS.get(k, k))) for f in schema])


def read_by_spark(schema: pa.Schema) -> pa.Schema:
    """The columns of a file in the types that Spark reads them in."""

    def leaf(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", None if kind.tz is None else "UTC")
        layouts = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
        return layouts.get(kind) or _READ_AS.get(kind, kind)

    return pa.schema([pa.field(f.name, _rebuilt(f.type, leaf)) for f in schema])


def _cast_of(kind: pa.DataType) -> pa.DataType:
    """A type that Spark can read and that this one can be cast to; the same if it can already."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_decimal(kind) and kind.precision > DECIMAL_DIGITS_MAX:
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return _CASTS.get(kind, kind)


def _rebuilt(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `leaf` applied to all that is not nested; lists of any layout become lists."""
    types = pa.types

    def inside(field: pa.Field) -> pa.Field:
        return field.with_type(_rebuilt(field.type, leaf))

    if types.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(inside(kind.key_field), inside(kind.item_field))
    if types.is_dictionary(kind):
        return _rebuilt(kind.value_type, leaf)
    if hasattr(kind, "value_field"):
        return pa.list_(inside(kind.value_field))
    return leaf(kind)
