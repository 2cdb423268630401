"""What a stateful operator receives: rows, their key, and the distinct keys among them.

Grouping is done once per batch and shared by everything the operator does with it.

In a task that does not own a row's key, the operator runs on a state that starts empty. What it has
written by the end, a *partial* per key and sub-key, goes to the owner, which merges it into what it
holds (`StatefulOperator.absorb`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from headgate.arrays import F64, I64, U64, Bools
from headgate.routing import kernels
from headgate.routing.hashing import group_rows, hash_columns, mix
from headgate.routing.identity import SCRATCH, Identity
from headgate.state.layout import StateSchema
from headgate.topology.keys import Key


@dataclass(frozen=True)
class EpochClock:
    """Time as the epoch's plan froze it: every attempt of every task sees the same.

    `watermark_us` is the event time up to which the operator's input is complete when the epoch
    ends (None: no event time yet), `previous_watermark_us` what it was in the epoch before;
    `now_ms` is the processing time at which the epoch was planned, `previous_now_ms` that of the
    epoch before (None: there was none). `input_ends`: no epoch comes after this one, so everything
    held has to be emitted.
    """

    epoch: int
    now_ms: int
    watermark_us: int | None = None
    previous_watermark_us: int | None = None
    previous_now_ms: int | None = None
    input_ends: bool = False

    def behind(self, us: int) -> EpochClock:
        """The clock of somebody whose watermark is so much earlier."""
        if not us:
            return self
        now, before = self.watermark_us, self.previous_watermark_us
        return replace(
            self,
            watermark_us=None if now is None else now - us,
            previous_watermark_us=None if before is None else before - us,
        )


class Groups:
    """The distinct keys (or key and sub-key pairs) of a batch; a `state.KeyBatch`.

    `codes[row]` is the group of a row, `first[group]` its first row, `sizes[group]` its row count.
    Groups are in order of first appearance.
    """

    def __init__(self, h: U64, route: U64, columns: pa.RecordBatch, identity: Identity) -> None:
        marks = identity.marks(columns.columns, len(h))
        self.codes, self.first = group_rows(h, marks)
        self.h: U64 = h[self.first]
        self.route: U64 = self.h if route is h else route[self.first]
        self._key_columns, self._identity = columns, identity
        self._marks = [mark[self.first] for mark in marks]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def identity(self) -> Identity:
        return self._identity

    def check(self, identity: Identity | None = None) -> U64:
        """What tells these keys from others of equal `h`, in the way of the state that asks."""
        if identity is None or identity == self._identity:
            return self._check
        return check_of(self.columns, identity)

    @cached_property
    def _check(self) -> U64:
        return self._identity.check(self._marks, len(self))

    @cached_property
    def sizes(self) -> I64:
        return np.bincount(self.codes, minlength=len(self)).astype(np.int64)

    @cached_property
    def columns(self) -> pa.RecordBatch:
        """Key (and sub-key) columns, one row per group; not a copy if every row is one."""
        if len(self) == self._key_columns.num_rows:
            return self._key_columns
        return self._key_columns.take(pa.array(self.first))

    @cached_property
    def order(self) -> I64:
        """Row numbers sorted by group, arrival order kept within a group."""
        if kernels.compiled is not None:
            return kernels.order_of(kernels.compiled, self.codes, self.starts)
        order = np.argsort(self.codes.astype(np.uint16), kind="stable")  # a radix sort: 16 bits
        if len(self) > 1 << 16:
            high = (self.codes >> 16)[order]
            narrow = high.astype(np.uint16) if len(self) <= 1 << 32 else high
            order = order[np.argsort(narrow, kind="stable")]
        return order

    @cached_property
    def starts(self) -> I64:
        """Where each group begins in `order`."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def rank(self) -> I64:
        """For every row, how many earlier rows of the batch have the same key."""
        rank = np.empty(len(self.codes), np.int64)
        rank[self.order] = np.arange(len(self.codes)) - np.repeat(self.starts, self.sizes)
        return rank

    @cached_property
    def last(self) -> I64:
        """The last row of each group."""
        last = np.empty(len(self), np.int64)
        last[self.codes] = np.arange(len(self.codes))
        return last

    def take(self, groups: I64 | Bools) -> SomeKeys:
        """The keys of some of the groups: to write or remove only those."""
        h = self.h[groups]
        route = h if self.route is self.h else self.route[groups]
        columns = self._key_columns.take(pa.array(self.first[groups]))
        check = self._check[groups]
        return SomeKeys(h, route, columns, check, self._identity)


@dataclass(frozen=True)
class SomeKeys:
    """Distinct keys out of a batch; a `state.KeyBatch`."""

    h: U64
    route: U64
    columns: pa.RecordBatch
    _check: U64
    _identity: Identity

    def __len__(self) -> int:
        return len(self.h)

    def check(self, identity: Identity | None = None) -> U64:
        if identity is None or identity == self._identity:
            return self._check
        return check_of(self.columns, identity)


def check_of(columns: pa.RecordBatch, identity: Identity) -> U64:
    """The checks of keys, and of sub-keys if there are more columns than the key has."""
    return identity.check(identity.marks(columns.columns, columns.num_rows), columns.num_rows)


class KeyedRows:
    """A batch of input rows of one keyed operator, in arrival order.

    `h`: the hashes of the keys, if they are known. `identity`: that of the state these keys will be
    looked up in; without it that works too, but the state has to look at every key itself.
    `times_us`: event times of rows that come in their order (`order_by=`); else None. `is_last`:
    no later call of this epoch has rows of these keys.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        key: Sequence[str],
        h: U64 | None = None,
        identity: Identity = SCRATCH,
        times_us: I64 | None = None,
        is_last: bool = False,
    ) -> None:
        self.batch, self.key, self.identity = batch, Key.of(key), identity
        self.times_us, self.is_last = times_us, is_last
        if h is None:
            columns = [batch.column(name) for name in self.key]
            h = hash_columns(columns, batch.num_rows, self.key.near)
        self.h: U64 = h

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def groups(self) -> Groups:
        """The distinct keys of this batch."""
        keys = self.batch.select(list(self.key))
        return Groups(self.h, self.h, keys, self.identity)

    def sub_groups(self, names: Sequence[str], columns: Sequence[pa.Array]) -> Groups:
        """The distinct (key, sub-key) pairs; sub-key columns may be computed ones.

        The sub-key's hash is stirred into the key's, which is not computed a second time. Under
        the empty key of a global operator it stays as it is.
        """
        keys = [self.batch.column(name) for name in self.key]
        h = hash_columns(columns, len(self))
        if keys:
            h = mix(self.h + mix(h))
        table = pa.RecordBatch.from_arrays([*keys, *columns], names=[*self.key, *names])
        return Groups(h, self.h, table, self.identity)

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def numbers(self, name: str) -> F64:
        """A numeric column as float64; nulls are NaN."""
        column = self.batch.column(name)
        if pa.types.is_decimal(column.type) or column.null_count:
            column = column.cast(pa.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)

    def take(self, rows: I64 | Bools) -> KeyedRows:
        """The chosen rows, hashes carried along."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        batch = self.batch.take(pa.array(rows))
        times = None if self.times_us is None else self.times_us[rows]
        return KeyedRows(batch, self.key, self.h[rows], self.identity, times, self.is_last)


def partial_schema(schema: StateSchema) -> pa.Schema:
    """What a partial looks like on its way: key, sub-key and value columns of the state.

    A key and a value may share a name (`key_by("count")` and Count): go by position.
    """
    return pa.schema([*schema.row_key, *schema.values])


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
        self._keyed = KeyedRows(key_columns, schema.keyed_by, h, identity)

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
