"""A recorded stream for replay: the keys of every row as small numbers, in file order.

A key column becomes its distinct hashes (those the router uses) and a number per row. Null is a key
of its own. Any column that can be a key in a flow can be one here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.errors import HeadgateError, SchemaMismatch, UnknownColumn
from headgate.routing.hashing import U64, hash_columns
from headgate.routing.key_values import is_hashable
from headgate.routing.table import hash_table

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyColumn:
    """One key of the rows: `h` are its distinct hashes, sorted; `number[row]` points into them."""

    name: str
    h: U64
    number: I32

    def homes(self, slots: int) -> I32:
        """The slot that plain hash grouping gives each distinct key."""
        return hash_table(slots).route(self.h).astype(np.int32)


@dataclass(frozen=True)
class Trace:
    """Rows as they arrived; one key column per keyed operator, in the order of the flow."""

    keys: tuple[KeyColumn, ...]

    @property
    def rows(self) -> int:
        return len(self.keys[0].number)

    @classmethod
    def of(cls, columns: dict[str, pa.Array]) -> Trace:
        """A trace of Arrow arrays of one length, by name."""
        return cls(tuple(_key_column(name, column) for name, column in columns.items()))


def read_trace(path: Path, keys: Sequence[str], time: str | None = None) -> Trace:
    """The key columns of a Parquet file; with `time` the rows are sorted by it, ties in file order.

    Memory: 12 bytes per row and key besides the columns themselves.
    """
    if len(keys) < 2:
        raise HeadgateError("replay needs at least two keys: give --key A --key B")
    if len(set(keys)) < len(keys):
        raise HeadgateError(f"a key is named twice in {', '.join(keys)}")
    if not path.exists():
        raise HeadgateError(f"there is no file {path}", path=str(path))
    try:
        there = pq.read_schema(path).names
        wanted = [*keys, *([time] if time and time not in keys else [])]
        for name in wanted:
            if name not in there:
                raise UnknownColumn(
                    f"{path.name} has no column {name!r}; it has {', '.join(there)}", column=name
                )
        table = pq.read_table(path, columns=wanted)
    except pa.ArrowException as problem:
        raise HeadgateError(f"{path} cannot be read as Parquet: {problem}") from problem
    order = None
    if time:
        order = _stable(table[time].combine_chunks())
    columns = {}
    for name in keys:
        column = table[name].combine_chunks()
        columns[name] = column if order is None else column.take(pa.array(order))
    return Trace.of(columns)


def _stable(column: pa.Array) -> I64:
    """Row numbers by value, equal values in file order, nulls last."""
    rank = pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False)
    return np.argsort(rank, kind="stable").astype(np.int64)


def _key_column(name: str, column: pa.Array) -> KeyColumn:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not is_hashable(column.type):
        raise SchemaMismatch(f"column {name!r} of type {column.type} cannot be a key", column=name)
    h = hash_columns([column], len(column))
    distinct, number = np.unique(h, return_inverse=True)
    return KeyColumn(name, distinct, number.astype(np.int32))
