"""From a placement to routing tables, and back.

Every placed key gets an entry of its own, also where its bucket would send it anyway: an entry says
that the key has an owner. Keys that are not in the plan keep their entry if they have one, and
fall back to the hash if not. A table is sent to every task, so its entries are capped: the
hottest keys come first, then those that only an older plan placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headgate.arrays import I32
from headgate.planner.key_graph import FREE, KeyGraph
from headgate.planner.partition import Partition
from headgate.routing.table import RoutingTable, hash_table

CAP = 262_144
"""Entries per table; 12 bytes each."""


def to_tables(
    graph: KeyGraph,
    plan: Partition | I32,
    slots: int,
    current: Mapping[str, RoutingTable] | None = None,
    *,
    cap: int = CAP,
    keep: bool = True,
) -> dict[str, RoutingTable]:
    """A table for every operator of the graph that is placed (not for a source's partitions).

    Buckets stay as they are in `current` (without it: plain hash). `keep=False` drops entries of
    keys that the graph does not know, as a plan made from scratch does. O(keys log keys).
    """
    slot = plan.slot if isinstance(plan, Partition) else plan
    tables = {}
    for i, name in enumerate(graph.operators):
        a, b = graph.starts[i], graph.starts[i + 1]
        if (graph.fixed[a:b] != FREE).any():
            continue
        table = (current or {}).get(name) or hash_table(slots)
        table = table.resized(slots)
        hottest = a + np.argsort(-graph.load[a:b], kind="stable")[:cap]
        entries = replace(table, pinned_h=table.pinned_h[:0], pinned_slots=table.pinned_slots[:0])
        if keep and len(hottest) < cap:
            entries = _older(table, graph, i, cap - len(hottest))
        placed = entries.pin_hashes(graph.h[hottest], slot[hottest])
        tables[name] = replace(placed, version=table.version + 1)
    return tables


def placement(graph: KeyGraph, tables: Mapping[str, RoutingTable] | Sequence[RoutingTable]) -> I32:
    """The slot of every vertex under these tables (by operator name, or in operator order)."""
    slot = np.where(graph.fixed != FREE, graph.fixed, 0).astype(np.int32)
    for i, name in enumerate(graph.operators):
        a, b = graph.starts[i], graph.starts[i + 1]
        if (graph.fixed[a:b] != FREE).any():
            continue
        slot[a:b] = (tables[name] if isinstance(tables, Mapping) else tables[i]).route(graph.h[a:b])
    return slot


def _older(table: RoutingTable, graph: KeyGraph, operator: int, room: int) -> RoutingTable:
    """The entries of keys that the plan does not place, those that differ from the hash first."""
    unknown = np.flatnonzero(graph.find(operator, table.pinned_h) < 0)
    bare = replace(table, pinned_h=table.pinned_h[:0], pinned_slots=table.pinned_slots[:0])
    same = bare.route(table.pinned_h[unknown]) == table.pinned_slots[unknown]
    kept = np.sort(unknown[np.argsort(same, kind="stable")[:room]])
    return replace(table, pinned_h=table.pinned_h[kept], pinned_slots=table.pinned_slots[kept])
