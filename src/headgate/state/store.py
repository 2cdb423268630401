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
from headgate.errors import StateFileError
from headgate.state.chain import FOLD_ROWS, Task, chain_id, missing_files
from headgate.state.columns import PrivateMemory
from headgate.state.layout import TOUCHED, RowLayout, StateSchema
from headgate.state.rows import StateRows, bucket_shift
from headgate.state.seals import WarmCopyDamaged
from headgate.state.session import StateSession
from headgate.state.state_file import Chain, FileRows, Routes, SlotFiles
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
        fold_rows: int = FOLD_ROWS,
        strong_digests: bool = False,
    ) -> None:
        bucket_shift(buckets)
        self.storage, self.buckets = storage, buckets
        self.compact_after, self.fold_rows = compact_after, fold_rows
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
        task = Task(
            storage=self.storage, layout=RowLayout(schema, ttl_ms is not None), operator=operator,
            slot=slot, epoch=epoch, level=level, now_ms=now_ms, ttl_ms=ttl_ms, buckets=self.buckets,
            compact_after=self.compact_after, fold_rows=self.fold_rows,
            strong_digests=self._strong_digests, identity=self.identity,
        )  # fmt: skip
        warm = None if self.warm is None else self.warm.lock(operator, slot)
        try:
            table = _table_for(chain, task, warm)
        except BaseException:
            if warm is not None:
                warm.release()
            raise
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
        lows = [*(int(bucket) << shift for bucket in buckets), *map(int, routes)]
        highs = [*(low + (1 << shift) - 1 for low in lows[: len(buckets)]), *map(int, routes)]
        spans = np.array(lows, np.uint64), np.array(highs, np.uint64)
        return self._read(operator, slot, schema, chain, spans)

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
        spans = None
        if route is not None:
            spans = np.array([route], np.uint64), np.array([route], np.uint64)
        rows = self._read(operator, slot, schema, chain, spans)
        if expired_at_ms is not None and rows.touched_ms is not None:
            rows = rows.take(np.flatnonzero(rows.touched_ms > expired_at_ms))
        return rows.batch().rename_columns(schema.shown.names)

    def _read(
        self, operator: str, slot: int, schema: StateSchema, chain: Chain, routes: Routes | None
    ) -> StateRows:
        layout = RowLayout(schema, ttl=True)  # keeps the TTL clock where the files have one
        files = SlotFiles(storage=self.storage, layout=layout, operator=operator, slot=slot)
        rows = files.state(chain, routes)
        return StateRows(RowLayout(schema, TOUCHED in rows.columns), rows.ids, rows.columns)


def _table_for(chain: Chain, task: Task, warm: WarmCopy | None) -> HashTable:
    """The table of a chain: the warm copy as it is, brought up to date, or built anew."""
    if warm is not None:
        try:
            table = _brought_up_to(chain, task, warm)
        except (WarmCopyDamaged, StateFileError):  # the chain may do without that file
            table = None
        if table is not None:
            return table
    rows = task.state(chain)
    memory = PrivateMemory() if warm is None else warm.memory()
    table = HashTable.build(task.layout, memory, rows.ids, rows.columns)
    if warm is not None:
        warm.stamp(table, chain_id(chain))
    return table


def _brought_up_to(chain: Chain, task: Task, warm: WarmCopy) -> HashTable | None:
    attached = warm.attach(task.layout)
    if attached is None:
        return None
    table, version = attached
    missing = missing_files(chain, version)
    if missing is None:
        return None
    if missing:
        warm.mark_dirty()
        for rows in task.read(missing):
            _apply(table, rows)
        warm.stamp(table, chain_id(chain))
    return table


def _apply(table: HashTable, rows: FileRows) -> None:
    pos, found, _ = table.look_up(rows.ids)
    table.remove(pos[found & rows.removed])
    put = np.flatnonzero(~rows.removed)
    rows = rows.take(put)
    table.scatter(rows.ids, table.ensure(rows.ids, pos[put], found[put]), rows.columns)
