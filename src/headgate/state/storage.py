"""Files on any file system that pyarrow knows, with a short way for local ones.

A name is relative to the storage's uri and uses `/`. `write` shows a file whole or not at all
(temporary name, then rename), so a reader never meets half a file. A full disk is reported as
`StorageFull` and leaves nothing behind under the final name.

Only local file systems make `create` atomic (a hard link). Elsewhere it is a check followed by a
write: two drivers that start in the same instant could both win there. Object stores show a file
when its upload ends, so there files are written under their own name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headgate.errors import StorageFull
from headgate.state.flushing import flush_all, folders_above

Data = Any  # bytes, a pa.Buffer, or a sequence of them written one after the other

_OBJECT_STORES = ("s3", "gcs", "abfs")


class Storage:
    """A folder somewhere; cheap to copy and to pickle (it reopens its file system lazily)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._fs: Any = None
        self._root = ""
        self._local = False
        self._flushed: set[str] = set()

    @classmethod
    def at(cls, uri: str) -> Storage:
        return cls(uri if uri == "/" else uri.rstrip("/"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.uri,)

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def child(self, *parts: str) -> Storage:
        return Storage.at("/".join([self.uri, *(part.strip("/") for part in parts)]))

    def read(self, name: str) -> bytes:
        path = self._path(name)
        if self._local:
            with open(path, "rb") as file:
                return file.read()
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, name: str, data: Data, durable: bool = False) -> None:
        """Put a file in place, whole, replacing what was there; `durable` also flushes it."""
        path = self._path(name)
        with self._full_disk_reported(path):
            if self._local:
                temporary = self._write_beside(path, data, durable)
                try:
                    os.replace(temporary, path)
                except BaseException:
                    _unlink(temporary)
                    raise
                if durable:
                    flush_all(self._folders_to_flush([path]))
            else:
                self._write_remote(path, data)

    def create(self, name: str, data: bytes) -> bool:
        """Put a file in place unless one is there already; False if somebody else was first."""
        path = self._path(name)
        with self._full_disk_reported(path):
            if not self._local:
                if self.exists(name):
                    return False
                self._write_remote(path, data)
                return True
            temporary = self._write_beside(path, data, durable=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                _unlink(temporary)
            flush_all(self._folders_to_flush([path]))
            return True

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file; elsewhere than on a local disk this rewrites the file."""
        path = self._path(name)
        with self._full_disk_reported(path):
            if self._local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "ab") as file:
                    file.write(data)
            else:
                before = self.read(name) if self.exists(name) else b""
                self._write_remote(path, before + data)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name in this storage, replacing what was there."""
        old_path, new_path = self._path(name), self._path(new)
        if self._local:
            os.makedirs(os.path.dirname(new_path), exist_ok=True)
            os.replace(old_path, new_path)
        else:
            self._fs.move(old_path, new_path)

    def flush(self, names: Iterable[str]) -> None:
        """Make files durable that anybody has written; elsewhere than on a local disk they are."""
        with self._full_disk_reported(self.uri):
            flush_all(self.paths_to_flush(names))

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        """Files and the folders their names stand in; none elsewhere than on a local disk."""
        paths = {self._path(name) for name in names}
        return paths | self._folders_to_flush(paths) if self._local else set()

    def exists(self, name: str) -> bool:
        path = self._path(name)
        if self._local:
            return os.path.exists(path)
        return bool(self._fs.get_file_info(path).type != fs.FileType.NotFound)

    def delete(self, name: str) -> None:
        path = self._path(name)
        if self._local:
            _unlink(path)
            return
        with suppress(FileNotFoundError):
            self._fs.delete_file(path)

    def list(self, prefix: str = "") -> list[str]:
        """Names of all files that start with `prefix`, at any depth, sorted; no temporaries."""
        folder = prefix.rpartition("/")[0]
        root = self._path("")
        start = self._path(folder)
        if self._local:
            found = [os.path.join(at, name) for at, _, names in os.walk(start) for name in names]
        else:
            selector = fs.FileSelector(start, recursive=True, allow_not_found=True)
            infos = self._fs.get_file_info(selector)
            found = [info.path for info in infos if info.type == fs.FileType.File]
        cut = len(root.strip("/")) + 1  # some file systems give paths without a leading slash
        names = (path.lstrip("/")[cut:] for path in found if not _is_temporary(path))
        return sorted(name for name in names if name.startswith(prefix))

    def size(self, name: str) -> int:
        path = self._path(name)
        if self._local:
            return os.stat(path).st_size
        info = self._fs.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return int(info.size)

    def open_input(self, name: str) -> pa.NativeFile:
        """Random access to a file; a memory map where the file is local."""
        path = self._path(name)
        if self._local:
            return pa.memory_map(path, "r")
        return self._fs.open_input_file(path)

    @property
    def is_local(self) -> bool:
        self._path("")
        return self._local

    def _path(self, name: str) -> str:
        if self._fs is None:
            self._fs, self._root = fs.FileSystem.from_uri(self.uri)
            self._local = isinstance(self._fs, fs.LocalFileSystem)
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _write_beside(self, path: str, data: Data, durable: bool) -> str:
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
        try:
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            file = open(temporary, "xb", buffering=0)  # noqa: SIM115
        try:
            with file:
                for piece in _pieces(data):
                    _write_all(file.fileno(), piece)
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            _unlink(temporary)
            raise
        return temporary

    def _write_remote(self, path: str, data: Data) -> None:
        folder, _, name = path.rpartition("/")
        whole_or_nothing = self._fs.type_name in _OBJECT_STORES
        if not whole_or_nothing:
            self._fs.create_dir(folder, recursive=True)
        target = path if whole_or_nothing else f"{folder}/.{name}.{os.urandom(6).hex()}.tmp"
        with self._fs.open_output_stream(target) as stream:
            for piece in _pieces(data):
                stream.write(piece)
        if target != path:
            self._fs.move(target, path)

    def _folders_to_flush(self, paths: Collection[str]) -> set[str]:
        """The folders of these files; those above them once, as they get no other names."""
        above = {up for path in paths for up in folders_above(path, self._root)} - self._flushed
        self._flushed |= above
        return above | {os.path.dirname(path) for path in paths}

    @contextmanager
    def _full_disk_reported(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StorageFull(
                f"no room left at {self.uri} while writing {path}; nothing of it was kept. "
                "Free some space there and start the flow again: it goes on from its last epoch",
                uri=self.uri,
                path=path,
            ) from error


def _pieces(data: Data) -> Sequence[Any]:
    return [data] if isinstance(data, bytes | bytearray | memoryview | pa.Buffer) else data


def _write_all(descriptor: int, data: Any) -> None:
    rest = memoryview(data).cast("B") if memoryview(data) else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
