"""Files of HDFS, or of any other file system that pyarrow has and that is not local.

pyarrow writes over what is there, and so does its rename (it deletes the target if it must): it
cannot create a file only if it is absent. Hadoop's own client can, with one atomic request of the
name node; a driver on Spark has that client and lends it (`rename_if_absent`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headgate.errors import CheckpointError

# (from uri, to uri) -> did it happen? Process-wide: a driver has one Hadoop client.
rename_if_absent: Callable[[str, str], bool] | None = None


class HadoopFiles:
    """A folder behind `pyarrow.fs`."""

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
