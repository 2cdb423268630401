"""Read Arrow types back from the text that `str(type)` gives, as checkpoints store them.

`parse_type(str(t)) == t` for every type that a state row may hold, and for the nested types around
them. Names of struct fields may hold anything but ": " and brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import UnsupportedVersion
from headgate.state.layout import StateSchema
from headgate.topology.arrow_types import split_outside_brackets

_ATOMS: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.string_view(), pa.binary_view(), pa.month_day_nano_interval()),
        *(pa.time32(unit) for unit in ("s", "ms")),
        *(pa.time64(unit) for unit in ("us", "ns")),
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    )
}
_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
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
    if text in _ATOMS:
        return _ATOMS[text]
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
    found = re.fullmatch(r"(decimal\d+)\((\d+), (-?\d+)\)", text)
    if found and found[1] in _DECIMALS:
        return _DECIMALS[found[1]](int(found[2]), int(found[3]))
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
