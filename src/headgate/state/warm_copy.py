"""The warm copy: a host's disposable image of one (operator, slot), in mapped files.

One writer at a time, by a non-blocking lock; who does not get it works on a private table. The
head says which chain the files hold and is marked dirty before the first change in place, so a
worker killed anywhere leaves either a clean image or one that says it is none. Boot id and a
random generation guard against images that outlived a crash of the host or of the folder. The head
has a digest, and the rows in the files have seals (`seals.py`).

Folders and files belong to this user, who alone may write them. Others are not opened, so a warm
copy that somebody planted is never read; and folders are held open while they are in use, so
nobody can put another in their place.

No room, no right to write, an odd file: all mean slower (a private table), never wrong.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import struct
from collections import OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import quote

import xxhash

from headgate.state.columns import MappedMemory, open_own
from headgate.state.layout import RowLayout
from headgate.state.table import HashTable

_MAGIC = "headgate-warm-5"
_HEAD_START = 20  # length and digest of what follows
_RETAINED_MAX = 64  # tables that a worker keeps mapped; others are attached again
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
        try:
            return WarmCopy(self, self.path(operator, slot))
        except PermissionError as problem:
            _tell_once(f"no warm copies of state in {self.folder}: {problem}")
        except OSError:
            pass
        return None

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
            copy = WarmCopy(self, path)
        except OSError:
            return False
        copy.discard()
        copy.release()
        return True


class WarmCopy:
    """One locked warm copy. Every way out goes through `release`, after `discard` or not.

    The lock is on a file beside the folder, which is never deleted, so all lock the same one.
    """

    def __init__(self, room: WarmRoom, path: str) -> None:
        """Lock the copy, or raise an OSError."""
        self._room, self._path = room, path
        self._owner = os.getpid()
        self._dirty = False
        operator, self._name = os.path.split(path)
        os.makedirs(os.path.dirname(os.path.abspath(room.folder)), exist_ok=True)
        with ExitStack() as opened:
            top = _open_folder(opened, room.folder, None)
            self._parent = _open_folder(opened, os.path.basename(operator), top)
            self._lock = open_own(f"{self._name}.lock", os.O_RDWR | os.O_CREAT, self._parent)
            opened.callback(os.close, self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = _open_folder(opened, self._name, self._parent)
            self._opened: ExitStack | None = opened.pop_all()

    def memory(self) -> MappedMemory:
        """Where a new table is to be built; its first `fresh()` makes the generation."""
        return MappedMemory(self._folder, partial(self._room.make_room, self._path))

    def attach(self, layout: RowLayout) -> tuple[HashTable, str] | None:
        """The table and the chain id it stands for; None if it must be rebuilt."""
        told = self._read_head()
        if told is None or told["layout"] != _fingerprint(layout):
            return None
        generation = told["generation"]
        kept = _retained.get(self._path)
        make_room = partial(self._room.make_room, self._path)
        try:
            memory = MappedMemory(self._folder, make_room, generation)
            if kept is not None and kept[:2] == (generation, told["layout"]):
                table = kept[2]
                table.attach(memory, told["table"], before=table.memory)
            else:
                table = HashTable(layout)
                memory.clean()
                table.attach(memory, told["table"])
        except (OSError, ValueError):
            return None
        self._retain(generation, table)
        return table, told["version"]

    def mark_dirty(self) -> None:
        """Say, before the first change in place, that the image is no longer what it was."""
        if not self._dirty:
            self._dirty = True
            with suppress(FileNotFoundError):
                self._write_head(bytes(_HEAD_START), os.O_WRONLY)

    def stamp(self, table: HashTable, version: str) -> None:
        """Say which chain the image stands for; a table that has left its files has no image."""
        memory = table.memory
        if not isinstance(memory, MappedMemory):
            self.discard()
            return
        told = {
            "magic": _MAGIC,
            "boot": _boot_id(),
            "generation": memory.generation,
            "layout": _fingerprint(table.layout),
            "version": version,
            "table": table.stamp(memory),
        }
        payload = json.dumps(told).encode()
        head = struct.pack("<I", len(payload)) + xxhash.xxh3_128_digest(payload) + payload
        try:
            self._write_head(head, os.O_WRONLY | os.O_CREAT)
            kept = _retained.get(self._path)
            if kept is None or kept[0] != memory.generation:
                memory.clean()
        except OSError:
            self.discard()
            return
        self._dirty = False
        self._retain(memory.generation, table)

    def note(self) -> bytes | None:
        """What was kept beside the image with `keep_note`; None if nothing is, or not all of it."""
        try:
            with open(open_own("note", os.O_RDONLY, self._folder), "rb") as file:
                found = file.read()
        except OSError:
            return None
        return found[16:] if xxhash.xxh3_128_digest(found[16:]) == found[:16] else None

    def keep_note(self, content: bytes) -> None:
        """Keep some bytes for this slot's next task on this host, which may do without."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with suppress(OSError), open(open_own("note", flags, self._folder), "wb") as file:
            file.write(xxhash.xxh3_128_digest(content) + content)

    def used(self) -> None:
        """Count as used now, for the budget."""
        with suppress(OSError):
            os.utime("head", dir_fd=self._folder)

    def discard(self) -> None:
        """Delete the image."""
        _retained.pop(self._path, None)
        with suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(name, dir_fd=self._folder)
            os.rmdir(self._name, dir_fd=self._parent)

    def release(self) -> None:
        """Let others use it. A dirty image stays dirty: the next one rebuilds."""
        if self._opened is None:
            return
        if self._dirty:
            _retained.pop(self._path, None)
        if os.getpid() == self._owner:  # in a fork the lock itself is the parent's
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._opened.close()
        self._opened = None

    def _read_head(self) -> dict[str, Any] | None:
        try:
            descriptor = open_own("head", os.O_RDONLY, self._folder)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            head = file.read()
        if len(head) < _HEAD_START:
            return None
        payload = head[_HEAD_START : _HEAD_START + struct.unpack_from("<I", head)[0]]
        if xxhash.xxh3_128_digest(payload) != head[4:_HEAD_START]:
            return None
        told: dict[str, Any] = json.loads(payload)
        return told if told["magic"] == _MAGIC and told["boot"] == _boot_id() else None

    def _write_head(self, content: bytes, flags: int) -> None:
        with open(open_own("head", flags, self._folder), "wb", buffering=0) as file:
            file.write(content)

    def _retain(self, generation: str, table: HashTable) -> None:
        _retained[self._path] = (generation, _fingerprint(table.layout), table)
        _retained.move_to_end(self._path)
        while len(_retained) > _RETAINED_MAX:
            _retained.popitem(last=False)


def forget_mappings() -> None:
    """Unmap all that this process retains; the next session attaches again."""
    _retained.clear()


def _fingerprint(layout: RowLayout) -> str:
    told = json.dumps([layout.schema.describe(), layout.ttl], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(told.encode())


def _open_folder(opened: ExitStack, name: str, parent: int | None) -> int:
    """A folder of this user's own, made if it is not there; closed together with `opened`."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = open_own(name, os.O_RDONLY | os.O_DIRECTORY, parent)
    opened.callback(os.close, descriptor)
    return descriptor


def _size(folder: str) -> tuple[int, float]:
    """Bytes of a warm copy and when it was last used."""
    total, used_at = 0, 0.0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                info = entry.stat()
                total += info.st_size
                if entry.name in ("head", "note"):
                    used_at = max(used_at, info.st_mtime)
    return total, used_at


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


@cache
def _tell_once(warning: str) -> None:
    logging.getLogger("headgate").warning(warning)
