"""Give a committed epoch's rows to every sink, until each is marked as done with it.

Sinks are called at least once, always with the same rows, and only by the driver that holds the
checkpoint's newest generation. Every byte is checked before anybody gets it: its file's digest is
in its name, and the manifest vouches for the name.

A Parquet or table sink shows files by renaming. Tasks write into a hidden staging folder of the
destination; the manifest names the files, and says where they are staged if that is outside of the
checkpoint: a sink whose path has changed since still gets that epoch at the old one. Published
names carry flow, sink and epoch, so that many may share a folder. A '-' inside a name is doubled:
flow `a-b` with sink `c` is not flow `a` with sink `b-c`. Publishing again changes nothing, wherever
the last driver died.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.commit import faults
from headgate.commit.changed_state import said
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.facts import DamageFacts
from headgate.commit.journal import Journal
from headgate.commit.manifest import AT, Manifest
from headgate.commit.ownership import Generation
from headgate.errors import HeadgateError, SinkFailed, StateFileError, UnsafeName
from headgate.slot.program import Program
from headgate.state.digest import DamagedFile, check_named
from headgate.state.storage import Storage
from headgate.topology.graph import Node
from headgate.topology.text import reason_of

STAGING = "_headgate"
STAGING_GRACE_EPOCHS = 8  # for tasks of old attempts that still write
_FILE = re.compile(r"((?:[^/=]+=[^/]+/)*)(e\d{9}-[^/]*\.parquet)")  # folders, and a file in them
# Calls a sink with the files of an epoch; at least once, always with the same rows.
Deliver = Callable[[Node, int, list[dict[str, Any]]], None]


@dataclass(frozen=True)
class SinkCalls:
    """Calls the sinks of one running flow; `uris` is where their files are staged.

    `found` is the last epoch that was committed when this driver started; of the sinks in
    `may_lose` damaged files are left out.
    """

    program: Program
    checkpoint: Checkpoint
    deliver: Deliver
    uris: Mapping[str, str]
    journal: Journal
    generation: Generation
    found: int
    may_lose: Collection[str]

    def call_all(self, manifest: Manifest) -> tuple[Manifest, bool]:
        """Call whoever is not marked yet: was it anybody, or was the epoch found delivered?

        Returns the manifest too, without rows that were given up.
        """
        epoch = manifest.epoch
        called = epoch > self.found
        for node in self.program.sinks:
            sink = node.name
            if self.checkpoint.is_marked(epoch, sink):
                continue
            self.generation.hold(f"calling sink {sink!r} for epoch {epoch}")
            called = True
            damaged = self._damaged(sink, manifest)
            files = manifest.sinks.get(sink, [])
            self._call(node, epoch, [file for file in files if file["name"] not in damaged])
            if damaged and sink in manifest.published:  # rows that are given up are not missed
                lost = sum(file["rows"] for file in files if file["name"] in damaged)
                left = {**manifest.published, sink: manifest.published[sink] - lost}
                manifest = replace(manifest, published=left)
            faults.reach("sink-called", epoch)
            self.generation.hold(f"marking sink {sink!r} as done for epoch {epoch}")
            self.checkpoint.mark(epoch, sink)
            faults.reach("sink-marked", epoch)
        faults.reach("sinks-done", epoch)
        return manifest, called

    def _call(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None:
        try:
            self.deliver(sink, epoch, files)
        except HeadgateError:
            raise
        except Exception as problem:
            reason = reason_of(problem)
            raise SinkFailed(
                f"sink {sink.name!r} failed in epoch {epoch}: {reason}"
                f"{f' ({reason.where})' if reason.where else ''}. The epoch is committed and "
                "nothing is lost: the next start from the same checkpoint calls the sink again "
                "with the same rows",
                sink=sink.name,
                epoch=epoch,
                reason=str(reason),
                where=reason.where,
                trace=reason.trace,
            ) from problem

    def _damaged(self, sink: str, manifest: Manifest) -> Collection[str]:
        """Names of the epoch's files that are damaged, if they may be lost; otherwise it refuses.

        Elsewhere than on a local disk, where it means a download, only files that were there when
        this driver started are checked: those stores check what they keep, too.
        """
        uri, epoch = self.uris.get(sink), manifest.epoch
        if uri is None or (epoch > self.found and not Storage.at(uri).is_local):
            return ()
        damaged = {}
        for file in manifest.sinks.get(sink, []):
            reason = _damage(places_of(self.program.graph.name, sink, file, uri))
            if reason:
                damaged[str(file["name"])] = reason
        if damaged and sink not in self.may_lose:
            name, reason = next(iter(damaged.items()))
            mine = said("sink", sink, [node.name for node in self.program.stateful])
            more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
            raise StateFileError(
                f"file {name}{more} with rows of epoch {epoch} for sink {sink!r}, committed and "
                f"not yet delivered, cannot be used: {reason}. None of the epoch's rows were given "
                f"to the sink. Bring the file back from a copy of {uri}, or start with "
                f"drop_state=[{mine!r}] if the rows of damaged files may be lost",
                operator=sink,
                sink=sink,
                epoch=epoch,
                file=name,
                files=sorted(damaged),
            )
        for name, reason in damaged.items():
            self.journal.append(DamageFacts(name, reason, "left out", epoch=epoch, sink=sink))
        return damaged


def _damage(places: Sequence[tuple[Storage, str]]) -> str:
    """What is wrong with a file that must be in one of these places; nothing: it is whole."""
    for storage, name in places:
        if storage.exists(name):
            try:
                check_named(storage, name)
                return ""
            except DamagedFile as problem:
                return str(problem)
    return "it is missing"


def staging_uri(published_uri: str, flow: str, sink: str) -> str:
    """Where tasks put files; flows that share a destination do not share this."""
    return f"{published_uri}/{STAGING}/{flow}/{sink}"


def published_prefix(flow: str, sink: str) -> str:
    """How names of a sink's published files begin.

    Examples:
        >>> published_prefix("a-b", "c")
        'part-a--b-c-'
    """
    return "part-{}-{}-".format(flow.replace("-", "--"), sink.replace("-", "--"))


def published_glob(flow: str, sink: str) -> str:
    """Names of all files that a sink has published, as a Hadoop glob."""
    return f"{published_prefix(flow, sink)}e{'[0-9]' * 9}-*.parquet"


def places_of(flow: str, sink: str, file: Mapping[str, Any], uri: str) -> list[tuple[Storage, str]]:
    """Where a committed file can be: staged (at `uri`, if it does not say), or published.

    Sinks that publish nothing have their files inside of the checkpoint, and nowhere else.
    """
    staged = str(file.get(AT, uri))
    places = [(Storage.at(staged), str(file["name"]))]
    if staged != uri or staged.endswith(staging_uri("", flow, sink)):
        places.append((Storage.at(_root(staged, flow, sink)), _final_name(flow, sink, file)))
    return places


def publish(flow: str, sink: str, epoch: int, files: Sequence[Mapping[str, Any]], uri: str) -> None:
    """Rename an epoch's files from where they are staged (`uri`, if they do not say)."""
    places = [places_of(flow, sink, file, uri) for file in files]  # refuses before it renames
    roots: dict[Storage, Storage] = {}  # each is opened once: an object store has to be reached
    for (staging, name), (at, final) in places:
        root = roots.setdefault(at, at)
        staged = f"{staging.uri[len(root.uri) + 1 :]}/{name}"
        if root.exists(staged):
            root.rename(staged, final)
            faults.reach("file-published", epoch)
        elif not root.exists(final):
            raise StateFileError(
                f"sink {sink!r} committed {name} in epoch {epoch}, but it is neither staged nor "
                f"published under {root.uri}: somebody deleted it",
                operator=sink,
                epoch=epoch,
                file=name,
            )
    for root in roots:  # before it is marked as done
        root.flush(final for _, (at, final) in places if at == root)
    storage = Storage.at(uri)
    for name in storage.list():
        match = re.match(r"(?:.*/)?e(\d{9})-[^/]*$", name)
        if match and int(match[1]) < epoch - STAGING_GRACE_EPOCHS:
            storage.delete(name)


def _root(staged: str, flow: str, sink: str) -> str:
    """The destination of files that are staged there: a staging folder of this sink, wherever."""
    folder = staging_uri("", flow, sink)
    if not staged.endswith(folder):
        raise _forged(sink, staged)
    return staged.removesuffix(folder)


def _final_name(flow: str, sink: str, file: Mapping[str, Any]) -> str:
    """The name a file gets: never one that could be of anything else than this sink."""
    found = _FILE.fullmatch(str(file["name"]))
    if found is None:
        raise _forged(sink, file["name"])
    return f"{found[1]}{published_prefix(flow, sink)}{found[2]}"


def _forged(sink: str, name: str) -> UnsafeName:
    return UnsafeName(
        f"a manifest has files of sink {sink!r} published as or from {name!r}, which is no place "
        "of this sink: the manifest was forged. Nothing was published; restore the checkpoint from "
        "a copy that you trust",
        sink=sink,
        name=name,
    )
