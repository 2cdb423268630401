"""A chain: the immutable files that, folded oldest first, are the state of one (operator, slot).

Rows in files are absolute, so the newest file that names a row wins, and applying a file twice
changes nothing. The id of a chain is a digest of its file names; names hold content digests, so
equal ids mean equal state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import xxhash

from headgate.state.rows import Order, RowIds, sorted_order

Kind = Literal["delta", "run", "snapshot"]


@dataclass(frozen=True)
class StateFile:
    """One file of a chain. `replaces` are the files a run or snapshot was folded from."""

    name: str
    kind: Kind
    epoch: int
    rows: int
    bytes: int
    digest: str
    replaces: tuple[StateFile, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "epoch": self.epoch,
            "rows": self.rows,
            "bytes": self.bytes,
            "digest": self.digest,
        }
        if self.replaces:
            told["replaces"] = [file.to_json() for file in self.replaces]
        return told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> StateFile:
        replaces = tuple(cls.from_json(file) for file in told.get("replaces", ()))
        plain = {name: value for name, value in told.items() if name != "replaces"}
        return cls(**plain, replaces=replaces)

    def bare(self) -> StateFile:
        """The same file without what it replaces, so that chains do not nest."""
        if not self.replaces:
            return self
        return StateFile(self.name, self.kind, self.epoch, self.rows, self.bytes, self.digest)


Chain = tuple[StateFile, ...]


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


def fold(parts: list[RowIds]) -> Order:
    """Rows that survive, newest wins, in (route, h, check) order.

    `parts` are the files' rows, newest file first; the result indexes their concatenation.
    Removed rows survive too: a run must keep them, a snapshot drops them afterwards.
    """
    ids = RowIds.concat(parts)
    order, first = sorted_order(ids)
    return order if first.all() else order[first]


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
