"""Files of a local disk, or of anything mounted like one: whole, durable, and nobody else's.

A file is written under a temporary name beside its place and then renamed; to create one only if it
is absent, it is hard-linked instead, which fails if somebody else was first. It survives a crash of
the machine when its bytes and its name, which is part of its folder, have been flushed.

State of `Update` is pickled, so whoever can plant a file in a checkpoint, or put another folder in
its place, runs code in the driver and in tasks. Folders are therefore made 0700 and files 0600,
whatever the umask says (shared ones, for other programs to read, follow it), and `check_folder`
refuses a folder that everybody may write to or that belongs to somebody else than this user or
root. Where owners or modes say nothing (some mounts show one owner for all files),
HEADGATE_TRUST_FOLDERS=1 skips that check.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headgate.errors import UnsafeName, UntrustedFolder

FLUSHES_AT_ONCE = 8  # flushes that wait together share the disk's work
VARIABLE = "HEADGATE_TRUST_FOLDERS"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
GROUP_FOLDER, GROUP_FILE = 0o2770, 0o660


def flush_all(paths: Collection[str]) -> None:
    """Flush files or folders; one that is not there (any more) is passed over."""
    if len(paths) > 1:
        list(_flushers(os.getpid()).map(_flush, sorted(paths)))
    for path in paths if len(paths) == 1 else ():
        _flush(path)


@cache
def _flushers(process: int) -> ThreadPoolExecutor:
    """This process's threads: those of its parent are not there after a fork."""
    return ThreadPoolExecutor(FLUSHES_AT_ONCE, f"headgate-flush-{process}")


def folders_above(path: str, root: str) -> list[str]:
    """The folders in which the names on the way to a path stand, innermost first, to `root`'s."""
    last, folder = os.path.dirname(root.rstrip("/")) or "/", os.path.dirname(path)
    found = [folder]
    while folder != last and len(folder) > len(last):
        folder = os.path.dirname(folder)
        found.append(folder)
    return found


def _flush(path: str) -> None:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_private_folder(path: str) -> None:
    """Create a folder, and those above it that are missing, for this user alone.

    Inside a folder that is group-writable and has the set-group-id bit (2770), the sign of a folder
    that a group shares, the group gets the same rights.
    """
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_private_folder(parent)
    try:
        os.mkdir(path, PRIVATE_FOLDER)
    except FileExistsError:
        return
    if is_of_group(parent):
        os.chmod(path, GROUP_FOLDER)


def is_of_group(folder: str) -> bool:
    mode = os.stat(folder).st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)


def check_folder(path: str) -> None:
    """Make a folder if it is missing, and refuse it if others could plant something there."""
    make_private_folder(path)
    for entry in os.scandir(path):
        if entry.is_symlink():
            _check_leads_inside(entry.path, path)
    if os.environ.get(VARIABLE) == "1":
        return
    found = os.stat(path)
    if found.st_mode & stat.S_IWOTH:
        why, way_out = "everybody may write there", f"chmod o-w {path}"
    elif found.st_uid not in (0, os.geteuid()):
        why = f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        way_out = f"chown it, run as user {found.st_uid}"
    else:
        return
    raise UntrustedFolder(
        f"{path} cannot be trusted: {why}. Whoever can write there can make headgate run code, as "
        f"state may be pickled. {way_out}, or choose a folder that does not exist yet. If nobody "
        f"else can reach it (a container's volume, a mount that hides owners), set {VARIABLE}=1",
        uri=path,
        owner=found.st_uid,
        mode=stat.S_IMODE(found.st_mode),
    )


def _check_leads_inside(link: str, root: str) -> None:
    target = os.path.realpath(link)
    if not target.startswith(f"{os.path.realpath(root).rstrip('/')}/"):
        raise UnsafeName(
            f"{link} is a symbolic link to {target}, outside of {root}; nothing there is read, "
            "changed or deleted. Move the folder itself, or mount what it should hold",
            uri=root,
            name=link,
        )


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
            _check_leads_inside(path, self.root)
        folder = os.path.dirname(path)
        while len(folder) > len(self.root) and folder not in self._checked:
            if os.path.islink(folder):
                _check_leads_inside(folder, self.root)
            self._checked.add(folder)
            folder = os.path.dirname(folder)
        return path

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
