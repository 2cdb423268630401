"""A flow's checkpoint on storage: who it belongs to, its manifests, tables and marks.

headgate.json            the flow that lives here: name, operators, state schemas, buckets
spark/                   Spark's own checkpoint (offsets, commits)
manifests/e….json        one per epoch, created if absent: the commit point
marks/e…-SINK            the sink has been called for that epoch
routing/OPERATOR-….arrow routing tables and changes of them, named by content
costs/OPERATOR-….arrow   what rows cost, measured; named by content
state/OPERATOR/SLOT/     deltas, runs, snapshots
sinks/SINK/              rows of sinks, named by manifests
tables/SINK/             published rows of table sinks
journal/journal.jsonl
tuning.json              what the engine charges and what was chosen; only advice
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from headgate.control.cost_files import CostFiles
from headgate.control.manifest import FORMAT, Manifest
from headgate.control.table_files import TableFiles
from headgate.errors import ForeignCheckpoint, IncompatibleFlow, UnsupportedVersion
from headgate.routing.hashing import HASH_ID
from headgate.slot.program import Program
from headgate.state.storage import Storage

IDENTITY = "headgate.json"


class Checkpoint:
    """Reads and writes the folder above. Knows layout and compatibility, decides nothing else."""

    def __init__(self, uri: str) -> None:
        self.storage = Storage.at(uri)
        self.state = self.storage.child("state")
        self.sinks = self.storage.child("sinks")
        self.journal = self.storage.child("journal")
        self.spark_uri = self.storage.child("spark").uri
        self._manifests = self.storage.child("manifests")
        self._marks = self.storage.child("marks")
        self.tables = TableFiles(self.storage.child("routing"))
        self.costs = CostFiles(self.storage.child("costs"))

    # --- identity --------------------------------------------------------------------------
    def identity(self) -> dict[str, Any] | None:
        """What `headgate.json` says, or None in a new folder."""
        try:
            told: dict[str, Any] = json.loads(self.storage.read(IDENTITY))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as problem:
            raise ForeignCheckpoint(
                f"{IDENTITY} in {self.storage.uri} is damaged ({problem}); bring it back from a "
                "copy, or start with a new checkpoint folder",
                uri=self.storage.uri,
            ) from problem
        if told.get("format") != FORMAT or told.get("hash") != HASH_ID:
            raise UnsupportedVersion(
                f"checkpoint {self.storage.uri} has format {told.get('format')} and hash "
                f"{told.get('hash')}; this headgate reads format {FORMAT} and hash {HASH_ID}. "
                "Use the version that wrote it, or start with a new checkpoint folder",
                found=told.get("format"),
                supported=FORMAT,
            )
        return told

    def adopt(self, program: Program, buckets: int, drop_state: Collection[str] = ()) -> int:
        """Make this the checkpoint of the flow, or check that it is; returns its bucket count."""
        wanted = json.loads(json.dumps(program.describe()))  # as it will be read back
        told = self.identity()
        if told is not None:
            check_compatible(told["describe"], wanted, self.storage.uri, drop_state)
            buckets = int(told["buckets"])
        elif self.last_epoch() is not None or self.storage.exists("spark/metadata"):
            raise ForeignCheckpoint(
                f"{self.storage.uri} holds manifests or a Spark checkpoint but no {IDENTITY}; "
                "it is not a headgate checkpoint, or its identity was deleted: "
                "choose another folder, or restore that file",
                uri=self.storage.uri,
            )
        identity = {"format": FORMAT, "hash": HASH_ID, "buckets": buckets, "describe": wanted}
        if told != identity:
            self.storage.write(IDENTITY, json.dumps(identity, sort_keys=True).encode(), True)
        return buckets

    def spark_query_id(self) -> str | None:
        """The id that Spark's checkpoint gives its query; None if there is none."""
        try:
            return str(json.loads(self.storage.read("spark/metadata"))["id"])
        except FileNotFoundError:
            return None

    # --- manifests -------------------------------------------------------------------------
    def epochs(self) -> list[int]:
        names = self._manifests.list()
        return sorted(int(n[1:10]) for n in names if n.startswith("e") and n.endswith(".json"))

    def last_epoch(self) -> int | None:
        epochs = self.epochs()
        return epochs[-1] if epochs else None

    def manifest(self, epoch: int) -> Manifest | None:
        try:
            return Manifest.from_bytes(self._manifests.read(_manifest_name(epoch)))
        except FileNotFoundError:
            return None

    def commit(self, manifest: Manifest) -> bool:
        """The commit point of an epoch; False if another driver committed it first."""
        return self._manifests.create(_manifest_name(manifest.epoch), manifest.to_bytes())

    def forget(self, epoch: int) -> None:
        """Drop an old manifest and its marks."""
        self._manifests.delete(_manifest_name(epoch))
        for name in self._marks.list(f"e{epoch:09d}-"):
            self._marks.delete(name)

    def is_marked(self, epoch: int, sink: str) -> bool:
        return self._marks.exists(f"e{epoch:09d}-{sink}")

    def mark(self, epoch: int, sink: str) -> None:
        """Not flushed: a mark lost with the machine only means that the sink is called again."""
        self._marks.write(f"e{epoch:09d}-{sink}", b"done\n")


def check_compatible(
    old: Mapping[str, Any], new: Mapping[str, Any], uri: str, drop_state: Collection[str] = ()
) -> None:
    """Stored state must still fit: same flow, and for every operator same key, state, settings."""
    if old["flow"] != new["flow"]:
        raise ForeignCheckpoint(
            f"checkpoint {uri} belongs to flow {old['flow']!r}, not {new['flow']!r}",
            found=old["flow"],
            wanted=new["flow"],
        )
    changes = []
    for name, before in old["operators"].items():
        after = new["operators"].get(name)
        if after is None:
            if name not in drop_state:
                changes.append(
                    f"operator {name!r} is gone and its state with it "
                    f"(start with drop_state=[{name!r}] if that is meant)"
                )
            continue
        for what in ("key", "state", "settings", "ttl_ms"):
            if before[what] != after[what]:
                changes.append(f"{what} of {name!r} was {before[what]}, is now {after[what]}")
    if changes:
        raise IncompatibleFlow(
            f"the flow changed in a way its state in {uri} cannot follow: {'; '.join(changes)}. "
            "Undo the change, or start with a new checkpoint folder",
            changes=changes,
        )


def _manifest_name(epoch: int) -> str:
    return f"e{epoch:09d}.json"
