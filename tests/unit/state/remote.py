"""A folder that looks remote, for the code that local storage never takes."""

from __future__ import annotations

from pyarrow import fs

from headgate.state.storage import HadoopFiles, Storage


class NotLocal(Storage):
    """A local folder behind the code for Hadoop's file systems."""

    def _open(self) -> HadoopFiles:
        return HadoopFiles(self.uri, (fs.SubTreeFileSystem("/", fs.LocalFileSystem()), self.uri))
