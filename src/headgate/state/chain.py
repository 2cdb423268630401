"""Chains: the files that are a state, and how they are folded into fewer, a piece at a time.

The id of a chain is a digest of its file names; names hold content digests, so equal ids mean equal
state. Deltas are folded into a run, or all of a chain into a snapshot. What to fold is a function
of the chain alone, so it needs no lock, and two attempts at it write the same file.

A fold of many rows takes many epochs: each folds the next range of routes into a *piece* and hands
on the rest. Meanwhile the files that are folded stand behind the pieces in the chain, and count
only from where the pieces end. Pieces of one fold have no route in common; together they are one
run, or one snapshot. So no epoch does more than a share of such work, whatever the state holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xxhash

from headgate.state.digest import is_strong
from headgate.state.state_file import (
    BLOCK_ROWS,
    LAST_ROUTE,
    Chain,
    FileRows,
    Kind,
    Routes,
    SlotFiles,
    StateFile,
    encode,
    whole_files,
)

# An epoch folds so many rows for each row of its delta. Where that is too little, as every row is
# folded some four times, deltas wait meanwhile, and the next fold takes more of them at once.
FOLDS_PER_ROW = 2
PIECES_MAX = 32  # of one fold, about: each is a file that every manifest names
FOLD_ROWS = BLOCK_ROWS  # an epoch may fold as many whatever it touched: some milliseconds


def chain_id(chain: Chain) -> str:
    """Identity of the state that a chain describes."""
    return xxhash.xxh3_128_hexdigest("\n".join(file.name for file in chain).encode())


@dataclass(frozen=True, kw_only=True)
class Task(SlotFiles):
    """One task's view of one (operator, slot); `now_ms` is the plan's clock.

    `identity` says how keys of equal hash are told apart; only key batches look into it.
    """

    now_ms: int = 0
    epoch: int = 0
    level: int = 0
    ttl_ms: int | None = None
    buckets: int = 1
    compact_after: int = 0
    fold_rows: int = FOLD_ROWS
    strong_digests: bool = False
    identity: Any = None

    @property
    def folder(self) -> str:
        return f"{self.operator}/{self.slot:05d}"

    def write(self, rows: FileRows, kind: Kind) -> StateFile:
        """Write rows as one file, named by epoch, level and content; written even if it exists."""
        buffers, digest = encode(self.layout, rows, kind, self.strong_digests)
        name = f"{self.folder}/e{self.epoch:09d}-L{self.level:02d}-{digest}.arrow"
        self.storage.write(name, buffers)
        byte_count = sum(len(buffer) for buffer in buffers)
        return StateFile(name, kind, self.epoch, len(rows.ids), byte_count, digest)

    def compact(self, chain: Chain) -> Chain:
        """The same state in fewer files, or on the way to it, if that is due."""
        weak = self.strong_digests and not all(is_strong(file.digest) for file in chain)
        if weak:  # the checkpoint has got a key: what was written without one may not stay
            fold: Fold | None = Fold(0, len(chain), "snapshot", 0, LAST_ROUTE)
        else:
            place = self.operator, self.slot
            fold = plan_fold(chain, *place, self.compact_after, self.fold_rows)
        if fold is None:
            return chain
        parts = self.read(chain[fold.start : fold.end], fold.routes)
        rows = FileRows.fold(parts, self.layout, keep_removed=fold.kind == "run")
        made = self.write(rows, fold.kind) if len(rows.ids) else None
        return folded(chain, fold, made, remember=not weak)


@dataclass(frozen=True)
class Fold:
    """Fold the rows of routes from `low` to `high` of the files from `start` to before `end`."""

    start: int
    end: int
    kind: Literal["run", "snapshot"]
    low: int
    high: int

    @property
    def is_whole(self) -> bool:
        return self.low == 0 and self.high == LAST_ROUTE

    @property
    def routes(self) -> Routes | None:
        if self.is_whole:
            return None
        return np.array([self.low], np.uint64), np.array([self.high], np.uint64)


def plan_fold(
    chain: Chain, operator: str, slot: int, compact_after: int, fold_rows: int = FOLD_ROWS
) -> Fold | None:
    """What to fold now, decided from the chain alone, so that every attempt decides alike.

    Routes are hashes, so ranges of them hold about as many rows as they are wide, unless a key has
    very many rows.
    """
    under_way = [at for at, file in enumerate(chain) if file.folding]
    if under_way:
        start, end = under_way[0], under_way[-1] + 1
        is_lowest = start == chain[start].folding - 1  # there is nothing below its pieces
        kind: Literal["run", "snapshot"] = "snapshot" if is_lowest else "run"
    else:
        begun = _begin(chain, operator, slot, compact_after)
        if begun is None:
            return None
        (start, kind), end = begun, len(chain)
    olds = chain[start:end]
    low = min(file.low for file in olds if file.low <= file.high)
    left = sum(_rows_from(file, low) for file in olds)
    total = sum(file.rows for file in olds)
    step = max(fold_rows, FOLDS_PER_ROW * chain[-1].rows, total // PIECES_MAX)
    high = LAST_ROUTE if step >= left else low + (LAST_ROUTE - low) * step // left
    if high >= max(file.high for file in olds):
        high = LAST_ROUTE
    return Fold(start, end, kind, low, high)


def _rows_from(file: StateFile, low: int) -> int:
    """About how many rows of a file have this route or a higher one."""
    if file.piece:
        return file.rows if file.high >= low else 0
    return file.rows * (LAST_ROUTE - low) // LAST_ROUTE


def _begin(
    chain: Chain, operator: str, slot: int, compact_after: int
) -> tuple[int, Literal["run", "snapshot"]] | None:
    """From which file on to fold, and into what.

    Due every `compact_after` deltas; the first time later by a part that depends on operator and
    slot, so that slots do not all begin in one epoch. A run swallows earlier runs that are not much
    larger (their number stays logarithmic); when all that lies above the snapshot has as many rows
    as the snapshot, everything becomes a new snapshot.
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
    lower = list(whole_files(chain[:start]))
    while lower and lower[-1][0].kind == "run":
        pieces = lower.pop()
        held = sum(file.rows for file in pieces)
        if held > 2 * rows:
            break
        start -= len(pieces)
        rows += held
    base = sum(file.rows for file in chain if file.kind == "snapshot")
    above = sum(file.rows for file in chain if file.kind != "snapshot")
    return (0, "snapshot") if start == 0 or above >= base else (start, "run")


def folded(chain: Chain, fold: Fold, made: StateFile | None, *, remember: bool = True) -> Chain:
    """The chain after a step of a fold, which made this file (None: there was no row).

    With `remember` the file that a fold makes first names those that the fold replaces.
    """
    olds = chain[fold.start : fold.end]
    number = max(olds[0].folding, 1)
    pieces: Chain = ()
    if made is not None:
        if not fold.is_whole:
            first = f"{fold.low:016x}" if fold.low else ""
            last = "" if fold.high == LAST_ROUTE else f"{fold.high:016x}"
            made = replace(made, first=first, last=last, piece=number)
        if number == 1 and remember:
            before = tuple(replace(file, replaces=(), folding=0) for file in olds)
            made = replace(made, replaces=before)
        pieces = (made,)
    rest: Chain = ()
    if fold.high < LAST_ROUTE:
        rest = tuple(
            replace(
                file,
                first=f"{max(fold.high + 1, file.low):016x}",
                folding=number + len(pieces),
            )
            for file in olds
        )
    return (*chain[: fold.start], *pieces, *rest, *chain[fold.end :])


def missing_files(chain: Chain, version: str) -> Chain | None:
    """The files to apply on a state of that version to reach the chain; None: start again.

    A version may be older than a fold, or from the middle of one: the same state by other files.
    What comes to be applied holds removals, so it may not be a snapshot, which has forgotten them.
    """
    for equal in (chain, *_before_folds(chain)):
        for count in range(len(equal), -1, -1):
            if chain_id(equal[:count]) == version:
                rest = equal[count:]
                # A file that is being folded is only a part of what it was for later ones.
                is_part = count > 0 and bool(rest) and rest[0].folding and equal[count - 1].folding
                return None if is_part or any(f.kind == "snapshot" for f in rest) else rest
    return None


def _before_folds(chain: Chain) -> Iterator[Chain]:
    """Chains of the same state: as they were before each step of the folds that are in this one."""
    start = 0
    for files in whole_files(chain):
        end = start + len(files)
        before = files[0].replaces
        if before and not files[0].folding and files[0].low == 0:  # it names them as they were
            after = end
            while after < len(chain) and chain[after].folding:
                after += 1
            for kept in range(len(files) - 1, -1, -1):
                yield (*chain[:start], *files[:kept], *before, *chain[after:])
        start = end
