"""One task's use of the state of one (operator, slot): read, write, commit, or abandon.

Changes are made in place, in the warm copy if this session has its lock. `commit` writes the rows
touched, with the values they then have, as one delta; leaving without it leaves the warm copy
marked dirty, so nobody goes on from half an epoch. Cost follows the rows touched, except for
`select`, `all`, `drop_units` and the TTL sweep (every 16th epoch of a slot), which scan the rows
held.

A row whose TTL is over counts as absent; the sweep removes it from the table and the chain. Until
then `rows` and `bytes` still count it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headgate.errors import SchemaMismatch
from headgate.state.chain import Chain, chain_id
from headgate.state.column import FixedColumn, Positions
from headgate.state.compaction import compact
from headgate.state.delta import write_file
from headgate.state.layout import TOUCHED, Mask, Values
from headgate.state.rows import Held, RowIds, StateRows, in_units, sorted_order
from headgate.state.schema import I64, U64, KeyBatch
from headgate.state.table import EMPTY, REMOVED, HashTable
from headgate.state.task import Task
from headgate.state.warm_copy import WarmCopy

SWEEP_EVERY = 16
_FINDS_KEPT = 16


@dataclass
class _Found:
    """Where the keys of a batch are; good while the table has neither moved nor changed."""

    keys: KeyBatch
    pos: Positions
    found: Mask
    version: int
    changes: int


@dataclass(frozen=True)
class _Touched:
    ids: RowIds
    pos: Positions
    version: int


@dataclass(frozen=True)
class _Undo:
    """Rows as they were: those that were there, with all their columns, and those that were not."""

    there: RowIds
    before: dict[str, Values]
    absent: RowIds


class StateSession:
    """Use as a context manager and call `commit()` once, at the end."""

    def __init__(self, task: Task, table: HashTable, warm: WarmCopy | None, chain: Chain) -> None:
        self._task, self._table, self._warm, self._chain = task, table, warm, chain
        self._layout = task.layout
        self._touched: list[_Touched] = []
        self._removals = False
        self._changes = 0
        self._mutated = False
        self._finds: dict[int, _Found] = {}
        self._helds: list[weakref.ref[Held]] = []
        self._undo: list[_Undo] = []
        self._marks: list[tuple[int, int]] = []
        self._expired_at = None if task.ttl_ms is None else task.now_ms - task.ttl_ms
        table.before_move = self._freeze

    def __enter__(self) -> StateSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def rows(self) -> int:
        return self._table.live

    @property
    def bytes(self) -> int:
        return self._table.byte_count

    @property
    def changed(self) -> bool:
        return bool(self._touched)

    def read(self, keys: KeyBatch) -> Held:
        """What the state holds for these keys."""
        where = self._find(keys)
        pos, found = where.pos, where.found
        if self._expired_at is not None:
            found = found & ~self._is_expired(pos)
        pos, table, absent = pos.copy(), self._table, None if found.all() else ~found

        def gather(name: str) -> Values:
            values = table.columns[name].gather(pos)
            if absent is None:
                return values
            if isinstance(table.columns[name], FixedColumn):
                values.data[absent] = np.zeros(1, values.data.dtype)[0]
                return values
            return Values(_null_where(values.data, absent))

        held = Held(self._layout, found, gather)
        self._helds.append(weakref.ref(held))
        return held

    def write(self, keys: KeyBatch, values: Mapping[str, Any]) -> None:
        """Put these values; columns not named keep theirs (in new rows: zero, or null in Arrow)."""
        count = len(keys.h)
        given: dict[str, Values] = {}
        for label, content in values.items():
            column = self._layout.columns.get(f"value.{label}")
            if column is None:
                raise SchemaMismatch(
                    f"the state of {self._task.operator!r} has no value column {label!r}; it has "
                    f"{', '.join(repr(f.name) for f in self._layout.schema.values)}",
                    column=label,
                )
            given[column.name] = column.store(content, count)
        if count:
            where = self._find(keys)
            where.pos = self._put(_ids(keys), keys, given, where.pos, where.found)
            where.found = np.ones(count, np.bool_)
            where.version, where.changes = self._table.version, self._changes

    def remove(self, keys: KeyBatch) -> None:
        """Remove the rows of these keys; absent ones are no matter."""
        where = self._find(keys)
        index = np.flatnonzero(where.found)
        self._remove(_ids(keys).take(index), where.pos[index])

    def select(self, column: str, below: int | float) -> StateRows:
        """Live rows whose fixed-width column is less than `below`; nulls are not."""
        kept = self._table.columns[self._layout.find(column).name]
        if not isinstance(kept, FixedColumn) or kept.layout.kind != "number":
            raise SchemaMismatch(
                f"state column {column!r} has type {kept.layout.type}; only number columns can be "
                "compared",
                column=column,
            )
        hit = self._is_live() & (kept.data < below)
        if kept.valid is not None:
            hit &= kept.valid
        return self._rows_at(np.flatnonzero(hit))

    def all(self) -> StateRows:
        return self._rows_at(np.flatnonzero(self._is_live()))

    def remove_rows(self, rows: StateRows) -> None:
        pos, found = self._table.find(rows.h, rows.check)
        index = np.flatnonzero(found)
        self._remove(rows.ids.take(index), pos[index])

    def absorb(self, rows: StateRows) -> None:
        """Take in rows of another slot as they are, hidden columns too."""
        if not len(rows):
            return
        given = {name: v for name, v in rows.columns.items() if name in self._layout.columns}
        pos, found = self._table.find(rows.h, rows.check)
        self._put(rows.ids, None, given, pos, found)

    def drop_units(self, buckets: I64, routes: U64, keep_routes: U64) -> int:
        """Remove all rows of these buckets and routes, but not of `keep_routes`."""
        pos = self._table.live_positions()
        route = (self._table.route if self._layout.has_route else self._table.h)[pos]
        gone = in_units(route, self._task.buckets, buckets, routes)
        if len(keep_routes):
            gone &= ~np.isin(route, keep_routes)
        pos = pos[gone]
        self._remove(self._table.ids(pos), pos)
        return len(pos)

    def mark(self) -> None:
        """Remember this moment; `rollback` returns to it, as often as needed, until `release`."""
        self._marks.append((len(self._undo), len(self._touched)))

    def rollback(self) -> None:
        """Undo everything since the last mark, which stays."""
        assert self._marks, "rollback() without mark()"
        undo_count, touched_count = self._marks[-1]
        self._freeze()
        for undo in reversed(self._undo[undo_count:]):
            pos, found = self._table.find(undo.absent.h, undo.absent.check)
            self._table.remove(pos[found])
            pos, found = self._table.find(undo.there.h, undo.there.check)
            self._table.scatter(self._insert(undo.there, pos, found), undo.before)
        del self._undo[undo_count:], self._touched[touched_count:]
        self._removals = True  # positions noted before may belong to nobody now
        self._changes += 1

    def release(self) -> None:
        """Forget the last mark and keep what was done since."""
        self._marks.pop()
        if not self._marks:
            self._undo.clear()

    def commit(self) -> Chain:
        """Write the delta, compact if due, stamp the warm copy; returns the state's new chain."""
        task = self._task
        self._sweep()
        chain = self._chain
        if self._touched:
            file = write_file(task, *self._delta(), kind="delta")
            chain = compact(task, (*chain, file))
        if self._warm is not None:
            if self._mutated:
                self._warm.stamp(self._layout, self._table, chain_id(chain))
            else:
                self._warm.used()
        self._chain, self._touched = chain, []
        self._close()
        return chain

    def _delta(self) -> tuple[RowIds, Mask, dict[str, Values]]:
        """The rows touched, in file order, as they are now."""
        ids = RowIds.concat([touched.ids for touched in self._touched])
        moved = any(touched.version != self._table.version for touched in self._touched)
        order, first = sorted_order(ids, stable=False)
        if not first.all():
            order = order[first]
        ids = ids.take(order)
        if moved or self._removals:
            pos, found = self._table.find(ids.h, ids.check)
        else:
            pos = np.concatenate([touched.pos for touched in self._touched])[order]
            found = np.ones(len(ids), np.bool_)
        # a probe that found nothing ended at an empty position, whose columns are blank
        return ids, ~found, self._table.gather(pos)

    def _find(self, keys: KeyBatch) -> _Found:
        known = self._finds.get(id(keys))
        version, changes = self._table.version, self._changes
        if known is not None and known.keys is keys and known.version == version:
            if known.changes == changes:
                return known
            pos, found = self._table.find(keys.h, keys.check, known.pos)
        else:
            if not self._layout.has_route and keys.route is not keys.h:
                assert np.array_equal(keys.route, keys.h), "without sub-keys h must be the route"
            pos, found = self._table.find(keys.h, keys.check)
        if len(self._finds) >= _FINDS_KEPT:
            self._finds.clear()
        self._finds[id(keys)] = known = _Found(keys, pos, found, version, changes)
        return known

    def _put(
        self,
        ids: RowIds,
        keys: KeyBatch | None,
        given: dict[str, Values],
        pos: Positions,
        found: Mask,
    ) -> Positions:
        """Write columns of rows, new ones too; key columns come from `keys` or are in `given`."""
        count = len(ids)
        self._before_change(list(given))
        expired = None
        if self._expired_at is not None:
            expired = np.flatnonzero(found & self._is_expired(pos))
            if TOUCHED not in given:
                given = {**given, TOUCHED: Values(np.full(count, self._task.now_ms, np.int64))}
        self._note_undo(ids, pos, found)
        missing = np.flatnonzero(~found)
        pos = self._insert(ids, pos, found)
        if keys is not None and len(missing):
            self._table.scatter(pos[missing], self._key_values(keys, missing))
        if expired is not None and len(expired):
            self._freeze()
            rest = [name for name in self._layout.value_names if name not in given]
            blanks = {name: self._layout.columns[name].blank(len(expired)) for name in rest}
            self._table.scatter(pos[expired], blanks)
        self._table.scatter(pos, given)
        self._touched.append(_Touched(ids, pos, self._table.version))
        self._changes += 1
        return pos

    def _insert(self, ids: RowIds, pos: Positions, found: Mask) -> Positions:
        missing = np.flatnonzero(~found)
        if not len(missing):
            return pos
        version = self._table.version
        pos = pos.copy()
        pos[missing] = self._table.insert(ids.take(missing), pos[missing])
        if self._table.version != version:
            pos, _ = self._table.find(ids.h, ids.check)
        return pos

    def _remove(self, ids: RowIds, pos: Positions) -> None:
        if not len(ids):
            return
        self._before_change([])
        self._note_undo(ids, pos, np.ones(len(ids), np.bool_))
        self._table.remove(pos)
        self._touched.append(_Touched(ids, pos, self._table.version))
        self._removals = True
        self._changes += 1

    def _sweep(self) -> None:
        if self._expired_at is None:
            return
        phase = xxhash.xxh3_64_intdigest(self._task.folder.encode())
        if (self._task.epoch + phase) % SWEEP_EVERY:
            return
        pos = self._table.live_positions()
        pos = pos[self._is_expired(pos)]
        self._remove(self._table.ids(pos), pos)

    def _before_change(self, names: list[str]) -> None:
        if not self._mutated:
            self._mutated = True
            if self._warm is not None:
                self._warm.mark_dirty()
        self._freeze(names)

    def _freeze(self, names: list[str] | None = None) -> None:
        """Have what was read gather these columns (None: all) while they are what they were."""
        left = []
        for ref in self._helds:
            held = ref()
            if held is not None and not held.freeze(names):
                left.append(ref)
        self._helds = left

    def _note_undo(self, ids: RowIds, pos: Positions, found: Mask) -> None:
        if self._marks:
            there = np.flatnonzero(found)
            before = self._table.gather(pos[there])
            self._undo.append(_Undo(ids.take(there), before, ids.take(np.flatnonzero(~found))))

    def _key_values(self, keys: KeyBatch, index: Positions) -> dict[str, Values]:
        batch = keys.columns if len(index) == len(keys.h) else keys.columns.take(index)
        return {
            name: self._layout.columns[name].store(batch.column(number), len(index))
            for number, name in enumerate(self._layout.key_names)
        }

    def _is_expired(self, pos: Positions) -> Mask:
        clock = self._table.columns[TOUCHED]
        assert isinstance(clock, FixedColumn)
        expired: Mask = clock.data[pos] <= self._expired_at
        return expired

    def _is_live(self) -> Mask:
        check = self._table.check
        live: Mask = (check != EMPTY) & (check != REMOVED)
        if self._expired_at is not None:
            clock = self._table.columns[TOUCHED]
            assert isinstance(clock, FixedColumn)
            live &= clock.data > self._expired_at
        return live

    def _rows_at(self, pos: Positions) -> StateRows:
        """Copied in file order, so that what a caller makes of them does not depend on layout."""
        ids = self._table.ids(pos)
        order, _ = sorted_order(ids, stable=False)
        return StateRows(self._layout, ids.take(order), self._table.gather(pos[order]))

    def _close(self) -> None:
        self._freeze()
        self._helds, self._finds = [], {}
        self._table.before_move = None
        if self._warm is not None:
            self._warm.release()
            self._warm = None


def _ids(keys: KeyBatch) -> RowIds:
    return RowIds(keys.route, keys.h, keys.check)


def _null_where(data: Any, absent: Mask) -> Any:
    return pc.if_else(pa.array(absent), pa.scalar(None, data.type), data)
