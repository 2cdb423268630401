"""Routing tables and cost models on storage: named by content, written before an epoch uses them.

Both can be megabytes and change seldom, so a plan only names them, and tasks read what they do not
have yet. A manager changes a few pins of a table at a time. So a table is a chain of files: the
whole table, then files with the pins that changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.errors import StateFileError
from headgate.routing.costs import CostModel
from headgate.routing.table import RoutingTable
from headgate.state.digest import DamagedFile, digest_of, read_named
from headgate.state.storage import Storage

CHANGES_MAX = 32  # files of changes; a start reads one after the other
CHANGED_SHARE_MAX = 0.25  # of the pins; a whole table is then not much larger
Names = tuple[str, ...]
_KEPT = 16  # cost models that a process holds, of all operators


class _ArrowFiles:
    """Tables in files that are named by a digest of their content."""

    what, way_out = "", ""  # for errors

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def uri(self) -> str:
        return self._storage.uri

    def list(self) -> list[str]:
        return self._storage.list()

    def _encode(self, stem: str, table: pa.Table) -> tuple[str, pa.Buffer]:
        """The name and content of a table's file."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        return f"{stem}-{digest_of(data, strong=True)}.arrow", data

    def _read(self, name: str) -> pa.Table:
        try:
            data = read_named(self._storage, name)
        except DamagedFile as problem:
            raise StateFileError(
                f"{self.what} {name} in {self.uri} cannot be used: {problem}{self.way_out}",
                file=name,
            ) from problem
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            return reader.read_all()


class TableFiles(_ArrowFiles):
    """Saves and loads tables; keeps what it has seen, so that a chain is read once."""

    what = "routing table"
    way_out = (
        ". It says which slot owns a key, and no older one can stand in: bring it back from a copy "
        "of the checkpoint, or start with a new checkpoint folder"
    )

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.generation = 0  # of the driver; in names, so that no other can collect its tables
        self._known: dict[Names, RoutingTable] = {}

    def save(self, operator: str, table: RoutingTable, before: Names = ()) -> Names:
        """Store a table, as a change of the one named `before` where that is much smaller."""
        old = self.load(before) if before else None
        if old is not None and old.same_routes(table):
            return before
        change = None if old is None else _change(old, table)
        if change is None or len(before) > CHANGES_MAX:
            names: Names = (self._write(operator, table.version, table.to_arrow()),)
        else:
            names = (*before, self._write(operator, table.version, change))
        self._remember(names, table)
        return names

    def load(self, names: Names) -> RoutingTable:
        """The table that these files make; only those not known yet are read."""
        if names not in self._known:
            if len(names) > 1:
                table = _apply(self.load(names[:-1]), self._read(names[-1]))
            else:
                table = RoutingTable.from_arrow(self._read(names[0]))
            self._remember(names, table)
        return self._known[names]

    def delete(self, name: str) -> None:
        self._known = {names: t for names, t in self._known.items() if name not in names}
        self._storage.delete(name)

    def _write(self, operator: str, version: int, table: pa.Table) -> str:
        stem = f"{operator}-v{version:06d}-g{self.generation:09d}"
        name, data = self._encode(stem, table)
        self._storage.write(name, data, True)
        return name

    def _remember(self, names: Names, table: RoutingTable) -> None:
        """Keep the last few tables of an operator: the one in use, and those before it."""
        self._known[names] = table
        operator = names[0].rsplit("-v", 1)[0]
        mine = [n for n in self._known if n[0].rsplit("-v", 1)[0] == operator]
        for old in mine[:-3]:
            if old != names:
                del self._known[old]


def _change(old: RoutingTable, new: RoutingTable) -> pa.Table | None:
    """The pins that differ; None if a whole table is the better choice."""
    if old.slots != new.slots or not np.array_equal(old.bucket_slots, new.bucket_slots):
        return None
    at = np.searchsorted(new.pinned_h, old.pinned_h)
    at[at == len(new.pinned_h)] = 0
    if len(old.pinned_h) and (
        not len(new.pinned_h) or not np.array_equal(new.pinned_h[at], old.pinned_h)
    ):
        return None  # a pin is gone
    differs = np.ones(len(new.pinned_h), np.bool_)
    if len(old.pinned_h):
        differs[at] = new.pinned_slots[at] != old.pinned_slots
    if differs.sum() > CHANGED_SHARE_MAX * len(new.pinned_h):
        return None
    return pa.table(
        {"h": pa.array(new.pinned_h[differs]), "slot": pa.array(new.pinned_slots[differs])}
    ).replace_schema_metadata({"change": "1", "version": str(new.version)})


def _apply(table: RoutingTable, change: pa.Table) -> RoutingTable:
    version = int(change.schema.metadata[b"version"])
    pinned = table.pin_hashes(change["h"].to_numpy(), change["slot"].to_numpy())
    return replace(pinned, version=version)


class CostFiles(_ArrowFiles):
    """Saves and loads models; keeps the last few."""

    what = "cost model"

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._known: dict[str, CostModel] = {}

    def save(self, operator: str, model: CostModel) -> str:
        """Store a model durably; returns the name of its file."""
        name, data = self._encode(operator, model.to_arrow())
        if name not in self._known:
            self._storage.write(name, data, True)
            self._remember(name, model)
        return name

    def load(self, name: str) -> CostModel:
        if name not in self._known:
            self._remember(name, CostModel.from_arrow(self._read(name)))
        return self._known[name]

    def delete(self, name: str) -> None:
        self._known.pop(name, None)
        self._storage.delete(name)

    def _remember(self, name: str, model: CostModel) -> None:
        self._known[name] = model
        for old in [*self._known][:-_KEPT]:
            del self._known[old]
