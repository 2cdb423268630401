"""A table's arrays and columns: where arrays live, and how a column keeps its values in them.

Arrays live in this process only, or in files that any worker of the host may map. A generation is
one set of files, made whole with `write()` (a mapping that is filled page by page costs five times
as much, and a full disk would be a SIGBUS instead of an error). Its token is random, so a mapping
kept from an earlier life of the folder is never mistaken for this one. Folders and files are this
user's own, and nobody else can write them: others are not opened, and no link is followed.

Numbers of the values, and the seal of a row, lie side by side in a *record* per position: of a
large table a row that is met costs a cache line, instead of one for each column. A column that is
compared as a whole leaves the records (`stand_alone`).

What a column holds at a position is a *cell*: the value itself, or its ordinal (-1: null) in an
append-only heap, where an overwritten value is garbage until the heap is next rewritten. A table
that is rebuilt takes its heaps over as they are, unless a third of a heap may be garbage: only the
ordinals move. Cells are sealed by the table, values in a heap here. A validity array appears with
the first null.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headgate.arrays import U32
from headgate.state import seals as sealing
from headgate.state.layout import Array, ColumnLayout, Mask, Positions, Values
from headgate.state.seals import ROW_SEAL, WarmCopyDamaged, more_sealed, value_seals

RECORDS = "records"
# Of one write(): the page cache keeps so many as a huge page, if the file system can, but of longer
# writes only the beginning (Linux 6.18, ext4); then each row of a large table costs a page walk.
_CHUNK_BYTES = 1 << 21


class PrivateMemory:
    """Named NumPy arrays: tests, tasks that did not get the lock, hosts without room."""

    sealed = False  # nobody else can change them, so rows need no seals

    def __init__(self, arrays: dict[str, Array] | None = None) -> None:
        self.arrays = arrays or {}

    def fresh(self, byte_count: int) -> PrivateMemory:
        return PrivateMemory()

    def install(self, name: str, array: Array, size: int | None = None) -> None:
        """Keep an array, or a copy of a one-dimensional one with zeros behind it up to a size."""
        self.arrays[name] = array
        if size is not None:
            self.extend(name, size)

    def reserve(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self.arrays[name] = np.zeros(shape, dtype)

    def extend(self, name: str, size: int) -> None:
        """Make a one-dimensional array longer, with zeros."""
        array, self.arrays[name] = self.arrays[name], np.zeros(size, self.arrays[name].dtype)
        self.arrays[name][: len(array)] = array

    def take_over(self, name: str, before: Memory) -> None:
        """Keep an array that was kept there until now, and is not used there any more."""
        array = before.arrays[name]
        self.arrays[name] = array if isinstance(before, PrivateMemory) else array.copy()


class MappedMemory:
    """One generation of files in a folder, mapped shared: what one worker writes, all see.

    `folder` is an open descriptor, which this object does not close. Any OSError means "no room",
    and the table goes private.
    """

    sealed = True

    def __init__(
        self, folder: int, make_room: Callable[[int], None], generation: str | None = None
    ) -> None:
        self.folder, self._make_room = folder, make_room
        self.generation = generation or os.urandom(8).hex()
        self.arrays: dict[str, Array] = {}
        self._mapped: dict[str, tuple[int, int]] = {}  # device and inode of each array's file

    def fresh(self, byte_count: int) -> MappedMemory:
        """A new, empty generation beside this one."""
        self._make_room(byte_count)
        return MappedMemory(self.folder, self._make_room)

    def install(self, name: str, array: Array, size: int | None = None) -> None:
        """Keep a copy of an array, of a one-dimensional one with zeros behind it up to a size."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with self._opened(name, os.O_CREAT | os.O_EXCL) as file:
            for start in range(0, len(content), _CHUNK_BYTES):
                rest = content[start : start + _CHUNK_BYTES]
                while rest:
                    rest = rest[os.write(file, rest) :]
            if size is not None:
                os.posix_fallocate(file, 0, max(1, size * array.dtype.itemsize))
            self._map(name, file, array.dtype, array.shape if size is None else (size,))

    def reserve(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        """Zeros that take room on the disk, and memory only where they are written over."""
        dtype = np.dtype(dtype)
        with self._opened(name, os.O_CREAT) as file:
            os.posix_fallocate(file, 0, max(1, int(np.prod(shape)) * dtype.itemsize))
            self._map(name, file, dtype, shape)

    def extend(self, name: str, size: int) -> None:
        """Make a one-dimensional array longer, with zeros."""
        self.reserve(name, self.arrays[name].dtype, (size,))

    def take_over(self, name: str, before: Memory) -> None:
        """Keep an array that was kept there until now, and is not used there any more: the same
        file by another name. What lies beyond what the older generation knows of may change.
        """
        assert isinstance(before, MappedMemory), "a table without files gets none"
        names = before._file(name), self._file(name)
        os.link(*names, src_dir_fd=before.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        self.arrays[name], self._mapped[name] = before.arrays[name], before._mapped[name]

    def describe(self) -> dict[str, Any]:
        return {name: [array.dtype.str, *array.shape] for name, array in self.arrays.items()}

    def attach(self, described: dict[str, Any], before: Memory | None = None) -> None:
        """Map what these files hold; what is mapped already, or was `before`, is not mapped again.

        Unless another file has that name now, such as one that was restored from a copy.
        """
        known = before if isinstance(before, MappedMemory) else self
        mapped, self.arrays, self._mapped = (known.arrays, known._mapped), {}, {}
        for name, (dtype, *shape) in described.items():
            there = os.stat(self._file(name), dir_fd=self.folder, follow_symlinks=False)
            inode = there.st_dev, there.st_ino
            array = mapped[0].get(name)
            if array is not None and array.shape == tuple(shape) and mapped[1][name] == inode:
                self.arrays[name], self._mapped[name] = array, inode
            else:
                with self._opened(name) as file:
                    self._map(name, file, np.dtype(dtype), tuple(shape))
            if there.st_size < self.arrays[name].nbytes:  # reading beyond its end would be fatal
                raise OSError(f"{self._file(name)} was cut off")

    def clean(self) -> None:
        """Delete the files of every other generation."""
        for name in os.listdir(self.folder):
            if not name.startswith((self.generation, "head")):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.folder)

    def _map(self, name: str, file: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        count, of = int(np.prod(shape)), os.fstat(file)
        mapping = mmap.mmap(file, count * dtype.itemsize) if count else b""
        self.arrays[name] = np.frombuffer(mapping, dtype, count).reshape(shape)
        self._mapped[name] = of.st_dev, of.st_ino

    @contextmanager
    def _opened(self, name: str, more: int = 0) -> Iterator[int]:
        descriptor = open_own(self._file(name), os.O_RDWR | more, self.folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _file(self, name: str) -> str:
        return f"{self.generation}-{name}"


Memory = PrivateMemory | MappedMemory


def open_own(name: str, flags: int, folder: int | None = None) -> int:
    """Open a file or folder that is this user's alone to write; PermissionError if it is not."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    found = os.fstat(descriptor)
    shape = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
    if found.st_uid == os.geteuid() and not found.st_mode & 0o022 and shape(found.st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{name} belongs to somebody else, or others may write it")


class Packing:
    """What lies where in the records: numbers, the widest first, so that all are aligned."""

    def __init__(self, numbers: Mapping[str, np.dtype[Any]], *, sealed: bool) -> None:
        self.names = list(numbers)
        fields = {**numbers, ROW_SEAL: np.dtype(np.uint32)} if sealed else dict(numbers)
        self._fields: dict[str, tuple[int, np.dtype[Any]]] = {}
        end, widest = 0, 1
        for name, dtype in sorted(fields.items(), key=lambda field: -field[1].itemsize):
            self._fields[name] = end, dtype
            end, widest = end + dtype.itemsize, max(widest, dtype.itemsize)
        self.bytes = -(-end // widest) * widest

    def view(self, records: Array, name: str) -> Array:
        """One of the numbers of all records."""
        start, dtype = self._fields[name]
        return np.ndarray((len(records),), dtype, records.data, start, (self.bytes,))

    def seals(self, records: Array) -> U32 | None:
        return self.view(records, ROW_SEAL) if ROW_SEAL in self._fields else None


class FixedColumn:
    """A number per table position (or some bytes), and a validity array once there is a null."""

    count = used = 0  # it has no heap

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.row_bytes = layout.dtype.itemsize * layout.width

    def use(self, memory: Memory, packing: Packing) -> None:
        self._memory, self._packing = memory, packing
        own = memory.arrays.get(self._file)
        if own is None:
            own = packing.view(memory.arrays[RECORDS], self.layout.name)
        self.data = own
        self.valid = memory.arrays.get(f"{self._file}-valid")

    def build(
        self, memory: Memory, size: int, positions: Positions, values: Values, packing: Packing
    ) -> None:
        """Install arrays that hold these values, but not those that the records hold."""
        if self.layout.name not in packing.names:
            data = np.zeros(self.layout.shape(size), self.layout.dtype)
            data[positions] = values.data
            memory.install(self._file, data)
        if values.valid is not None and not values.valid.all():
            valid = np.ones(size, np.bool_)
            valid[positions] = values.valid
            memory.install(f"{self._file}-valid", valid)

    @property
    def arrays(self) -> list[Array]:
        """All that it keeps per position, apart from the records."""
        return [
            array
            for name in (self._file, f"{self._file}-valid")
            if (array := self._memory.arrays.get(name)) is not None
        ]

    @property
    def is_packed(self) -> bool:
        return self._file not in self._memory.arrays

    def stand_alone(self) -> None:
        """Leave the records: who compares all of a column need not read them. If there is room."""
        if self.is_packed:
            with suppress(OSError):
                self._memory.reserve(self._file, self.data.dtype, self.data.shape)
                self._memory.arrays[self._file][:] = self.data
                self.use(self._memory, self._packing)

    def cells(self, positions: Positions | slice) -> Values:
        return Values(self.data[positions], self.validity(positions))

    def validity(self, positions: Positions | slice) -> Mask | None:
        """Which of these cells are not null; None: all."""
        return None if self.valid is None else self.valid[positions]

    def blank(self, cells: Values, rows: Mask) -> None:
        """Make these cells what a column holds before anything is written."""
        cells.data[rows] = np.zeros(1, cells.data.dtype)[0]
        if cells.valid is not None:
            cells.valid[rows] = True

    def resolve(self, cells: Values) -> Values:
        """The values that cells stand for."""
        return cells.without_mask()

    def scatter(self, positions: Positions, values: Values) -> Values:
        """Write values; returns the cells written. The table writes to the records."""
        if values.valid is not None and self.valid is None:
            self._memory.install(f"{self._file}-valid", np.ones(len(self.data), np.bool_))
            self.use(self._memory, self._packing)
        if not self.is_packed:
            self.data[positions] = values.data
        if self.valid is not None:
            self.valid[positions] = True if values.valid is None else values.valid
        return values


class HeapColumn:
    """An ordinal per row, and behind it offsets and bytes that only grow.

    In shared files the first `_sealed` values have seals and the rest a digest, as rows have.
    """

    row_bytes = 8

    def __init__(self, layout: ColumnLayout, file: str) -> None:
        self.layout, self._file = layout, file
        self.count = self.used = 0  # values and bytes, live or not
        self._sealed = 0
        self._suspect = 0  # the first so many values must be compared with their seals
        self._old = 0  # so many values were written before this session

    def use(self, memory: Memory, packing: Packing) -> None:
        self._memory, self._packing, arrays = memory, packing, memory.arrays
        self.ref, self._body = arrays[f"{self._file}-ref"], arrays[f"{self._file}-body"]
        self._bounds = arrays[f"{self._file}-bounds"]
        self._seals: U32 | None = arrays.get(f"{self._file}-seals")

    def build(
        self, memory: Memory, size: int, positions: Positions, values: Values, packing: Packing
    ) -> None:
        """Install arrays that hold these values."""
        bounds, body = _parts(values.data)
        count, used = len(values.data), len(body)
        all_bounds = np.zeros(max(64, count + count // 2) + 1, np.int64)
        all_bounds[: count + 1] = bounds
        ref = np.full(size, -1, np.int64)
        ref[positions] = _ordinals(values.data, 0)
        memory.install(f"{self._file}-ref", ref)
        memory.install(f"{self._file}-bounds", all_bounds)
        memory.install(f"{self._file}-body", body, max(1024, used + used // 2))
        if isinstance(memory, MappedMemory):
            memory.reserve(f"{self._file}-seals", np.uint32, all_bounds.shape)
        self.count, self.used, self._old = count, used, count
        self._sealed = self._suspect = 0

    def move(self, memory: Memory, size: int, positions: Positions, cells: Values) -> None:
        """Install cells elsewhere, and take over the values that they stand for."""
        ref = np.full(size, -1, np.int64)
        ref[positions] = cells.data
        memory.install(f"{self._file}-ref", ref)
        for array in ("bounds", "body") if self._seals is None else ("bounds", "body", "seals"):
            memory.take_over(f"{self._file}-{array}", self._memory)
        self._old = self.count

    def is_worth_keeping(self, rows: int) -> bool:
        """With so many rows, would most of its values still be those of rows?"""
        return self.count <= rows + rows // 2

    @property
    def arrays(self) -> list[Array]:
        """All that it keeps per position."""
        return [self.ref]

    def cells(self, positions: Positions | slice) -> Values:
        return Values(self.ref[positions])

    def blank(self, cells: Values, rows: Mask) -> None:
        """Make these cells what a column holds before anything is written."""
        cells.data[rows] = -1

    def resolve(self, cells: Values) -> Values:
        """The values that cells stand for, at any time until the table is rebuilt."""
        ordinals, absent = cells.data, cells.data < 0
        suspect = np.flatnonzero((ordinals < self._suspect) & ~absent)
        self._check_bounds(ordinals[suspect])
        heap = pa.Array.from_buffers(
            pa.large_binary(),
            self.count,
            [None, pa.py_buffer(self._bounds), pa.py_buffer(self._body)],
        )
        taken = heap.take(pa.array(ordinals, mask=absent if absent.any() else None))
        if len(suspect) and self._seals is not None:
            some = taken if len(suspect) == len(taken) else taken.take(pa.array(suspect))
            if (
                value_seals(*_parts(some), ordinals[suspect]) != self._seals[ordinals[suspect]]
            ).any():
                raise WarmCopyDamaged
        return Values(taken)

    def scatter(self, positions: Positions, values: Values) -> Values:
        """Write values; returns the cells written."""
        bounds, body = _parts(values.data)
        start, stop = self.count, self.count + len(values.data)
        used = self.used + len(body)
        if stop >= len(self._bounds):
            for array in ("bounds",) if self._seals is None else ("bounds", "seals"):
                self._memory.extend(f"{self._file}-{array}", (stop + 1) * 3 // 2)
        if used > len(self._body):
            self._memory.extend(f"{self._file}-body", used * 3 // 2)
        self.use(self._memory, self._packing)
        self._body[self.used : used] = body
        self._bounds[start : stop + 1] = bounds + self.used
        ordinals = _ordinals(values.data, start)
        self.ref[positions] = ordinals
        self.count, self.used = stop, used
        return Values(ordinals)

    @property
    def added(self) -> int:
        """Values written in this session, since the table was built."""
        return self.count - self._old

    def stamp(self, fewer: bool) -> dict[str, Any]:
        """As `Seals.stamp`, of values instead of rows."""
        assert self._seals is not None
        if fewer and self.count > sealing.SEALED_AT_LEAST:
            end = max(0, self._sealed - more_sealed(self.count))
            suspect = np.arange(end, min(self._sealed, self._suspect))
            self._check_bounds(suspect)
            if (self._right(suspect) != self._seals[suspect]).any():
                raise WarmCopyDamaged
        else:
            end = min(self.count, self._sealed + self.added + more_sealed(self.count))
            self._seals[self._sealed : end] = self._right(np.arange(self._sealed, end))
        self._sealed, self._old = end, self.count
        stamp = {"count": self.count, "used": self.used, "sealed": end}
        return {**stamp, "digest": self._digest_of_rest()}

    def attach(self, stamp: dict[str, Any]) -> None:
        self.count = self._old = stamp["count"]
        self.used = stamp["used"]
        self._sealed = self._suspect = stamp["sealed"]
        if self._digest_of_rest() != stamp["digest"]:
            raise WarmCopyDamaged

    def _right(self, ordinals: Array) -> U32:
        """The seals that a stretch of values should have by what is there."""
        if not len(ordinals):
            return np.zeros(0, np.uint32)
        bounds = self._bounds[ordinals[0] : ordinals[-1] + 2]
        return value_seals(bounds - bounds[0], self._body[bounds[0] : bounds[-1]], ordinals)

    def _digest_of_rest(self) -> str:
        bounds = self._bounds[self._sealed : self.count + 1]
        digest = xxhash.xxh3_128(bounds.data)
        digest.update(self._body[int(bounds[0]) : self.used].data)
        return digest.hexdigest()

    def _check_bounds(self, ordinals: Array) -> None:
        """Nothing is read outside of the heap, not even to find that it is wrong."""
        start, stop = self._bounds[ordinals], self._bounds[ordinals + 1]
        inside = (start >= 0) & (start <= stop) & (stop <= self.used)
        first, last = self._bounds[0], self._bounds[self.count]  # Arrow looks at these, too
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
