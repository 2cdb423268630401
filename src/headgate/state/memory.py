"""Where a table's arrays live: in this process only, or in files that any worker may map.

A generation is one set of files, made whole with `write()` (a mapping that is filled page by page
costs five times as much, and a full disk would be a SIGBUS instead of an error). Its token is
random, so a mapping kept from an earlier life of the folder is never mistaken for this one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_CHUNK_BYTES = 1 << 24


class Memory(Protocol):
    """Gives a table its arrays; any OSError means "no room", and the table goes private."""

    def fresh(self, byte_count: int) -> Memory:
        """A new, empty generation beside this one."""

    def install(self, name: str, array: Array) -> Array:
        """Keep this content under a name, and return the array to use from now on."""

    def extend(self, name: str, array: Array, size: int) -> Array:
        """The same content in a longer one-dimensional array."""


class PrivateMemory:
    """Plain NumPy arrays: tests, twins that did not get the lock, hosts without room."""

    def fresh(self, byte_count: int) -> PrivateMemory:
        return self

    def install(self, name: str, array: Array) -> Array:
        return array

    def extend(self, name: str, array: Array, size: int) -> Array:
        longer = np.zeros(size, array.dtype)
        longer[: len(array)] = array
        return longer


class MappedMemory:
    """One generation of files in a folder, mapped shared: what one worker writes, all see."""

    def __init__(
        self, folder: str, generation: str, make_room: Callable[[str, int], None] | None = None
    ) -> None:
        self.folder, self.generation, self._make_room = folder, generation, make_room

    @classmethod
    def new(cls, folder: str, make_room: Callable[[str, int], None] | None = None) -> MappedMemory:
        return cls(folder, os.urandom(8).hex(), make_room)

    def fresh(self, byte_count: int) -> MappedMemory:
        if self._make_room is not None:
            self._make_room(self.folder, byte_count)
        return MappedMemory.new(self.folder, self._make_room)

    def install(self, name: str, array: Array) -> Array:
        os.makedirs(self.folder, exist_ok=True)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with open(self._path(name), "wb", buffering=0) as file:
            for start in range(0, len(content), _CHUNK_BYTES):
                rest = content[start : start + _CHUNK_BYTES]
                while rest:
                    rest = rest[file.write(rest) :]
        return self.attach(name, array.dtype, array.shape)

    def extend(self, name: str, array: Array, size: int) -> Array:
        with open(self._path(name), "r+b", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size * array.dtype.itemsize)
        return self.attach(name, array.dtype, (size,))

    def attach(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape))
        if not count:
            return np.zeros(shape, dtype)
        with open(self._path(name), "r+b") as file:
            mapping = mmap.mmap(file.fileno(), count * dtype.itemsize)
        return np.frombuffer(mapping, dtype, count).reshape(shape)

    def clean(self) -> None:
        """Delete the files of every other generation."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.name.startswith((self.generation, "head")):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{self.generation}-{name}")
