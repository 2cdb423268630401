"""Read Arrow types back from the text that `str(type)` gives, as checkpoints store them.

`parse_type(str(t)) == t` for every type that a state row may hold, and for the nested types around
them. Names of struct fields may hold anything but ": " and brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headgate.errors import UnsupportedVersion
from headgate.state.layout import StateSchema
from headgate.topology.arrow_types import split_outside_brackets

_LISTS: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def parse_type(text: str) -> pa.DataType:
    """The Arrow type that prints as `text`.

    Examples:
        >>> parse_type("timestamp[us, tz=UTC]")
        TimestampType(timestamp[us, tz=UTC])
        >>> parse_type("struct<a: list<item: int64>, b: decimal128(10, 2)>").num_fields
        2
    """
    text = text.strip()
    with suppress(ValueError):
        return pa.type_for_alias(text)
    parsed = _parametric(text) or _nested(text)
    if parsed is None:
        raise UnsupportedVersion(
            f"the checkpoint names a column type {text!r} that this headgate cannot read; "
            "use the version that wrote it",
            found=text,
        )
    return parsed


def state_schema(told: Mapping[str, Sequence[Sequence[str]]]) -> StateSchema:
    """The schema that `StateSchema.describe` told."""
    parts = {
        part: pa.schema([(name, parse_type(kind)) for name, kind in told.get(part, ())])
        for part in ("key", "values", "sub")
    }
    return StateSchema(parts["key"], parts["values"], parts["sub"])


def _parametric(text: str) -> pa.DataType | None:
    if found := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", text):
        return pa.timestamp(found[1], found[2])
    if found := re.fullmatch(r"fixed_size_binary\[(\d+)\]", text):
        return pa.binary(int(found[1]))
    if found := re.fullmatch(r"(decimal(?:32|64|128|256))\((\d+), (-?\d+)\)", text):
        return getattr(pa, found[1])(int(found[2]), int(found[3]))
    return None


def _nested(text: str) -> pa.DataType | None:
    found = re.fullmatch(r"(\w+)<(.*)>(?:\[(\d+)\])?", text, re.DOTALL)
    if not found:
        return None
    kind, inside, size = found[1], found[2], found[3]
    if kind == "fixed_size_list" and size is not None:
        return pa.list_(_field(inside), int(size))
    if kind in _LISTS:
        return _LISTS[kind](_field(inside))
    parts = split_outside_brackets(inside)
    if kind == "struct":
        return pa.struct([_field(part) for part in parts])
    if kind == "map":
        return pa.map_(parse_type(parts[0]), parse_type(parts[1]), len(parts) > 2)
    if kind == "dictionary":
        told: dict[str, Any] = dict(part.strip().split("=", 1) for part in parts)
        index, values = parse_type(told["indices"]), parse_type(told["values"])
        return pa.dictionary(index, values, ordered=told["ordered"] == "1")
    return None


def _field(text: str) -> pa.Field:
    name, _, kind = text.strip().partition(": ")
    bare = kind.removesuffix(" not null")
    return pa.field(name, parse_type(bare), nullable=bare == kind)
