"""Give a committed epoch's rows to every sink, until each is marked as done with it.

Sinks are called at least once, always with the same rows, and only by the driver that holds the
checkpoint's newest generation. Every byte is checked before anybody gets it: a file is where it was
staged, or, if a driver died while it published, where it was published to. Its digest is in its
name, and the manifest vouches for the name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headgate.commit import faults
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.facts import DamageFacts
from headgate.commit.journal import Journal
from headgate.commit.manifest import Manifest
from headgate.commit.ownership import Generation
from headgate.commit.publishing import places_of
from headgate.errors import HeadgateError, SinkFailed, StateFileError
from headgate.slot.program import Program
from headgate.state.digest import DamagedFile, check_named
from headgate.state.storage import Storage
from headgate.topology.graph import Node
from headgate.topology.text import reason_of

Files = Sequence[Mapping[str, Any]]


def damaged_files(flow: str, sink: str, files: Files, uri: str) -> dict[str, str]:
    """What is wrong with the files that are not as they were committed, by name."""
    found = {}
    for file in files:
        reason = "it is missing"
        for storage, name in places_of(flow, sink, file, uri):
            if storage.exists(name):
                try:
                    check_named(storage, name)
                    reason = ""
                except DamagedFile as problem:
                    reason = str(problem)
                break
        if reason:
            found[str(file["name"])] = reason
    return found


def refuse(sink: str, epoch: int, damaged: Mapping[str, str], uri: str) -> StateFileError:
    """Nothing of the epoch may reach the sink."""
    name, reason = next(iter(damaged.items()))
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return StateFileError(
        f"file {name}{more} with rows of epoch {epoch} for sink {sink!r}, committed and not yet "
        f"delivered, cannot be used: {reason}. None of the epoch's rows were given to the sink. "
        f"Bring the file back from a copy of {uri}, or start with drop_state=[{sink!r}] if the "
        "rows of damaged files may be lost",
        operator=sink,
        sink=sink,
        epoch=epoch,
        file=name,
        files=sorted(damaged),
    )


class Deliver(Protocol):
    """Calls a sink with the files of an epoch; at least once, always with the same rows."""

    def __call__(self, sink: Node, epoch: int, files: list[dict[str, Any]]) -> None: ...


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

    def call_all(self, manifest: Manifest) -> Manifest:
        """Call whoever is not marked yet; returns the manifest without rows that were given up."""
        for sink in self.program.sinks:
            if self.checkpoint.is_marked(manifest.epoch, sink.name):
                continue
            self.generation.hold(f"calling sink {sink.name!r} for epoch {manifest.epoch}")
            damaged = self._damaged(sink.name, manifest)
            files = manifest.sinks.get(sink.name, [])
            self._call(sink, manifest.epoch, [f for f in files if f["name"] not in damaged])
            manifest = _without(manifest, sink.name, damaged)
            faults.reach("sink-called", manifest.epoch)
            self.generation.hold(f"marking sink {sink.name!r} as done for epoch {manifest.epoch}")
            self.checkpoint.mark(manifest.epoch, sink.name)
            faults.reach("sink-marked", manifest.epoch)
        faults.reach("sinks-done", manifest.epoch)
        return manifest

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
        uri = self.uris.get(sink)
        if uri is None or (manifest.epoch > self.found and not Storage.at(uri).is_local):
            return ()
        files = manifest.sinks.get(sink, [])
        damaged = damaged_files(self.program.graph.name, sink, files, uri)
        if damaged and sink not in self.may_lose:
            raise refuse(sink, manifest.epoch, damaged, uri)
        for name, reason in damaged.items():
            self.journal.append(
                DamageFacts(name, reason, "left out", epoch=manifest.epoch, sink=sink)
            )
        return damaged


def _without(manifest: Manifest, sink: str, damaged: Collection[str]) -> Manifest:
    """Rows of damaged files are given up, and not missed later."""
    if not damaged or sink not in manifest.published:
        return manifest
    lost = sum(file["rows"] for file in manifest.sinks[sink] if file["name"] in damaged)
    left = {**manifest.published, sink: manifest.published[sink] - lost}
    return replace(manifest, published=left)
