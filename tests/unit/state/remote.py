"""A folder that looks remote, for the code that local storage never takes."""

from __future__ import annotations

from pyarrow import fs

from headgate.state.storage import Storage


class NotLocal(Storage):
    """A local folder behind the code for remote file systems."""

    def _path(self, name: str) -> str:
        path = super()._path(name)
        if self._local:
            self._fs, self._local = fs.SubTreeFileSystem("/", fs.LocalFileSystem()), False
        return path
