"""One task's use of the state of one (operator, slot): read, write, commit, or abandon.

Changes are made in place, in the warm copy if this session has its lock. `commit` writes the rows
touched, with the values they then have, as one delta; leaving without it leaves the warm copy
marked dirty, so nobody goes on from half an epoch. Cost follows the rows touched, except for
`select`, `of_routes`, `all`, `drop_units` and the TTL sweep (every 16th epoch of a slot), which
scan the rows held.

A row whose TTL is over counts as absent; the sweep removes it from the table and the chain. Until
then `rows` and `bytes` still count it. A row that was touched at a time ahead of the clock, which
was wrong then, counts as touched when the sweep finds it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from headgate.arrays import I64, U64
from headgate.errors import SchemaMismatch
from headgate.state.chain import Task, chain_id
from headgate.state.columns import FixedColumn, PrivateMemory
from headgate.state.layout import TOUCHED, KeyBatch, Mask, Positions, RowLayout, StateSchema, Values
from headgate.state.rows import Held, Places, RowIds, StateRows, in_units, sorted_order
from headgate.state.scan import Scan, positions_within
from headgate.state.seals import EMPTY, REMOVED, WarmCopyDamaged
from headgate.state.session_logs import ChangeLog, Finder, key_values
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.table import HashTable
from headgate.state.warm_copy import WarmCopy

SWEEP_EVERY = 16  # epochs; a sweep costs as much as a scan of all rows held
_NOWHERE = Storage.at("")  # of private states, which are never written


class StateSession:
    """Use as a context manager and call `commit()` once, at the end."""

    def __init__(self, task: Task, table: HashTable, warm: WarmCopy | None, chain: Chain) -> None:
        self._task, self._table, self._warm, self._chain = task, table, warm, chain
        self._layout = task.layout
        self._log = ChangeLog(table)
        self._mutated = False
        self._helds: list[weakref.ref[Held]] = []
        self._finder = Finder(table, task.identity)
        self._expired_at = None if task.ttl_ms is None else task.now_ms - task.ttl_ms
        table.before_move = self._freeze
        self.timers: Any = (
            None  # of the same keys, if the operator sets some (`operator/timers.py`)
        )
        self.beside: dict[str, StateSession] = {}  # other tables of the same operator, by part

    def __enter__(self) -> StateSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, WarmCopyDamaged) and self._warm is not None:
            self._warm.discard()
        self._close()

    @property
    def schema(self) -> StateSchema:
        return self._layout.schema

    @property
    def rows(self) -> int:
        return self._table.live

    @property
    def bytes(self) -> int:
        return self._table.byte_count

    def sample_routes(self, positions_max: int) -> U64:
        """Key hashes of some of the rows, fairly drawn; all of them in a small table."""
        return self._table.sample_routes(positions_max)

    @property
    def changed(self) -> bool:
        return len(self._log) > 0

    def read(self, keys: KeyBatch) -> Held:
        """What the state holds for these keys."""
        self._make_ready()
        where, table = self._finder.find(keys), self._table
        pos, found = where.pos, where.found
        cells = where.cells or table.value_cells(pos, found)
        if self._expired_at is not None:
            found = found & (cells[TOUCHED].data > self._expired_at)
        absent = None if found.all() else ~found

        def gather(name: str) -> Values:
            if name in cells:
                return table.values(name, cells[name], absent)
            return table.gather(pos, [name], absent)[name]

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
            self._write(keys, given)

    def remove(self, keys: KeyBatch) -> None:
        """Remove the rows of these keys; absent ones are no matter."""
        self._make_ready()
        where = self._finder.find(keys)
        index = np.flatnonzero(where.found)
        self._remove(self._ids(keys).take(index), where.pos[index])

    def select(
        self,
        column: str,
        below: int | float,
        at_least: int | float | None = None,
        *,
        keys_only: bool = False,
    ) -> StateRows:
        """Live rows whose fixed-width column is in the range; nulls are not.

        `keys_only`: without what they hold, to remove them.
        """
        kept = self._compared(column)
        hit = self._is_live() & (kept.data < below)
        if at_least is not None:
            hit &= kept.data >= at_least
        if kept.valid is not None:
            hit &= kept.valid
        return self._rows_at(np.flatnonzero(hit), self._layout.key_names if keys_only else None)

    def scan(self, column: str, spans: Sequence[tuple[int, int]]) -> Scan:
        """Live rows whose int64 column, never null, is in a span, its end not included."""
        data = self._compared(column).data
        pos = self._live_of(positions_within(data, spans))
        return Scan(data[pos], pos, self._rows_at)

    def _compared(self, column: str) -> FixedColumn:
        """A column of numbers, to be compared as a whole."""
        self._make_ready()
        kept = self._table.columns[self._layout.find(column).name]
        if not isinstance(kept, FixedColumn) or kept.layout.kind != "number":
            raise SchemaMismatch(
                f"state column {column!r} has type {kept.layout.type}; only number columns can be "
                "compared",
                column=column,
            )
        clock = set() if self._expired_at is None else {TOUCHED}
        self._table.seals.check_scanned({kept.layout.name, *clock})
        return kept

    def least(self, column: str) -> int | None:
        """The least value of a fixed-width column; None if there is none. Scans the rows held."""
        self._make_ready()
        kept = self._table.columns[self._layout.find(column).name]
        assert isinstance(kept, FixedColumn), column
        self._table.seals.check_scanned({kept.layout.name})
        hit = self._is_live() if kept.valid is None else self._is_live() & kept.valid
        return int(kept.data[hit].min()) if hit.any() else None

    def all(self) -> StateRows:
        self._table.seals.check_all()
        return self._rows_at(np.flatnonzero(self._is_live()))

    def rows_of(self, keys: KeyBatch) -> StateRows:
        """The whole rows of these keys and sub-keys, as far as they are there."""
        self._make_ready()
        where = self._finder.find(keys)
        pos = where.pos[where.found]
        if self._expired_at is not None:
            pos = pos[~self._is_expired(pos)]
        return self._rows_at(pos)

    def of_routes(self, routes: U64) -> StateRows:
        """All rows of the keys with these hashes, whatever their sub-keys; scans the rows held."""
        self._make_ready()
        self._table.seals.check_all()
        pos = np.flatnonzero(self._is_live())
        held = (self._table.route if self._layout.has_route else self._table.h)[pos]
        return self._rows_at(pos[np.isin(held, routes)])

    def remove_rows(self, rows: StateRows) -> None:
        self._make_ready()
        pos = self._table.still_at(rows)
        if pos is not None:
            return self._remove(rows.ids, pos)
        pos, found, _ = self._table.look_up(rows.ids)
        index = np.flatnonzero(found)
        self._remove(rows.ids.take(index), pos[index])

    def absorb(self, rows: StateRows) -> None:
        """Take in rows of another slot as they are, hidden columns too."""
        self._make_ready()
        if not len(rows):
            return
        given = {name: v for name, v in rows.columns.items() if name in self._layout.columns}
        pos, found, _ = self._table.look_up(rows.ids)
        self._put(rows.ids, None, given, pos, found)

    def drop_units(self, buckets: I64, routes: U64, keep_routes: U64) -> int:
        """Remove all rows of these buckets and routes, but not of `keep_routes`."""
        self._make_ready()
        self._table.seals.check_all()
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
        self._make_ready()
        self._log.mark()
        for session in self._others:
            session.mark()

    def rollback(self) -> None:
        """Undo everything since the last mark, which stays."""
        self._freeze()
        self._log.rollback()
        self._finder.changed()
        for session in self._others:
            session.rollback()

    def release(self) -> None:
        """Forget the last mark and keep what was done since."""
        self._log.release()
        for session in self._others:
            session.release()

    @property
    def _others(self) -> list[StateSession]:
        """What is marked and rolled back with it."""
        timers = [] if self.timers is None else [self.timers.session]
        return [*timers, *self.beside.values()]

    def forget_changes(self) -> None:
        """Let go of what was noted for a commit: nothing of this state will be committed."""
        self._log.forget()

    def commit(self) -> Chain:
        """Write the delta, compact if due, stamp the warm copy; returns the state's new chain."""
        task = self._task
        self._sweep()
        chain = self._chain
        if self.changed:
            chain = task.compact((*chain, task.write(self._log.delta(), "delta")))
        if self._warm is not None:
            if self._mutated:
                self._warm.stamp(self._table, chain_id(chain))
            else:
                self._warm.used()
        self._chain = chain
        self._log.forget()
        self._close()
        return chain

    def _write(self, keys: KeyBatch, given: dict[str, Values]) -> None:
        where = self._finder.find(keys)
        self._finder.written(keys, self._put(self._ids(keys), keys, given, where.pos, where.found))

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
        self._before_change()
        expired = None
        if self._expired_at is not None:
            expired = np.flatnonzero(found & self._is_expired(pos))
            if TOUCHED not in given:
                given = {**given, TOUCHED: Values(np.full(count, self._task.now_ms, np.int64))}
        before = self._log.before(ids, pos, found)
        missing = np.flatnonzero(~found)
        pos = self._table.ensure(ids, pos, found)
        new = {}
        if keys is not None and len(missing):
            new = key_values(self._layout, keys, missing)
        start_blank = missing if expired is None else np.concatenate([missing, expired])
        rest = [name for name in self._layout.value_names if name not in given]
        blanks = {}
        if rest and len(start_blank):
            blanks = {name: self._layout.columns[name].blank(len(start_blank)) for name in rest}
        if len(missing) == count:  # all at once, which seals them once
            given, new, blanks = {**new, **blanks, **given}, {}, {}
        for index, more in ((missing, new), (start_blank, blanks)):
            if more:
                self._table.scatter(ids.take(index), pos[index], more)
        self._table.scatter(ids, pos, given)
        self._log.put(ids, pos, keys, before, given)
        self._finder.changed()
        return pos

    def _remove(self, ids: RowIds, pos: Positions) -> None:
        if not len(ids):
            return
        self._before_change()
        self._freeze()
        before = self._log.before(ids, pos, np.ones(len(ids), np.bool_))
        self._table.remove(pos)
        self._log.removed(ids, pos, before)
        self._finder.changed()

    def _sweep(self) -> None:
        if self._expired_at is None:
            return
        phase = xxhash.xxh3_64_intdigest(self._task.folder.encode())
        if (self._task.epoch + phase) % SWEEP_EVERY:
            return
        self._table.seals.check_all()
        pos = self._table.live_positions()
        ahead = pos[self._touched_ms()[pos] > self._task.now_ms]
        if len(ahead):  # the clock was wrong then
            self._put(self._table.ids(ahead), None, {}, ahead, np.ones(len(ahead), np.bool_))
        pos = pos[self._is_expired(pos)]
        self._remove(self._table.ids(pos), pos)

    def _make_ready(self) -> None:
        """Called before the table is used: what a session keeps aside goes into it."""

    def _before_change(self) -> None:
        if not self._mutated:
            self._mutated = True
            if self._warm is not None:
                self._warm.mark_dirty()

    def _freeze(self) -> None:
        """Have what was read gather what it has not yet, before rows go or move."""
        for held in self._take_helds():
            held.freeze()

    def _take_helds(self) -> list[Held]:
        refs, self._helds = self._helds, []
        return [held for ref in refs if (held := ref()) is not None]

    def _is_expired(self, pos: Positions) -> Mask:
        expired: Mask = self._touched_ms()[pos] <= self._expired_at
        return expired

    def _is_live(self) -> Mask:
        check = self._table.check
        live: Mask = (check != EMPTY) & (check != REMOVED)
        if self._expired_at is not None:
            live &= self._touched_ms() > self._expired_at
        return live

    def _live_of(self, pos: Positions) -> Positions:
        """Those of these positions that have a live row."""
        check = self._table.check[pos]
        pos = pos[(check != EMPTY) & (check != REMOVED)]
        return pos if self._expired_at is None else pos[~self._is_expired(pos)]

    def _touched_ms(self) -> Any:
        """When each row of the table was written last."""
        clock = self._table.columns[TOUCHED]
        assert isinstance(clock, FixedColumn)
        return clock.data

    def _rows_at(self, pos: Positions, names: list[str] | None = None) -> StateRows:
        """Copied in file order, so that what a caller makes of them does not depend on layout."""
        self._table.seals.check_rows(pos)
        ids = self._table.ids(pos)
        order, _ = sorted_order(ids)
        places = Places(self._table, self._table.version, pos[order])
        columns = self._table.gather(places.pos, names)
        return StateRows(self._layout, ids.take(order), columns, places)

    def _ids(self, keys: KeyBatch) -> RowIds:
        return RowIds(keys.route, keys.h, keys.check(self._task.identity))

    def _close(self) -> None:
        for held in self._take_helds():
            held.close()
        self._finder.forget()
        self._table.before_move = None
        if self._warm is not None:
            self._warm.release()
            self._warm = None


class PrivateSession(StateSession):
    """A state that starts empty, belongs to one task and is never committed; it has no TTL.

    Its first write is only kept aside. A task that processes all its rows in one call, and most do,
    reads it back from there, in file order; the hash table, which costs more than the rest, is
    built when a second call comes.
    """

    def __init__(self, schema: StateSchema, identity: Any = None) -> None:
        layout = RowLayout(schema)
        table = HashTable.build(layout, PrivateMemory(), RowIds.none(), layout.blank(0))
        task = Task(storage=_NOWHERE, layout=layout, operator="", slot=0, identity=identity)
        super().__init__(task, table, None, ())
        self._first: tuple[KeyBatch, dict[str, Values]] | None = None

    @property
    def rows(self) -> int:
        return super().rows if self._first is None else len(self._first[0].h)

    @property
    def bytes(self) -> int:
        if self._first is None:
            return super().bytes
        keys, given = self._first
        return int(keys.columns.nbytes) + sum(int(values.data.nbytes) for values in given.values())

    def rollback(self) -> None:
        self._first = None  # written after the mark, which built the table
        super().rollback()

    def all(self) -> StateRows:
        if self._first is None:
            return super().all()
        keys, given = self._first
        ids = self._ids(keys)
        order, _ = sorted_order(ids)
        columns = key_values(self._layout, keys, order)
        for name, column in self._layout.columns.items():
            if name in given:
                columns[name] = given[name].take(order)
            elif name not in columns:
                columns[name] = column.blank(len(order))
        return StateRows(self._layout, ids.take(order), columns)

    def commit(self) -> Chain:
        raise AssertionError("a private state belongs to no slot: there is nothing to commit")

    def _write(self, keys: KeyBatch, given: dict[str, Values]) -> None:
        if self._first is None and not super().rows:
            self._first = keys, {name: values.own() for name, values in given.items()}
            return
        self._make_ready()
        super()._write(keys, given)

    def _make_ready(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            super()._write(*first)
