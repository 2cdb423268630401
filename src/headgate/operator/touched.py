"""Which keys an epoch touched: the carry of every operator that emits updates.

Each call names its keys; `finish` finds all of them together, makes them distinct, and emits one
row per key, however many calls and tasks the epoch took.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.operator.rows import Groups, KeyedRows

TOUCHED = "@touched"  # stands in for the key columns of a global operator, which has none


def touched_schema(rows: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Schema of a carry that names the keys touched."""
    if not key:
        return pa.schema([pa.field(TOUCHED, pa.bool_())])
    return pa.schema([rows.field(name) for name in key])


def touched(groups: Groups) -> pa.RecordBatch:
    """The keys of a call, for `finish` to find."""
    keys = groups.columns
    if keys.num_columns:
        return keys
    return pa.RecordBatch.from_arrays([pa.array(np.ones(len(groups), np.bool_))], [TOUCHED])


def touched_keys(carry: pa.RecordBatch) -> Groups:
    """The distinct keys of the epoch's carries."""
    names = carry.schema.names
    return KeyedRows(carry, [] if names == [TOUCHED] else names).groups
