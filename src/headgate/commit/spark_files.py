"""Spark's own checkpoint, as far as we read it: who its query is, what it planned, what it needs.

Spark reads these files by itself when a query starts, and a damaged one is an error of Java's, or
none. So those that it is going to read are looked at before: they must be whole as text. Beyond
that they are Spark's: the epoch that our last manifest holds has a digest of its plan, others are
checked by nobody unless Hadoop's local file system keeps `.crc` files.
"""

from __future__ import annotations

import json
import re

from headgate.errors import ForeignCheckpoint
from headgate.state.digest import digest_of
from headgate.state.storage import Storage

_ENTRY = re.compile(r"(spark/(?:offsets|commits|sources/\d+))/(\d+)(?:\.compact)?")


def spark_query_id(storage: Storage) -> str | None:
    """The id that Spark's checkpoint gives its query; None if there is none."""
    try:
        return str(json.loads(storage.read("spark/metadata"))["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise _damaged(storage, "spark/metadata", "it does not name Spark's query") from problem


def spark_offsets(storage: Storage, epoch: int) -> str | None:
    """A digest of what Spark planned as this micro-batch; None if it has not (or no Spark).

    Spark writes the file before the epoch begins and never again: a batch that is replayed has the
    same one, also after a hand-over.
    """
    try:
        return digest_of(storage.read(f"spark/offsets/{epoch}"))
    except FileNotFoundError:
        return None


def newest_plan(storage: Storage) -> list[str]:
    """The newest offsets of Spark, and the newest entry of each source's own log."""
    return [
        entries[-1] for folder, entries in _entries(storage).items() if folder != "spark/commits"
    ]


def check_entries(storage: Storage) -> None:
    """Refuse what Spark could not read when it starts; an entry is a version, then lines of JSON.

    It reads its last two plans and commits, and a source's log from where that was last compacted.
    A source may write what it likes there, so its log is judged if some entry is such a one.
    """
    for folder, entries in _entries(storage).items():
        is_sources = folder.startswith("spark/sources/")
        compact = [at for at, name in enumerate(entries) if name.endswith(".compact")]
        first = (compact or [0])[-1] if is_sources else -2
        broken = [name for name in entries[first:] if not _is_whole(storage.read(name))]
        if broken and not (is_sources and len(broken) == len(entries[first:])):
            raise _damaged(storage, broken[0], "it is not a version and lines of JSON")


def _entries(storage: Storage) -> dict[str, list[str]]:
    """Files of Spark's logs by folder, in their order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in storage.list("spark/"):
        entry = _ENTRY.fullmatch(name)
        if entry is not None:
            found.setdefault(entry[1], []).append((int(entry[2]), name))
    return {folder: [name for _, name in sorted(entries)] for folder, entries in found.items()}


def _is_whole(data: bytes) -> bool:
    try:
        version, *lines = data.decode().splitlines()
        for line in lines:
            if line not in ("", "-"):  # a source that has not begun
                json.loads(line)
    except ValueError:
        return False
    return re.fullmatch(r"\0?v\d+", version) is not None  # Kafka's begin with a zero byte


def _damaged(storage: Storage, name: str, why: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        f"{name}, a file of Spark's own checkpoint in {storage.uri}, is damaged: {why}. Bring it "
        "back from a copy, or start with a new checkpoint folder",
        uri=storage.uri,
        file=name,
    )
