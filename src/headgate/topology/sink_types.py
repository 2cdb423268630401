"""Which column types a sink can have: what Parquet can write, and what Spark reads back whole.

A sink is called after its epoch is committed, so a type that it cannot have must be found before.
Found by writing a value of every Arrow type with pyarrow and reading it with Spark 4.3: some types
Spark reads as another one without loss, some not at all, and durations in a wrong unit.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import SchemaMismatch

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
    first_of_type: dict[pa.DataType, pa.Field] = {}
    for field in schema:
        first_of_type.setdefault(field.type, field)
    for field in first_of_type.values():
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
