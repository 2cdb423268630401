"""The journal: what happened, append-only, one JSON record a line, for every view to read.

It is kept in segments, so a start reads the newest one only and the oldest can be dropped. A
segment is named by the number of its first record:

    journal/000000000512.jsonl                 records 512 and on
    journal/000000000512-RANDOM-DIGITS.jsonl   elsewhere than on a local disk

On a local disk a record is appended to the newest segment. Elsewhere nothing can be appended: a
start begins a segment of its own, and writes it again with each record. Two drivers may begin at
one number, so random digits keep them apart: who was overtaken replaces nothing that others wrote.

The journal is advice: a line that cannot be read, for whatever reason, is passed over. The part of
an epoch's record that its manifest holds is enough to write the line again, so a crash between the
two loses nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, pairwise
from secrets import randbelow
from threading import RLock
from typing import Any

from headgate.commit.facts import EpochFacts, Facts
from headgate.commit.facts_json import Json
from headgate.state.digest import DamagedFile, seal, unseal
from headgate.state.storage import Storage

SEGMENT_BYTES = 1 << 18  # what a start reads, and what an object store is sent with a record
KEEP_RECORDS = 100_000  # unless `keep_journal` says otherwise
READS_AT_ONCE = 16  # requests to an object store, each of which mostly waits
_NAME = re.compile(r"(\d{12})(?:-\d{12})?\.jsonl?")


class Journal:
    """Append and read; threads may share it. At least the newest `keep` records stay."""

    def __init__(self, storage: Storage, keep: int = KEEP_RECORDS) -> None:
        self._storage, self._keep = storage, keep
        self._lock = RLock()
        self._next: int | None = None  # the number of the next record; None: not known yet
        self._epochs: set[int] = set()  # at the end of the journal
        self._segment, self._room = "", 0  # the one that is written, and how many bytes it takes
        self._unsent = b""  # what precedes the next line: all lines, or an end for one that was cut

    def append(self, facts: Facts) -> None:
        with self._lock:
            self._write(facts.to_json())

    def append_epoch(self, facts: EpochFacts) -> None:
        """Write an epoch's record unless it is there already: starts repeat the last one."""
        with self._lock:
            self._find_end()
            if facts.epoch not in self._epochs:
                self._write(facts.to_json())
                self._epochs = {facts.epoch}

    def read(self) -> list[Json]:
        """All records that are kept, oldest first."""
        return self._read(None)

    def tail(self, count: int) -> list[Json]:
        """The newest records, oldest first; opens no more files than it needs."""
        return self._read(count)[-count:] if count else []

    # --- inside ----------------------------------------------------------------------------
    def _read(self, count: int | None) -> list[Json]:
        names = [name for _, name in self._segments()]
        newest_first: list[list[Json]] = []
        at_once = 1 if self._storage.is_local else READS_AT_ONCE
        with ThreadPoolExecutor(at_once) as threads:
            while names and (count is None or sum(map(len, newest_first)) < count):
                contents = threads.map(self._content, names[-at_once:])
                newest_first.append([r for content in contents for r in _records(content)])
                del names[-at_once:]
        return list(chain.from_iterable(reversed(newest_first)))

    def _content(self, name: str) -> bytes:
        with suppress(FileNotFoundError):  # dropped since the folder was listed
            return self._storage.read(name)
        return b""

    def _segments(self) -> list[tuple[int, str]]:
        """The files of the journal with their first record's number, oldest first."""
        found = (_NAME.fullmatch(name) for name in self._storage.list())
        return sorted((int(match[1]), match[0]) for match in found if match)

    def _write(self, record: Json) -> None:
        self._find_end()
        number, self._next = self._next, None  # if this fails, look again what is there
        assert number is not None
        line = _line(record)
        if self._room <= 0:
            mine = "" if self._storage.is_local else f"-{randbelow(10**12):012d}"
            self._segment, self._room = f"{number:012d}{mine}.jsonl", SEGMENT_BYTES
            self._unsent = b""
            self._drop_old(number)
        if self._storage.is_local:
            self._storage.append(self._segment, self._unsent + line)
            self._unsent = b""
        else:
            self._unsent += line
            self._storage.write(self._segment, self._unsent)
        self._room -= len(line)
        self._next = number + 1

    def _find_end(self) -> None:
        """Read as much of the journal's end as it takes to find an epoch."""
        if self._next is not None:
            return
        segments = self._segments()
        self._next, self._epochs, self._room = 0, set(), 0
        for first, name in reversed(segments):
            content = self._content(name)
            if name == segments[-1][1]:
                is_cut = bool(content) and not content.endswith(b"\n")
                self._next = first + content.count(b"\n") + is_cut
                if self._storage.is_local:
                    self._segment, self._room = name, SEGMENT_BYTES - len(content)
                    self._unsent = b"\n" if is_cut else b""
            self._epochs = {r["epoch"] for r in _records(content) if r["kind"] == "epoch"}
            if self._epochs:
                return

    def _drop_old(self, newest: int) -> None:
        """Delete segments whose records are all older than the newest `keep`."""
        segments = pairwise(self._segments())
        old = [name for (_, name), (after, _) in segments if after <= newest - self._keep]
        self._storage.delete(*old)


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
            record = unseal(line)
        except DamagedFile:
            continue  # cut by a crash, or damaged; the last manifest still has the facts
        if isinstance(record.get("kind"), str):
            yield record
