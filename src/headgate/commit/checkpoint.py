"""A flow's checkpoint on storage: who it belongs to, its manifests, tables and marks.

headgate.json            the flow that lives here: name, buckets, the secret of its keys, sources,
                         and its operators as they were before the first epoch (later ones: see
                         the last manifest); names that starts were told to drop
spark/                   Spark's own checkpoint (offsets, commits)
generations/g….json      who holds the checkpoint: the driver of the highest number
manifests/e…-g….json     one per epoch (and generation; the higher counts): the commit point
marks/e…-SINK            the sink has been called for that epoch
routing/OPERATOR-….arrow routing tables and changes of them, named by content
costs/OPERATOR-….arrow   what rows cost, measured; named by content
lookups/OPERATOR-….arrow side tables of lookups, as they were read; named by content
state/OPERATOR/SLOT/     deltas, runs, snapshots
parked/e…-….arrow        columns that wait for their readers; gone when their epoch ends
sinks/SINK/              rows of sinks, named by manifests
tables/SINK/             published rows of table sinks
journal/….jsonl          what happened, in segments
tuning.json              what the engine charges and what was chosen; only advice
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.commit.changed_state import NOTHING, Changes
from headgate.commit.costs_in_use import CostFiles
from headgate.commit.evolution import Carried, evolve, offers_of
from headgate.commit.manifest import FORMAT, Manifest
from headgate.commit.ownership import (
    IDENTITY,
    Generation,
    Signer,
    create_identity,
    missing_key,
    read_identity,
    untrusted,
    update_identity,
)
from headgate.commit.routing_in_use import TableFiles
from headgate.errors import (
    DamagedManifest,
    ForeignCheckpoint,
    UnsupportedVersion,
    UntrustedCheckpoint,
)
from headgate.routing.identity import Identity
from headgate.slot.program import Program
from headgate.state.digest import NotSigned, Sign
from headgate.state.storage import Storage

# A first start writes its identity before anything in these; later ones delete what none names.
_COLLECTED = ("manifests", "routing", "costs", "lookups", "state", "parked", "sinks", "marks")
SWEEP_EVERY = 64  # epochs; a sweep lists every file of the checkpoint
UNFINISHED_S = 3_600  # no file takes an hour to write
_EPOCH = re.compile(r"(?:^|/)e(\d{9})-")
_MANIFEST = re.compile(r"e(\d{9})-g(\d{9})\.json")


class Checkpoint:
    """Reads and writes the folder above. Knows layout and compatibility, decides nothing else."""

    def __init__(self, uri: str, signer: Signer | None = None) -> None:
        self.storage = Storage.at(uri)
        self._signer = signer
        self._id: str | None = None
        self.state = self.storage.child("state")
        self.sinks = self.storage.child("sinks")
        self.journal = self.storage.child("journal")
        self.parked = self.storage.child("parked")
        self.spark_uri = self.storage.child("spark").uri
        self._manifests = self.storage.child("manifests")
        self._marks = self.storage.child("marks")
        self.tables = TableFiles(self.storage.child("routing"))
        self.costs = CostFiles(self.storage.child("costs"))
        self.lookups = self.storage.child("lookups")

    # --- identity --------------------------------------------------------------------------
    def identity(self) -> dict[str, Any] | None:
        """What `headgate.json` says, or None in a new folder."""
        return read_identity(self.storage, self._signer)

    @property
    def signed(self) -> bool:
        """Has it a key, so that all that is written must be told apart from forgeries?"""
        return self._signer is not None

    def _sign(self, name: str) -> Sign | None:
        """How a file of this checkpoint is signed."""
        if self._signer is None:
            return None
        if self._id is None:
            self._id = str((self.identity() or {}).get("id", ""))
        return self._signer.of(self._id, name)

    def adopt(
        self,
        program: Program,
        buckets: int,
        changes: Changes = NOTHING,
        identity: Identity | None = None,
    ) -> int:
        """Make this the checkpoint of the flow, or check that it is; returns its bucket count.

        Stored state belongs to the flow that the last manifest describes: what a start declares
        becomes true with the first epoch that it commits. A new one tells keys apart by `identity`
        (None: with a secret of its own).
        """
        self.storage.check_trusted()
        declared = json.loads(json.dumps(program.describe()))  # as it will be read back
        stored = self.identity()
        if stored is None:
            self._check_is_new()
            evolve(None, declared, self.storage.uri, changes)
            dropped = sorted(changes.drop_state)
            facts: dict[str, Any] = {"dropped": dropped} if dropped else {}
            facts |= {"format": FORMAT, "buckets": buckets, "describe": declared}
            facts |= (identity or Identity.new()).to_json()
            if not create_identity(self.storage, self._signer, **facts):
                return self.adopt(program, buckets, changes)  # another start was first
            return buckets
        if stored.get("signed") and self._signer is None:
            raise missing_key(self.storage.uri)
        last = self.last_manifest()
        if last is not None and last.keys not in (None, Identity.from_json(stored).fingerprint):
            raise ForeignCheckpoint(
                f"{IDENTITY} in {self.storage.uri} has not the secret by which the keys of its "
                "state are told apart: it is another checkpoint's. Bring its own back from a "
                "copy, or start with a new checkpoint folder",
                uri=self.storage.uri,
            )
        self.carried(program, last, changes)
        if last is not None:
            declared = stored["describe"]
        dropped = sorted({*stored.get("dropped", ()), *changes.drop_state})
        facts = {"dropped": dropped} if dropped else {}
        update_identity(self.storage, self._signer, describe=declared, **facts)
        return int(stored["buckets"])

    def carried(
        self, program: Program, last: Manifest | None, changes: Changes = NOTHING
    ) -> Carried:
        """How the state of the last manifest is carried on by this flow; raises if it cannot."""
        stored = self.identity() or {}
        chains = {} if last is None else last.chains
        return evolve(
            stored.get("describe") if last is None else last.describe,
            json.loads(json.dumps(program.describe())),
            self.storage.uri,
            changes,
            dropped=stored.get("dropped", ()),
            offers=offers_of(program),
            empty=[table for table, by_slot in chains.items() if not any(by_slot.values())],
        )

    def _check_is_new(self) -> None:
        uri = self.storage.uri
        if self.storage.exists("spark/metadata") or any(
            self.storage.list(f"{folder}/") for folder in _COLLECTED
        ):
            raise ForeignCheckpoint(
                f"{uri} has files where a checkpoint has its own, but no {IDENTITY}: it is not a "
                "headgate checkpoint, or its identity was deleted. Choose another folder, or "
                "restore that file",
                uri=uri,
            )
        if self.storage.exists("metadata") and (
            self.storage.list("offsets/") or self.storage.list("commits/")
        ):
            raise ForeignCheckpoint(
                f"{uri} is the checkpoint of a plain Spark query. Its state cannot be taken over, "
                "and its source would be read from the start: choose a new folder",
                uri=uri,
            )

    def keys(self) -> Identity:
        """How this checkpoint tells keys apart; it is adopted, and this never changes."""
        return Identity.from_json(self.identity() or {})

    def spark_sources(self) -> list[str] | None:
        """The sources as Spark numbers them; None if it has not planned any epoch with them."""
        planned = self.storage.list("spark/offsets/")
        return (self.identity() or {}).get("spark_sources") if planned else None

    def spark_names(self) -> dict[str, str]:
        """What the sources, those too that are gone, are called in Spark's checkpoint."""
        return dict((self.identity() or {}).get("spark_names", {}))

    def names_sources(self) -> bool:
        """Do offsets in Spark's checkpoint belong to sources by name? Then they may come and go."""
        planned = [name for name in self.storage.list("spark/offsets/") if name[-1].isdigit()]
        if not planned:
            return False
        newest = max(planned, key=lambda name: int(name.rpartition("/")[2]))
        return self.storage.read(newest).startswith(b"v2\n")

    def keep_spark_sources(self, names: Sequence[str], spark_names: Mapping[str, str]) -> None:
        """Note the sources in their order, before Spark plans an epoch with them."""
        told = {"spark_sources": list(names), "spark_names": dict(spark_names)}
        update_identity(self.storage, self._signer, **told)

    # --- manifests -------------------------------------------------------------------------
    def claim(self, now_ms: int) -> Generation:
        """Take the checkpoint over; who held it before stops when it notices."""
        return Generation.claim(self.storage.child("generations"), now_ms)

    def epochs(self) -> list[int]:
        return sorted(self._manifest_names())

    def _manifest_names(self) -> dict[int, str]:
        """The manifest of each epoch: of several drivers' that of the highest generation."""
        found = {name: _MANIFEST.fullmatch(name) for name in self._manifests.list()}
        by_generation = sorted((int(m[2]), int(m[1]), n) for n, m in found.items() if m)
        return {epoch: name for _, epoch, name in by_generation}

    def last_epoch(self) -> int | None:
        epochs = self.epochs()
        return epochs[-1] if epochs else None

    def manifest(self, epoch: int) -> Manifest | None:
        name = self._manifest_names().get(epoch)
        try:
            return None if name is None else self._read_manifest(name)
        except FileNotFoundError:
            return None

    def _read_manifest(self, name: str) -> Manifest:
        data, file = self._manifests.read(name), f"{self._manifests.uri}/{name}"
        try:
            return Manifest.from_bytes(data, file, self._sign(name))
        except NotSigned as problem:
            if self._signer is None or not self._signer.trust_unsigned:
                raise untrusted(self.storage.uri, f"manifests/{name}", problem) from problem
            return Manifest.from_bytes(data, file)

    def last_manifest(self) -> Manifest | None:
        """What is true now. If it is damaged, the error says which older one is whole."""
        last = self.last_epoch()
        try:
            return None if last is None else self.manifest(last)
        except DamagedManifest as problem:
            whole = [epoch for epoch in self.epochs()[:-1] if self._is_whole(epoch)]
            older = f"the last whole one is of epoch {whole[-1]}" if whole else "no older is whole"
            raise DamagedManifest(
                f"{problem.message}, or start with a new checkpoint folder. Of the manifests "
                f"beside it {older}; going back to one is not safe: Spark has read on since then, "
                "so the rows of the epochs between would be missing from the state",
                **problem.fields,
                epoch=last,
                whole=whole,
            ) from problem

    def _is_whole(self, epoch: int) -> bool:
        try:
            return self.manifest(epoch) is not None
        except (DamagedManifest, UnsupportedVersion, UntrustedCheckpoint):
            return False

    def flush(
        self, manifest: Manifest, sink_uris: Mapping[str, str], more: Iterable[str] = ()
    ) -> None:
        """Make durable what a manifest is about to name, and these files of the checkpoint."""
        new = (
            file.name
            for by_slot in manifest.chains.values()
            for chain in by_slot.values()
            for file in chain
            if file.epoch == manifest.epoch
        )
        paths = self.state.paths_to_flush(new)
        for sink, files in manifest.sinks.items():
            if sink in sink_uris:
                staged = Storage.at(sink_uris[sink])
                paths |= staged.paths_to_flush(file["name"] for file in files)
        self.storage.flush_paths(paths | self.storage.paths_to_flush(more))

    def commit(self, manifest: Manifest) -> None:
        """The commit point of an epoch, if the driver still holds its generation afterwards."""
        name = f"e{manifest.epoch:09d}-g{manifest.generation:09d}.json"
        data = manifest.to_bytes(self._sign(name))
        made = self._manifests.create(name, data)
        # an object store may have kept what it did not confirm, and then finds it there
        assert made or self._manifests.read(name) == data, f"{name} is there, and is another"

    def forget(self, epoch: int) -> None:
        """Drop the manifests of an old epoch and its marks."""
        for name in self._manifests.list(f"e{epoch:09d}"):
            self._manifests.delete(name)
        for name in self._marks.list(f"e{epoch:09d}-"):
            self._marks.delete(name)

    def leave_parked(self, epoch: int) -> None:
        """Delete the columns that waited in this epoch, or one before; nobody reads them again."""
        if self.parked.is_local:
            self.parked.delete(*(name for name in self.parked.list() if _epoch_of(name) <= epoch))

    def is_marked(self, epoch: int, sink: str) -> bool:
        name = f"e{epoch:09d}-{sink}"
        if not self._marks.exists(name):
            return False
        return self._signer is None or self._marks.read(name) == self._mark(name)

    def mark(self, epoch: int, sink: str) -> None:
        """Not flushed: a mark lost with the machine only means that the sink is called again."""
        name = f"e{epoch:09d}-{sink}"
        self._marks.write(name, self._mark(name))

    def _mark(self, name: str) -> bytes:
        sign = self._sign(f"marks/{name}")
        return b"done\n" if sign is None else f"{sign(b'done')}\n".encode()


class Collector:
    """Deletes what no retained manifest names, a few epochs late; `keep` manifests stay.

    The grace covers tasks of old attempts that still read, and keeps older snapshots at hand. Files
    of attempts that were never accepted carry their epoch in the name and go the same way.
    """

    def __init__(self, checkpoint: Checkpoint, keep: int = 8) -> None:
        self._checkpoint = checkpoint
        self._keep = max(2, keep)
        self._retained: deque[Manifest] = deque()
        for epoch in checkpoint.epochs():
            try:
                manifest = checkpoint.manifest(epoch)
            except (DamagedManifest, UntrustedCheckpoint):
                checkpoint.forget(epoch)  # not the last: who starts has read that one
                continue
            if manifest is not None:
                self._retained.append(manifest)

    def after_commit(self, manifest: Manifest) -> None:
        """Note a new manifest; delete what only manifests that go now have named."""
        place = self._checkpoint
        is_new = not self._retained or self._retained[-1].epoch < manifest.epoch
        if is_new:
            self._retained.append(manifest)
        place.leave_parked(manifest.epoch)
        while len(self._retained) > self._keep:
            oldest = self._retained.popleft()
            place.state.delete(*(set(oldest.state_files()) - self._needed()))
            place.sinks.delete(*oldest.sink_files())
            place.lookups.delete(*(_sides(oldest) - self._sides_needed()))
            place.forget(oldest.epoch)
        if is_new and manifest.epoch % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.sweep()
            self._sweep_tables()

    def sweep(self) -> None:
        """List everything and delete the orphans that are older than the oldest manifest."""
        place = self._checkpoint
        # what killed writers left of a file; Spark's own are Spark's to delete
        unfinished = place.storage.unfinished(UNFINISHED_S)
        place.storage.delete(*(name for name in unfinished if not name.startswith("spark/")))
        if not self._retained:
            return
        horizon = self._retained[0].epoch
        for epoch in place.epochs():
            if epoch < horizon:  # of a driver that was overtaken and committed it once more
                place.forget(epoch)
        named = {name for manifest in self._retained for name in manifest.sink_files()}
        for storage, needed in ((place.state, self._needed()), (place.sinks, named)):
            orphans = (name for name in storage.list() if name not in needed)
            storage.delete(*(name for name in orphans if _epoch_of(name) < horizon))

    def _sweep_tables(self) -> None:
        """Delete routing tables, cost models and side tables without a manifest.

        Only who won an epoch may.

        A table is saved before the epoch that uses it is committed, and its name has no epoch: a
        driver that has just started cannot tell it from one that another driver is using.
        """
        place = self._checkpoint
        tables = {name for m in self._retained for names in m.tables.values() for name in names}
        models = {name for m in self._retained for name in m.costs.values()}
        for files, needed in (
            (place.tables.storage, tables),
            (place.costs.storage, models),
            (place.lookups, self._sides_needed()),
        ):
            files.delete(*(name for name in files.list() if name not in needed))

    def _needed(self) -> set[str]:
        return {name for manifest in self._retained for name in manifest.state_files()}

    def _sides_needed(self) -> set[str]:
        return {name for manifest in self._retained for name in _sides(manifest)}


def _sides(manifest: Manifest) -> set[str]:
    """Files of the side tables that its epoch used."""
    return {version.file for version in manifest.side_tables.values()}


def _epoch_of(name: str) -> int:
    match = _EPOCH.search(name)
    return int(match[1]) if match else 1 << 62
