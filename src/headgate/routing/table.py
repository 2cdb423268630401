"""Routing tables: a chosen home for the keys that matter, a bucket for the rest.

A key goes to its pin if it has one, else to the slot of its bucket. An empty table (no pins,
bucket b on slot b mod n) routes exactly like fields grouping. A key is known by its 64-bit hash
alone: should two keys ever share it, they are routed (and their state is moved) together, which
is harmless. So a table is a few sorted arrays and travels with every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headgate.arrays import I32, I64, U64, Bools
from headgate.errors import HeadgateError, UnknownSlot
from headgate.routing.hashing import bucket_of, find_sorted, hash_columns, near_hash

BUCKETS = 1024  # per operator, fixed for the life of a checkpoint; a power of two


@dataclass(frozen=True)
class RoutingTable:
    """Who owns which key of one operator. Immutable; `version` grows with every change."""

    slots: int
    bucket_slots: I32
    version: int = 0
    pinned_h: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    pinned_slots: I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def __post_init__(self) -> None:
        if self.buckets < 1 or self.buckets & (self.buckets - 1):
            raise UnknownSlot(f"{self.buckets} buckets; their number must be a power of two")
        for name, owners in (("bucket", self.bucket_slots), ("pin", self.pinned_slots)):
            if len(owners) and not (owners.min() >= 0 and owners.max() < self.slots):
                wrong = int(owners.max()) if owners.max() >= self.slots else int(owners.min())
                raise UnknownSlot(
                    f"a {name} of the routing table names slot {wrong}, but the flow runs "
                    f"{self.slots} slots (0..{self.slots - 1}); make a table for that many",
                    slot=wrong,
                    slots=self.slots,
                )

    def __repr__(self) -> str:
        return (
            f"<RoutingTable version {self.version}: {len(self.pinned_h)} keys placed, all others "
            f"by {self.buckets} buckets, over {self.slots} slots>"
        )

    def _repr_html_(self) -> str:
        owners = (self.pinned_slots, self.bucket_slots)
        counts = [np.bincount(at, minlength=self.slots) for at in owners]
        rows = "".join(
            f"<tr><td>{slot}</td><td>{keys}</td><td>{buckets}</td></tr>"
            for slot, (keys, buckets) in enumerate(zip(*counts, strict=True))
        )
        head = "<tr><th>slot</th><th>keys placed</th><th>buckets</th></tr>"
        return f"<b>{escape(repr(self)[1:-1])}</b><table>{head}{rows}</table>"

    @property
    def buckets(self) -> int:
        return len(self.bucket_slots)

    def route(self, h: U64) -> I32:
        """The slot of every key. O(rows), plus a binary search per row if there are pins."""
        return self.look_up(h)[0]

    def look_up(self, h: U64) -> tuple[I32, Bools]:
        """The slot of every key, and which keys have an owner of their own."""
        owners = self.bucket_slots[bucket_of(h, self.buckets)]
        if not len(self.pinned_h):
            return owners, np.zeros(len(h), np.bool_)
        at = find_sorted(self.pinned_h, h)
        pinned = at >= 0
        return np.where(pinned, self.pinned_slots[at], owners), pinned

    def near(self, columns: Sequence[pa.Array], rows: int) -> I32:
        """The slot of the keys that are near by these columns, but for those with pins."""
        owners: I32 = self.bucket_slots[bucket_of(near_hash(columns, rows), self.buckets)]
        return owners

    def _changed(self, **parts: Any) -> RoutingTable:
        return replace(self, version=self.version + 1, **parts)

    def pin(
        self,
        columns: Sequence[pa.Array],
        slots: Sequence[int] | I32,
        *,
        near: Sequence[int] = (),
    ) -> RoutingTable:
        """This table with these keys pinned; a later pin of the same key wins.

        `near`: the places, among the columns, of those that `key_by` calls near.
        """
        h = hash_columns(columns, len(slots), near)
        return self.pin_hashes(h, np.asarray(slots, np.int32))

    def pin_hashes(self, h: U64, slots: I32) -> RoutingTable:
        """This table with these hashes pinned; a later pin wins. O(pins + new log new)."""
        h, last = np.unique(h[::-1], return_index=True)
        slots = np.asarray(slots, np.int32)[::-1][last]
        place = find_sorted(self.pinned_h, h)
        known, new = place >= 0, place < 0
        pinned_slots = self.pinned_slots.copy()
        pinned_slots[place[known]] = slots[known]
        at = np.searchsorted(self.pinned_h, h[new])
        return self._changed(
            pinned_h=np.insert(self.pinned_h, at, h[new]),
            pinned_slots=np.insert(pinned_slots, at, slots[new]),
        )

    def unpin_hashes(self, h: U64) -> RoutingTable:
        """This table without these pins: the keys fall back to their bucket."""
        stays = ~np.isin(self.pinned_h, h)
        return self._changed(pinned_h=self.pinned_h[stays], pinned_slots=self.pinned_slots[stays])

    def is_pinned(self, h: U64) -> Bools:
        """Which of these keys have an owner of their own."""
        return find_sorted(self.pinned_h, h) >= 0

    def units(self, h: U64) -> U64:
        """The unit of every key: a pinned key's own hash, else that of its bucket."""
        bucket = bucket_ids(self.buckets)[bucket_of(h, self.buckets)]
        return np.where(self.is_pinned(h), h, bucket)

    def all_units(self) -> tuple[U64, I32]:
        """Every unit of the operator with its owner: the buckets, then the pins."""
        ids = np.concatenate([bucket_ids(self.buckets), self.pinned_h])
        return ids, np.concatenate([self.bucket_slots, self.pinned_slots])

    def with_owners(self, owners: I32) -> RoutingTable:
        """This table with other owners for `all_units`, in that order."""
        owners = owners.astype(np.int32)
        n = self.buckets
        return self._changed(bucket_slots=owners[:n], pinned_slots=owners[n:])

    def with_buckets(self, bucket_slots: I32) -> RoutingTable:
        return self._changed(bucket_slots=np.asarray(bucket_slots, np.int32))

    def resized(
        self,
        slots: int,
        instances: Sequence[int] = (),
        *,
        before: Sequence[int] = (),
        share_pins: bool = False,
        even: bool = True,
    ) -> RoutingTable:
        """The table for other slots: every unit stays but those that must move.

        `instances` are the slots that may own units, `before` those that could until now (none
        given: all). Growing takes buckets from the fullest slots for the new ones, and, if
        `share_pins`, pinned keys too (a planner knows better which, so that keys that belong
        together stay so). Shrinking spreads the buckets of the slots that leave over those that
        stay, the emptiest first. The pins of a leaving slot go to one slot together, as far as that
        is even.

        With `even=False` bucket counts are not evened out: new slots start empty, and
        only what has lost its slot moves. So a planner's allocation is kept.
        """
        mine, had = tuple(instances or range(slots)), tuple(before or range(self.slots))
        if mine == had:
            return self if slots == self.slots else self._changed(slots=slots)
        # In numbers that begin with the slots that stay or come, as if the others were the last.
        leaving = [slot for slot in range(self.slots) if slot not in mine]
        order = np.array([*mine, *leaving], np.int32)
        place = np.zeros(max(slots, self.slots), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        owners = _rebalance(place[self.bucket_slots], len(mine), even)
        pins = _together(place[self.pinned_slots], len(order), len(mine))
        if share_pins and len(pins) and len(mine) > len(had):
            pins = _rebalance(pins, len(mine))
        return self._changed(slots=slots, bucket_slots=order[owners], pinned_slots=order[pins])

    def renamed(self, name: I32, slots: int) -> RoutingTable:
        """The same table where slot s is called name[s], of so many; nothing has moved."""
        buckets, pins = name[self.bucket_slots], name[self.pinned_slots]
        return replace(self, slots=slots, bucket_slots=buckets, pinned_slots=pins)

    def same_routes(self, other: RoutingTable) -> bool:
        return (
            self.slots == other.slots
            and np.array_equal(self.bucket_slots, other.bucket_slots)
            and np.array_equal(self.pinned_h, other.pinned_h)
            and np.array_equal(self.pinned_slots, other.pinned_slots)
        )

    def to_arrow(self) -> pa.Table:
        """One row per bucket, then one per pin; the form in which tables are stored."""
        facts = {"slots": self.slots, "buckets": self.buckets, "version": self.version}
        buckets = np.arange(self.buckets, dtype=np.uint64)
        columns = {
            "h": np.concatenate([buckets, self.pinned_h]),
            "slot": np.concatenate([self.bucket_slots, self.pinned_slots]),
        }
        return pa.table(columns, metadata={name: str(fact) for name, fact in facts.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> RoutingTable:
        facts = table.schema.metadata
        n = int(facts[b"buckets"])
        h, slot = table["h"].to_numpy(), table["slot"].to_numpy()
        return cls(int(facts[b"slots"]), slot[:n], int(facts[b"version"]), h[n:], slot[n:])


@lru_cache(maxsize=8)
def bucket_ids(buckets: int) -> U64:
    """A hash in every bucket that stands for it; its low bits are mixed, as those of keys are."""
    number = np.arange(buckets, dtype=np.uint64)
    mixed = number + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    high = buckets.bit_length() - 1
    return (mixed >> np.uint64(high)) | (number << np.uint64(64 - high) if high else number)


def hash_table(slots: int, buckets: int = BUCKETS, instances: Sequence[int] = ()) -> RoutingTable:
    """The empty table: plain hash grouping, over the slots that have an instance (default: all)."""
    mine = np.array(instances or range(slots), np.int32)
    return RoutingTable(slots, mine[np.arange(buckets) % len(mine)])


@dataclass(frozen=True)
class Moves:
    """Units that change owner between two tables of one operator, with both owners.

    A key that either table pins moves iff its hash is in `routes`, any other iff its bucket is in
    `buckets`. `old_slots` is how many slots there were before.
    """

    old_slots: int
    buckets: I64
    bucket_from: I32
    bucket_to: I32
    routes: U64
    route_from: I32
    route_to: I32

    def __bool__(self) -> bool:
        return bool(len(self.buckets) or len(self.routes))

    def leaving(self, giver: int) -> tuple[I64, U64]:
        """Buckets and routes that a slot loses."""
        return self.buckets[self.bucket_from == giver], self.routes[self.route_from == giver]

    def between(self, giver: int, taker: int) -> tuple[I64, U64]:
        """Buckets and routes that go from one slot to another."""
        buckets = (self.bucket_from == giver) & (self.bucket_to == taker)
        routes = (self.route_from == giver) & (self.route_to == taker)
        return self.buckets[buckets], self.routes[routes]


def moves_between(old: RoutingTable, new: RoutingTable) -> Moves:
    """Which units have another owner under `new`; cost O(buckets + pins)."""
    buckets = np.flatnonzero(old.bucket_slots != new.bucket_slots).astype(np.int64)
    h = np.union1d(old.pinned_h, new.pinned_h)
    before, after = old.route(h), new.route(h)
    moved = before != after
    return Moves(
        old.slots,
        buckets,
        old.bucket_slots[buckets],
        new.bucket_slots[buckets],
        h[moved],
        before[moved],
        after[moved],
    )


def _rebalance(owners: I32, slots: int, even: bool = True) -> I32:
    owners = owners.copy()
    if not even:
        load = np.bincount(owners[owners < slots], minlength=slots)
        for bucket in np.flatnonzero(owners >= slots):
            owners[bucket] = load.argmin()
            load[owners[bucket]] += 1
        return owners
    share, extra = divmod(len(owners), slots)
    load = np.bincount(owners, minlength=max(slots, int(owners.max()) + 1))
    homeless = list(np.flatnonzero(owners >= slots))
    load = load[:slots].copy()
    by_load = np.argsort(-load, kind="stable")
    quota = np.full(slots, share)
    quota[by_load[:extra]] += 1
    for slot in by_load:
        surplus = int(load[slot] - quota[slot])
        if surplus > 0:
            homeless.extend(_spread(np.flatnonzero(owners == slot), surplus))
            load[slot] -= surplus
    rooms = np.maximum(quota - load, 0)
    takers = np.repeat(np.arange(slots), rooms)
    turns = np.concatenate([(np.arange(room) + 0.5) / max(1, room) for room in rooms])
    owners[np.sort(np.array(homeless, np.int64))] = takers[np.argsort(turns, kind="stable")]
    return owners


def _spread(units: I64, count: int) -> I64:
    """So many of the units, from all over.

    Where keys have near columns few buckets are in use, and those may be neighbours.
    """
    return units[(np.arange(count) * 2 + 1) * len(units) // (2 * count)]


def _together(owners: I32, before: int, slots: int) -> I32:
    """Pins of as many leaving slots as divide evenly go slot by slot, the rest one by one."""
    owners = owners.copy()
    whole = max(0, before - slots) // slots * slots
    joins = (owners >= slots) & (owners < slots + whole)
    owners[joins] = (owners[joins] - slots) % slots
    left = np.flatnonzero(owners >= slots)
    owners[left] = (np.arange(len(left)) % slots).astype(np.int32)
    return owners


# --- tables as a folder of Parquet files, to hand from one program to another ------------------
# `OPERATOR.parquet` holds what `RoutingTable.to_arrow` gives. Slot count, buckets and version are
# in the file's metadata, so a table cannot be taken for one of another flow shape.

_SUFFIX = ".parquet"


def load_tables(folder: str | Path) -> dict[str, RoutingTable]:
    """The routing tables in a folder (path or URI), by operator: for `flow.start(tables=...)`.

    `headgate analyze` writes such folders. A file's name is the operator's name.
    """
    files, _ = _open(folder)
    found = {
        Path(path).name.removesuffix(_SUFFIX): RoutingTable.from_arrow(
            pq.read_table(path, filesystem=files)
        )
        for path in check_folder(folder)
    }
    if not found:
        raise HeadgateError(
            f"there are no routing tables in {folder}: expected OPERATOR{_SUFFIX} files as "
            "written by `headgate analyze ... --out DIR`",
            folder=str(folder),
        )
    return found


def save_tables(tables: Mapping[str, RoutingTable], folder: str | Path) -> dict[str, str]:
    """Write a file per operator and return their paths; tables of other operators are removed.

    A folder that holds Parquet files of another kind is refused, before anything is written.
    """
    files, place = _open(folder)
    old = check_folder(folder)
    files.create_dir(place, recursive=True)
    written = {}
    for operator, table in tables.items():
        path = written[operator] = f"{place}/{operator}{_SUFFIX}"
        pq.write_table(table.to_arrow(), f"{path}.new", filesystem=files)
        files.move(f"{path}.new", path)
    for path in set(old) - set(written.values()):
        files.delete_file(path)
    return written


def check_folder(folder: str | Path) -> list[str]:
    """The tables that are in a folder now; an error if there is Parquet of another kind."""
    files, place = _open(folder)
    found = []
    for info in files.get_file_info(fs.FileSelector(place, allow_not_found=True)):
        if info.is_file and info.base_name.endswith(_SUFFIX) and info.base_name[0] not in "._":
            path = f"{place}/{info.base_name}"
            _check(files, path)
            found.append(path)
    return sorted(found)


def _open(folder: str | Path) -> tuple[Any, str]:
    if "://" in str(folder):
        files, place = fs.FileSystem.from_uri(str(folder))
    else:
        files, place = fs.LocalFileSystem(), str(folder)
    return files, place.rstrip("/") or "/"


def _check(files: Any, path: str) -> None:
    try:
        schema = pq.read_schema(path, filesystem=files)
    except pa.ArrowException as problem:
        raise HeadgateError(f"{path} cannot be read as Parquet: {problem}", file=path) from problem
    facts = schema.metadata or {}
    if not {b"slots", b"buckets", b"version"} <= facts.keys() or schema.names != ["h", "slot"]:
        raise HeadgateError(
            f"{path} is not a routing table (columns {', '.join(schema.names)}); keep routing "
            "tables in a folder of their own",
            file=path,
        )
