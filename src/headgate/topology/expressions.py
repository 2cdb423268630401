"""Conditions and columns that are given as expressions: of pyarrow, as SQL text, as Spark Columns.

Whatever was given becomes an expression of pyarrow when it is declared, with its types checked and
the columns known that it reads. So it runs vectorised in the task, without Spark, and columns that
nobody reads never leave the source.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import (
    DeclarationError,
    NameClash,
    OperatorFailed,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.topology.arrow_expressions import columns_read, type_of, values_of
from headgate.topology.schema import column_of, shown_name
from headgate.topology.spark_column import is_spark_column, tree_of
from headgate.topology.sql import Name, parse
from headgate.topology.sql_meaning import meaning_of

FUNCTION_INSTEAD = "a function of a RecordBatch can do what an expression cannot"


@dataclass(frozen=True, eq=False)
class Condition:
    """What rows must fulfil; null counts as false, as in SQL."""

    expression: pc.Expression
    reads: frozenset[str]
    text: str

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return _computed([self.expression], batch, self.text)[0]


class Column(NamedTuple):
    """A column of the output: one of the input as it is (`source`), or an expression."""

    field: pa.Field
    source: str | None
    expression: pc.Expression | None
    reads: frozenset[str]
    text: str


@dataclass(frozen=True, eq=False)
class Columns:
    """Makes a batch of these columns from one of the input's."""

    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    def source_of(self, name: str) -> str | None:
        """The input's column that this one is, unchanged."""
        return next((c.source for c in self.columns if c.field.name == name), None)

    def only(self, wanted: Iterable[str]) -> Columns:
        """Those that somebody reads; at least one, which counts the rows."""
        names = set(wanted)
        kept = tuple(column for column in self.columns if column.field.name in names)
        return Columns(kept or self.columns[:1])

    def needs(self, wanted: Iterable[str]) -> set[str]:
        return {name for column in self.only(wanted).columns for name in column.reads}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = [c for c in self.columns if c.expression is not None]
        text = ", ".join(column.text for column in made)
        values = iter(_computed([c.expression for c in made], batch, text) if made else ())
        arrays = [
            batch.column(column.source) if column.source is not None else next(values)
            for column in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _computed(
    expressions: Sequence[pc.Expression | None], batch: pa.RecordBatch, text: str
) -> list[pa.Array]:
    try:
        return values_of([e for e in expressions if e is not None], batch)
    except pa.ArrowException as problem:
        raise OperatorFailed(f"{text}: {str(problem).splitlines()[0]}") from problem


# --- what users give ------------------------------------------------------------------------------


def is_expression(given: Any) -> bool:
    return isinstance(given, str | pc.Expression) or is_spark_column(given)


def condition_of(given: Any, schema: pa.Schema, where: str) -> Condition:
    read = _read(given, schema, where)
    if not pa.types.is_boolean(read.type):
        raise SchemaMismatch(
            f"{where}: {read.text} is {read.type} and no condition; compare it with something",
            operator=where,
            expression=read.text,
        )
    return Condition(read.expression, columns_read(read.expression, schema), read.text)


def chosen(
    schema: pa.Schema, given: Sequence[Any], named: Mapping[str, Any], where: str
) -> Columns:
    """The columns of `select`, in the order given."""
    columns: list[Column] = []
    for item in given:
        if isinstance(item, Mapping):
            columns += [_column(name, e, schema, where) for name, e in item.items()]
        else:
            plain = isinstance(item, str) and item in schema.names
            source = item if plain else shown_name(item, schema)
            if source is None:
                columns.append(_column(None, item, schema, where))
            else:
                columns.append(_passed(schema, source))
    columns += [_column(name, e, schema, where) for name, e in named.items()]
    names = [column.field.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise NameClash(f"{where} names column {name!r} twice", column=name)
    return Columns(tuple(columns))


def with_columns(schema: pa.Schema, named: Mapping[str, Any], where: str) -> Columns:
    """The columns of the stream, some replaced, others added behind them."""
    made = {name: _column(name, given, schema, where) for name, given in named.items()}
    passed = {name: _passed(schema, name) for name in schema.names}
    return Columns(tuple({**passed, **made}.values()))


def _passed(schema: pa.Schema, name: str) -> Column:
    return Column(schema.field(name), name, None, frozenset([name]), name)


def _column(name: str | None, given: Any, schema: pa.Schema, where: str) -> Column:
    if not is_expression(given):
        raise DeclarationError(
            f"{where}: {given!r} is no expression; give SQL text such as 'price * 2', "
            "pc.field('price') * 2 or a Spark Column (a text is quoted: \"'text'\"). "
            f"map(...) takes functions: {FUNCTION_INSTEAD}",
            operator=where,
        )
    read = _read(given, schema, where)
    name = name or read.name
    if name is None:
        raise DeclarationError(
            f"{where}: the column {read.text} has no name; write total={read.text}, or "
            "'... AS name' in SQL",
            operator=where,
            expression=read.text,
        )
    if read.source is not None:
        field = schema.field(read.source).with_name(name)
        return Column(field, read.source, None, frozenset([read.source]), read.text)
    if pa.types.is_null(read.type):
        raise SchemaMismatch(
            f"{where}: column {name!r} is null in every row and so of no type; write "
            "cast(null as bigint), or another type",
            operator=where,
            column=name,
        )
    reads = columns_read(read.expression, schema)
    return Column(pa.field(name, read.type), None, read.expression, reads, read.text)


class _Read(NamedTuple):
    """An expression; `name` is what it calls itself, `source` the column that it merely is."""

    expression: pc.Expression
    type: pa.DataType
    text: str
    name: str | None = None
    source: str | None = None


def _read(given: Any, schema: pa.Schema, where: str) -> _Read:
    text = repr(given) if isinstance(given, str) else str(given)
    try:
        return _understood(given, schema, text, where)
    except DeclarationError as problem:
        way_out = (
            "; apply it to the DataFrame before flow.source(...), or write it as SQL text or "
            "pc.field(...)"
        )
        said = f"{where}: {text} {problem.message}{way_out if is_spark_column(given) else ''}"
        fields = {"operator": where, "expression": text, **problem.fields}
        raise type(problem)(said, **fields) from None


def _understood(given: Any, schema: pa.Schema, text: str, where: str) -> _Read:
    alias, source = None, None
    if isinstance(given, pc.Expression):
        expression = given
        source = str(given) if str(given) in schema.names else None
    else:
        tree, alias = parse(given) if isinstance(given, str) else tree_of(given)
        expression = meaning_of(tree, schema)
        if isinstance(tree, Name) and len(tree.parts) == 1:
            source = next(n for n in schema.names if n.lower() == tree.parts[0].lower())
    try:
        kind = type_of(expression, schema)
        pickle.dumps(expression)
    except (pa.ArrowException, ValueError, TypeError, pickle.PicklingError) as problem:
        have = ", ".join(f"{field.name} {field.type}" for field in schema)
        reason = str(problem).splitlines()[0]
        if "non-name field_ref" in reason:
            reason = "it names a column by its number; give the name"
        if "No match for FieldRef" in reason:
            raise UnknownColumn(f"reads a column that is not in a stream of {have}") from problem
        raise SchemaMismatch(f"does not fit a stream of {have}: {reason}") from problem
    if source is not None:
        column_of(schema, source, where)
    return _Read(expression, kind, text, alias or source, source)
