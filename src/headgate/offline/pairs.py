"""Counted pairs of keys, and what routing tables make of them: the arithmetic of an analysis.

Everything an analysis promises comes from one matrix per edge: rows from slot i to slot j, found by
routing the counted pairs with the tables themselves. The diagonal stays in its slot; row and
column sums are the loads.

Spark counts every pair exactly. Python workers hash keys with the code that routes rows
(`hash_columns`), on the Arrow types that Spark gives a flow too, so a counted pair is a routed
pair. Batches are counted before the shuffle; Spark groups (edge, hash, hash, rows), never key
values. Texts are fetched afterwards, for the few keys that a report shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate.arrays import F64, I32, I64, U64
from headgate.planner.key_graph import KeyGraph
from headgate.routing.hashing import hash_columns
from headgate.routing.table import RoutingTable
from headgate.slot.statistics import key_text

Tables = dict[str, RoutingTable]
Loads = dict[int, tuple[U64, F64]]
"""Keys and rows of each operator, by the operator's number."""
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

COUNTED_AT_ONCE = 1_000_000  # rows whose hashes a task holds: 8 MB per key
_PAIRS = "edge int, a bigint, b bigint, n bigint"
_TRAFFIC = "edge int, cell bigint, n bigint"
_TEXTS = "h bigint, text string"


@dataclass(frozen=True)
class Shape:
    """The keyed operators of a flow, their key columns, and who feeds whom (by number).

    `source` names the columns that tell which partition of the source a row comes from, if any.
    """

    operators: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    edges: tuple[tuple[int, int], ...]
    source: tuple[str, ...] = ()

    @property
    def counted(self) -> Shape:
        """With the source as a last operator, which feeds those that have no producer.

        Operators and edges keep their numbers. No operator can have the source's name.
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
    def edge_names(self) -> list[str]:
        return [f"{self.operators[a]}->{self.operators[b]}" for a, b in self.edges]

    def copies(self, operator: int) -> int:
        """How often a row reaches the operator: once from each producer, or from the source."""
        return max(1, sum(b == operator for _, b in self.edges))


@dataclass(frozen=True)
class Outlook:
    """What tables achieve on the counted rows: for each edge, rows from slot i to slot j.

    `matrices` follow `shape.counted.edges`: first those between operators, then those of the first
    hop, from the slots of the source's partitions.
    """

    shape: Shape
    matrices: Sequence[I64]

    @property
    def traffic(self) -> Sequence[I64]:
        return self.matrices[: len(self.shape.edges)]

    @property
    def first_hop(self) -> Sequence[I64]:
        return self.matrices[len(self.shape.edges) :]

    @property
    def locality(self) -> float:
        return _local_share(self.traffic)

    @property
    def first_hop_locality(self) -> float:
        return _local_share(self.first_hop)

    @property
    def edge_locality(self) -> dict[str, float]:
        """Of every edge, those from the source too."""
        named = zip(self.shape.counted.edge_names, self.matrices, strict=True)
        return {name: _local_share([matrix]) for name, matrix in named}

    @property
    def loads(self) -> dict[str, list[int]]:
        """Rows that each operator gets, by slot."""
        found = {}
        for number, name in enumerate(self.shape.operators):
            edges = list(zip(self.shape.edges, self.traffic, strict=True))
            rows = [matrix.sum(axis=0) for (_, b), matrix in edges if b == number]
            # What nobody feeds gets its rows from the source, and passes all of them on.
            rows = rows or [matrix.sum(axis=1) for (a, _), matrix in edges if a == number][:1]
            found[name] = np.sum(rows, axis=0).tolist()
        return found

    @property
    def imbalance(self) -> dict[str, float]:
        """Busiest slot over the mean, per operator."""
        return {
            op: max(by_slot) * len(by_slot) / sum(by_slot) for op, by_slot in self.loads.items()
        }


def _local_share(matrices: Sequence[I64]) -> float:
    """Share of the rows that stay in their slot; 1 if there are none."""
    total = sum(int(matrix.sum()) for matrix in matrices)
    return sum(int(matrix.trace()) for matrix in matrices) / total if total else 1.0


@dataclass(frozen=True)
class Pairs:
    """Counted pairs: n[i] rows passed from key a[i] to key b[i] on edge number edge[i]."""

    edge: I32
    a: U64
    b: U64
    n: I64

    @classmethod
    def of(cls, table: pa.Table | pa.RecordBatch) -> Pairs:
        """From columns edge, a, b, n, with hashes as signed numbers (Spark has no others)."""
        columns = (table.column(name) for name in ("edge", "a", "b", "n"))
        edge, a, b, n = (column.to_numpy() for column in columns)
        return cls(edge, a.view(np.uint64), b.view(np.uint64), n)

    def __len__(self) -> int:
        return len(self.n)

    def sorted(self) -> Pairs:
        """In one order, whatever the order they were found in."""
        return self.at(np.lexsort((self.b, self.a, self.edge)))

    def on(self, edge: int) -> Pairs:
        return self.at(np.flatnonzero(self.edge == edge))

    def heaviest(self, count: int) -> Pairs:
        return self.at(np.argsort(-self.n, kind="stable")[:count])

    def at(self, rows: I64) -> Pairs:
        return Pairs(self.edge[rows], self.a[rows], self.b[rows], self.n[rows])

    def traffic(self, shape: Shape, tables: Mapping[str, RoutingTable]) -> list[I64]:
        """Rows of each edge from slot i to slot j: pairs routed as the flow would route them."""
        slots = next(iter(tables.values())).slots
        found = []
        for number, (a, b) in enumerate(shape.edges):
            mine = self.on(number)
            source = tables[shape.operators[a]].route(mine.a).astype(np.int64)
            target = tables[shape.operators[b]].route(mine.b)
            counts = np.bincount(source * slots + target, mine.n, slots * slots)
            found.append(counts.astype(np.int64).reshape(slots, slots))
        return found


def hashes_of(batch: pa.RecordBatch | pa.Table, keys: Sequence[Sequence[str]]) -> list[U64]:
    """For each key its hash of every row, as the runtime makes it."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if isinstance(batch, pa.Table):
        columns = {name: column.combine_chunks() for name, column in columns.items()}
    return [hash_columns([columns[name] for name in key], batch.num_rows) for key in keys]


def count_pairs(keys: Sequence[U64], edges: Sequence[tuple[int, int]]) -> Pairs:
    """Count the pairs of rows whose keys are given, per edge; O(rows)."""
    parts = []
    for number, (a, b) in enumerate(edges):
        pairs = pa.table({"a": keys[a], "b": keys[b]})
        counts = pairs.group_by(["a", "b"], use_threads=False).aggregate([([], "count_all")])
        ka, kb, n = (counts[name].to_numpy() for name in ("a", "b", "count_all"))
        parts.append((np.full(len(n), number, np.int32), ka, kb, n))
    return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


def graph_of(
    pairs: Pairs,
    shape: Shape,
    loads: Loads | None = None,
    fixed: Mapping[int, tuple[U64, I32]] | None = None,
) -> KeyGraph:
    """The key graph of these pairs; without `loads`, keys have the rows that the pairs show."""
    lists = []
    for number, (a, b) in enumerate(shape.edges):
        mine = pairs.on(number)
        lists.append((a, b, mine.a, mine.b, mine.n.astype(np.float64)))
    return KeyGraph.build(shape.operators, lists, loads, fixed)


class CountedPairs:
    """All pairs, kept by Spark, and the heaviest of them here: at most `limit`.

    `traffic` counts all, wherever they are. Use as a context manager: on exit Spark drops the
    pairs.
    """

    def __init__(self, frame: DataFrame, shape: Shape, limit: int) -> None:
        self.shape, self._limit = shape, limit
        counted = _key_columns(frame, shape).mapInArrow(_pair_counter(shape), _PAIRS)
        self._frame = counted.groupBy("edge", "a", "b").agg(F.sum("n").alias("n"))
        self._frame.persist(StorageLevel.MEMORY_AND_DISK)
        totals = self._frame.groupBy("edge").agg(F.count("*").alias("pairs"), F.sum("n").alias("n"))
        by_edge = {row["edge"]: row for row in totals.collect()}
        self.rows = int(by_edge[0]["n"]) if by_edge else 0
        self.pair_counts = [by_edge[i]["pairs"] if by_edge else 0 for i in range(len(shape.edges))]
        self.complete = sum(self.pair_counts) <= limit
        kept = self._frame.toArrow() if self.complete else self._heaviest(self._frame)
        self.heaviest = Pairs.of(kept).sorted()

    def __enter__(self) -> CountedPairs:
        return self

    def __exit__(self, *_: object) -> None:
        self._frame.unpersist()

    def graph(self, fixed: Mapping[int, tuple[U64, I32]] | None = None) -> KeyGraph:
        """The graph of the heaviest pairs, with exact loads of at most `limit` keys an operator."""
        loads = None
        if not self.complete:
            loads = {operator: self._loads(operator) for operator in range(len(self.shape.keys))}
        return graph_of(self.heaviest, self.shape, loads, fixed)

    def key_counts(self, graph: KeyGraph) -> list[int]:
        """Distinct keys of each operator, with the graph that was made of these pairs."""
        if self.complete:
            return [int(count) for count in np.diff(graph.starts)]
        return [self._keys(operator).count() for operator in range(len(self.shape.keys))]

    def traffic(self, tables: Mapping[str, RoutingTable]) -> list[I64]:
        """Rows of each edge from slot i to slot j under these tables; no row is estimated."""
        if self.complete:
            return self.heaviest.traffic(self.shape, tables)
        slots = next(iter(tables.values())).slots
        routed = self._frame.mapInArrow(_traffic_counter(self.shape, tables), _TRAFFIC)
        found = np.zeros((len(self.shape.edges), slots * slots), np.int64)
        for row in routed.groupBy("edge", "cell").agg(F.sum("n").alias("n")).collect():
            found[row["edge"], row["cell"]] = row["n"]
        return list(found.reshape(-1, slots, slots))

    def _loads(self, operator: int) -> tuple[U64, F64]:
        keys = Pairs.of(self._heaviest(self._keys(operator))).sorted()
        return keys.a, keys.n.astype(np.float64) * self.shape.copies(operator)

    def _keys(self, operator: int) -> DataFrame:
        """Keys of one operator with their rows, in the columns of pairs; any edge shows them."""
        number = next(i for i, edge in enumerate(self.shape.edges) if operator in edge)
        side = "ab"[self.shape.edges[number].index(operator)]
        mine = self._frame.filter(F.col("edge") == number).groupBy(F.col(side).alias("a"))
        rows = mine.agg(F.sum("n").alias("n"))
        return rows.select(F.lit(0).alias("edge"), "a", F.lit(0).cast("bigint").alias("b"), "n")

    def _heaviest(self, frame: DataFrame) -> pa.Table:
        """The `limit` rows with the largest n; of equal ones the first by hash: repeatable.

        Weights are counted first. Few are distinct, so only rows of one weight are ever sorted.
        """
        weights = frame.groupBy("n").count().orderBy(F.desc("n")).toArrow()
        n, count = weights["n"].to_numpy(), weights["count"].to_numpy()
        whole = int(np.searchsorted(np.cumsum(count), self._limit, side="right"))
        if whole == len(n):
            return frame.toArrow()
        least, room = int(n[whole]), self._limit - int(count[:whole].sum())
        ties = frame.filter(F.col("n") == least).orderBy("edge", "a", "b").limit(room)
        return pa.concat_tables([frame.filter(F.col("n") > least).toArrow(), ties.toArrow()])


def key_texts(frame: DataFrame, shape: Shape, wanted: U64) -> dict[int, str]:
    """The texts of some keys by their hash; a task stops when it has found all."""

    def headgate_find_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        missing = np.unique(wanted)
        for batch in batches:
            if not len(missing):
                return
            for key, h in zip(shape.keys, hashes_of(batch, shape.keys), strict=True):
                found, first = np.unique(h, return_index=True)
                new = np.isin(found, missing)
                found, first = found[new], first[new]
                missing = np.setdiff1d(missing, found)
                rows = batch.select(list(key)).take(pa.array(first)).to_pylist()
                texts = [key_text(list(row.values())) for row in rows]
                yield _batch(h=found.view(np.int64), text=pa.array(texts, pa.string()))

    texts = _key_columns(frame, shape).mapInArrow(headgate_find_texts, _TEXTS).toArrow()
    return {row["h"] % 2**64: row["text"] for row in texts.to_pylist()}


# --- Spark's stages ---------------------------------------------------------------------------
def _key_columns(frame: DataFrame, shape: Shape) -> DataFrame:
    return frame.select(*[F.col(f"`{name}`") for name in shape.columns])


def _pair_counter(shape: Shape) -> Stage:
    """Key columns in, counted pairs out; holds the hashes of `COUNTED_AT_ONCE` rows."""

    def counted(held: list[list[U64]]) -> pa.RecordBatch:
        keys = [np.concatenate(parts) for parts in zip(*held, strict=True)]
        pairs = count_pairs(keys, shape.edges)
        a, b = pairs.a.view(np.int64), pairs.b.view(np.int64)
        return _batch(edge=pairs.edge, a=a, b=b, n=pairs.n)

    def headgate_count_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[list[U64]] = []
        rows = 0
        for batch in batches:
            held.append(hashes_of(batch, shape.keys))
            rows += batch.num_rows
            if rows >= COUNTED_AT_ONCE:
                yield counted(held)
                held, rows = [], 0
        if rows:
            yield counted(held)

    return headgate_count_pairs


def _traffic_counter(shape: Shape, tables: Mapping[str, RoutingTable]) -> Stage:
    """Counted pairs in, rows per edge and pair of slots out."""

    def headgate_route_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = np.array(Pairs.of(batch).traffic(shape, tables)).reshape(len(shape.edges), -1)
            edge, cell = np.nonzero(found)
            yield _batch(edge=edge.astype(np.int32), cell=cell, n=found[edge, cell])

    return headgate_route_pairs


def _batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
