"""Does Spark's checkpoint go on where the manifests end? If not, rows would be lost or doubled.

Spark runs again only the last micro-batch it planned, and plans it before the epoch begins. So a
batch is either the one after the last manifest's, or that manifest's own: then Spark's plan of it
must be the one that was committed. Spark knows nothing of ticks.

Spark reads its files by itself when a query starts, and a damaged one is an error of Java's, or
none. So those that it is going to read are looked at before: they must be whole as text. Beyond
that they are Spark's: the epoch that our last manifest holds has a digest of its plan, others are
checked by nobody unless Hadoop's local file system keeps `.crc` files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from headgate.commit.changed_state import said
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.errors import ForeignCheckpoint, IncompatibleFlow
from headgate.slot.program import Program
from headgate.state.digest import digest_of
from headgate.state.storage import Storage

_NAMED = re.compile(r"^\w+:(?=[{\[\d-])")  # before a source's offset, if sources have names
_ENTRY = re.compile(r"(spark/(?:offsets|commits|sources/\w+))/(\d+)(?:\.compact)?")


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


def newest_plan(storage: Storage, batch: int) -> list[str]:
    """Spark's offsets of a batch, and the newest entry of each source's own log, if on a disk."""
    if not storage.is_local:
        return []  # other stores have flushed what they have
    logs = _entries(storage, "spark/sources/")
    return [f"spark/offsets/{batch}", *(entries[-1] for entries in logs.values())]


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


def _entries(storage: Storage, within: str = "spark/") -> dict[str, list[str]]:
    """Files of Spark's logs by folder, in their order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in storage.list(within):
        entry = _ENTRY.fullmatch(name)
        if entry is not None:
            found.setdefault(entry[1], []).append((int(entry[2]), name))
    return {folder: [name for _, name in sorted(entries)] for folder, entries in found.items()}


def _is_whole(data: bytes) -> bool:
    try:
        version, *lines = data.decode().splitlines()
        for line in (_NAMED.sub("", line) for line in lines):
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


def check_start(place: Checkpoint, last: Manifest | None, query_id: str | None) -> None:
    """Refuse to start when Spark's checkpoint has vanished, is damaged or is not the one.

    One that has no rows left to run would otherwise end without an error.
    """
    check_entries(place.storage)
    if last is None:
        return
    if query_id is None:
        raise ForeignCheckpoint(
            f"{place.storage.uri} holds state up to epoch {last.epoch}, but Spark's checkpoint in "
            f"{place.spark_uri} is gone: it would read its sources from the start again. Restore "
            "it, or start with a new checkpoint folder",
            epoch=last.epoch,
        )
    check_epoch(place, last, last.batch, query_id, spark_offsets(place.storage, last.batch))


def check_epoch(
    place: Checkpoint, last: Manifest | None, batch: int, query_id: str, offsets: str | None
) -> None:
    """May Spark's query run this batch, whose offsets have this digest, after the last manifest?"""
    if last is None:
        if batch > 0:
            raise ForeignCheckpoint(
                f"Spark starts at batch {batch}, but {place.storage.uri} has no manifest: the "
                "manifests were deleted or belong to another folder; restore them, or start with "
                "a new checkpoint folder",
                batch=batch,
            )
        return
    if last.query_id != query_id or batch > last.batch + 1:
        raise ForeignCheckpoint(
            f"the Spark checkpoint in {place.spark_uri} (query {query_id}, batch {batch}) is not "
            f"the one this flow's state was made with (query {last.query_id}, last batch "
            f"{last.batch}): it was deleted or replaced. Restore it, or start with a new "
            "checkpoint folder",
            batch=batch,
            query_id=query_id,
        )
    if batch < last.batch:
        raise _rolled_back(place, last, f"it runs batch {batch} again")
    if batch == last.batch and last.offsets is not None and offsets != last.offsets:
        what = "has no plan of" if offsets is None else "planned other rows for"
        raise _rolled_back(place, last, f"it {what} batch {batch} (file offsets/{batch})")


def check_sources(
    place: Checkpoint,
    names: Sequence[str],
    renamed: Mapping[str, str] = MappingProxyType({}),
    come_back: Collection[str] = (),
) -> None:
    """Does Spark find the offsets of these sources? Raises if not, else notes them.

    Where sources have names in Spark's checkpoint, they may come and go in any order; one that was
    gone goes on from where it was if it is in `come_back`, as Spark keeps a log of its own for it.
    Elsewhere offsets belong to sources by their position, and the same ones must come in that
    order. A source may get another name, if the others stay where they are.
    """
    before, known = place.spark_sources(), place.spark_names()
    if before is not None and place.names_sources():
        now = spark_names(names, known, renamed, before)
        there = {known[name] for name in before if name in known}
        lost = [
            name
            for name in names
            if now[name] in known.values() and now[name] not in there and name not in come_back
        ]
        if lost:
            raise IncompatibleFlow(
                f"source {lost[0]!r} was gone for a while, and Spark has forgotten its offsets: "
                "rows that were read before would be read again. Give it another name=, and say in "
                "its own options where to start",
                changes=lost,
            )
    elif before is not None and (changes := source_changes(before, names)):
        raise IncompatibleFlow(
            f"the flow's sources changed, and the offsets in Spark's checkpoint {place.spark_uri} "
            f"belong to sources by their position: {'; '.join(changes)}. Declare the sources as "
            "they were, or start with a new checkpoint folder (if all sources are Files, or have "
            "names in Spark, they may come and go there)",
            changes=changes,
        )
    place.keep_spark_sources(names, spark_names(names, known, renamed, before or ()))


def spark_names(
    names: Iterable[str],
    known: Mapping[str, str],
    renamed: Mapping[str, str],
    before: Collection[str] = (),
) -> dict[str, str]:
    """What sources are called in Spark's checkpoint, for good; those that are gone too.

    `before` are the sources of the start before. A source that was renamed keeps its old name here
    too: if the rename never commits, the flow of before must find its offsets.
    """
    found, names = dict(known), list(names)
    olds = {new: old for old, new in renamed.items() if old in known and old not in names}
    mine = {name: known[name] for name in names if name in known and name in before}
    ways = (
        {name: known[old] for name, old in olds.items() if old in before},
        {name: known[name] for name in names if name in known},
        {name: known[old] for name, old in olds.items()},
    )
    for way in ways:
        for name in names:
            if name not in mine and name in way and way[name] not in mine.values():
                mine[name] = way[name]
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        taken = {*found.values(), *mine.values()}
        fresh = (plain if not n else f"{plain}_{n}" for n in range(len(taken) + 1))
        found[name] = mine.get(name) or next(n for n in fresh if n not in taken)
    return found


def source_changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What Spark's offsets cannot follow, in words; nothing if they can."""
    changes = []
    if len(before) != len(after):
        changes += [f"source {name!r} is new" for name in after if name not in before]
        changes += [f"source {name!r} is gone" for name in before if name not in after]
    elif any(name in before and before.index(name) != at for at, name in enumerate(after)):
        changes.append(f"sources were {', '.join(before)}, and are {', '.join(after)}")
    return changes


def check_sinks(
    place: Checkpoint, last: Manifest | None, program: Program, dropped: Collection[str]
) -> None:
    """Rows that are committed but not delivered need their sink; else they would be lost."""
    if last is None:
        return
    now = {sink.name: sink.spec.kind for sink in program.sinks}
    before = last.describe.get("sinks", {})
    changes = []
    for name, files in last.sinks.items():
        rows = sum(file["rows"] for file in files)
        same = name in now and now[name] == before.get(name, now[name])
        if same or not rows or name in dropped or place.is_marked(last.epoch, name):
            continue
        is_now = f"is a {now[name]} now" if name in now else "is gone"
        mine = said("sink", name, last.describe.get("operators", ()))
        changes.append(
            f"sink {name!r} {is_now}, and {rows} rows of epoch {last.epoch} are committed for it "
            f"and not delivered (start with drop_state=[{mine!r}] if they may be lost)"
        )
    if changes:
        raise IncompatibleFlow(
            f"{'; '.join(changes)}. Start {place.storage.uri} once with its sinks as they were: "
            "the rows are delivered before any other",
            changes=changes,
        )


def _rolled_back(place: Checkpoint, last: Manifest, why: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        f"the Spark checkpoint in {place.spark_uri} is older than this flow's state, which holds "
        f"everything up to batch {last.batch}: {why}. It was put back from a copy, was "
        "changed, or lost its last files when the machine stopped. Going on would lose rows: "
        "restore the whole checkpoint folder from one copy, or start with a new one",
        epoch=last.epoch,
    )
