"""Side tables: rows that a stream looks up by columns of its own, as declared.

The driver reads the table, at the start and again when a refresh is due, and keeps what it read as
a file of the checkpoint. Tasks see only the version that their epoch's plan names. So a lookup
needs no key, no exchange and no state, and every attempt of a task finds the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds

from headgate.errors import DeclarationError, SchemaMismatch
from headgate.topology.arguments import absolute, check_choice, ttl_ms
from headgate.topology.files import file_system
from headgate.topology.joining import LEFT, RIGHT, sides_of
from headgate.topology.schema import (
    SchemaLike,
    check_columns,
    key_of,
    names_of,
    read_by_spark,
    to_schema,
)

LookupHow = Literal["left", "inner"]
ROWS_MAX = 5_000_000
BYTES_MAX = 256 << 20  # every worker process holds the table, and an index of it


@dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup in a side table; the driver alone has `read`, which never travels.

    `table` are the columns of a version: its key, then those that are looked up. `on` pairs key
    columns (stream, table), `left` and `right` are pairs (name there, name in the output).
    """

    table: pa.Schema
    on: tuple[tuple[str, str], ...]
    how: LookupHow
    left: tuple[tuple[str, str], ...]
    right: tuple[tuple[str, str], ...]
    refresh_ms: int | None
    text: str
    read: Callable[[], pa.Table] | None

    def __getstate__(self) -> dict[str, Any]:
        fields = ("table", "on", "how", "left", "right", "refresh_ms", "text")
        return {name: getattr(self, name) for name in fields} | {"read": None}

    @property
    def kind(self) -> str:
        """The kind of operator without state that it is: rows may only go with "inner"."""
        return "map" if self.how == "left" else "flat_map"

    @property
    def key(self) -> tuple[str, ...]:
        """The key's names in the table."""
        return tuple(other for _, other in self.on)

    def needs(self, wanted: Iterable[str]) -> set[str]:
        """The stream's columns that it takes to make the wanted ones."""
        names = set(wanted)
        return {mine for mine, _ in self.on} | {n for n, output in self.left if output in names}

    def only(self, given: pa.Schema, wanted: Iterable[str]) -> Lookup:
        """One that gets these columns and makes no others that nobody wants."""
        names = set(wanted)
        left = tuple(pair for pair in self.left if pair[0] in given.names)
        right = tuple(pair for pair in self.right if pair[1] in names)
        kept = (*(other for _, other in self.on), *(name for name, _ in right))
        table = pa.schema([self.table.field(name) for name in kept])
        return replace(self, table=table, left=left, right=right)

    def output(self, given: pa.Schema) -> pa.Schema:
        """What it makes of a stream of these columns."""
        mine = [given.field(name).with_name(output) for name, output in self.left]
        found = [self.table.field(name).with_name(output) for name, output in self.right]
        return pa.schema([*mine, *(field.with_nullable(True) for field in found)])

    def version(self, read: pa.Table) -> pa.Table:
        """What was read as a version of the table: its columns and types, in one piece.

        Rows with a null in the key are left out: they equal nothing.
        """
        missing = [name for name in self.table.names if name not in read.schema.names]
        if missing:
            have = ", ".join(read.schema.names)
            raise DeclarationError(f"it has no column {missing[0]!r} any more; it has {have}")
        try:
            table = read.select(self.table.names).cast(self.table)
        except (pa.ArrowException, ValueError) as problem:
            raise DeclarationError(
                f"its columns are not those that were declared ({self.table.to_string()}): "
                f"{problem}"
            ) from problem
        valid = ds.dataset(table).to_table(filter=_all_valid(self.key))
        if valid.num_rows > ROWS_MAX or valid.nbytes > BYTES_MAX:
            raise DeclarationError(
                f"it has {valid.num_rows:,} rows of {valid.nbytes:,} bytes, and each worker keeps "
                f"all of them: at most {ROWS_MAX:,} rows and {BYTES_MAX:,} bytes. Name the columns "
                "that are wanted with columns=[...], or make it a stream and use "
                "join(..., as_of=True)"
            )
        return valid.combine_chunks()


def _all_valid(names: Iterable[str]) -> Any:
    first, *others = [ds.field(name).is_valid() for name in names]
    for other in others:
        first &= other
    return first


def lookup_of(
    stream: pa.Schema,
    table: Any,
    on: str | Iterable[str] | Mapping[str, str],
    how: Any,
    columns: Iterable[str] | None,
    refresh: str | timedelta | None,
    suffixes: tuple[str, str] | None,
    schema: SchemaLike | None,
    who: str,
) -> Lookup:
    """What a user asked for, checked against the stream's columns and the table's."""
    check_choice(how, "how", ("left", "inner"))
    found, read, text, changes = _read_of(table, schema, who)
    if refresh is not None and not changes:
        raise DeclarationError(
            f"{who}: refresh= of a {text} would read the same rows again; give a path, a Spark "
            "DataFrame, or a function that returns a pyarrow Table"
        )
    pairs = _pairs_of(on, who)
    mine = key_of(stream, [name for name, _ in pairs], who)
    known = ", ".join(found.names)
    for name in [other for _, other in pairs] + list(columns or ()):
        if name not in found.names:
            raise DeclarationError(f"{who}: the side table has no column {name!r}; it has {known}")
    others = key_of(found, [other for _, other in pairs], who)
    wanted = [n for n in found.names if n not in others]
    if columns is not None:
        wanted = list(names_of(found, columns, f"columns= of {who}"))
        if set(wanted) & set(others):
            raise DeclarationError(
                f"{who}: columns= names {sorted(set(wanted) & set(others))[0]!r}, a column of the "
                "key; it is in the output under its name in the stream: leave it out"
            )
    taken = pa.schema([*map(found.field, others), *map(found.field, wanted)])
    taken = _as_the_stream(stream, taken, pairs)
    sides = sides_of((stream, taken), (mine, others), suffixes, who)
    renamed = dict(sides.names[LEFT])
    left = tuple((name, renamed.get(name, name)) for name in stream.names)
    refresh_ms = ttl_ms(refresh)
    return Lookup(taken, pairs, how, left, sides.names[RIGHT], refresh_ms, text, read)


def _pairs_of(on: Any, who: str) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        pairs: tuple[tuple[Any, Any], ...] = ((on, on),)
    elif isinstance(on, Mapping):
        pairs = tuple(on.items())
    elif isinstance(on, Iterable):
        pairs = tuple((name, name) for name in on)
    else:
        pairs = ()
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise DeclarationError(
            f"{who}: on={on!r}; give the column that both have, a list of them, or a mapping of "
            "the stream's columns to the table's: on={'category': 'id'}"
        )
    return pairs


def _as_the_stream(
    stream: pa.Schema, table: pa.Schema, pairs: tuple[tuple[str, str], ...]
) -> pa.Schema:
    """The table's schema with key columns laid out as the stream's, where they hold the same.

    Its other columns get the types that sinks can take.
    """
    shown = read_by_spark(table)
    for mine, other in pairs:
        wanted = stream.field(mine)
        same = read_by_spark(pa.schema([wanted])).field(0).type == shown.field(other).type
        place = shown.get_field_index(other)
        shown = shown.set(place, pa.field(other, wanted.type if same else table.field(other).type))
    return shown


def _read_of(
    table: Any, schema: SchemaLike | None, who: str
) -> tuple[pa.Schema, Callable[[], pa.Table], str, bool]:
    """Its columns, how the driver reads it, what it is, and whether it may change."""
    given = None if schema is None else to_schema(schema)
    if isinstance(table, pa.Table):
        return given or table.schema, lambda: table, "pyarrow Table", False
    if type(table).__module__.partition(".")[0] == "pandas":
        held = pa.Table.from_pandas(table, preserve_index=False)
        return given or held.schema, lambda: held, "pandas DataFrame", False
    if isinstance(table, str | os.PathLike):
        read = partial(_read_parquet, absolute(table))
        return given or _dataset(absolute(table), who).schema, read, f"Parquet {table}", True
    if hasattr(table, "toArrow"):
        if table.isStreaming:
            raise DeclarationError(
                f"{who}: a side table is static, and this DataFrame is a stream; make it a source "
                "of the flow and use join(..., as_of=True)"
            )
        return given or to_schema(table.schema), table.toArrow, "Spark DataFrame", True
    if callable(table):
        found = given or _called(table, who).schema
        text = f"function {getattr(table, '__name__', type(table).__name__)}"
        return found, partial(_called, table, who), text, True
    raise DeclarationError(
        f"{who}: a side table is a pyarrow Table, a pandas or Spark DataFrame, a path of Parquet "
        f"or a function that returns a pyarrow Table, not {type(table).__name__}"
    )


def _called(function: Callable[[], Any], who: str) -> pa.Table:
    made = function()
    if not isinstance(made, pa.Table):
        raise DeclarationError(
            f"{who}: the function returned {type(made).__name__}; it must return a pyarrow Table"
        )
    return made


def _dataset(place: str, who: str) -> ds.Dataset:
    files, path = file_system(place)
    try:
        return ds.dataset(path, filesystem=files, format="parquet", partitioning="hive")
    except (pa.ArrowException, OSError) as problem:
        raise DeclarationError(f"{who}: {place} cannot be read as Parquet: {problem}") from problem


def _read_parquet(place: str) -> pa.Table:
    return _dataset(place, "lookup").to_table()


def check_output(lookup: Lookup, stream: pa.Schema, who: str) -> pa.Schema:
    """What the lookup makes of the stream; raises if two of its columns have one name."""
    if not lookup.right and lookup.how == "left":
        raise SchemaMismatch(f"{who}: the side table has no column but its key; nothing is found")
    return check_columns(lookup.output(stream), f"what {who} returns")
