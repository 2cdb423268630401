"""A chain: the immutable files that, folded oldest first, are the state of one (operator, slot).

Rows in files are absolute, so the newest file that names a row wins, and applying a file twice
changes nothing. The id of a chain is a digest of its file names; names hold content digests, so
equal ids mean equal state.

Compaction folds a chain's tail into a run, or all of it into a snapshot. It is a pure function of
the chain, so it needs no lock, and two attempts at it write the same file. The new file remembers
those it stands for (`replaces`, one generation): they are read in its place if it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from headgate.arrays import U64
from headgate.errors import StateFileError
from headgate.state.digest import DamagedFile, is_strong
from headgate.state.layout import TOUCHED, RowLayout, Values
from headgate.state.rows import RowIds, distinct_order
from headgate.state.state_file import (
    Chain,
    FileRows,
    StateFile,
    Task,
    read_routes,
    read_whole,
    write_file,
)
from headgate.state.storage import Storage


def chain_id(chain: Chain) -> str:
    """Identity of the state that a chain describes."""
    return xxhash.xxh3_128_hexdigest("\n".join(file.name for file in chain).encode())


def missing_files(chain: Chain, version: str) -> Chain | None:
    """The files to apply on a state of that version to reach the chain; None: start again.

    A run may be applied on any state that has only some of the files it replaces: it holds the
    newest row of each, removals too. A snapshot has forgotten removals, so it may not.
    """
    for count in range(len(chain), -1, -1):
        if chain_id(chain[:count]) == version:
            rest = chain[count:]
            return rest if all(file.kind != "snapshot" for file in rest) else None
    for at, file in enumerate(chain):
        if file.kind != "run":
            continue
        for count in range(1, len(file.replaces) + 1):
            if chain_id(chain[:at] + file.replaces[:count]) == version:
                return chain[at:]
    return None


@dataclass(frozen=True)
class Compaction:
    """Fold the files from `start` on into one run or snapshot."""

    start: int
    kind: Literal["run", "snapshot"]


def plan_compaction(
    chain: Chain, operator: str, slot: int, compact_after: int
) -> Compaction | None:
    """What to fold now, decided from the chain alone, so that every attempt decides alike.

    Due every `compact_after` deltas; the first time later by a part that depends on operator and
    slot, so that slots do not all compact in one epoch. A run swallows earlier runs that are not
    much larger (their number stays logarithmic); when all that lies above the snapshot has as many
    rows as the snapshot, everything becomes a new snapshot.
    """
    deltas = 0
    while deltas < len(chain) and chain[-1 - deltas].kind == "delta":
        deltas += 1
    limit = compact_after
    if deltas == len(chain):
        limit += xxhash.xxh3_64_intdigest(f"{operator}/{slot}".encode()) % compact_after
    if deltas < limit or len(chain) < 2:
        return None
    start = len(chain) - deltas
    rows = sum(file.rows for file in chain[start:])
    while start and chain[start - 1].kind == "run" and chain[start - 1].rows <= 2 * rows:
        start -= 1
        rows += chain[start].rows
    base = chain[0].rows if chain and chain[0].kind == "snapshot" else 0
    above = sum(file.rows for file in chain if file.kind != "snapshot")
    if start == 0 or above >= base:
        return Compaction(0, "snapshot")
    return Compaction(start, "run")


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
    """One set of distinct rows in file order: the newest row of each key.

    Removed rows are rows too: a run must keep them, a snapshot drops them.
    """
    if not parts:
        blank = {name: column.blank(0) for name, column in layout.columns.items()}
        return FileRows(RowIds.none(), np.zeros(0, np.bool_), blank)
    if len(parts) == 1:
        rows = parts[0]
        return rows if keep_removed or not rows.removed.any() else rows.take(~rows.removed)
    rows = FileRows.concat(parts[::-1], layout.columns)
    index = distinct_order(rows.ids)
    return rows.take(index if keep_removed else index[~rows.removed[index]])


def compact(task: Task, chain: Chain) -> Chain:
    """The same state in fewer files, if that is due; else the chain as it is."""
    plan = plan_compaction(chain, task.operator, task.slot, task.compact_after)
    weak = task.strong_digests and not all(is_strong(file.digest) for file in chain)
    if weak:  # the checkpoint has got a key: what was written without one may not stay
        plan = Compaction(0, "snapshot")
    if plan is None:
        return chain
    old = chain[plan.start :]
    reader = ChainReader(task.storage, task.layout, task.operator, task.slot, task.now_ms)
    rows = fold_files(reader.files(old), task.layout, keep_removed=plan.kind == "run")
    if not len(rows.ids):
        return ()  # a snapshot of nothing: the chain of an empty state
    replaces = () if weak else tuple(part.bare() for part in old)
    file = write_file(task, rows.ids, rows.removed, rows.complete, plan.kind, replaces)
    return (*chain[: plan.start], file)
