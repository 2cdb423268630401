"""Key batches for tests: hashed as routing would, but small and in plain sight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headgate.arrays import U64
from headgate.state.layout import StateSchema


@dataclass(frozen=True)
class Keys:
    """A KeyBatch made from rows of Python values."""

    route: U64
    h: U64
    checks: U64
    columns: pa.RecordBatch

    def check(self, identity: Any = None) -> U64:
        return self.checks


def keys_of(schema: StateSchema, rows: list[tuple[Any, ...]]) -> Keys:
    """One distinct row key per tuple, in the order of `schema.row_key`."""
    fields = list(schema.row_key)
    arrays = [pa.array([row[i] for row in rows], type=f.type) for i, f in enumerate(fields)]
    width = len(schema.key)
    route = np.array([_digest(row[:width]) for row in rows], np.uint64)
    h = route if not len(schema.sub) else np.array([_digest(row) for row in rows], np.uint64)
    if len(fields) == 1 and pa.types.is_integer(fields[0].type):
        check = np.ones(len(rows), np.uint64)
    else:
        check = np.array([_digest(row, 7) | 4 for row in rows], np.uint64)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.row_key)
    return Keys(route, h, check, batch)


def int_keys(values: np.ndarray[Any, Any], name: str = "k") -> Keys:
    """Fast integer keys: a bijective mix, so that equal hashes are equal keys."""
    mixed = values.astype(np.uint64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=[name])
    return Keys(mixed, mixed, np.ones(len(values), np.uint64), batch)


def _digest(row: tuple[Any, ...], seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(repr(row).encode(), seed)
