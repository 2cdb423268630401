"""The source in an analysis: its partitions are vertices of the key graph, in slots that are given.

A key whose rows come mostly from one partition is drawn to that partition's slot, so fewer rows
change place on their first hop. Partitions weigh nothing: the bound of every operator is as
without them. Of two plans the better is kept, and one of them is the plan that ignores the source
with its slots renamed: so the source never costs more rows than it brings, each at its worth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I32, I64, U64
from headgate.errors import HeadgateError, SchemaMismatch, UnknownColumn, UnknownSlot
from headgate.planner.key_graph import FREE, KeyGraph
from headgate.planner.partition import Partition, Quality, best_matching, improve, partition
from headgate.routing.hashing import hash_columns
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.statistics import key_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_PARTITIONS = 10_000  # beyond any real source: more means that a row id was given


@dataclass(frozen=True)
class Source:
    """The partitions of a source, in order, and the slot that each is at."""

    name: str
    texts: tuple[str, ...]
    h: U64
    slot: I32
    slots: int

    @property
    def partitions(self) -> int:
        return len(self.texts)

    @property
    def table(self) -> RoutingTable:
        """Partitions as pinned keys, so that a first hop is counted as any other."""
        return hash_table(self.slots).pin_hashes(self.h, self.slot)

    @property
    def slot_by_text(self) -> list[tuple[str, int]]:
        return list(zip(self.texts, self.slot.tolist(), strict=True))


def find_partitions(
    frame: DataFrame, columns: tuple[str, ...], slot_column: str | None, data: str
) -> pa.Table:
    """The distinct partitions in the data, with their slots if a column has them; a Spark job."""
    if slot_column is not None and slot_column not in frame.columns:
        raise UnknownColumn(
            f"{data} has no column {slot_column!r} (--source-slot); its columns are "
            f"{', '.join(frame.columns)}",
            column=slot_column,
        )
    wanted = dict.fromkeys((*columns, *([slot_column] if slot_column is not None else [])))
    found = frame.select(*[f"`{column}`" for column in wanted]).distinct()
    return found.limit(MOST_PARTITIONS + 1).toArrow()


def source_of(
    name: str, columns: tuple[str, ...], slot_column: str | None, found: pa.Table, slots: int
) -> Source:
    """Partitions sorted by value; the i-th at slot i mod n, or where its column says."""
    if found.num_rows > MOST_PARTITIONS:
        raise HeadgateError(
            f"--source {','.join(columns)} has more than {MOST_PARTITIONS:,} distinct values; name "
            "a column that says which partition of the source a row comes from, not which row it is"
        )
    parts = pa.table({str(i): found[column] for i, column in enumerate(columns)})
    order = pc.sort_indices(parts, sort_keys=[(str(i), "ascending") for i in range(len(columns))])
    parts, found = parts.take(order), found.take(order)
    values = [parts[i].combine_chunks() for i in range(len(columns))]
    h = hash_columns(values, parts.num_rows)
    texts = tuple(key_text(row) for row in zip(*(v.to_pylist() for v in values), strict=True))
    if slot_column is None:
        slot = np.arange(len(texts)) % slots
    else:
        slot = _given(found[slot_column], texts, h, slot_column, slots)
    return Source(name, texts, h, slot.astype(np.int32), slots)


def without_source(graph: KeyGraph) -> KeyGraph:
    """The same keys and loads, and only the pairs between operators; the source comes last."""
    end = int(graph.starts[-2])
    kept = graph.u < end
    return KeyGraph(
        graph.operators[:-1],
        graph.op[:end],
        graph.h[:end],
        graph.load[:end],
        graph.u[kept],
        graph.v[kept],
        graph.w[kept],
    )


def place_with_source(
    graph: KeyGraph,
    without: Partition,
    weight: float = 1.0,
    *,
    alpha: float = 1.03,
    seed: int = 0,
    quality: Quality = "metis",
    tries: int | None = None,
) -> Partition:
    """The better of two: the plan `without` the source, renamed and refined, and a fresh one.

    Better has more local rows, where a row of the first hop counts `weight`. O(a partition).
    """
    slots = without.slots
    named = np.concatenate([_named(graph, without), graph.fixed[graph.starts[-2] :]])
    first = graph.u >= graph.starts[-2]
    graph = replace(graph, w=np.where(first, weight * graph.w, graph.w))
    refined = improve(graph, named, slots, alpha=alpha, seed=seed, method=f"{quality}, renamed")
    refined.check(graph)
    fresh = partition(graph, slots, alpha=alpha, seed=seed, quality=quality, tries=tries)
    return min(refined, fresh, key=lambda plan: (not plan.bound_holds, -plan.locality))


# --- inside ---------------------------------------------------------------------------------
def _named(graph: KeyGraph, without: Partition) -> I32:
    """The plan with its slots named so that most rows of the first hop stay."""
    slots, end = without.slots, int(graph.starts[-2])
    first = graph.u >= end
    part, home = without.slot[graph.v[first]], graph.fixed[graph.u[first]]
    assert not (home == FREE).any()
    cell = part.astype(np.int64) * slots + home
    stays = np.bincount(cell, graph.w[first], slots * slots).astype(np.float64, copy=False)
    return best_matching(stays.reshape(slots, slots))[without.slot].astype(np.int32)


def _given(column: pa.ChunkedArray, texts: tuple[str, ...], h: U64, name: str, slots: int) -> I64:
    if not pa.types.is_integer(column.type):
        raise SchemaMismatch(
            f"--source-slot {name!r} is {column.type}; slots are whole numbers", column=name
        )
    if column.null_count:
        text = texts[pc.index(pc.is_null(column), True).as_py()]
        raise UnknownSlot(f"--source-slot {name!r} is null for partition {text}; give all a slot")
    slot: I64 = column.to_numpy().astype(np.int64)
    if (wrong := np.flatnonzero((slot < 0) | (slot >= slots))).size:
        raise UnknownSlot(
            f"--source-slot {name!r} is {slot[wrong[0]]} for partition {texts[wrong[0]]}, but "
            f"there are {slots} slots (0..{slots - 1})",
            slot=int(slot[wrong[0]]),
            slots=slots,
        )
    if (twice := np.flatnonzero(h[1:] == h[:-1])).size:
        raise UnknownSlot(
            f"--source-slot {name!r} names several slots for partition {texts[twice[0]]}; a "
            "partition is at one"
        )
    return slot
