"""Reading a chain's files, with the files they were folded from as a way out of damage.

A damaged or missing run or snapshot is replaced by its `replaces`, if they are all intact;
otherwise the state cannot be had, and the error says which file to bring back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headgate.errors import StateFileError
from headgate.state.chain import Chain, StateFile, fold
from headgate.state.delta import FileRows, read_routes, read_whole
from headgate.state.digest import DamagedFile
from headgate.state.layout import TOUCHED, RowLayout, Values
from headgate.state.rows import RowIds
from headgate.state.schema import U64
from headgate.state.storage import Storage


@dataclass(frozen=True)
class ChainReader:
    """Reads files of one (operator, slot).

    Rows written before the state had a TTL count as touched at `now_ms`; if that is None they
    have no TTL clock, and then nor has any row read together with them.
    """

    storage: Storage
    layout: RowLayout
    operator: str
    slot: int
    now_ms: int | None = None

    def files(self, chain: Chain) -> list[FileRows]:
        """Every file's rows, oldest first, digests checked."""
        return self._read(chain, lambda file: read_whole(self.storage, file, self.layout))

    def whole(self, chain: Chain) -> FileRows:
        """The state that a chain describes, removed rows left out."""
        return fold_files(self.files(chain), self.layout, keep_removed=False)

    def routes(self, chain: Chain, lows: U64, highs: U64) -> FileRows:
        """The state of some closed route intervals, reading only their blocks of each file."""

        def read(file: StateFile) -> FileRows:
            return read_routes(self.storage, file, self.layout, lows, highs)

        return fold_files(self._read(chain, read), self.layout, keep_removed=False)

    def _read(self, chain: Chain, read: Callable[[StateFile], FileRows]) -> list[FileRows]:
        parts: list[FileRows] = []
        for file in chain:
            try:
                parts.append(read(file))
            except DamagedFile as damage:
                parts.extend(self._instead_of(file, damage, read))
        return [self._with_clock(part) for part in parts]

    def _with_clock(self, part: FileRows) -> FileRows:
        if self.now_ms is None or part.columns.get(TOUCHED, self) is not None:
            return part
        clock = Values(np.full(len(part.ids), self.now_ms, np.int64))
        return FileRows(part.ids, part.removed, {**part.columns, TOUCHED: clock})

    def _instead_of(
        self, file: StateFile, damage: DamagedFile, read: Callable[[StateFile], FileRows]
    ) -> list[FileRows]:
        reason = str(damage)
        if file.replaces:
            try:
                return [read(older) for older in file.replaces]
            except DamagedFile as second:
                reason += f", and of the files it was folded from one cannot be used: {second}"
        raise StateFileError(
            f"state file {file.name} of operator {self.operator!r}, slot {self.slot}, epoch "
            f"{file.epoch}, cannot be used: {reason}. Bring the file back from a copy of "
            f"{self.storage.uri}, or start with a new checkpoint folder",
            operator=self.operator,
            slot=self.slot,
            epoch=file.epoch,
            file=file.name,
        ) from damage


def fold_files(parts: list[FileRows], layout: RowLayout, keep_removed: bool) -> FileRows:
    """One set of distinct rows in file order: the newest row of each key."""
    if not parts:
        none = np.zeros(0, np.bool_)
        return FileRows(RowIds.none(), none, {n: c.blank(0) for n, c in layout.columns.items()})
    if len(parts) == 1:
        ids, removed, columns = parts[0].ids, parts[0].removed, dict(parts[0].columns)
        if keep_removed or not removed.any():
            return parts[0]
        index = np.flatnonzero(~removed)
    else:
        newest = parts[::-1]
        index = fold([part.ids for part in newest])
        ids = RowIds.concat([part.ids for part in newest])
        removed = np.concatenate([part.removed for part in newest])
        columns = {n: _concat([part.columns[n] for part in newest]) for n in layout.columns}
        if not keep_removed:
            index = index[~removed[index]]
    taken = {name: None if v is None else v.take(index) for name, v in columns.items()}
    return FileRows(ids.take(index), removed[index], taken)


def complete(rows: FileRows) -> dict[str, Values]:
    """The columns that every row has."""
    return {name: values for name, values in rows.columns.items() if values is not None}


def _concat(parts: list[Values | None]) -> Values | None:
    known = [part for part in parts if part is not None]
    return Values.concat(known) if len(known) == len(parts) else None
