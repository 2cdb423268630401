"""A folder of files anywhere, the same for local disks, object stores and Hadoop file systems.

A name is relative to the storage's uri and uses `/`. `write` shows a file whole or not at all, so a
reader never meets half a file. Of all who `create` one name at most one wins, everywhere. A full
disk is reported as `StorageFull` and leaves nothing behind under the final name; other trouble (no
right to write, a broken disk) as `StorageFailed`.

Names come from manifests, and a manifest may be forged: a name never leaves the folder. One that
is absolute, has `..`, an empty part or a NUL, or passes a link that leads out, is `UnsafeName`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import fs

from headgate.errors import CheckpointError, StorageFailed, StorageFull, UnsafeName
from headgate.state.local_files import LocalFiles, check_folder, flush_all
from headgate.topology.arguments import scheme_of

Data = Any  # bytes, a pa.Buffer, or a sequence of them written one after the other

OBJECT_STORES = ("s3", "gs", "abfs", "abfss")

# (from uri, to uri) -> did it happen? Process-wide: a driver has one Hadoop client.
rename_if_absent: Callable[[str, str], bool] | None = None


class Files(Protocol):
    """What a kind of storage can do; names are relative to its root."""

    def read(self, name: str) -> bytes: ...
    def write(self, name: str, pieces: Sequence[Any], durable: bool) -> None: ...
    def create(self, name: str, data: Any) -> bool: ...
    def rename(self, name: str, new: str) -> None: ...
    def exists(self, name: str) -> bool: ...
    def delete(self, names: Sequence[str]) -> None: ...
    def list(self, folder: str) -> Iterable[str]: ...
    def size(self, name: str) -> int: ...
    def modified_s(self, name: str) -> float: ...
    def open_input(self, name: str) -> pa.NativeFile: ...
    def paths_to_flush(self, names: Iterable[str]) -> set[str]: ...


class Storage:
    """A folder somewhere; cheap to copy and to pickle (it opens its file system lazily)."""

    def __init__(self, uri: str, shared: bool = False) -> None:
        self.uri, self.shared = uri, shared
        self._opened: Files | None = None

    @classmethod
    def at(cls, uri: str, shared: bool = False) -> Storage:
        """What is made here is this user's alone; `shared`: as readable as the umask says."""
        return cls(uri if uri == "/" else uri.rstrip("/"), shared)

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.uri, self.shared)

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def child(self, *parts: str) -> Storage:
        uri = "/".join([self.uri, *(self._checked(part) for part in parts)])
        return Storage.at(uri, self.shared)

    @property
    def is_local(self) -> bool:
        return isinstance(self._files, LocalFiles)

    def check_trusted(self) -> None:
        """Refuse a local folder in which others could plant files; makes it if it is missing."""
        if isinstance(self._files, LocalFiles):
            with self._trouble_named(""):
                check_folder(self._files.root)

    def read(self, name: str) -> bytes:
        with self._trouble_named(name):
            return self._files.read(self._checked(name))

    def write(self, name: str, data: Data, durable: bool = False) -> None:
        """Put a file in place, whole, replacing what was there; `durable` also flushes it."""
        with self._trouble_named(name):
            self._files.write(self._checked(name), _pieces(data), durable)

    def create(self, name: str, data: bytes | pa.Buffer) -> bool:
        """Put a file in place unless one is there already; False if somebody else was first."""
        with self._trouble_named(name):
            return self._files.create(self._checked(name), data)

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, on a local disk; others have no such thing."""
        name = self._checked(name)
        assert isinstance(self._files, LocalFiles), f"{self.uri} cannot append"
        with self._trouble_named(name):
            self._files.append(name, data)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name in this storage, replacing what was there."""
        with self._trouble_named(new):
            self._files.rename(self._checked(name), self._checked(new))

    def flush(self, names: Iterable[str]) -> None:
        """Make files durable that anybody has written; elsewhere than on a local disk they are."""
        self.flush_paths(self.paths_to_flush(names))

    def flush_paths(self, paths: set[str]) -> None:
        """The same of paths that this and other storages have told."""
        with self._trouble_named(""):
            flush_all(paths)

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        """Files and the folders their names stand in; none elsewhere than on a local disk."""
        return self._files.paths_to_flush([self._checked(name) for name in names])

    def exists(self, name: str) -> bool:
        with self._trouble_named(name):
            return self._files.exists(self._checked(name))

    def delete(self, *names: str) -> None:
        """Remove files; one that is not there is passed over."""
        if not names:
            return
        with self._trouble_named(", ".join(names[:1])):
            self._files.delete([self._checked(name) for name in names])

    def list(self, prefix: str = "") -> list[str]:
        """Names of all files that start with `prefix`, at any depth, sorted; no temporaries."""
        folder = prefix.rpartition("/")[0]
        with self._trouble_named(folder):
            found = self._files.list(self._checked(folder) if folder else "")
            return sorted(n for n in found if n.startswith(prefix) and not _is_temporary(n))

    def unfinished(self, older_than_s: float) -> Iterator[str]:
        """Names of temporaries on a local disk whose writers are dead, or very slow."""
        if not self.is_local:
            return
        before = time.time() - older_than_s
        for name in filter(_is_temporary, self._files.list("")):
            with suppress(FileNotFoundError):
                if self._files.modified_s(name) < before:
                    yield name

    def size(self, name: str) -> int:
        with self._trouble_named(name):
            return self._files.size(self._checked(name))

    def modified_s(self, name: str) -> float:
        """When a file was written, in seconds since 1970, by the storage's own clock."""
        return self._files.modified_s(self._checked(name))

    def open_input(self, name: str) -> pa.NativeFile:
        """Random access to a file; a memory map where the file is local."""
        with self._trouble_named(name):
            return self._files.open_input(self._checked(name))

    def _checked(self, name: str) -> str:
        if (
            not isinstance(name, str)
            or "\0" in name
            or any(part in ("", ".", "..") for part in name.split("/"))
        ):
            raise UnsafeName(
                f"{name!r} is no name of a file in {self.uri}: it may not be absolute or have "
                "empty parts, '.' or '..'. Whoever wrote it (a manifest?) is not to be trusted; "
                "nothing was read, changed or deleted",
                uri=self.uri,
                name=name,
            )
        return name

    @property
    def _files(self) -> Files:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Files:
        scheme = scheme_of(self.uri)
        if scheme in OBJECT_STORES:
            from headgate.state.object_files import ObjectFiles

            return ObjectFiles(self.uri)
        if scheme in (None, "file"):
            return LocalFiles(self.uri, self.shared)
        return HadoopFiles(self.uri)

    @contextmanager
    def _trouble_named(self, name: str) -> Iterator[None]:
        """Errors of ours, but for a file that is not there: that is an answer."""
        path = f"{self.uri}/{name}"
        try:
            yield
        except (FileNotFoundError, StorageFailed):
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                why = error.strerror or error  # without a name that is temporary
                raise StorageFailed(
                    f"{path} cannot be read or written: {why}. See that the place is there, "
                    "is not read-only, and lets this user read and write, then start the flow "
                    "again: it goes on from its last epoch",
                    uri=self.uri,
                    path=path,
                ) from error
            raise StorageFull(
                f"no room left at {self.uri} while writing {path}; nothing of it was kept. "
                "Free some space there and start the flow again: it goes on from its last epoch",
                uri=self.uri,
                path=path,
            ) from error


def _pieces(data: Data) -> Sequence[Any]:
    return [data] if isinstance(data, bytes | bytearray | memoryview | pa.Buffer) else data


def _is_temporary(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".tmp")


class HadoopFiles:
    """A folder of HDFS, or of any other file system that pyarrow has and that is not local.

    pyarrow writes over what is there, and so does its rename (it deletes the target if it must): it
    cannot create a file only if it is absent. Hadoop's own client can, with one atomic request of
    the name node; a driver on Spark has that client and lends it (`rename_if_absent`).
    """

    def __init__(self, uri: str, opened: tuple[Any, str] | None = None) -> None:
        self._uri = uri
        self._fs: Any
        self._root: str
        self._fs, self._root = opened or fs.FileSystem.from_uri(uri)

    def read(self, name: str) -> bytes:
        with self._fs.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def write(self, name: str, pieces: Sequence[Any], durable: bool) -> None:
        temporary = self._write_beside(name, pieces)
        self._fs.move(self._path(temporary), self._path(name))

    def create(self, name: str, data: Any) -> bool:
        if rename_if_absent is None:
            raise CheckpointError(
                f"{self._uri} is on a file system where only Hadoop's client can tell which of "
                "two drivers was first, and this process has none. Run the flow on Spark, or "
                "keep its checkpoint on a mounted folder or an object store",
                uri=self._uri,
            )
        temporary = self._write_beside(name, [data])
        try:
            return rename_if_absent(f"{self._uri}/{temporary}", f"{self._uri}/{name}")
        finally:
            self.delete([temporary])

    def rename(self, name: str, new: str) -> None:
        self._fs.move(self._path(name), self._path(new))

    def exists(self, name: str) -> bool:
        return bool(self._fs.get_file_info(self._path(name)).type != fs.FileType.NotFound)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

    def list(self, folder: str) -> Iterable[str]:
        start = self._path(folder) if folder else self._root
        selector = fs.FileSelector(start, recursive=True, allow_not_found=True)
        cut = len(self._root.strip("/")) + 1  # some give paths without a leading slash
        for info in self._fs.get_file_info(selector):
            if info.type == fs.FileType.File:
                yield info.path.lstrip("/")[cut:]

    def size(self, name: str) -> int:
        return int(self._info(name).size)

    def modified_s(self, name: str) -> float:
        return float(self._info(name).mtime_ns / 1e9)

    def _info(self, name: str) -> Any:
        info = self._fs.get_file_info(self._path(name))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(self._path(name))
        return info

    def open_input(self, name: str) -> pa.NativeFile:
        return self._fs.open_input_file(self._path(name))

    def paths_to_flush(self, names: Iterable[str]) -> set[str]:
        return set()

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _write_beside(self, name: str, pieces: Sequence[Any]) -> str:
        folder, _, file = name.rpartition("/")
        temporary = f"{folder}/.{file}.{os.urandom(6).hex()}.tmp".lstrip("/")
        self._fs.create_dir(self._path(folder).rstrip("/"), recursive=True)
        with self._fs.open_output_stream(self._path(temporary)) as stream:
            for piece in pieces:
                stream.write(piece)
        return temporary
