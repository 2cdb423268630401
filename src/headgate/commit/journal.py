"""The journal: what happened, append-only, one JSON record a line, for every view to read.

It is kept in segments of about a megabyte, so a start reads the newest one only and the oldest can
be dropped. A segment is named by the number of its first record:

    journal/000000000512.jsonl                on a local disk: records 512 and on, appended
    journal/000000001024.json                 elsewhere a record is a file of its own, until
    journal/000000000512-000000001023.jsonl   so many of them are merged into a segment
    journal/journal.jsonl                     what earlier versions wrote: the oldest segment

The journal is advice: a line that cannot be read, for whatever reason, is passed over. The part of
an epoch's record that its manifest holds is enough to write the line again, so a crash between the
two loses nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from threading import RLock
from typing import Any

from headgate.commit.facts import EpochFacts, Facts, Json
from headgate.state.digest import DamagedFile, seal, unseal
from headgate.state.storage import Storage

SEGMENT_BYTES = 1 << 20  # what a start reads
MERGED_RECORDS = 256  # files of one record each, where nothing can be appended
KEEP_RECORDS = 100_000  # unless `keep_journal` says otherwise
READS_AT_ONCE = 16  # requests to an object store, each of which mostly waits
_OLD = "journal.jsonl"
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.jsonl?")


@dataclass(frozen=True)
class Part:
    """A file of the journal; `last` is known of merged segments and single records."""

    name: str
    first: int
    last: int | None

    @property
    def is_record(self) -> bool:
        return self.name.endswith(".json")


class Journal:
    """Append and read; threads may share it. At least the newest `keep` records stay."""

    def __init__(self, storage: Storage, keep: int = KEEP_RECORDS) -> None:
        self._storage, self._keep = storage, keep
        self._lock = RLock()
        self._next: int | None = None  # the number of the next record; None: not looked yet
        self._told: set[int] = set()  # epochs at the end of the journal
        self._segment, self._room, self._is_cut = "", 0, False
        self._alone: dict[str, bytes] = {}  # records that are files of their own

    def append(self, facts: Facts) -> None:
        with self._lock:
            self._write(facts.to_json())

    def append_epoch(self, facts: EpochFacts) -> None:
        """Write an epoch's record unless it is there already: a start tells the last one again."""
        with self._lock:
            self._look()
            if facts.epoch not in self._told:
                self._write(facts.to_json())
                self._told = {facts.epoch}

    def read(self) -> list[Json]:
        """All records that are kept, oldest first."""
        return self._read(None)

    def tail(self, count: int) -> list[Json]:
        """The newest records, oldest first; opens no more files than it needs."""
        return self._read(count)[-count:] if count else []

    # --- reading ---------------------------------------------------------------------------
    def _read(self, count: int | None) -> list[Json]:
        for _ in range(3):
            with suppress(FileNotFoundError):  # merged or dropped since the folder was listed
                return self._read_once(count, self._storage.read)
        return self._read_once(count, self._read_if_there)

    def _read_once(self, count: int | None, read: Callable[[str], bytes]) -> list[Json]:
        parts, _ = _parts(self._storage)
        found: list[Json] = []
        while parts and (count is None or len(found) < count):
            size = len(parts) if count is None else count if parts[-1].is_record else 1
            contents = self._contents([part.name for part in parts[-size:]], read)
            found[:0] = [record for content in contents for record in _records(content)]
            del parts[-size:]
        return found

    def _contents(self, names: Sequence[str], read: Callable[[str], bytes]) -> list[bytes]:
        if len(names) < 2 or self._storage.is_local:
            return [read(name) for name in names]
        with ThreadPoolExecutor(min(len(names), READS_AT_ONCE)) as threads:
            return list(threads.map(read, names))

    def _read_if_there(self, name: str) -> bytes:
        with suppress(FileNotFoundError):
            return self._storage.read(name)
        return b""

    # --- writing ---------------------------------------------------------------------------
    def _write(self, record: Json) -> None:
        self._look()
        number, self._next = self._next, None  # if this fails, look again what is there
        assert number is not None
        line = _line(record)
        if self._storage.is_local:
            self._append(number, line)
        else:
            self._put(number, line)
        self._next = number + 1

    def _append(self, number: int, line: bytes) -> None:
        if self._room <= 0:
            self._segment, self._room, self._is_cut = f"{number:012d}.jsonl", SEGMENT_BYTES, False
            self._drop_old(number)
        # a line that a crash cut must not swallow this one
        self._storage.append(self._segment, b"\n" + line if self._is_cut else line)
        self._room -= len(line)
        self._is_cut = False

    def _put(self, number: int, line: bytes) -> None:
        name = f"{number:012d}.json"
        self._storage.write(name, line)
        self._alone[name] = line
        size = sum(map(len, self._alone.values()))
        if len(self._alone) >= MERGED_RECORDS or size >= SEGMENT_BYTES:
            first = min(self._alone)[:12]
            lines = [content.rstrip(b"\n") + b"\n" for content in self._alone.values()]
            self._storage.write(f"{first}-{number:012d}.jsonl", b"".join(lines))
            self._storage.delete(*self._alone)
            self._alone = {}
            self._drop_old(number)

    def _look(self) -> None:
        """Find the end of the journal: from its newest segment and what is newer, no more."""
        if self._next is not None:
            return
        parts, again = _parts(self._storage)
        if again:  # a crash came before they were deleted
            self._storage.delete(*(part.name for part in again))
        self._next, self._told, self._room, self._alone = 0, set(), 0, {}
        if not parts:
            return
        newest, is_cut = parts[-1], False
        if newest.is_record:
            alone = [p.name for p in takewhile(lambda p: p.is_record, reversed(parts))][::-1]
            self._alone = dict(zip(alone, self._contents(alone, self._read_if_there), strict=True))
            end = b"\n".join(self._alone.values())
        else:
            size, end = self._end_of(newest.name)
            is_cut = bool(end) and not end.endswith(b"\n")
            if newest.last is None and newest.first >= 0:
                self._segment, self._room, self._is_cut = newest.name, SEGMENT_BYTES - size, is_cut
        if newest.last is not None:
            self._next = newest.last + 1
        elif newest.first >= 0:
            self._next = newest.first + end.count(b"\n") + is_cut
        self._told = {r["epoch"] for r in _records(end) if r["kind"] == "epoch"}

    def _end_of(self, name: str) -> tuple[int, bytes]:
        """How large a segment is, and its last megabyte: those of earlier versions have no end."""
        size = self._storage.size(name)
        if size <= 2 * SEGMENT_BYTES:
            return size, self._storage.read(name)
        with self._storage.open_input(name) as source:
            return size, bytes(source.read_at(SEGMENT_BYTES, size - SEGMENT_BYTES))

    def _drop_old(self, newest: int) -> None:
        """Delete segments whose records are all older than the newest `keep`."""
        parts, _ = _parts(self._storage)
        old = [part.name for part, after in pairwise(parts) if after.first <= newest - self._keep]
        if old:
            self._storage.delete(*old)


def _parts(storage: Storage) -> tuple[list[Part], list[Part]]:
    """The files of a journal, oldest first; and those whose records a merged segment holds too."""
    found = []
    for name in storage.list():
        match = _NAME.fullmatch(name)
        if match:
            alone = int(match[1]) if name.endswith(".json") else None
            found.append(Part(name, int(match[1]), int(match[2]) if match[2] else alone))
        elif name == _OLD:
            found.append(Part(name, -1, None))
    found.sort(key=lambda part: (part.first, part.first if part.last is None else -part.last))
    parts, again, merged_to = [], [], -1
    for part in found:
        if part.last is not None and part.last <= merged_to:
            again.append(part)
            continue
        parts.append(part)
        if part.last is not None and not part.is_record:
            merged_to = part.last
    return parts, again


def _line(record: Json) -> bytes:
    """As a line, with its digest. JSON has no NaN and no infinity: they become null."""
    try:
        return seal(record, allow_nan=False) + b"\n"
    except ValueError:
        return seal(_finite(record), allow_nan=False) + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _records(content: bytes) -> Iterator[Json]:
    for line in content.split(b"\n"):
        try:
            record, _ = unseal(line)
        except DamagedFile:
            continue  # cut by a crash, or damaged; the last manifest still has the facts
        kind, epoch = record.get("kind"), record.get("epoch", 0)
        of_an_epoch = "epoch" in record or kind != "epoch"
        if isinstance(kind, str) and isinstance(epoch, int) and of_an_epoch:
            yield record
