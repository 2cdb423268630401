"""What one operator keeps per key: key columns, sub-key columns and value columns.

Routing and migration know only the *key*: its hash is `route`. A state row is found by the hash
of key **and** sub-key, so an operator may hold many rows per key (items of a window, say) and
they all move together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def _empty() -> pa.Schema:
    return pa.schema([])


@dataclass(frozen=True)
class StateSchema:
    """Arrow fields of a state row; two schemas are compatible when `describe()` is equal."""

    key: pa.Schema
    values: pa.Schema
    sub: pa.Schema = field(default_factory=_empty)

    @property
    def row_key(self) -> pa.Schema:
        return pa.schema(list(self.key) + list(self.sub))

    @property
    def shown(self) -> pa.Schema:
        """Key, sub-key and value columns as readers outside the flow get them, all names apart."""
        fields = [*self.row_key, *self.values]
        names = shown_names(self.row_key.names, self.values.names)
        return pa.schema([f.with_name(name) for f, name in zip(fields, names, strict=True)])

    def describe(self) -> dict[str, Any]:
        """JSON form, kept in the checkpoint and compared when a flow resumes."""
        return {
            part: [[f.name, str(f.type)] for f in getattr(self, part)]
            for part in ("key", "sub", "values")
        }


def shown_names(key: Sequence[str], values: Sequence[str]) -> list[str]:
    """Names of a state row's columns; a value that is called like a key becomes `value.NAME`.

    Examples:
        >>> shown_names(["count"], ["count", "sum"])
        ['count', 'value.count', 'sum']
    """
    names = list(key)
    for name in values:
        while name in names:
            name = f"value.{name}"
        names.append(name)
    return names


class KeyBatch(Protocol):
    """Distinct state-row keys, hashed; what operators look up and write by.

    `check` tells them from other keys of equal `h`, in the way that `identity` says (None: in that
    of the batch); it is never 0 and never 2: the table marks empty rows and tombstones with those.
    """

    @property
    def route(self) -> U64: ...
    @property
    def h(self) -> U64: ...
    def check(self, identity: Any = None) -> U64: ...
    @property
    def columns(self) -> pa.RecordBatch:
        """Key and sub-key columns (`StateSchema.row_key`), a row per distinct key."""
