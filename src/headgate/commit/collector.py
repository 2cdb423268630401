"""Delete what no retained manifest names, a few epochs late.

The grace covers tasks of old attempts that still read, and keeps older snapshots at hand. Files
of attempts that were never accepted carry their epoch in the name and go the same way.
"""

from __future__ import annotations

import re
from collections import deque

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.errors import DamagedManifest, UntrustedCheckpoint

SWEEP_EVERY = 64
UNFINISHED_S = 3_600  # no file takes an hour to write
_EPOCH = re.compile(r"(?:^|/)e(\d{9})-")


class Collector:
    """Garbage collection of one checkpoint; `keep` manifests stay."""

    def __init__(self, checkpoint: Checkpoint, keep: int = 8) -> None:
        self._checkpoint = checkpoint
        self._keep = max(2, keep)
        self._retained: deque[Manifest] = deque()
        for epoch in checkpoint.epochs():
            try:
                manifest = checkpoint.manifest(epoch)
            except (
                DamagedManifest,
                UntrustedCheckpoint,
            ):  # not the last: who starts has read that one
                checkpoint.forget(epoch)
                continue
            if manifest is not None:
                self._retained.append(manifest)

    def after_commit(self, manifest: Manifest) -> int:
        """Note a new manifest; returns how many files were deleted."""
        is_new = not self._retained or self._retained[-1].epoch < manifest.epoch
        if is_new:
            self._retained.append(manifest)
        deleted = 0
        while len(self._retained) > self._keep:
            oldest = self._retained.popleft()
            needed = self._needed()
            for name in set(oldest.state_files()) - needed:
                self._checkpoint.state.delete(name)
                deleted += 1
            for sink, files in oldest.sinks.items():
                for file in files:
                    self._checkpoint.sinks.child(sink).delete(file["name"])
                    deleted += 1
            self._checkpoint.forget(oldest.epoch)
        if is_new and manifest.epoch % SWEEP_EVERY == SWEEP_EVERY - 1:
            deleted += self.sweep() + self._sweep_tables()
        return deleted

    def sweep(self) -> int:
        """List everything and delete the orphans that are older than the oldest manifest."""
        self._sweep_unfinished()
        if not self._retained:
            return 0
        horizon = self._retained[0].epoch
        for epoch in self._checkpoint.epochs():
            if epoch < horizon:  # of a driver that was overtaken and committed it once more
                self._checkpoint.forget(epoch)
        deleted = 0
        needed = self._needed()
        for name in self._checkpoint.state.list():
            if name not in needed and _epoch_of(name) < horizon:
                self._checkpoint.state.delete(name)
                deleted += 1
        named = {
            f"{sink}/{file['name']}"
            for manifest in self._retained
            for sink, files in manifest.sinks.items()
            for file in files
        }
        for name in self._checkpoint.sinks.list():
            if name not in named and _epoch_of(name) < horizon:
                self._checkpoint.sinks.delete(name)
                deleted += 1
        return deleted

    def _sweep_unfinished(self) -> None:
        """Delete what killed writers left of a file; Spark's own are Spark's to delete."""
        storage = self._checkpoint.storage
        names = [n for n in storage.unfinished(UNFINISHED_S) if not n.startswith("spark/")]
        storage.delete(*names)

    def _sweep_tables(self) -> int:
        """Delete routing tables and cost models without a manifest; only who won an epoch may.

        A table is saved before the epoch that uses it is committed, and its name has no epoch: a
        driver that has just started cannot tell it from one that another driver is using.
        """
        deleted = 0
        named = {name for m in self._retained for names in m.tables.values() for name in names}
        for name in self._checkpoint.tables.list():
            if name not in named:
                self._checkpoint.tables.delete(name)
                deleted += 1
        models = {name for m in self._retained for name in m.costs.values()}
        for name in self._checkpoint.costs.list():
            if name not in models:
                self._checkpoint.costs.delete(name)
                deleted += 1
        return deleted

    def _needed(self) -> set[str]:
        return {name for manifest in self._retained for name in manifest.state_files()}


def _epoch_of(name: str) -> int:
    match = _EPOCH.search(name)
    return int(match[1]) if match else 1 << 62
