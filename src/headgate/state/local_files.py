"""Files of a local disk, or of anything mounted like one.

A file is written under a temporary name beside its place and then renamed; to create one only if it
is absent, it is hard-linked instead, which fails if somebody else was first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headgate.errors import UnsafeName
from headgate.state.flushing import flush_all, folders_above


class LocalFiles:
    """The folder at a path, or at a `file:` uri."""

    def __init__(self, uri: str) -> None:
        self._root = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
        self._flushed: set[str] = set()
        self._checked: set[str] = set()

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

    def create(self, name: str, data: bytes) -> bool:
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
        path = self._path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)

    def rename(self, name: str, new: str) -> None:
        path = self._path(new)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(self._path(name), path)

    def exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            _unlink(self._path(name, itself=True))

    def list(self, folder: str) -> Iterable[str]:
        start = self._path(folder) if folder else self._root
        cut = len(self._root.rstrip("/")) + 1
        for at, _, names in os.walk(start):
            for name in names:
                yield os.path.join(at, name)[cut:]

    def size(self, name: str) -> int:
        return os.stat(self._path(name)).st_size

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.memory_map(self._path(name), "r")

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        paths = {self._path(name) for name in names}
        return paths | self._folders_to_flush(paths)

    def _path(self, name: str, itself: bool = False) -> str:
        """Where a file is; `itself`: what is done there does not follow a link of that name."""
        path = f"{self._root.rstrip('/')}/{name}"
        if not itself and os.path.islink(path):
            self._check_leads_inside(path)
        folder = os.path.dirname(path)
        while len(folder) > len(self._root) and folder not in self._checked:
            if os.path.islink(folder):
                self._check_leads_inside(folder)
            self._checked.add(folder)
            folder = os.path.dirname(folder)
        return path

    def _check_leads_inside(self, link: str) -> None:
        target, root = os.path.realpath(link), os.path.realpath(self._root)
        if not target.startswith(f"{root.rstrip('/')}/"):
            raise UnsafeName(
                f"{link} is a symbolic link to {target}, outside of {self._root}; nothing there is "
                "read, changed or deleted. Move the folder itself, or mount what it should hold",
                uri=self._root,
                name=link,
            )

    def _write_beside(self, path: str, pieces: Sequence[Any], durable: bool) -> str:
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
        try:
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115
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

    def _folders_to_flush(self, paths: Collection[str]) -> set[str]:
        """The folders of these files; those above them once, as they get no other names."""
        above = {up for path in paths for up in folders_above(path, self._root)} - self._flushed
        self._flushed |= above
        return above | {os.path.dirname(path) for path in paths}


def _write_all(descriptor: int, data: Any) -> None:
    rest = memoryview(data).cast("B") if memoryview(data) else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
