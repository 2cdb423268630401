"""What a declaration is checked for, on the line that makes it: names, columns, keys, splitting."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, SchemaMismatch, UnknownColumn
from headgate.topology.arrow_types import SchemaLike, from_spark_json, to_schema
from headgate.topology.graph import SEVERAL_SLOTS, Grouping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def source_schema(frame: Any, schema: SchemaLike | None) -> pa.Schema:
    if schema is not None:
        return to_schema(schema)
    found: Any = getattr(frame, "schema", None)
    if isinstance(found, pa.Schema):
        return found
    if isinstance(found, str):
        return to_schema(found)
    if hasattr(found, "jsonValue"):
        return from_spark_json(found.jsonValue())
    if callable(frame):
        raise DeclarationError("a source given as a function needs schema='k bigint, …'")
    raise DeclarationError(f"a source is a DataFrame or a function, not {type(frame).__name__}")


def column_of(schema: pa.Schema, name: str, where: str) -> pa.Field:
    if name not in schema.names:
        raise UnknownColumn(
            f"{where} names column {name!r}, but the stream has {', '.join(schema.names)}",
            column=name,
        )
    return schema.field(name)


def check_key_type(field: pa.Field) -> None:
    kind = field.type
    types = pa.types
    if (
        types.is_nested(kind)
        or types.is_null(kind)
        or types.is_interval(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    ):
        raise SchemaMismatch(
            f"column {field.name!r} is {kind}, which cannot be a key; "
            "key by its parts, or map it to a string first",
            column=field.name,
        )


def check_split(
    split: object, operator: Any, rows: pa.Schema, grouping: Grouping, name: str | None
) -> None:
    """May several tasks work on a key of this operator, as the declaration asks?"""
    who = name or type(operator).__name__
    if not (split is True or split is False or split == "auto"):
        raise DeclarationError(f"split={split!r}; choose True, False or 'auto'", operator=who)
    if split and grouping.by != "hash":
        raise DeclarationError(
            f"{operator!r} has split={split!r} and grouping={grouping.by!r}; split rows stay where "
            "they are and no grouping sends them anywhere: leave one of the two out",
            operator=who,
        )
    asked = f"split={split!r}" if split else f"grouping={grouping.by!r}"
    if not split and grouping.by not in SEVERAL_SLOTS:
        return
    if operator.mergeable(rows, grouping.key) and not operator.ordered:
        return
    raise DeclarationError(
        f"{operator!r} cannot be split: {operator.why_not_mergeable(rows, grouping.key)}. "
        f"Change that, or leave out {asked}",
        operator=who,
    )


def check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{what} name {name!r}: use letters, digits, '.', '_' and '-' (it names files)"
        )


def short_text(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
