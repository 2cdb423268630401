"""What a declaration is checked for, on the line that makes it: names, columns, keys, groupings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from numbers import Integral
from typing import Any, TypeVar, get_args

import pyarrow as pa

from headgate.errors import (
    DeclarationError,
    HeadgateError,
    NameClash,
    SchemaMismatch,
    UnknownColumn,
)
from headgate.topology.arrow_types import SchemaLike, from_spark_json, to_schema
from headgate.topology.graph import SEVERAL_SLOTS, Edge, Grouping, KeyGrouping, Node

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
C = TypeVar("C")
NAME_LETTERS_MAX = 90  # a file name of 255 holds the names of a flow and a sink, and 70 letters


def source_schema(frame: Any, schema: SchemaLike | None) -> pa.Schema:
    return check_columns(_source_schema(frame, schema), "a source")


def _source_schema(frame: Any, schema: SchemaLike | None) -> pa.Schema:
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


def names_of(schema: pa.Schema, columns: Iterable[Any], where: str) -> tuple[str, ...]:
    """Names of different columns of the stream; a Spark column that is just a name counts as it."""
    names: list[str] = []
    for given in columns:
        name = given
        if not isinstance(given, str):
            shown = re.fullmatch(r"Column<'(.*)'>", str(given))
            if shown is None or shown[1] not in schema.names:
                raise DeclarationError(
                    f"{where} takes names of columns, one by one, such as {schema.names[0]!r}; got "
                    f"{given!s}. Compute a column with map(...) first"
                )
            name = shown[1]
        column_of(schema, name, where)
        if name in names:
            raise NameClash(f"{where} names column {name!r} twice", column=name)
        names.append(name)
    return tuple(names)


def check_predicate(expression: Any, schema: pa.Schema) -> None:
    """Raise unless a pyarrow expression is a condition on columns of the stream."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, ValueError, TypeError) as problem:
        reason = str(problem).splitlines()[0]
        raise SchemaMismatch(
            f"filter({expression}) does not fit a stream of {short_text(schema)}: {reason}"
        ) from problem


def check_operator(operator: Any) -> None:
    """Raise unless it is a stateful operator, and say what to write instead."""
    if isinstance(operator, type):
        who = operator.__name__
        raise DeclarationError(f"process({who}) got a class; make an operator of it: {who}(...)")
    if hasattr(operator, "declared"):
        return
    if callable(operator):
        raise DeclarationError(
            f"process(...) got the function {getattr(operator, '__name__', operator)!r}; wrap it: "
            "process(hg.Update(function, output='k string, ...'))"
        )
    raise DeclarationError(
        f"process(...) takes a stateful operator such as hg.Count(), not {operator!r}"
    )


def check_event_time(nodes: Sequence[Node], edges: Iterable[Edge]) -> None:
    """Raise if a window has no source with event times before it: it would never close."""
    timed: set[int] = {n.id for n in nodes if n.kind == "source" and n.spec.event_time is not None}
    inputs = [(edge.producer, edge.consumer) for edge in edges]
    for node in nodes:  # producers are declared before their consumers
        if any(producer in timed for producer, consumer in inputs if consumer == node.id):
            timed.add(node.id)
        if node.kind == "stateful" and node.id not in timed and node.spec.held_from(0) is not None:
            raise DeclarationError(
                f"{node.name!r} has windows, but no source before it has event times: they would "
                "never close. Give its source event_time='...'",
                operator=node.name,
            )


def check_union(one: pa.Schema, other: pa.Schema) -> None:
    """Raise unless both sides have the same columns and types, in whatever order."""
    types = [{field.name: field.type for field in schema} for schema in (one, other)]
    if types[0] != types[1]:
        raise SchemaMismatch(
            f"union needs equal columns; one side has {short_text(one)}, the other "
            f"{short_text(other)}: use select() or map() first"
        )


def merged(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Schemas of equal names and types as one: nullable where one is, in the order of the first."""
    first = schemas[0]
    if all(schema is first or schema == first for schema in schemas):
        return first
    may_be_null = [any(s.field(name).nullable for s in schemas) for name in first.names]
    return pa.schema([f.with_nullable(n) for f, n in zip(first, may_be_null, strict=True)])


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


def check_grouping(grouping: object, known: Sequence[str]) -> None:
    """Raise unless it is one of the words for how rows find the slots of their keys."""
    if grouping == "split":
        raise DeclarationError(
            "grouping='split' has another name: give grouping='cut' to share the rows of heavy "
            "keys among several slots, or 'partial' to fold all rows in the task that has them"
        )
    if grouping in get_args(KeyGrouping) and grouping not in known:
        raise DeclarationError(
            f"globally(grouping={grouping!r}): there is only one key; choose {', '.join(known)}"
        )
    if grouping not in known:
        raise DeclarationError(f"grouping={grouping!r}; there are {', '.join(known)}")


def check_mergeable(operator: Any, rows: pa.Schema, grouping: Grouping, name: str | None) -> None:
    """Raise if several tasks are to work on a key of this operator, and they could not."""
    if grouping.by not in ("partial", *SEVERAL_SLOTS):
        return
    if operator.mergeable(rows, grouping.key) and not operator.ordered:
        return
    raise DeclarationError(
        f"{operator!r} cannot be folded into partials: "
        f"{operator.why_not_mergeable(rows, grouping.key)}. "
        f"Change that, or leave out grouping={grouping.by!r}",
        operator=name or type(operator).__name__,
    )


def why_no_keyword(name: str, value: object) -> str:
    """What to write instead of a keyword that `process` does not take."""
    if name != "split":
        return unknown_name("process", name, ["name"])
    word = "auto" if value == "auto" else "partial" if value else "hash"
    before = f"key_by(..., grouping={word!r}) or globally(grouping={word!r})"
    return f"process takes no split=; give {before} before it"


def check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{what} name {name!r}: use letters, digits, '.', '_' and '-' (it names files)"
        )
    if len(name) + name.count("-") > NAME_LETTERS_MAX:
        raise DeclarationError(
            f"{what} name {name[:20]}… has {len(name)} letters; it names files, so it may have "
            f"{NAME_LETTERS_MAX}, and a '-' counts twice"
        )


def check_count(
    value: Any,
    what: str,
    *,
    least: int = 1,
    error: type[HeadgateError] = DeclarationError,
    **fields: Any,
) -> int:
    """The value as an int; raise unless it is a whole number that is not less than `least`.

    Examples:
        >>> check_count("3", "k of TopK")
        Traceback (most recent call last):
        ...
        headgate.errors.DeclarationError: k of TopK is '3'; it must be a whole number, at least 1
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise error(f"{what} is {value!r}; it must be a whole number, at least {least}", **fields)
    return int(value)


def unknown_name(owner: str, name: str, known: Iterable[str]) -> str:
    """What to say about a keyword that nobody knows: the nearest that there is, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known)}"
    return f"{owner} takes no {name}=; {hint}"


def named_fields(settings: type[C]) -> type[C]:
    """Make a settings dataclass answer an unknown keyword with the field to give instead.

    That is the one its `REPLACED` names, a field of settings inside it, or the nearest.
    """
    made: Any = settings
    init, known = made.__init__, {field.name: field.default for field in fields(made)}
    replaced: Mapping[str, str] = getattr(made, "REPLACED", {})

    @wraps(init)
    def checked(self: object, *args: Any, **given: Any) -> None:
        for name in given:
            if name in known:
                continue
            said = unknown_name(settings.__name__, name, known)
            for field, default in known.items():
                if is_dataclass(default) and hasattr(default, name):
                    inner = f"hg.{type(default).__name__}({name}=...)"
                    said = f"{settings.__name__} takes no {name}=; give {field}={inner}"
            if name in replaced:
                said = f"{settings.__name__} takes no {name}=; give {replaced[name]}"
            raise DeclarationError(said, option=name)
        init(self, *args, **given)

    made.__init__ = checked
    return settings


def short_text(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
