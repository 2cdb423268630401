"""The warm copy: a host's disposable image of one (operator, slot), in mapped files.

One writer at a time, by a non-blocking lock; who does not get it works on a private table. The
head says which chain the files hold and is marked dirty before the first change in place, so a
worker killed anywhere leaves either a clean image or one that says it is none. Boot id and a
random generation guard against images that outlived a crash of the host or of the folder.

No room, no right to write, an odd file: all mean slower (a private table), never wrong.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import struct
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import xxhash

from headgate.state.layout import RowLayout
from headgate.state.memory import MappedMemory
from headgate.state.table import HashTable

_MAGIC = "headgate-warm-2"
_RETAINED_MAX = 64
_retained: OrderedDict[str, tuple[str, str, HashTable]] = OrderedDict()


@dataclass(frozen=True)
class WarmRoom:
    """All warm copies of a host: a folder and the bytes they may take together."""

    folder: str
    budget_bytes: int

    def path(self, operator: str, slot: int) -> str:
        return os.path.join(self.folder, quote(operator, safe=""), f"{slot:05d}")

    def lock(self, operator: str, slot: int) -> WarmCopy | None:
        """The warm copy, for this caller alone, or None if it is in use or cannot be."""
        path = self.path(operator, slot)
        try:
            descriptor = _lock(path)
        except OSError:
            return None
        return WarmCopy(self, path, descriptor)

    def drop(self, operator: str, slot: int) -> bool:
        """Delete a warm copy, if nobody is using it."""
        return self._evict(self.path(operator, slot))

    def make_room(self, path: str, byte_count: int) -> None:
        """Evict the least recently used others until that many bytes fit, or say no room."""
        sizes = {folder: _size(folder) for folder in self._folders()}
        used = sum(size for size, _ in sizes.values())
        for folder, (size, _) in sorted(sizes.items(), key=lambda item: item[1][1]):
            if used + byte_count <= self.budget_bytes:
                return
            if folder != path and self._evict(folder):
                used -= size
        if used + byte_count > self.budget_bytes:
            raise OSError(errno.ENOSPC, "the budget for warm state is used up", path)

    def _folders(self) -> list[str]:
        found = []
        for at, folders, _ in os.walk(self.folder):
            if at != self.folder:
                found += [os.path.join(at, name) for name in folders]
                folders.clear()
        return found

    def _evict(self, path: str) -> bool:
        try:
            descriptor = _lock(path)
        except OSError:
            return False
        try:
            _retained.pop(path, None)
            shutil.rmtree(path, ignore_errors=True)
            return True
        finally:
            _unlock(descriptor)


class WarmCopy:
    """One locked warm copy. Every way out goes through `release` or `discard`."""

    def __init__(self, room: WarmRoom, path: str, descriptor: int) -> None:
        self._room, self._path = room, path
        self._lock: int | None = descriptor
        self._owner = os.getpid()
        self._head: int | None = None
        self._dirty = False

    def memory(self) -> MappedMemory:
        """Where a new table is to be built; its first `fresh()` makes the generation."""
        return MappedMemory.new(self._path, self._room.make_room)

    def attach(self, layout: RowLayout) -> tuple[HashTable, str] | None:
        """The table and the chain id it stands for; None if it must be rebuilt."""
        told = self._read_head()
        if told is None or told["layout"] != _fingerprint(layout):
            return None
        generation = told["generation"]
        kept = _retained.get(self._path)
        try:
            if kept is not None and kept[:2] == (generation, told["layout"]):
                table = kept[2]
                table.attach(_mapped(table), told["table"])
            else:
                memory = MappedMemory(self._path, generation, self._room.make_room)
                table = HashTable(layout)
                table.attach(memory, told["table"])
                memory.clean()
        except (OSError, ValueError):
            return None
        self._retain(layout, table)
        return table, told["version"]

    def mark_dirty(self) -> None:
        """Say, before the first change in place, that the image is no longer what it was."""
        if not self._dirty:
            self._dirty = True
            with suppress(FileNotFoundError):
                os.pwrite(self._open_head(create=False), b"D", 0)

    def stamp(self, layout: RowLayout, table: HashTable, version: str) -> bool:
        """Say which chain the image stands for; False if it has no files and was discarded."""
        if not isinstance(table.memory, MappedMemory):
            self.discard()
            return False
        told = {
            "magic": _MAGIC,
            "boot": _boot_id(),
            "generation": table.memory.generation,
            "layout": _fingerprint(layout),
            "version": version,
            "table": table.describe(),
        }
        payload = json.dumps(told).encode()
        head = b"C" + struct.pack("<I", len(payload)) + xxhash.xxh3_128_digest(payload) + payload
        try:
            os.pwrite(self._open_head(create=True), head, 0)
            kept = _retained.get(self._path)
            if kept is None or kept[0] != table.memory.generation:
                table.memory.clean()
        except OSError:
            self.discard()
            return False
        self._dirty = False
        self._retain(layout, table)
        return True

    def used(self) -> None:
        """Count as used now, for the budget."""
        with suppress(OSError):
            os.utime(os.path.join(self._path, "head"))

    def discard(self) -> None:
        """Delete the image."""
        _retained.pop(self._path, None)
        self._close_head()
        shutil.rmtree(self._path, ignore_errors=True)

    def release(self) -> None:
        """Let others use it. A dirty image stays dirty: the next one rebuilds."""
        if self._lock is None:
            return
        if self._dirty:
            _retained.pop(self._path, None)
        self._close_head()
        if os.getpid() == self._owner:
            _unlock(self._lock)
        else:
            os.close(self._lock)  # a fork's copy: the lock itself is the parent's
        self._lock = None

    def _read_head(self) -> dict[str, Any] | None:
        try:
            head = os.pread(self._open_head(create=False), 1 << 20, 0)
        except OSError:
            return None
        if len(head) < 21 or head[:1] != b"C":
            return None
        payload = head[21 : 21 + struct.unpack_from("<I", head, 1)[0]]
        if xxhash.xxh3_128_digest(payload) != head[5:21]:
            return None
        told: dict[str, Any] = json.loads(payload)
        return told if told["magic"] == _MAGIC and told["boot"] == _boot_id() else None

    def _open_head(self, create: bool) -> int:
        if self._head is None:
            flags = os.O_RDWR | (os.O_CREAT if create else 0)
            self._head = os.open(os.path.join(self._path, "head"), flags, 0o644)
        return self._head

    def _close_head(self) -> None:
        if self._head is not None:
            os.close(self._head)
            self._head = None

    def _retain(self, layout: RowLayout, table: HashTable) -> None:
        generation = _mapped(table).generation
        _retained[self._path] = (generation, _fingerprint(layout), table)
        _retained.move_to_end(self._path)
        while len(_retained) > _RETAINED_MAX:
            _retained.popitem(last=False)


def forget_mappings() -> None:
    """Unmap all that this process retains; the next session attaches again."""
    _retained.clear()


def _mapped(table: HashTable) -> MappedMemory:
    assert isinstance(table.memory, MappedMemory)
    return table.memory


def _fingerprint(layout: RowLayout) -> str:
    told = json.dumps([layout.schema.describe(), layout.ttl], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(told.encode())


def _lock(path: str) -> int:
    """Lock a folder by a file beside it, which is never deleted, so all lock the same one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _size(folder: str) -> tuple[int, float]:
    """Bytes of a warm copy and when it was last used."""
    total, used_at = 0, 0.0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                info = entry.stat()
                total += info.st_size
                if entry.name == "head":
                    used_at = info.st_mtime
    return total, used_at


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
