"""An operator's committed state, as a reader outside the flow sees it."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.errors import UnknownName
from headgate.state.layout import StateSchema
from headgate.state.store import StateStore


def read_state(
    checkpoint: Checkpoint,
    manifest: Manifest | None,
    operator: str,
    schema: StateSchema,
    *,
    buckets: int,
    ttl_ms: int | None,
) -> pa.Table:
    """All live rows over all slots: what the operator itself would have found in that epoch.

    A value column that is called like a key column is named `value.NAME`.
    """
    empty = schema.shown.empty_table()
    if manifest is None:
        return empty
    store = StateStore(checkpoint.state, warm_dir=None, buckets=buckets)
    over = expired_at(manifest, ttl_ms)
    batches = [
        store.scan(operator, slot, schema, chain, expired_at_ms=over)
        for slot, chain in manifest.chains.get(operator, {}).items()
    ]
    return pa.Table.from_batches(batches) if batches else empty


def check_known(flow: str, what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that a flow does not have, and say which it has."""
    if name not in known:
        raise UnknownName(
            f"flow {flow!r} has no {what} {name!r}; it has {', '.join(known) or 'none'}",
            name=name,
            known=list(known),
        )


def expired_at(manifest: Manifest, ttl_ms: int | None) -> int | None:
    """Rows last touched then or before are over by the clock of the manifest's epoch.

    Their files may still hold them: they are swept every few epochs.
    """
    facts = manifest.record
    return None if ttl_ms is None or facts is None else facts.now_ms - ttl_ms
