"""Columns of the table: fixed-width values in place, others in an append-only heap.

`gather` and `scatter` work on row positions. A validity array appears with the first null. A heap
column keeps an ordinal per row (-1: null) into a growing list of values; an overwritten value is
garbage until the table is next rebuilt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.state.layout import Array, ColumnLayout, Values
from headgate.state.memory import MappedMemory, Memory

Positions = npt.NDArray[np.intp]


class FixedColumn:
    """A NumPy array with a row per table position, and a validity array once there is a null."""

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.data: Array = np.zeros(layout.shape(0), layout.dtype)
        self.valid: Array | None = None

    def build(self, memory: Memory, size: int, positions: Positions, values: Values) -> None:
        data = np.zeros(self.layout.shape(size), self.layout.dtype)
        data[positions] = values.data
        self.data = memory.install(self._file, data)
        self.valid = None
        if values.valid is not None and not values.valid.all():
            valid = np.ones(size, np.bool_)
            valid[positions] = values.valid
            self.valid = memory.install(f"{self._file}-valid", valid)

    def gather(self, positions: Positions) -> Values:
        valid = None if self.valid is None else self.valid[positions]
        if valid is not None and valid.all():
            valid = None
        return Values(self.data[positions], valid)

    def scatter(self, memory: Memory, positions: Positions, values: Values) -> None:
        if values.valid is not None and self.valid is None:
            ones = np.ones(len(self.data), np.bool_)
            self.valid = memory.install(f"{self._file}-valid", ones)
        self.data[positions] = values.data
        if self.valid is not None:
            self.valid[positions] = True if values.valid is None else values.valid

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
    """An ordinal per row, and behind it offsets and bytes that only grow."""

    row_bytes = 8

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.ref: Array = np.zeros(0, np.int64)
        self.bounds: Array = np.zeros(1, np.int64)
        self.body: Array = np.zeros(0, np.uint8)
        self.count = 0

    def build(self, memory: Memory, size: int, positions: Positions, values: Values) -> None:
        data = values.data
        rows = len(data)
        bounds, body = _parts(data)
        room = max(64, rows + rows // 2)
        all_bounds = np.zeros(room + 1, np.int64)
        all_bounds[: rows + 1] = bounds
        all_body = np.zeros(max(1024, len(body) + len(body) // 2), np.uint8)
        all_body[: len(body)] = body
        ref = np.full(size, -1, np.int64)
        ref[positions] = _ordinals(data, 0)
        self.ref = memory.install(f"{self._file}-ref", ref)
        self.bounds = memory.install(f"{self._file}-bounds", all_bounds)
        self.body = memory.install(f"{self._file}-body", all_body)
        self.count = rows

    def gather(self, positions: Positions) -> Values:
        ordinals = self.ref[positions]
        heap = pa.Array.from_buffers(
            pa.large_binary(),
            self.count,
            [None, pa.py_buffer(self.bounds), pa.py_buffer(self.body)],
        )
        absent = ordinals < 0
        return Values(heap.take(pa.array(ordinals, mask=absent if absent.any() else None)))

    def scatter(self, memory: Memory, positions: Positions, values: Values) -> None:
        bounds, body = _parts(values.data)
        rows, start = len(values.data), int(self.bounds[self.count])
        if self.count + rows + 1 > len(self.bounds):
            size = (self.count + rows + 1) * 3 // 2
            self.bounds = memory.extend(f"{self._file}-bounds", self.bounds, size)
        if start + len(body) > len(self.body):
            size = (start + len(body)) * 3 // 2
            self.body = memory.extend(f"{self._file}-body", self.body, size)
        self.body[start : start + len(body)] = body
        self.bounds[self.count + 1 : self.count + rows + 1] = bounds[1:] + start
        self.ref[positions] = _ordinals(values.data, self.count)
        self.count += rows

    def describe(self) -> dict[str, Any]:
        return {"count": self.count, "bounds": len(self.bounds), "body": len(self.body)}

    def attach(self, memory: MappedMemory, size: int, told: dict[str, Any]) -> None:
        """Map what is not mapped yet; called again when another worker has gone on."""
        if len(self.ref) != size:
            self.ref = memory.attach(f"{self._file}-ref", np.dtype(np.int64), (size,))
        if len(self.bounds) != told["bounds"]:
            shape = (told["bounds"],)
            self.bounds = memory.attach(f"{self._file}-bounds", np.dtype(np.int64), shape)
        if len(self.body) != told["body"]:
            shape = (told["body"],)
            self.body = memory.attach(f"{self._file}-body", np.dtype(np.uint8), shape)
        self.count = told["count"]

    def heap_bytes(self) -> int:
        return int(self.bounds[self.count]) + 8 * self.count

    @property
    def garbage_rows(self) -> int:
        """Values appended so far, live or not; the table compares it with its live rows."""
        return self.count

    def make_private(self) -> None:
        self.ref, self.bounds, self.body = self.ref.copy(), self.bounds.copy(), self.body.copy()


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
