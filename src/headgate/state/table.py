"""A hash table of columns: open addressing, linear probing, whole batches per NumPy call.

`check` doubles as the state of a position: 0 is empty, 2 is a removed row, anything else a live
one. Where no row lives `h` is 0: so in a plain table, whose rows all have the same check, probes
need not read it. Positions come from a second mix of `h`, because a slot owns only some ranges of
`route` and raw hashes would pile up. A removed row keeps its position until the next rebuild, so a
position found for a missing key stays a right place to go on probing from. The last position is
always empty, which ends every probe.

Lookups cost O(keys asked for). A rebuild costs O(rows held) and is due after a constant fraction
of them has been added or removed; a table that grows in every session, or whose rows come and go,
gets room for some more, or each would rebuild it. Rows of a table in shared files are sealed
(`seals.py`): `look_up` is for rows that this session has not met yet, `find` for those it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.arrays import U64
from headgate.state import kernels
from headgate.state.columns import (
    RECORDS,
    Column,
    FixedColumn,
    HeapColumn,
    MappedMemory,
    Memory,
    Packing,
    PrivateMemory,
)
from headgate.state.layout import Array, Mask, Positions, RowLayout, Values
from headgate.state.rows import RowIds, StateRows
from headgate.state.seals import CHECK, EMPTY, REMOVED, ROW_SEAL, SESSIONS, Seals, WarmCopyDamaged

_LOAD_AFTER_BUILD = 0.5  # share of positions; from here to the next rebuild rows grow by a third
_LOAD_MAX = 0.68  # of live and removed rows: linear probes grow long beyond it
_SESSIONS_OF_ROOM = 2  # like the one that filled a table, until the next rebuild
_CAPACITY_MIN = 64  # positions of an empty table
_NARROW_MAX = 254  # the largest check in one byte; 255 stands for all larger ones
_PLAIN = 1  # the check of integer keys, but not of null
_MIX = np.uint64(0x9E3779B97F4A7C15)


class HashTable:
    """Rows of one (operator, slot), found by (h, check); made by `build` or `attach`."""

    memory: Memory
    h: U64
    check: Array
    route: U64

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self.columns: dict[str, Column] = {
            name: (HeapColumn if column.kind == "heap" else FixedColumn)(column, f"c{index:03d}")
            for index, (name, column) in enumerate(layout.columns.items())
        }
        self._heaps = {n: c for n, c in self.columns.items() if isinstance(c, HeapColumn)}
        self.seals = Seals(self)
        self.capacity = self.live = self.removed = 0
        self._plain = False  # are all checks the same?
        self._used_before = 0  # rows, live and removed, when this session began
        self.version = 0  # grows when positions handed out before are no longer valid
        self.before_move: Callable[[], None] | None = None

    @classmethod
    def build(
        cls, layout: RowLayout, memory: Memory, ids: RowIds, values: Mapping[str, Values]
    ) -> HashTable:
        """A table of distinct rows, made without probing: sort by home, then step past others."""
        table = cls(layout)
        table.memory = memory
        table._lay_out(ids, values, len(ids))
        return table

    def sample_routes(self, positions_max: int) -> U64:
        """Routes of the rows at every k-th position: positions are a hash, so that is fair."""
        step = max(1, len(self.check) // positions_max)
        self.seals.check_keys(np.arange(0, len(self.check), step))
        check = self.check[::step]
        return np.asarray(self.route[::step][(check != EMPTY) & (check != REMOVED)])

    def look_up(
        self, ids: RowIds, start: Positions | None = None
    ) -> tuple[Positions, Mask, dict[str, Values] | None]:
        """As `find`, and the answer is checked; with the value cells if those had to be."""
        pos, found = self.find(ids.h, ids.check, start)
        missing = np.flatnonzero(~found)
        cells, self.seals.asked = None, self.seals.asked + len(ids)
        if self.seals.suspect and self._is_full_with(len(missing)):
            self.seals.check_all()  # as the rebuild will have to: then these need no check
        if self.seals.suspect:
            cells = self.value_cells(pos, found, with_seals=True)
            self.seals.check_found(ids, pos, found, cells)
            cells.pop(ROW_SEAL)
        if len(missing):
            first = home_of(ids.h[missing], self.capacity) if start is None else start[missing]
            self.seals.check_passed(first, pos[missing])
        return pos, found, cells

    def find(self, h: U64, check: U64, start: Positions | None = None) -> tuple[Positions, Mask]:
        """Position of each row and whether it is there; if not, where its probe ended."""
        check = self._as_check(check)
        if kernels.compiled is not None:
            try:
                table = self.capacity, self.h, self.check, self._plain
                return kernels.find(kernels.compiled, h, check, start, *table)
            except IndexError:  # the last position is no longer empty
                raise WarmCopyDamaged from None
        pos = home_of(h, self.capacity) if start is None else start.copy()
        seen = self.check[pos]
        found = (seen == check) & (self.h[pos] == h)
        todo = np.flatnonzero(~found & (seen != EMPTY))
        p, wanted, marks = pos[todo], h[todo], check[todo]
        while todo.size:
            p += 1
            try:
                seen = self.check[p]
            except IndexError:  # the last position is no longer empty
                raise WarmCopyDamaged from None
            hit = (seen == marks) & (self.h[p] == wanted)
            stop = hit | (seen == EMPTY)
            done = todo[stop]
            pos[done] = p[stop]
            found[done] = hit[stop]
            on = np.flatnonzero(~stop)
            todo, p, wanted, marks = todo[on], p[on], wanted[on], marks[on]
        return pos, found

    def still_at(self, rows: StateRows) -> Positions | None:
        """Where rows of this table are that were read in this session, if all are there still."""
        places = rows.places
        if places is None or places.table is not self or places.version != self.version:
            return None
        pos, check = places.pos, self._as_check(rows.ids.check)
        there = (self.check[pos] == check) & (self.h[pos] == rows.ids.h)
        return pos if there.all() else None

    def insert(self, ids: RowIds, pos: Positions) -> Positions:
        """Claim positions for rows that are not there; `pos` is where their probes ended."""
        version = self.version
        check_max = int(ids.check.max()) if len(ids) else 0
        self._make_room(len(ids), check_max)
        self._plain = self._plain and check_max <= _PLAIN
        if self.version != version:
            pos = home_of(ids.h, self.capacity)
        ended, pos = pos, pos.copy()
        placed = self._claim(ids, self._as_check(ids.check), pos)
        if placed is not None:  # a cluster reached the end: more room, and once again
            self.check[pos[placed]] = EMPTY
            self._rebuild(self.live + len(ids), grow=True, check_max=check_max)
            return self.insert(ids, home_of(ids.h, self.capacity))
        self.seals.check_free(pos[pos != ended])  # where a probe ended it was checked
        if self.layout.has_route:
            self.route[pos] = ids.route
        self.live += len(ids)
        return pos

    def _claim(self, ids: RowIds, check: Array, pos: Positions) -> Any:
        """Put rows at free places from `pos` on, in place. If not all fit: those that do."""
        if kernels.compiled is not None:
            count = kernels.claim(kernels.compiled, ids.h, check, self.h, self.check, pos)
            return None if count == len(ids) else np.arange(count)
        todo, last = np.arange(len(ids)), len(self.h) - 1
        while todo.size:
            p = pos[todo]
            if int(p.max()) >= last:
                return np.delete(np.arange(len(ids)), todo)
            free = self.check[p] == EMPTY
            tried, p = todo[free], p[free]
            self.h[p] = ids.h[tried]
            self.check[p] = check[tried]
            won = (self.h[p] == ids.h[tried]) & (self.check[p] == check[tried])
            lost = np.ones(len(todo), np.bool_)
            lost[np.flatnonzero(free)[won]] = False
            todo = todo[lost]
            pos[todo] += 1
        return None

    def ensure(self, ids: RowIds, pos: Positions, found: Mask) -> Positions:
        """Positions of all these rows, those not found inserted with blank columns."""
        missing = np.flatnonzero(~found)
        if not len(missing):
            return pos
        version = self.version
        pos = pos.copy()
        pos[missing] = self.insert(ids.take(missing), pos[missing])
        return pos if self.version == version else self.find(ids.h, ids.check)[0]

    def remove(self, pos: Positions) -> None:
        self.check[pos], self.h[pos] = REMOVED, 0
        self.seals.remove(pos)
        self.live -= len(pos)
        self.removed += len(pos)

    def scatter(self, ids: RowIds, pos: Positions, values: Mapping[str, Values]) -> None:
        """Write columns of rows that this session has looked up or inserted, and seal them."""
        cells = {}
        for name, given in values.items():
            try:
                cells[name] = self.columns[name].scatter(pos, given)
            except OSError:  # no room in the shared files: go on with plain arrays
                self._use(PrivateMemory({n: a.copy() for n, a in self.memory.arrays.items()}))
                cells[name] = self.columns[name].scatter(pos, given)
        numbers = {name: cells[name].data for name in self._packed(cells)}
        seals = self.seals.write(ids, pos, cells)
        if seals is not None:
            numbers[ROW_SEAL] = seals
        self._put(pos, numbers)

    def value_cells(
        self, pos: Positions, found: Mask, with_seals: bool = False
    ) -> dict[str, Values]:
        """What the value columns hold, and the clock: all but the key; anything if not found."""
        columns = {n: c for n, c in self.columns.items() if n not in self.layout.key_names}
        there = np.flatnonzero(found)
        if 2 * len(there) > len(pos):
            return self._cells(columns, pos, with_seals)
        found_cells = self._cells(columns, pos[there], with_seals)
        return {name: cells.spread(there, len(pos)) for name, cells in found_cells.items()}

    def _cells(
        self, columns: Mapping[str, Column], pos: Positions, with_seals: bool
    ) -> dict[str, Values]:
        packed = self._packed(columns)
        taken = self._take(pos, [*packed, ROW_SEAL] if with_seals else packed)
        cells = {n: c.cells(pos) for n, c in columns.items() if n not in taken}
        for name, numbers in taken.items():
            column = columns.get(name)
            valid = column.validity(pos) if isinstance(column, FixedColumn) else None
            cells[name] = Values(numbers, valid)
        return cells

    def _packed(self, names: Iterable[str]) -> list[str]:
        """Which of these columns are in the records."""
        columns = ((name, self.columns[name]) for name in names)
        return [name for name, c in columns if isinstance(c, FixedColumn) and c.is_packed]

    def _take(self, pos: Positions, names: list[str]) -> dict[str, Array]:
        """Numbers of the records at some positions, all of a record at once."""
        records = self.memory.arrays[RECORDS]
        views = [self._packing.view(records, name) for name in names]
        if kernels.compiled is None or not views:
            return {name: view[pos] for name, view in zip(names, views, strict=True)}
        return dict(zip(names, kernels.take(kernels.compiled, records, pos, views), strict=True))

    def _put(self, pos: Positions, numbers: Mapping[str, Array]) -> None:
        """Write numbers to the records at some positions."""
        records = self.memory.arrays[RECORDS]
        views = [self._packing.view(records, name) for name in numbers]
        if views and kernels.compiled is not None:
            kernels.put(kernels.compiled, records, pos, views, list(numbers.values()))
            return
        for view, column in zip(views, numbers.values(), strict=True):
            view[pos] = column

    def gather(
        self, pos: Positions, names: list[str] | None = None, absent: Mask | None = None
    ) -> dict[str, Values]:
        """Columns of rows that this session has looked up; blank where they are absent."""
        columns = {n: self.columns[n] for n in (self.columns if names is None else names)}
        there = None if absent is None else np.flatnonzero(~absent)
        some = pos if there is None else pos[there]
        if any(name in self.layout.key_names for name in columns):
            self.seals.check_keys(some)
        cells = self._cells(columns, some, with_seals=False)
        if there is not None:  # of the others nothing is read
            cells = {name: c.spread(there, len(pos)) for name, c in cells.items()}
        return {name: self.values(name, cells[name], absent) for name in columns}

    def values(self, name: str, cells: Values, absent: Mask | None = None) -> Values:
        """The values that cells of a column stand for; blank where rows are absent."""
        column = self.columns[name]
        if absent is not None:
            column.blank(cells, absent)
        return column.resolve(cells)

    def ids(self, pos: Positions) -> RowIds:
        h = self.h[pos]
        route = self.route[pos] if self.layout.has_route else h
        return RowIds(route, h, self.check[pos].astype(np.uint64))

    def live_positions(self) -> Positions:
        return np.flatnonzero((self.check != EMPTY) & (self.check != REMOVED))

    def set_apart(self, names: Iterable[str]) -> None:
        """Columns that are compared as a whole."""
        for name in names:
            column = self.columns[name]
            if isinstance(column, FixedColumn):
                column.stand_alone()

    @property
    def byte_count(self) -> int:
        row_bytes = 8 + self.check.itemsize + (8 if self.layout.has_route else 0)
        row_bytes += sum(column.row_bytes for column in self.columns.values())
        return self.live * row_bytes + sum(c.used + 8 * c.count for c in self.columns.values())

    def arrays_of_positions(self, scanned: set[str]) -> dict[str, list[Array]]:
        """All that is kept per position, by column; the records for all that are in them.

        Columns that are scanned are themselves in any case.
        """
        identity = [self.h, self.route] if self.layout.has_route else [self.h]
        columns = {name: column.arrays for name, column in self.columns.items()}
        for name in scanned & columns.keys():  # a copy, should there have been no room for its own
            column = self.columns[name]
            if isinstance(column, FixedColumn) and column.is_packed:
                columns[name] = [column.data.copy(), *column.arrays]
        records = [self.memory.arrays[RECORDS]]
        return {"identity": identity, CHECK: [self.check], RECORDS: records, **columns}

    def stamp(self, memory: MappedMemory) -> dict[str, Any]:
        """All that another process needs, beside the files, to check and use this table."""
        dearer = self.seals.are_dearer
        fewer = self._rebuild_is_near() or dearer
        heaps = {n: h.stamp(self._is_rewrite_near(h) or dearer) for n, h in self._heaps.items()}
        self._used_before = self.live + self.removed
        return {
            "capacity": self.capacity,
            "live": self.live,
            "removed": self.removed,
            "plain": self._plain,
            "packed": self._packing.names,
            "seals": self.seals.stamp(fewer),
            "heaps": heaps,
            "arrays": memory.describe(),
        }

    def attach(
        self, memory: MappedMemory, stamp: dict[str, Any], before: Memory | None = None
    ) -> None:
        """Map the files of a generation, or catch up with what another worker did to them."""
        memory.attach(stamp["arrays"], before)
        self._packing = self._packing_of(stamp["packed"], memory)
        self._use(memory)
        self.capacity, self.live, self.removed = stamp["capacity"], stamp["live"], stamp["removed"]
        self._plain = stamp["plain"]
        self._used_before = self.live + self.removed
        self.version += 1
        self.seals.attach(stamp["seals"])
        for name, heap in self._heaps.items():
            heap.attach(stamp["heaps"][name])

    def _make_room(self, rows: int, check_max: int) -> None:
        full = self._is_full_with(rows)
        wide = check_max > _NARROW_MAX and self.check.dtype == np.uint8
        wasted = any(heap.count > _heap_max(self.live + rows) for heap in self._heaps.values())
        if full or wide or wasted:
            self._rebuild(self.live + rows, check_max=check_max, room=self._room_for_more(rows))

    def _room_for_more(self, rows: int) -> int:
        """For the sessions to come, or each would rebuild: where most rows go again soon, and where
        the table grows from session to session, at most to twice its rows.
        """
        held = self.live + rows
        new = held + self.removed - self._used_before
        grows = self._used_before > 0  # else all there is came now, and that may be all
        churn, growth = min(self.removed, new, held), min(new, held // 2) if grows else 0
        return _SESSIONS_OF_ROOM * max(churn, growth)

    def _is_full_with(self, rows: int) -> bool:
        return self.live + self.removed + rows > _LOAD_MAX * self.capacity

    def _rebuild_is_near(self) -> bool:
        """Would some more sessions like this one fill the table, or a heap with garbage?"""
        used = self.live + self.removed
        room = _LOAD_MAX * self.capacity - used
        return (used - self._used_before) * SESSIONS > room or any(
            map(self._is_rewrite_near, self._heaps.values())
        )

    def _is_rewrite_near(self, heap: HeapColumn) -> bool:
        """Would some more sessions that overwrite as many values as this one fill a heap?"""
        overwritten = heap.added - (self.live + self.removed - self._used_before)
        return overwritten * SESSIONS > _heap_max(self.live) - heap.count

    def _rebuild(self, rows: int, grow: bool = False, check_max: int = 0, room: int = 0) -> None:
        if self.before_move is not None:
            self.before_move()
        self.seals.check_all()
        pos = self.live_positions()
        kept = {name for name, heap in self._heaps.items() if heap.is_worth_keeping(rows)}
        values = self.gather(pos, [name for name in self.columns if name not in kept])
        values |= {name: self._heaps[name].cells(pos) for name in kept}
        self._lay_out(self.ids(pos), values, rows, grow, check_max, room, kept)

    def _lay_out(
        self,
        ids: RowIds,
        values: Mapping[str, Values],
        rows: int,
        grow: bool = False,
        check_max: int = 0,
        room: int = 0,
        kept: Collection[str] = (),
    ) -> None:
        """Move to new arrays with room for so many rows; in this process if nowhere else.

        Of heaps that are `kept`, `values` has the cells.
        """
        capacity = max(_CAPACITY_MIN, int(rows / _LOAD_AFTER_BUILD))
        capacity = max(capacity, int((rows + room) / _LOAD_MAX) + 1)
        if grow:
            capacity = max(capacity, int(self.capacity * 1.5) + 1)
        if len(ids):
            check_max = max(check_max, int(ids.check.max()))
        narrow = self.layout.narrow and check_max <= _NARROW_MAX
        order, pos, size = _places(ids.h, capacity)
        while order is None:
            capacity += capacity // 4
            order, pos, size = _places(ids.h, capacity)
        ids, values = ids.take(order), {name: v.take(order) for name, v in values.items()}

        packed = [
            name
            for name, column in self.layout.columns.items()
            if column.kind == "number"
            and name not in self.layout.key_names
            and name not in self.seals.scanned
        ]

        def spread(content: Array, dtype: npt.DTypeLike) -> Array:
            array = np.zeros(size, dtype)
            array[pos] = content
            return array

        def fill(memory: Memory) -> Memory:
            memory.install("h", spread(ids.h, np.uint64))
            memory.install("check", spread(ids.check, np.uint8 if narrow else np.uint64))
            if self.layout.has_route:
                memory.install("route", spread(ids.route, np.uint64))
            self._packing = packing = self._packing_of(packed, memory)
            records = np.zeros((size, packing.bytes), np.uint8)
            for name in packed:
                packing.view(records, name)[pos] = values[name].data
            memory.install(RECORDS, records)
            for name, column in self.columns.items():
                if isinstance(column, HeapColumn) and name in kept:
                    column.move(memory, size, pos, values[name])
                else:
                    column.build(memory, size, pos, values[name], packing)
            if isinstance(memory, MappedMemory):
                memory.reserve("seals", np.uint32, (2, size))
            return memory

        byte_count = size * (32 + sum(column.row_bytes for column in self.columns.values()))
        try:
            memory = fill(self.memory.fresh(byte_count))
        except OSError:
            memory = fill(PrivateMemory())
        self._use(memory, built=True)
        self.capacity, self.live, self.removed = capacity, len(ids), 0
        self._plain = narrow and check_max <= _PLAIN
        self._used_before = len(ids)
        self.version += 1

    def _use(self, memory: Memory, built: bool = False) -> None:
        """Work on these arrays from now on."""
        self.memory, arrays = memory, memory.arrays
        self.h, self.check = arrays["h"], arrays["check"]
        self.route = arrays.get("route", self.h)
        for column in self.columns.values():
            column.use(memory, self._packing)
        self.seals.use(arrays.get("seals"), self._packing.seals(arrays[RECORDS]), built)

    def _packing_of(self, names: Iterable[str], memory: Memory) -> Packing:
        numbers = {name: self.layout.columns[name].dtype for name in names}
        return Packing(numbers, sealed=isinstance(memory, MappedMemory))

    def _as_check(self, check: U64) -> Array:
        if self.check.dtype != np.uint8:
            return check
        if len(check) and int(check.max()) > _NARROW_MAX:
            return np.minimum(check, np.uint64(_NARROW_MAX + 1)).astype(np.uint8)  # matches none
        return check.astype(np.uint8)


def _heap_max(rows: int) -> int:
    """Values, overwritten ones too, that a heap may have for so many rows."""
    return 2 * rows + 4096


def home_of(h: U64, capacity: int) -> Positions:
    """First position to look at: the top 32 bits of a second mix, scaled to the capacity."""
    mixed = ((h ^ (h >> np.uint64(29))) * _MIX) >> np.uint64(32)
    return ((mixed * np.uint64(capacity)) >> np.uint64(32)).astype(np.intp)


def _places(h: U64, capacity: int) -> tuple[Any, Positions, int]:
    """Order of rows, their positions and the array size; no order if a cluster ran off the end."""
    size = capacity + 64 + capacity // 64
    home = home_of(h, capacity)
    order = np.argsort(home, kind="stable")  # rows that only move are nearly in order: 20x as fast
    steps = np.arange(len(h))
    pos = np.maximum.accumulate(home[order] - steps) + steps if len(h) else home
    if len(h) and int(pos[-1]) >= size - 1:
        return None, pos, size
    return order, pos, size
