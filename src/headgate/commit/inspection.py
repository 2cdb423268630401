"""Look into a checkpoint without an engine: what lives there, how much, whose rows.

Reads `headgate.json`, the last manifest, routing tables, state files and the journal; writes
nothing, so it is safe beside a running flow. Checkpoints store Arrow types as the text that
`str(type)` gives: `parse_type(str(t)) == t` for every type that a state row may hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.described import state_schema
from headgate.commit.facts_json import to_json
from headgate.commit.journal import Journal
from headgate.commit.manifest import BEFORE, Manifest
from headgate.commit.ownership import signer_of
from headgate.errors import CheckpointError, UnknownName
from headgate.routing.hashing import bucket_of, hash_columns
from headgate.routing.table import RoutingTable, hash_table
from headgate.state.layout import StateSchema, shown_names
from headgate.state.store import StateStore
from headgate.topology.arguments import absolute, scheme_of

NULL = r"\N"


def read_state(
    checkpoint: Checkpoint,
    manifest: Manifest | None,
    operator: str,
    schema: StateSchema,
    *,
    buckets: int,
    ttl_ms: int | None,
    limit: int | None = None,
) -> pa.Table:
    """Live rows over all slots: what the operator itself would have found in that epoch.

    A value column that is called like a key column is named `value.NAME`. Reads whole slots until
    it has `limit` rows.
    """
    store = StateStore(checkpoint.state, warm_dir=None, buckets=buckets)
    over = expired_at(manifest, ttl_ms)
    found: list[pa.RecordBatch] = []
    for slot, chain in (manifest or BEFORE).chains.get(operator, {}).items():
        if limit is None or sum(batch.num_rows for batch in found) < limit:
            found.append(store.scan(operator, slot, schema, chain, expired_at_ms=over))
    table = pa.Table.from_batches(found) if found else schema.shown.empty_table()
    return table.slice(0, limit)


def check_known(flow: str, what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that a flow does not have, and say which it has."""
    if name not in known:
        raise UnknownName(
            f"flow {flow!r} has no {what} {name!r}; it has {', '.join(known) or 'none'}",
            name=name,
            known=list(known),
        )


def expired_at(manifest: Manifest | None, ttl_ms: int | None) -> int | None:
    """Rows last touched then or before are over by the clock of the manifest's epoch.

    Their files may still hold them: they are swept every few epochs.
    """
    facts = (manifest or BEFORE).record
    return None if ttl_ms is None or facts is None else facts.now_ms - ttl_ms


@dataclass(frozen=True)
class SlotState:
    """One operator's state in one slot; rows and bytes are those of the last epoch it worked in."""

    slot: int
    rows: int | None
    bytes: int | None
    files: Mapping[str, int]
    file_bytes: int
    last_epoch: int | None


@dataclass(frozen=True)
class OperatorState:
    name: str
    kind: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    routing_version: int
    pinned_keys: int
    instances: tuple[int, ...]
    slots: tuple[SlotState, ...]

    @property
    def rows(self) -> int:
        return sum(slot.rows or 0 for slot in self.slots)

    @property
    def bytes(self) -> int:
        return sum(slot.bytes or 0 for slot in self.slots)

    @property
    def chain_length(self) -> int:
        """Files of the longest chain: what a cold slot has to read."""
        return max((sum(slot.files.values()) for slot in self.slots), default=0)


@dataclass(frozen=True)
class FoundKey:
    """Where a key lives, and its state rows (none if the key is not known, or its TTL is over)."""

    operator: str
    key: tuple[Any, ...]
    slot: int
    bucket: int
    pinned: bool
    route: int
    rows: pa.RecordBatch


class Inspection:
    """A checkpoint as its last manifest tells it."""

    def __init__(self, uri: str) -> None:
        uri = absolute(uri)
        if scheme_of(uri) is None and not Path(uri).is_dir():
            raise CheckpointError(f"there is no folder {uri}", uri=uri)
        self.checkpoint = Checkpoint(uri, signer_of())
        identity = self.checkpoint.identity()
        if identity is None:
            raise CheckpointError(
                f"{uri} is not a headgate checkpoint: it has no headgate.json. Give the folder "
                "that was passed as checkpoint=",
                uri=uri,
            )
        self.buckets = int(identity["buckets"])
        self.manifest = last = self.checkpoint.last_manifest()
        self.describe = dict[str, Any](identity["describe"] if last is None else last.describe)

    @cached_property
    def journal(self) -> list[dict[str, Any]]:
        """All records; `tail` is cheaper."""
        return Journal(self.checkpoint.journal).read()

    def tail(self, count: int) -> list[dict[str, Any]]:
        """The newest records of the journal, oldest first."""
        return Journal(self.checkpoint.journal).tail(count)

    @property
    def flow(self) -> str:
        return str(self.describe["flow"])

    def operators(self) -> list[OperatorState]:
        return [self.operator(name) for name in self.describe["operators"]]

    def operator(self, name: str) -> OperatorState:
        described, table = self._described(name), self._table(name)
        schema = described["state"]
        key, values = [*schema["key"], *schema["sub"]], schema["values"]
        names = shown_names([name for name, _ in key], [name for name, _ in values])
        kinds = [kind for _, kind in (*key, *values)]
        last = self.manifest or BEFORE
        sizes = {} if last.record is None else last.record.state.get(name, {})  # of idle slots too
        return OperatorState(
            name=name,
            kind=str(described["settings"].get("operator", "?")),
            key=tuple(described["key"]),
            columns=tuple(zip(names, kinds, strict=True)),
            routing_version=table.version,
            pinned_keys=len(table.pinned_h),
            instances=last.instances.get(name, tuple(range(last.slots))),
            slots=tuple(
                SlotState(
                    slot=slot,
                    rows=sizes[slot].rows if slot in sizes else None,
                    bytes=sizes[slot].bytes if slot in sizes else None,
                    files=dict(sorted(Counter(file.kind for file in chain).items())),
                    file_bytes=sum(file.bytes for file in chain),
                    last_epoch=max((file.epoch for file in chain), default=None),
                )
                for slot, chain in last.chains.get(name, {}).items()
            ),
        )

    def schema(self, operator: str) -> StateSchema:
        return state_schema(self._described(operator)["state"])

    def rows(self, operator: str, limit: int) -> pa.Table:
        """The first live state rows, slot by slot."""
        schema, ttl = self.schema(operator), self._described(operator).get("ttl_ms")
        place, buckets = self.checkpoint, self.buckets
        return read_state(
            place, self.manifest, operator, schema, buckets=buckets, ttl_ms=ttl, limit=limit
        )

    def find(self, operator: str, values: Sequence[str]) -> FoundKey:
        r"""The state rows of one key, given as text, a value per key column.

        `\N` is null, binary is hex (as it is shown).
        """
        schema = self.schema(operator)
        columns = parse_key(schema.key, values, operator)
        h = hash_columns(columns, 1, schema.near)
        table, route = self._table(operator), int(h[0])
        slot = int(table.route(h)[0])
        chain = (self.manifest or BEFORE).chains.get(operator, {}).get(slot, ())
        over = expired_at(self.manifest, self._described(operator).get("ttl_ms"))
        store = StateStore(self.checkpoint.state, warm_dir=None, buckets=self.buckets)
        rows = store.scan(operator, slot, schema, chain, route=route, expired_at_ms=over)
        identity = self.checkpoint.keys()  # another key may have the same hash
        wanted = identity.check(identity.marks(columns, 1), 1)
        marks = identity.marks(rows.columns[: len(columns)], rows.num_rows)
        held = identity.check(marks, rows.num_rows)
        return FoundKey(
            operator=operator,
            key=tuple(column[0].as_py() for column in columns),
            slot=slot,
            bucket=int(bucket_of(h, self.buckets)[0]),
            pinned=bool((table.pinned_h == h[0]).any()),
            route=route,
            rows=rows.filter(pa.array(held == wanted)),
        )

    def to_json(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "flow": self.flow,
            "checkpoint": self.checkpoint.storage.uri,
            "epoch": None if manifest is None else manifest.epoch,
            "slots": None if manifest is None else manifest.slots,
            "buckets": self.buckets,
            "query_id": None if manifest is None else manifest.query_id,
            "watermark_us": None if manifest is None else manifest.watermark_us,
            "manifests": self.checkpoint.epochs(),
            "operators": [
                asdict(state)
                | {"rows": state.rows, "bytes": state.bytes, "chain_length": state.chain_length}
                for state in self.operators()
            ],
            "side_tables": {} if manifest is None else to_json(manifest)["side_tables"],
            "sources": self.describe["sources"],
            "sinks": self.describe["sinks"],
        }

    # --- inside ----------------------------------------------------------------------------
    def _described(self, operator: str) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = self.describe["operators"]
        check_known(self.flow, "stateful operator", operator, known)
        return known[operator]

    def _table(self, operator: str) -> RoutingTable:
        manifest = self.manifest
        if manifest is None or operator not in manifest.tables:
            return hash_table(1 if manifest is None else manifest.slots, self.buckets)
        return self.checkpoint.tables.load(manifest.tables[operator])


def parse_key(key: pa.Schema, values: Sequence[str], operator: str) -> list[pa.Array]:
    """A one-row array per key column from text, cast to the column's type."""
    if len(values) != len(key):
        raise CheckpointError(
            f"the key of {operator!r} is ({', '.join(key.names)}): give {len(key)} "
            f"{'value' if len(key) == 1 else 'values'}, not {len(values)}",
            operator=operator,
        )
    return [_parse_value(field, text) for field, text in zip(key, values, strict=True)]


def _parse_value(field: pa.Field, text: str) -> pa.Array:
    if text == NULL:
        return pa.nulls(1, field.type)
    try:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            plain = pa.array([text]).cast(pa.timestamp(field.type.unit))
            return plain.cast(field.type)  # a bare time is UTC, as timestamps are stored
        if _is_binary(field.type):
            return pa.array([bytes.fromhex(text)], field.type)
        return pa.array([text]).cast(field.type)
    except (pa.ArrowException, ValueError) as problem:
        raise CheckpointError(
            f"{text!r} is not a {field.type}{' in hex' if _is_binary(field.type) else ''}, the "
            f"type of key column {field.name!r}: {problem}",
            column=field.name,
        ) from problem


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )
