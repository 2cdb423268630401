"""Cost models on storage: named by content, written before an epoch uses them.

A model of many slots is megabytes and changes seldom, so a plan only names it, and workers read
what they do not have yet.
"""

from __future__ import annotations

import builtins

import pyarrow as pa

from headgate.errors import StateFileError
from headgate.routing.cost_model import CostModel
from headgate.state.digest import DamagedFile, digest_of, read_named
from headgate.state.storage import Storage

_KEPT = 16


class CostFiles:
    """Saves and loads models; keeps the last few."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, CostModel] = {}

    @property
    def uri(self) -> str:
        return self._storage.uri

    def save(self, operator: str, model: CostModel) -> str:
        """Store a model durably; returns the name of its file."""
        sink = pa.BufferOutputStream()
        table = model.to_arrow()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        name = f"{operator}-{digest_of(data, strong=True)}.arrow"
        if name not in self._known:
            self._storage.write(name, data, True)
            self._remember(name, model)
        return name

    def load(self, name: str) -> CostModel:
        if name not in self._known:
            try:
                data = read_named(self._storage, name)
            except DamagedFile as problem:
                raise StateFileError(
                    f"cost model {name} in {self._storage.uri} cannot be used: {problem}",
                    file=name,
                ) from problem
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                self._remember(name, CostModel.from_arrow(reader.read_all()))
        return self._known[name]

    def list(self) -> builtins.list[str]:
        return self._storage.list()

    def delete(self, name: str) -> None:
        self._known.pop(name, None)
        self._storage.delete(name)

    def _remember(self, name: str, model: CostModel) -> None:
        self._known[name] = model
        for old in builtins.list(self._known)[:-_KEPT]:
            del self._known[old]
