"""The state of a flow: opens sessions on it, and reads it without one.

A chain is the truth; the warm copy of a host only saves the way from it. `open` takes the warm
copy if its lock is free, brings it to the chain asked for (nothing to do, apply what is missing,
or rebuild), and hands it to a session. Reading for migration and inspection touches files only.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.arrays import I64, U64
from headgate.state.chain import ChainReader, chain_id, missing_files
from headgate.state.columns import PrivateMemory
from headgate.state.layout import RowLayout, StateSchema
from headgate.state.rows import StateRows, bucket_shift
from headgate.state.seals import WarmCopyDamaged
from headgate.state.session import StateSession
from headgate.state.state_file import Chain, FileRows, Task
from headgate.state.storage import Storage
from headgate.state.table import HashTable
from headgate.state.warm_copy import WarmCopy, WarmRoom


class StateStore:
    """All operators' state below one storage; `warm_dir` None means no warm copies.

    `identity` is the checkpoint's way to tell keys apart; who only reads whole keys needs none.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        warm_dir: str | None,
        buckets: int,
        identity: Any = None,
        budget_bytes: int = 8 << 30,
        compact_after: int = 16,
        strong_digests: bool = False,
    ) -> None:
        bucket_shift(buckets)
        self.storage, self.buckets, self.compact_after = storage, buckets, compact_after
        self._strong_digests = strong_digests
        self.identity = identity
        self.warm = None if warm_dir is None else WarmRoom(warm_dir, budget_bytes)

    def open(
        self,
        operator: str,
        slot: int,
        schema: StateSchema,
        chain: Chain,
        *,
        epoch: int,
        level: int,
        now_ms: int,
        ttl_ms: int | None = None,
    ) -> StateSession:
        """A session on the state that `chain` describes."""
        layout = RowLayout(schema, ttl_ms is not None)
        reader = ChainReader(self.storage, layout, operator, slot, now_ms)
        warm = None if self.warm is None else self.warm.lock(operator, slot)
        try:
            table = _table_for(chain, reader, warm)
        except BaseException:
            if warm is not None:
                warm.release()
            raise
        task = Task(
            self.storage, layout, operator, slot, epoch, level, now_ms, ttl_ms,
            self.buckets, self.compact_after, self._strong_digests, self.identity,
        )  # fmt: skip
        return StateSession(task, table, warm, chain)

    def cold(self) -> StateStore:
        """The same state without warm copies: every session starts from the files."""
        cold = copy(self)
        cold.warm = None
        return cold

    def drop(self, operator: str, slot: int) -> bool:
        """Delete this host's warm copy of a slot that has left; False if it is in use."""
        return self.warm is not None and self.warm.drop(operator, slot)

    def moved_rows(
        self,
        operator: str,
        slot: int,
        schema: StateSchema,
        chain: Chain,
        *,
        buckets: I64,
        routes: U64,
    ) -> StateRows:
        """Rows of these buckets and routes, reading only their part of each file."""
        shift = bucket_shift(self.buckets)
        lows = [int(bucket) << shift for bucket in buckets]
        spans = [(low, low + (1 << shift) - 1) for low in lows]
        spans += [(int(route), int(route)) for route in routes]
        return self._routes(operator, slot, schema, chain, sorted(set(spans)))

    def scan(
        self,
        operator: str,
        slot: int,
        schema: StateSchema,
        chain: Chain,
        *,
        route: int | None = None,
        expired_at_ms: int | None = None,
    ) -> pa.RecordBatch:
        """The state of one slot: key, sub-key and value columns, in route order, named as
        `StateSchema.shown` says. With `route` only the rows of that key, and only their part of
        each file is read. Without rows that were last touched at `expired_at_ms` or before.
        """
        spans = None if route is None else [(route, route)]
        rows = self._routes(operator, slot, schema, chain, spans)
        if expired_at_ms is not None and rows.touched_ms is not None:
            rows = rows.take(np.flatnonzero(rows.touched_ms > expired_at_ms))
        return rows.batch().rename_columns(schema.shown.names)

    def _routes(
        self,
        operator: str,
        slot: int,
        schema: StateSchema,
        chain: Chain,
        spans: list[tuple[int, int]] | None,
    ) -> StateRows:
        layout = RowLayout(schema, ttl=True)  # keeps the TTL clock where the files have one
        reader = ChainReader(self.storage, layout, operator, slot)
        if spans is None:
            rows = reader.whole(chain)
        else:
            lows = np.array([low for low, _ in spans], np.uint64)
            highs = np.array([high for _, high in spans], np.uint64)
            rows = reader.routes(chain, lows, highs)
        if any(values is None for values in rows.columns.values()):
            layout = RowLayout(schema, ttl=False)
        return StateRows(layout, rows.ids, rows.complete)


def _table_for(chain: Chain, reader: ChainReader, warm: WarmCopy | None) -> HashTable:
    """The table of a chain: the warm copy as it is, brought up to date, or built anew."""
    if warm is not None:
        try:
            table = _brought_up_to(chain, reader, warm)
        except WarmCopyDamaged:
            table = None
        if table is not None:
            return table
    rows = reader.whole(chain)
    memory = PrivateMemory() if warm is None else warm.memory()
    table = HashTable.build(reader.layout, memory, rows.ids, rows.complete)
    if warm is not None:
        warm.stamp(table, chain_id(chain))
    return table


def _brought_up_to(chain: Chain, reader: ChainReader, warm: WarmCopy) -> HashTable | None:
    attached = warm.attach(reader.layout)
    if attached is None:
        return None
    table, version = attached
    missing = missing_files(chain, version)
    if missing is None:
        return None
    if missing:
        warm.mark_dirty()
        for rows in reader.files(missing):
            _apply(table, rows)
        warm.stamp(table, chain_id(chain))
    return table


def _apply(table: HashTable, rows: FileRows) -> None:
    pos, found, _ = table.look_up(rows.ids)
    table.remove(pos[found & rows.removed])
    put = np.flatnonzero(~rows.removed)
    rows = rows.take(put)
    table.scatter(rows.ids, table.ensure(rows.ids, pos[put], found[put]), rows.complete)
