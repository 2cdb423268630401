"""Where a table's arrays live: in this process only, or in files that any worker may map.

A generation is one set of files, made whole with `write()` (a mapping that is filled page by page
costs five times as much, and a full disk would be a SIGBUS instead of an error). Its token is
random, so a mapping kept from an earlier life of the folder is never mistaken for this one.

Folders and files are this user's own, and nobody else can write them: others are not opened, and
no link is followed. So it does not matter who may write to the folders above.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_CHUNK_BYTES = 1 << 24  # of one write(): a large array is written in pieces


class Memory(Protocol):
    """Gives a table its arrays; any OSError means "no room", and the table goes private.

    Arrays in memory that is `sealed` may change between two sessions, so a table seals its rows.
    """

    sealed: bool

    def fresh(self, byte_count: int) -> Memory:
        """A new, empty generation beside this one."""

    def install(self, name: str, array: Array) -> Array:
        """Keep this content under a name, and return the array to use from now on."""

    def extend(self, name: str, array: Array, size: int) -> Array:
        """The same content in a longer one-dimensional array."""


class PrivateMemory:
    """Plain NumPy arrays: tests, twins that did not get the lock, hosts without room."""

    sealed = False

    def fresh(self, byte_count: int) -> PrivateMemory:
        return self

    def install(self, name: str, array: Array) -> Array:
        return array

    def extend(self, name: str, array: Array, size: int) -> Array:
        longer = np.zeros(size, array.dtype)
        longer[: len(array)] = array
        return longer


class MappedMemory:
    """One generation of files in a folder, mapped shared: what one worker writes, all see.

    `folder` is an open descriptor, which this object does not close. `files` are the sizes that
    the files must have: a mapping beyond the end of its file would end the process.
    """

    sealed = True

    def __init__(
        self,
        folder: int,
        make_room: Callable[[int], None],
        generation: str | None = None,
        files: dict[str, int] | None = None,
    ) -> None:
        self.folder, self._make_room = folder, make_room
        self.generation = generation or os.urandom(8).hex()
        self.files = {} if files is None else files
        for name, size in self.files.items():
            if os.stat(self._file(name), dir_fd=folder, follow_symlinks=False).st_size < size:
                raise OSError(f"{self._file(name)} was cut off")

    def fresh(self, byte_count: int) -> MappedMemory:
        self._make_room(byte_count)
        return MappedMemory(self.folder, self._make_room)

    def install(self, name: str, array: Array) -> Array:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with self._opened(name, os.O_CREAT | os.O_EXCL) as file:
            for start in range(0, len(content), _CHUNK_BYTES):
                rest = content[start : start + _CHUNK_BYTES]
                while rest:
                    rest = rest[os.write(file, rest) :]
        return self.attach(name, array.dtype, array.shape)

    def extend(self, name: str, array: Array, size: int) -> Array:
        with self._opened(name) as file:
            os.posix_fallocate(file, 0, size * array.dtype.itemsize)
        return self.attach(name, array.dtype, (size,))

    def attach(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape))
        if not count:
            return np.zeros(shape, dtype)
        with self._opened(name) as file:
            mapping = mmap.mmap(file, count * dtype.itemsize)
        self.files[name] = len(mapping)
        return np.frombuffer(mapping, dtype, count).reshape(shape)

    def clean(self) -> None:
        """Delete the files of every other generation."""
        for name in os.listdir(self.folder):
            if not name.startswith((self.generation, "head")):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.folder)

    @contextmanager
    def _opened(self, name: str, more: int = 0) -> Iterator[int]:
        descriptor = open_own(self._file(name), os.O_RDWR | more, self.folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _file(self, name: str) -> str:
        return f"{self.generation}-{name}"


def open_own(name: str, flags: int, folder: int | None = None) -> int:
    """Open a file or folder that is this user's alone to write; PermissionError if it is not."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    told = os.fstat(descriptor)
    shape = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
    if told.st_uid == os.geteuid() and not told.st_mode & 0o022 and shape(told.st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{name} belongs to somebody else, or others may write it")
