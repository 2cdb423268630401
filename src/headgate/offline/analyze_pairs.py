"""Counted pairs of keys, and what routing tables make of them: the arithmetic of an analysis.

Everything an analysis promises is read off one matrix per edge: rows from slot i to slot j, found
by routing the counted pairs with the tables themselves. Its diagonal stays in the slot, its row
and column sums are the loads. No Spark here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import HeadgateError
from headgate.planner.key_graph import KeyGraph
from headgate.routing.hashing import U64, hash_columns
from headgate.routing.table import RoutingTable

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Loads = dict[int, tuple[U64, F64]]
"""Keys and rows of each operator, by the operator's number."""


@dataclass(frozen=True)
class Shape:
    """The keyed operators of a flow, their key columns, and who feeds whom (by number).

    `source` are the columns that name the partition of the source which a row comes from, if any.
    """

    operators: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    edges: tuple[tuple[int, int], ...]
    source: tuple[str, ...] = ()

    @property
    def counted(self) -> Shape:
        """With the source as a last operator, which feeds those that have no producer.

        Operators and edges keep their numbers. The name is none that an operator can have.
        """
        if not self.source:
            return self
        last, fed = len(self.operators), {b for _, b in self.edges}
        hops = tuple((last, first) for first in range(last) if first not in fed)
        name = f"source:{','.join(self.source)}"
        return Shape((*self.operators, name), (*self.keys, self.source), (*self.edges, *hops))

    @property
    def columns(self) -> list[str]:
        """All key columns, each once."""
        return list(dict.fromkeys(column for key in self.keys for column in key))

    @property
    def positions(self) -> list[list[int]]:
        """Where each key's columns are among `columns`."""
        columns = self.columns
        return [[columns.index(column) for column in key] for key in self.keys]

    @property
    def edge_names(self) -> list[str]:
        return [f"{self.operators[a]}->{self.operators[b]}" for a, b in self.edges]

    def copies(self, operator: int) -> int:
        """How often a row reaches the operator: once from each producer, or from the source."""
        return max(1, sum(b == operator for _, b in self.edges))

    def seen_on(self, operator: int) -> tuple[int, str]:
        """An edge that shows the operator's keys, and as which side."""
        for number, (a, b) in enumerate(self.edges):
            if operator in (a, b):
                return number, "a" if operator == a else "b"
        raise HeadgateError(f"{self.operators[operator]} is on no edge")


@dataclass(frozen=True)
class Pairs:
    """Counted pairs: n[i] rows passed from key a[i] to key b[i] on edge number edge[i]."""

    edge: I32
    a: U64
    b: U64
    n: I64

    @classmethod
    def of(cls, table: pa.Table) -> Pairs:
        """From columns edge, a, b, n, with hashes as signed numbers (Spark has no others)."""
        edge, a, b, n = (table[name].to_numpy() for name in ("edge", "a", "b", "n"))
        return cls(edge, a.view(np.uint64), b.view(np.uint64), n)

    def __len__(self) -> int:
        return len(self.n)

    def sorted(self) -> Pairs:
        """In one order, whatever the order they were found in."""
        return self._at(np.lexsort((self.b, self.a, self.edge)))

    def on(self, edge: int) -> Pairs:
        return self._at(np.flatnonzero(self.edge == edge))

    def before(self, edge: int) -> Pairs:
        return self._at(np.flatnonzero(self.edge < edge))

    def heaviest(self, count: int) -> Pairs:
        return self._at(np.argsort(-self.n, kind="stable")[:count])

    def _at(self, rows: I64) -> Pairs:
        return Pairs(self.edge[rows], self.a[rows], self.b[rows], self.n[rows])


def hashes_of(batch: pa.RecordBatch | pa.Table, positions: Sequence[Sequence[int]]) -> list[U64]:
    """Of each row the hash of each key, as the runtime makes it."""
    columns = [_whole(column) for column in batch.columns]
    return [hash_columns([columns[i] for i in key], batch.num_rows) for key in positions]


def count_pairs(keys: Sequence[U64], edges: Sequence[tuple[int, int]]) -> Pairs:
    """Count the pairs of rows whose keys are given, per edge; O(rows)."""
    parts = []
    for number, (a, b) in enumerate(edges):
        pairs = pa.table({"a": keys[a], "b": keys[b]})
        counts = pairs.group_by(["a", "b"], use_threads=False).aggregate([([], "count_all")])
        ka, kb, n = (counts[name].to_numpy() for name in ("a", "b", "count_all"))
        parts.append(Pairs(np.full(len(n), number, np.int32), ka, kb, n))
    return Pairs(
        np.concatenate([p.edge for p in parts]),
        np.concatenate([p.a for p in parts]),
        np.concatenate([p.b for p in parts]),
        np.concatenate([p.n for p in parts]),
    )


def loads_of(pairs: Pairs, shape: Shape) -> Loads:
    """Rows of every key, from all pairs."""
    found: Loads = {}
    for operator in range(len(shape.operators)):
        edge, side = shape.seen_on(operator)
        mine = pairs.on(edge)
        keys, at = np.unique(mine.a if side == "a" else mine.b, return_inverse=True)
        rows = np.bincount(at, mine.n, len(keys)).astype(np.float64, copy=False)
        found[operator] = keys, rows * shape.copies(operator)
    return found


def graph_of(
    pairs: Pairs, shape: Shape, loads: Loads, fixed: Mapping[int, tuple[U64, I32]] | None = None
) -> KeyGraph:
    """The key graph of these pairs, with measured loads."""
    lists = [
        (a, b, mine.a, mine.b, mine.n.astype(np.float64))
        for number, (a, b) in enumerate(shape.edges)
        for mine in [pairs.on(number)]
    ]
    return KeyGraph.build(shape.operators, lists, loads, fixed)


def traffic(pairs: Pairs, shape: Shape, tables: Mapping[str, RoutingTable]) -> list[I64]:
    """Rows of each edge from slot i to slot j: pairs routed as the flow would route them."""
    slots = slots_of(tables)
    found = []
    for number, (a, b) in enumerate(shape.edges):
        mine = pairs.on(number)
        source = tables[shape.operators[a]].route(mine.a).astype(np.int64)
        target = tables[shape.operators[b]].route(mine.b)
        counts = np.bincount(source * slots + target, mine.n, slots * slots)
        found.append(counts.astype(np.int64).reshape(slots, slots))
    return found


def local_share(matrices: Sequence[I64]) -> float:
    """Share of the rows between operators that stay in their slot; 1 if there are none."""
    total = sum(int(matrix.sum()) for matrix in matrices)
    return sum(int(matrix.trace()) for matrix in matrices) / total if total else 1.0


def slot_loads(matrices: Sequence[I64], shape: Shape) -> dict[str, list[int]]:
    """Rows that each operator gets, by slot."""
    found = {}
    for number, name in enumerate(shape.operators):
        into = [m.sum(axis=0) for m, (_, b) in zip(matrices, shape.edges) if b == number]
        out = [m.sum(axis=1) for m, (a, _) in zip(matrices, shape.edges) if a == number]
        found[name] = [int(rows) for rows in (sum(into) if into else out[0])]
    return found


def slots_of(tables: Mapping[str, RoutingTable]) -> int:
    """The slot count of a set of tables, which must be one."""
    counts = {name: table.slots for name, table in tables.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise HeadgateError(f"routing tables are for different slot counts: {told}")
    return next(iter(counts.values()))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
