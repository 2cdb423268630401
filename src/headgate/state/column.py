"""Columns of the table: fixed-width values in place, others in an append-only heap.

What a column holds at a position is a *cell*: the value itself, or its ordinal (-1: null) in a
growing list of values, where an overwritten one is garbage until the table is next rebuilt. Cells
are sealed by the table, values in a heap here. A validity array appears with the first null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from headgate.arrays import U32
from headgate.state.layout import Array, ColumnLayout, Mask, Positions, Values
from headgate.state.memory import MappedMemory, Memory
from headgate.state.seals import WarmCopyDamaged, value_seals


class FixedColumn:
    """A NumPy array with a row per table position, and a validity array once there is a null."""

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.data: Array = np.zeros(layout.shape(0), layout.dtype)
        self.valid: Array | None = None

    def build(self, memory: Memory, size: int, positions: Positions, values: Values) -> Values:
        """Make the arrays anew, with these values; returns their cells."""
        data = np.zeros(self.layout.shape(size), self.layout.dtype)
        data[positions] = values.data
        self.data = memory.install(self._file, data)
        self.valid = None
        if values.valid is not None and not values.valid.all():
            valid = np.ones(size, np.bool_)
            valid[positions] = values.valid
            self.valid = memory.install(f"{self._file}-valid", valid)
        return values

    def cells(self, positions: Positions | slice) -> Values:
        valid = None if self.valid is None else self.valid[positions]
        return Values(self.data[positions], valid)

    def blank(self, cells: Values, rows: Mask) -> None:
        """Make these cells what a column holds before anything is written."""
        cells.data[rows] = np.zeros(1, cells.data.dtype)[0]
        if cells.valid is not None:
            cells.valid[rows] = True

    def resolve(self, cells: Values) -> Values:
        """The values that cells stand for."""
        nothing_is_null = cells.valid is not None and bool(cells.valid.all())
        return Values(cells.data) if nothing_is_null else cells

    def scatter(self, memory: Memory, positions: Positions, values: Values) -> Values:
        """Write values; returns the cells written."""
        if values.valid is not None and self.valid is None:
            ones = np.ones(len(self.data), np.bool_)
            self.valid = memory.install(f"{self._file}-valid", ones)
        self.data[positions] = values.data
        if self.valid is not None:
            self.valid[positions] = True if values.valid is None else values.valid
        return values

    def describe(self) -> dict[str, Any]:
        return {"valid": self.valid is not None}

    def attach(self, memory: MappedMemory, size: int, told: dict[str, Any]) -> None:
        """Map what is not mapped yet; called again when another worker has gone on."""
        if len(self.data) != size:
            self.data = memory.attach(self._file, self.layout.dtype, self.layout.shape(size))
        if not told["valid"]:
            self.valid = None
        elif self.valid is None:
            self.valid = memory.attach(f"{self._file}-valid", np.dtype(np.bool_), (size,))

    def digest(self) -> str:
        valid = b"" if self.valid is None else xxhash.xxh3_128_digest(self.valid.data)
        return xxhash.xxh3_128_hexdigest(self.data.data) + valid.hex()

    @property
    def row_bytes(self) -> int:
        return self.layout.dtype.itemsize * self.layout.width

    def heap_bytes(self) -> int:
        return 0

    @property
    def garbage_rows(self) -> int:
        return 0

    def make_private(self) -> None:
        self.data = self.data.copy()
        self.valid = None if self.valid is None else self.valid.copy()


class HeapColumn:
    """An ordinal per row, and behind it offsets, bytes and seals that only grow."""

    row_bytes = 8

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.ref: Array = np.zeros(0, np.int64)
        self.bounds: Array = np.zeros(1, np.int64)
        self.body: Array = np.zeros(0, np.uint8)
        self.seals: U32 | None = None
        self.count = self.used = 0  # values and bytes
        self._suspect = 0  # so many values were written before this session

    def build(self, memory: Memory, size: int, positions: Positions, values: Values) -> Values:
        """Make the arrays anew, with these values; returns their cells."""
        data = values.data
        rows = len(data)
        bounds, body = _parts(data)
        room = max(64, rows + rows // 2)
        all_bounds = np.zeros(room + 1, np.int64)
        all_bounds[: rows + 1] = bounds
        all_body = np.zeros(max(1024, len(body) + len(body) // 2), np.uint8)
        all_body[: len(body)] = body
        ref, ordinals = np.full(size, -1, np.int64), _ordinals(data, 0)
        ref[positions] = ordinals
        self.ref = memory.install(f"{self._file}-ref", ref)
        self.bounds = memory.install(f"{self._file}-bounds", all_bounds)
        self.body = memory.install(f"{self._file}-body", all_body)
        self.seals = None
        if memory.sealed:
            seals = np.zeros(room, np.uint32)
            seals[:rows] = value_seals(bounds, body, np.arange(rows))
            self.seals = memory.install(f"{self._file}-seals", seals)
        self.count, self.used, self._suspect = rows, len(body), 0
        return Values(ordinals)

    def cells(self, positions: Positions | slice) -> Values:
        return Values(self.ref[positions])

    def blank(self, cells: Values, rows: Mask) -> None:
        """Make these cells what a column holds before anything is written."""
        cells.data[rows] = -1

    def resolve(self, cells: Values) -> Values:
        """The values that cells stand for, at any time until the table is rebuilt."""
        ordinals, absent = cells.data, cells.data < 0
        old = self.seals is not None and bool((ordinals < self._suspect).any())
        if self.seals is not None:
            self._check_bounds(ordinals[~absent] if old else ordinals[:0])
        heap = pa.Array.from_buffers(
            pa.large_binary(),
            self.count,
            [None, pa.py_buffer(self.bounds), pa.py_buffer(self.body)],
        )
        taken = heap.take(pa.array(ordinals, mask=absent if absent.any() else None))
        if old and self.seals is not None:
            wrong = value_seals(*_parts(taken), ordinals) != self.seals[ordinals]
            if (wrong & ~absent).any():
                raise WarmCopyDamaged
        return Values(taken)

    def scatter(self, memory: Memory, positions: Positions, values: Values) -> Values:
        """Write values; returns the cells written."""
        bounds, body = _parts(values.data)
        start, stop = self.count, self.count + len(values.data)
        if stop + 1 > len(self.bounds):
            size = (stop + 1) * 3 // 2
            self.bounds = memory.extend(f"{self._file}-bounds", self.bounds, size)
        if self.seals is not None and stop > len(self.seals):
            self.seals = memory.extend(f"{self._file}-seals", self.seals, len(self.bounds) - 1)
        if self.used + len(body) > len(self.body):
            size = (self.used + len(body)) * 3 // 2
            self.body = memory.extend(f"{self._file}-body", self.body, size)
        self.body[self.used : self.used + len(body)] = body
        self.bounds[start : stop + 1] = bounds + self.used
        if self.seals is not None:
            self.seals[start:stop] = value_seals(bounds, body, np.arange(start, stop))
        ordinals = _ordinals(values.data, start)
        self.ref[positions] = ordinals
        self.count, self.used = stop, self.used + len(body)
        return Values(ordinals)

    def describe(self) -> dict[str, Any]:
        room = {"bounds": len(self.bounds), "body": len(self.body)}
        return {"count": self.count, "used": self.used, **room}

    def attach(self, memory: MappedMemory, size: int, told: dict[str, Any]) -> None:
        """Map what is not mapped yet; called again when another worker has gone on."""
        room = told["bounds"]
        if len(self.ref) != size:
            self.ref = memory.attach(f"{self._file}-ref", np.dtype(np.int64), (size,))
        if self.seals is None or len(self.bounds) != room:
            self.bounds = memory.attach(f"{self._file}-bounds", np.dtype(np.int64), (room,))
            self.seals = memory.attach(f"{self._file}-seals", np.dtype(np.uint32), (room - 1,))
        if len(self.body) != told["body"]:
            self.body = memory.attach(f"{self._file}-body", np.dtype(np.uint8), (told["body"],))
        self.count, self.used = told["count"], told["used"]
        self._suspect = self.count

    def heap_bytes(self) -> int:
        return self.used + 8 * self.count

    @property
    def garbage_rows(self) -> int:
        """Values appended so far, live or not; the table compares it with its live rows."""
        return self.count

    def make_private(self) -> None:
        self.ref, self.bounds, self.body = self.ref.copy(), self.bounds.copy(), self.body.copy()
        self.seals = None if self.seals is None else self.seals.copy()

    def _check_bounds(self, ordinals: Array) -> None:
        """Nothing is read outside of the heap, not even to find that it is wrong."""
        start, stop = self.bounds[ordinals], self.bounds[ordinals + 1]
        inside = (start >= 0) & (start <= stop) & (stop <= self.used)
        first, last = self.bounds[0], self.bounds[self.count]  # Arrow looks at these, too
        if first != 0 or last != self.used or not inside.all():
            raise WarmCopyDamaged


Column = FixedColumn | HeapColumn


def _parts(data: pa.Array) -> tuple[Array, Array]:
    """Offsets from zero and the bytes they point into."""
    rows = len(data)
    if not rows:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, raw_bounds, raw_body = data.buffers()
    bounds = np.frombuffer(raw_bounds, np.int64, rows + 1, data.offset * 8)
    first, last = int(bounds[0]), int(bounds[-1])
    if last == first:
        return np.zeros(rows + 1, np.int64), np.zeros(0, np.uint8)
    return bounds - first, np.frombuffer(raw_body, np.uint8, last - first, first)


def _ordinals(data: pa.Array, start: int) -> Array:
    ordinals = np.arange(start, start + len(data), dtype=np.int64)
    if data.null_count:
        ordinals[data.is_null().to_numpy(zero_copy_only=False)] = -1
    return ordinals
