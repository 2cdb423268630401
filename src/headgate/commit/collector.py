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

SWEEP_EVERY = 64  # epochs; a sweep lists every file of the checkpoint
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
        while len(self._retained) > self._keep:
            oldest = self._retained.popleft()
            place.state.delete(*(set(oldest.state_files()) - self._needed()))
            place.sinks.delete(*oldest.sink_files())
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
        """Delete routing tables and cost models without a manifest; only who won an epoch may.

        A table is saved before the epoch that uses it is committed, and its name has no epoch: a
        driver that has just started cannot tell it from one that another driver is using.
        """
        tables = {name for m in self._retained for names in m.tables.values() for name in names}
        models = {name for m in self._retained for name in m.costs.values()}
        for name in set(self._checkpoint.tables.list()) - tables:
            self._checkpoint.tables.delete(name)
        for name in set(self._checkpoint.costs.list()) - models:
            self._checkpoint.costs.delete(name)

    def _needed(self) -> set[str]:
        return {name for manifest in self._retained for name in manifest.state_files()}


def _epoch_of(name: str) -> int:
    match = _EPOCH.search(name)
    return int(match[1]) if match else 1 << 62
