"""State schemas back from the form in which a checkpoint describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headgate.errors import UnsupportedVersion
from headgate.state.layout import StateSchema, Stored

_LIST = re.compile(r"(list|large_list|fixed_size_list)<(.*): (.*?)( not null)?>(?:\[(\d+)\])?")


def parse_type(text: str) -> pa.DataType:
    """The Arrow type that prints as `text`.

    Examples:
        >>> parse_type("timestamp[us, tz=UTC]")
        TimestampType(timestamp[us, tz=UTC])
        >>> parse_type("fixed_size_list<item: double>[3]").list_size
        3
    """
    with suppress(ValueError):
        return pa.type_for_alias(text)
    if found := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", text):
        return pa.timestamp(found[1], found[2])
    if found := re.fullmatch(r"fixed_size_binary\[(\d+)\]", text):
        return pa.binary(int(found[1]))
    if found := re.fullmatch(r"(decimal(?:32|64|128|256))\((\d+), (-?\d+)\)", text):
        return getattr(pa, found[1])(int(found[2]), int(found[3]))
    if found := _LIST.fullmatch(text):
        item = pa.field(found[2], parse_type(found[3]), nullable=found[4] is None)
        if found[1] == "large_list":
            return pa.large_list(item)
        return pa.list_(item, int(found[5] or -1))
    raise UnsupportedVersion(
        f"the checkpoint names a column type {text!r} that this headgate cannot read; "
        "use the version that wrote it",
        found=text,
    )


def state_schema(described: Mapping[str, Any]) -> StateSchema:
    """The schema that `StateSchema.describe` described."""
    key, values, sub = (
        pa.schema([(name, parse_type(kind)) for name, kind in described.get(part, ())])
        for part in ("key", "values", "sub")
    )
    stored = tuple(Stored(*told) for told in described.get("stored", ()))
    retired, near = (tuple(described.get(part, ())) for part in ("retired", "near"))
    return StateSchema(key, values, sub, stored, retired, near)
