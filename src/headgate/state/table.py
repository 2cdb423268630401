"""A hash table of columns: open addressing, linear probing, whole batches per NumPy call.

`check` doubles as the state of a position: 0 is empty, 2 is a removed row, anything else a live
one. Positions come from a second mix of `h`, because a slot owns only some ranges of `route` and
raw hashes would pile up. A removed row keeps its position until the next rebuild, so a position
found for a missing key stays a right place to go on probing from. The last position is always
empty, which ends every probe.

Lookups cost O(keys asked for). A rebuild costs O(rows held) and is due after a constant fraction
of them has been added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.state.column import Column, FixedColumn, HeapColumn, Positions
from headgate.state.layout import Array, Mask, RowLayout, Values
from headgate.state.memory import MappedMemory, Memory, PrivateMemory
from headgate.state.rows import RowIds
from headgate.state.schema import U64

EMPTY, REMOVED = 0, 2
_LOAD_AFTER_BUILD = 0.5
_LOAD_MAX = 0.68
_CAPACITY_MIN = 64
_NARROW_MAX = 254
_MIX = np.uint64(0x9E3779B97F4A7C15)


class HashTable:
    """Rows of one (operator, slot), found by (h, check)."""

    def __init__(self, layout: RowLayout, memory: Memory | None = None) -> None:
        self.layout = layout
        self.memory: Memory = memory or PrivateMemory()
        self.columns: dict[str, Column] = {
            name: (HeapColumn if column.kind == "heap" else FixedColumn)(column, f"c{index:03d}")
            for index, (name, column) in enumerate(layout.columns.items())
        }
        self.h: U64 = np.zeros(0, np.uint64)
        self.check: Array = np.zeros(0, np.uint8)
        self.route: U64 = self.h
        self.capacity = self.live = self.removed = 0
        self.version = 0  # grows when positions handed out before are no longer valid
        self.before_move: Callable[[], None] | None = None

    @classmethod
    def build(
        cls, layout: RowLayout, memory: Memory, ids: RowIds, values: Mapping[str, Values]
    ) -> HashTable:
        """A table of distinct rows, made without probing: sort by home, then step past others."""
        table = cls(layout, memory)
        table._lay_out(ids, values, len(ids))
        return table

    def sample_routes(self, positions_max: int) -> U64:
        """Routes of the rows at every k-th position: positions are a hash, so that is fair."""
        step = max(1, len(self.check) // positions_max)
        check = self.check[::step]
        return np.asarray(self.route[::step][(check != EMPTY) & (check != REMOVED)])

    def find(self, h: U64, check: U64, start: Positions | None = None) -> tuple[Positions, Mask]:
        """Position of each row and whether it is there; if not, where its probe ended."""
        check = self._as_check(check)
        pos = home_of(h, self.capacity) if start is None else start.copy()
        seen = self.check[pos]
        found = (seen == check) & (self.h[pos] == h)
        todo = np.flatnonzero(~found & (seen != EMPTY))
        p, wanted, marks = pos[todo], h[todo], check[todo]
        while todo.size:
            p += 1
            seen = self.check[p]
            hit = (seen == marks) & (self.h[p] == wanted)
            stop = hit | (seen == EMPTY)
            done = todo[stop]
            pos[done] = p[stop]
            found[done] = hit[stop]
            on = np.flatnonzero(~stop)
            todo, p, wanted, marks = todo[on], p[on], wanted[on], marks[on]
        return pos, found

    def insert(self, ids: RowIds, pos: Positions) -> Positions:
        """Claim positions for rows that are not there; `pos` is where their probes ended."""
        version = self.version
        self._make_room(len(ids), int(ids.check.max()) if len(ids) else 0)
        if self.version != version:
            pos = home_of(ids.h, self.capacity)
        check = self._as_check(ids.check)
        pos = pos.copy()
        todo = np.arange(len(ids))
        last = len(self.h) - 1
        while todo.size:
            p = pos[todo]
            if int(p.max()) >= last:  # a cluster reached the end: more room, and once again
                self._rebuild(self.live + len(ids), grow=True)
                pos, there = self.find(ids.h, ids.check)
                missing = np.flatnonzero(~there)
                pos[missing] = self.insert(ids.take(missing), pos[missing])
                return pos
            free = self.check[p] == EMPTY
            tried, p = todo[free], p[free]
            self.h[p] = ids.h[tried]
            self.check[p] = check[tried]
            won = (self.h[p] == ids.h[tried]) & (self.check[p] == check[tried])
            winners = tried[won]
            if self.layout.has_route:
                self.route[pos[winners]] = ids.route[winners]
            self.live += len(winners)
            lost = np.ones(len(todo), np.bool_)
            lost[np.flatnonzero(free)[won]] = False
            todo = todo[lost]
            pos[todo] += 1
        return pos

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
        self.check[pos] = REMOVED
        self.live -= len(pos)
        self.removed += len(pos)

    def scatter(self, pos: Positions, values: Mapping[str, Values]) -> None:
        for name, given in values.items():
            try:
                self.columns[name].scatter(self.memory, pos, given)
            except OSError:
                self.make_private()
                self.columns[name].scatter(self.memory, pos, given)

    def gather(self, pos: Positions, names: list[str] | None = None) -> dict[str, Values]:
        wanted = self.columns if names is None else names
        return {name: self.columns[name].gather(pos) for name in wanted}

    def ids(self, pos: Positions) -> RowIds:
        h = self.h[pos]
        route = self.route[pos] if self.layout.has_route else h
        return RowIds(route, h, self.check[pos].astype(np.uint64))

    def holds(self, pos: Positions, ids: RowIds) -> Mask:
        """Whether each position still (or again) belongs to its row."""
        held: Mask = (self.check[pos] == self._as_check(ids.check)) & (self.h[pos] == ids.h)
        return held

    def live_positions(self) -> Positions:
        return np.flatnonzero((self.check != EMPTY) & (self.check != REMOVED))

    @property
    def byte_count(self) -> int:
        row_bytes = 8 + self.check.itemsize + (8 if self.layout.has_route else 0)
        row_bytes += sum(column.row_bytes for column in self.columns.values())
        return self.live * row_bytes + sum(c.heap_bytes() for c in self.columns.values())

    def make_private(self) -> None:
        """Leave the shared files (no room there) and go on with plain arrays."""
        self.memory = PrivateMemory()
        self.h, self.check = self.h.copy(), self.check.copy()
        self.route = self.route.copy() if self.layout.has_route else self.h
        for column in self.columns.values():
            column.make_private()

    def describe(self) -> dict[str, Any]:
        """All that another process needs, beside the files, to go on with this table."""
        return {
            "capacity": self.capacity,
            "size": len(self.h),
            "live": self.live,
            "removed": self.removed,
            "check": self.check.dtype.str,
            "columns": {name: column.describe() for name, column in self.columns.items()},
        }

    def attach(self, memory: MappedMemory, told: dict[str, Any]) -> None:
        """Map the files of a generation, or catch up with what another worker did to them."""
        size = told["size"]
        self.memory = memory
        if len(self.h) != size:
            self.h = memory.attach("h", np.dtype(np.uint64), (size,))
            self.check = memory.attach("check", np.dtype(told["check"]), (size,))
            self.route = self.h
            if self.layout.has_route:
                self.route = memory.attach("route", np.dtype(np.uint64), (size,))
        for name, column in self.columns.items():
            column.attach(memory, size, told["columns"][name])
        self.capacity, self.live, self.removed = told["capacity"], told["live"], told["removed"]
        self.version += 1

    def _make_room(self, rows: int, check_max: int) -> None:
        full = self.live + self.removed + rows > _LOAD_MAX * self.capacity
        wide = check_max > _NARROW_MAX and self.check.dtype == np.uint8
        slack = 2 * (self.live + rows) + 4096
        wasted = any(column.garbage_rows > slack for column in self.columns.values())
        if full or wide or wasted or not self.capacity:
            self._rebuild(self.live + rows, check_max=check_max)

    def _rebuild(self, rows: int, grow: bool = False, check_max: int = 0) -> None:
        if self.before_move is not None:
            self.before_move()
        pos = self.live_positions()
        self._lay_out(self.ids(pos), self.gather(pos), rows, grow, check_max)

    def _lay_out(
        self,
        ids: RowIds,
        values: Mapping[str, Values],
        rows: int,
        grow: bool = False,
        check_max: int = 0,
    ) -> None:
        capacity = max(_CAPACITY_MIN, int(rows / _LOAD_AFTER_BUILD))
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
        check_type = np.uint8 if narrow else np.uint64
        byte_count = size * (24 + sum(column.row_bytes for column in self.columns.values()))
        try:
            self._install(self.memory.fresh(byte_count), ids, values, pos, size, check_type)
        except OSError:
            self._install(PrivateMemory(), ids, values, pos, size, check_type)
        self.capacity = capacity
        self.live, self.removed = len(ids), 0
        self.version += 1

    def _install(
        self,
        memory: Memory,
        ids: RowIds,
        values: Mapping[str, Values],
        pos: Positions,
        size: int,
        check_type: type[np.unsignedinteger[Any]],
    ) -> None:
        def spread(content: Array, dtype: npt.DTypeLike) -> Array:
            array = np.zeros(size, dtype)
            array[pos] = content
            return array

        self.h = memory.install("h", spread(ids.h, np.uint64))
        self.check = memory.install("check", spread(ids.check, check_type))
        self.route = self.h
        if self.layout.has_route:
            self.route = memory.install("route", spread(ids.route, np.uint64))
        for name, column in self.columns.items():
            column.build(memory, size, pos, values[name])
        self.memory = memory

    def _as_check(self, check: U64) -> Array:
        if self.check.dtype != np.uint8:
            return check
        if len(check) and int(check.max()) > _NARROW_MAX:
            return np.minimum(check, np.uint64(_NARROW_MAX + 1)).astype(np.uint8)  # matches none
        return check.astype(np.uint8)


def home_of(h: U64, capacity: int) -> Positions:
    """First position to look at: the top 32 bits of a second mix, scaled to the capacity."""
    mixed = ((h ^ (h >> np.uint64(29))) * _MIX) >> np.uint64(32)
    return ((mixed * np.uint64(capacity)) >> np.uint64(32)).astype(np.intp)


def _places(h: U64, capacity: int) -> tuple[Any, Positions, int]:
    """Order of rows, their positions and the array size; no order if a cluster ran off the end."""
    size = capacity + 64 + capacity // 64
    home = home_of(h, capacity)
    order = np.argsort(home)
    steps = np.arange(len(h))
    pos = np.maximum.accumulate(home[order] - steps) + steps if len(h) else home
    if len(h) and int(pos[-1]) >= size - 1:
        return None, pos, size
    return order, pos, size
