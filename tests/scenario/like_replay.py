"""A chain of keyed operators as `headgate replay` thinks of one, and what replay says of its rows.

For tests that run the same rows with the same tables in a flow, on Spark or without.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from headgate.offline.replay_owners import Epoch, Owners, Trace
from headgate.routing.table import RoutingTable


def schema_of(keys: Sequence[str]) -> str:
    return ", ".join(f"{key} long" for key in keys)


def chain(source: Any, keys: Sequence[str], grouping: Any = "hash") -> hg.Flow:
    """Every operator counts and passes its rows on; an operator is called after its key."""
    flow = hg.Flow("like_replay")
    rows = flow.source(source)
    for key in keys[:-1]:
        rows = rows.key_by(key, grouping=grouping).process(hg.Count(emit="rows"), name=key)
    rows.key_by(keys[-1], grouping=grouping).process(hg.Count(), name=keys[-1]).to_memory("out")
    return flow


def replayed(
    rows: Sequence[Mapping[str, int]], tables: Mapping[str, RoutingTable], *, born_local: bool
) -> tuple[Owners, Epoch]:
    """Where replay sends the rows, if the pins of these tables are what it knows."""
    columns = {key: pa.array([row[key] for row in rows], pa.int64()) for key in tables}
    slots = next(iter(tables.values())).slots
    owners = Owners(Trace.of(columns), slots, born_local=born_local)
    for k, table in enumerate(tables.values()):
        slot, pinned = table.look_up(owners.trace.keys[k].h)
        owners.entry[k][pinned] = slot[pinned]
    return owners, owners.route(0, len(rows))


def expected(
    rows: Sequence[Mapping[str, int]], tables: Mapping[str, RoutingTable], *, born_local: bool
) -> dict[str, Any]:
    """What an epoch's journal record must say: rows that stayed, loads, and partials merged.

    Replay counts a partial per key and slot. With three operators a slot may have some of a key's
    rows one level later than others, and sends two; so partials are told for two operators only.
    """
    owners, epoch = replayed(rows, tables, born_local=born_local)
    keys = list(tables)
    local = {
        f"{a}->{b}": int(np.count_nonzero(epoch.slot[k] == epoch.slot[k + 1]))
        for k, (a, b) in enumerate(itertools.pairwise(keys))
    }
    loads = epoch.slot_rows(owners.slots).astype(int).tolist()
    merged = owners.merge_rows(epoch) if len(keys) == 2 else None
    return {"local": local, "loads": dict(zip(keys, loads, strict=True)), "merged": merged}


def told(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The same, as a flow's journal tells it."""
    edges = [f"{a}->{b}" for a, b in itertools.pairwise(keys)]
    merged = sum(record["merge_rows"].values()) if len(keys) == 2 else None
    return {
        "local": {edge: record["edges"][edge]["local_rows"] for edge in edges},
        "loads": {key: record["loads"][key] for key in keys},
        "merged": merged,
    }
