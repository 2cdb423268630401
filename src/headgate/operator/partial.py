"""Partial state: what the rows of a key come to in a task that does not own the key.

There the operator runs as ever, on a state that is empty and private (`PartialState`). What it has
written by the end, one row per key and sub-key, is sent to the owner, which merges it into what it
holds (`StatefulOperator.absorb`, given `Partials`). A partial is bounded by the rows it came from:
never more of them than rows, and usually far fewer.
"""

from __future__ import annotations

from functools import cached_property
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operator.rows import Groups, KeyedRows
from headgate.routing.hashing import U64
from headgate.routing.identity import SCRATCH, Identity
from headgate.state.private_session import PrivateSession
from headgate.state.schema import StateSchema
from headgate.state.session import StateSession


def partial_schema(schema: StateSchema) -> pa.Schema:
    """What a partial looks like on its way: key, sub-key and value columns of the state.

    A key and a value may share a name (`key_by("count")` and Count): go by position.
    """
    return pa.schema([*schema.row_key, *schema.values])


class PartialState:
    """An empty state of this schema for `process` to write to; `batch()` is what came of it.

    Use as a context manager.
    """

    def __init__(self, schema: StateSchema, identity: Identity = SCRATCH) -> None:
        self.session: StateSession = PrivateSession(schema, identity)

    def __enter__(self) -> PartialState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.__exit__(kind, error, trace)

    def batch(self) -> pa.RecordBatch:
        """One row per key and sub-key, in order of their hashes."""
        return self.session.all().batch()


class Partials:
    """Partials as their owner receives them: from several slots, so a key may be there twice."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        schema: StateSchema,
        h: U64 | None = None,
        identity: Identity = SCRATCH,
    ) -> None:
        self.batch, self.schema = batch, schema
        self._width = len(schema.key) + len(schema.sub)
        key_columns = batch.select(list(range(self._width)))
        self._keyed = KeyedRows(key_columns, schema.key.names, h, identity)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def route(self) -> U64:
        """The key's hash: who owns it, a routing table says."""
        return self._keyed.h

    @cached_property
    def groups(self) -> Groups:
        """The distinct keys, or key and sub-key pairs: the state rows to merge into."""
        names = self.schema.sub.names
        if not names:
            return self.keys
        return self._keyed.sub_groups(names, [self._keyed.column(name) for name in names])

    @property
    def keys(self) -> Groups:
        """The distinct keys, whatever their sub-keys."""
        return self._keyed.groups

    def column(self, name: str) -> pa.Array:
        """A value column of the state, null where the partial has none."""
        return self.batch.column(self._width + self.schema.values.get_field_index(name))

    def take(self, rows: npt.NDArray[np.int64]) -> Partials:
        """The chosen partials, hashes carried along."""
        keyed = self._keyed
        batch = self.batch.take(pa.array(rows))
        return Partials(batch, self.schema, keyed.h[rows], keyed.identity)
