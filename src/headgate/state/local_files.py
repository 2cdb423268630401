"""Files of a local disk, or of anything mounted like one.

A file is written under a temporary name beside its place and then renamed; to create one only if it
is absent, it is hard-linked instead, which fails if somebody else was first.

Folders are made 0700 and files 0600, whatever the umask says; `trust` has the one exception. Shared
ones, for other programs to read, follow the umask.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headgate.errors import UnsafeName
from headgate.state.flushing import flush_all, folders_above
from headgate.state.trust import GROUP_FILE, PRIVATE_FILE, is_of_group, make_private_folder


class LocalFiles:
    """The folder at a path, or at a `file:` uri."""

    def __init__(self, uri: str, shared: bool) -> None:
        self.root = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
        self._shared = shared
        self._flushed: set[str] = set()
        self._checked: set[str] = set()
        self._of_group: dict[str, bool] = {}

    def read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def write(self, name: str, pieces: Sequence[Any], durable: bool) -> None:
        path = self._path(name)
        temporary = self._write_beside(path, pieces, durable)
        try:
            os.replace(temporary, path)
        except BaseException:
            _unlink(temporary)
            raise
        if durable:
            flush_all(self._folders_to_flush([path]))

    def create(self, name: str, data: Any) -> bool:
        path = self._path(name)
        temporary = self._write_beside(path, [data], durable=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            _unlink(temporary)
        flush_all(self._folders_to_flush([path]))
        return True

    def append(self, name: str, data: bytes) -> None:
        with self._open(self._path(name), os.O_APPEND) as file:
            _write_all(file.fileno(), data)

    def rename(self, name: str, new: str) -> None:
        path = self._path(new)
        self._make_folder(os.path.dirname(path))
        os.replace(self._path(name), path)

    def exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            _unlink(self._path(name, itself=True))

    def list(self, folder: str) -> Iterable[str]:
        start = self._path(folder) if folder else self.root
        cut = len(self.root.rstrip("/")) + 1
        for at, _, names in os.walk(start, onerror=_unless_missing):
            for name in names:
                yield os.path.join(at, name)[cut:]

    def size(self, name: str) -> int:
        return os.stat(self._path(name)).st_size

    def modified_s(self, name: str) -> float:
        return os.stat(self._path(name)).st_mtime

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.memory_map(self._path(name), "r")

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        paths = {self._path(name) for name in names}
        return paths | self._folders_to_flush(paths)

    def _path(self, name: str, itself: bool = False) -> str:
        """Where a file is; `itself`: what is done there does not follow a link of that name."""
        path = f"{self.root.rstrip('/')}/{name}"
        if not itself and os.path.islink(path):
            self._check_leads_inside(path)
        folder = os.path.dirname(path)
        while len(folder) > len(self.root) and folder not in self._checked:
            if os.path.islink(folder):
                self._check_leads_inside(folder)
            self._checked.add(folder)
            folder = os.path.dirname(folder)
        return path

    def _check_leads_inside(self, link: str) -> None:
        target, root = os.path.realpath(link), os.path.realpath(self.root)
        if not target.startswith(f"{root.rstrip('/')}/"):
            raise UnsafeName(
                f"{link} is a symbolic link to {target}, outside of {self.root}; nothing there is "
                "read, changed or deleted. Move the folder itself, or mount what it should hold",
                uri=self.root,
                name=link,
            )

    def _write_beside(self, path: str, pieces: Sequence[Any], durable: bool) -> str:
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
        file = self._open(temporary, os.O_EXCL)
        try:
            with file:
                for piece in pieces:
                    _write_all(file.fileno(), piece)
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            _unlink(temporary)
            raise
        return temporary

    def _open(self, path: str, flags: int) -> io.FileIO:
        """A file to write to, its folder made if need be."""
        mode = 0o666 if self._shared else PRIVATE_FILE
        flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, mode)
        except FileNotFoundError:
            self._make_folder(os.path.dirname(path))
            descriptor = os.open(path, flags, mode)
        file = io.FileIO(descriptor, "w")
        if not self._shared and self._is_of_group(os.path.dirname(path)):
            os.fchmod(descriptor, GROUP_FILE)
        return file

    def _make_folder(self, folder: str) -> None:
        if self._shared:
            os.makedirs(folder, exist_ok=True)
        elif not os.path.isdir(folder):
            make_private_folder(folder)

    def _is_of_group(self, folder: str) -> bool:
        if folder not in self._of_group:
            self._of_group[folder] = is_of_group(folder)
        return self._of_group[folder]

    def _folders_to_flush(self, paths: Collection[str]) -> set[str]:
        """The folders of these files; those above them once, as they get no other names."""
        above = {up for path in paths for up in folders_above(path, self.root)} - self._flushed
        self._flushed |= above
        return above | {os.path.dirname(path) for path in paths}


def _unless_missing(error: OSError) -> None:
    """A folder that cannot be read must not look like an empty one."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _write_all(descriptor: int, data: Any) -> None:
    rest = memoryview(data).cast("B") if memoryview(data) else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
