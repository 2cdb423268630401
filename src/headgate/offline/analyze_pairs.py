"""Counted pairs of keys, and what routing tables make of them: the arithmetic of an analysis.

Everything an analysis promises is read off one matrix per edge: rows from slot i to slot j, found
by routing the counted pairs with the tables themselves. Its diagonal stays in the slot, its row
and column sums are the loads.

Spark counts every pair exactly. Keys are hashed in the Python workers by the code that routes rows
(`hash_columns`), on the Arrow types that Spark gives a flow too, so a counted pair is a routed
pair. Batches are counted before the shuffle; what Spark groups is (edge, hash, hash, rows), never
key values. Texts are fetched afterwards, for the few keys that a report shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
_TEXTS = "operator int, h bigint, text string"


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
        number = next(i for i, edge in enumerate(self.edges) if operator in edge)
        return number, "ab"[self.edges[number].index(operator)]


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
    columns = batch.columns
    if isinstance(batch, pa.Table):
        columns = [column.combine_chunks() for column in columns]
    return [hash_columns([columns[i] for i in key], batch.num_rows) for key in positions]


def count_pairs(keys: Sequence[U64], edges: Sequence[tuple[int, int]]) -> Pairs:
    """Count the pairs of rows whose keys are given, per edge; O(rows)."""
    parts = []
    for number, (a, b) in enumerate(edges):
        pairs = pa.table({"a": keys[a], "b": keys[b]})
        counts = pairs.group_by(["a", "b"], use_threads=False).aggregate([([], "count_all")])
        ka, kb, n = (counts[name].to_numpy() for name in ("a", "b", "count_all"))
        parts.append((np.full(len(n), number, np.int32), ka, kb, n))
    return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


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
    slots = next(iter(tables.values())).slots
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


class CountedPairs:
    """All pairs, kept by Spark, and the heaviest of them here: at most `limit`.

    `traffic` counts all, wherever they are. Use as a context manager: leaving it lets Spark
    forget the pairs.
    """

    def __init__(self, frame: DataFrame, shape: Shape, limit: int) -> None:
        self.shape = shape
        self.limit = limit
        counted = _chosen(frame, shape).mapInArrow(pair_counter(shape), _PAIRS)
        self._frame = counted.groupBy("edge", "a", "b").agg(F.sum("n").alias("n"))
        self._frame.persist(StorageLevel.MEMORY_AND_DISK)

    def __enter__(self) -> CountedPairs:
        return self

    def __exit__(self, *_: object) -> None:
        self._frame.unpersist()

    @cached_property
    def _totals(self) -> list[tuple[int, int]]:
        """Pairs and rows of each edge; the first action, so this is where Spark counts."""
        found = self._frame.groupBy("edge").agg(F.count("*").alias("pairs"), F.sum("n").alias("n"))
        totals = {row["edge"]: (int(row["pairs"]), int(row["n"])) for row in found.collect()}
        return [totals.get(edge, (0, 0)) for edge in range(len(self.shape.edges))]

    @property
    def rows(self) -> int:
        return self._totals[0][1]

    @property
    def pair_counts(self) -> list[int]:
        """Distinct pairs of each edge."""
        return [pairs for pairs, _ in self._totals]

    @property
    def complete(self) -> bool:
        """Are all pairs here?"""
        return sum(self.pair_counts) <= self.limit

    @cached_property
    def heaviest(self) -> Pairs:
        return Pairs.of(_heaviest(self._frame, self.limit, sum(self.pair_counts))).sorted()

    @cached_property
    def loads(self) -> Loads:
        """Keys and rows of each operator, exact; at most the `limit` heaviest keys of each."""
        if self.complete:
            return loads_of(self.heaviest, self.shape)
        return {
            operator: self._loads_on_spark(operator)
            for operator in range(len(self.shape.operators))
        }

    @cached_property
    def key_counts(self) -> list[int]:
        """Distinct keys of each operator."""
        if self.complete:
            return [len(keys) for keys, _ in self.loads.values()]
        return [self._keys(operator).count() for operator in range(len(self.shape.operators))]

    def traffic(self, tables: Mapping[str, RoutingTable]) -> list[I64]:
        """Rows of each edge from slot i to slot j under these tables; no row is estimated."""
        if self.complete:
            return traffic(self.heaviest, self.shape, tables)
        slots = next(iter(tables.values())).slots
        routed = self._frame.mapInArrow(traffic_counter(self.shape, tables), _TRAFFIC)
        found = [np.zeros(slots * slots, np.int64) for _ in self.shape.edges]
        for row in routed.groupBy("edge", "cell").agg(F.sum("n").alias("n")).collect():
            found[row["edge"]][row["cell"]] = row["n"]
        return [flat.reshape(slots, slots) for flat in found]

    def _loads_on_spark(self, operator: int) -> tuple[U64, F64]:
        keys = self._keys(operator)
        got = Pairs.of(_heaviest(keys, self.limit, keys.count())).sorted()
        return got.a, got.n.astype(np.float64) * self.shape.copies(operator)

    def _keys(self, operator: int) -> DataFrame:
        """Keys of one operator with their rows, in the columns of pairs."""
        edge, side = self.shape.seen_on(operator)
        mine = self._frame.filter(F.col("edge") == edge).groupBy(F.col(side).alias("a"))
        rows = mine.agg(F.sum("n").alias("n"))
        return rows.select(F.lit(edge).alias("edge"), "a", F.lit(0).cast("bigint").alias("b"), "n")


def key_texts(frame: DataFrame, shape: Shape, wanted: Sequence[U64]) -> list[dict[int, str]]:
    """The texts of some keys of each operator, found in the data; a task stops when it has all."""
    texts = _chosen(frame, shape).mapInArrow(text_finder(shape, wanted), _TEXTS).toArrow()
    found: list[dict[int, str]] = [{} for _ in shape.operators]
    for operator, h, text in zip(*(column.to_pylist() for column in texts.columns), strict=True):
        found[operator][h % 2**64] = text
    return found


# --- in the workers -------------------------------------------------------------------------
def pair_counter(shape: Shape) -> Stage:
    """Key columns in, counted pairs out; holds the hashes of `COUNTED_AT_ONCE` rows."""

    def headgate_count_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[list[U64]] = []
        rows = 0
        for batch in batches:
            held.append(hashes_of(batch, shape.positions))
            rows += batch.num_rows
            if rows >= COUNTED_AT_ONCE:
                yield _counted(held, shape)
                held, rows = [], 0
        if rows:
            yield _counted(held, shape)

    return headgate_count_pairs


def traffic_counter(shape: Shape, tables: Mapping[str, RoutingTable]) -> Stage:
    """Counted pairs in, rows per edge and pair of slots out."""

    def headgate_route_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = traffic(Pairs.of(pa.Table.from_batches([batch])), shape, tables)
            flat = np.concatenate([counts.ravel() for counts in found])
            at = np.flatnonzero(flat)
            columns = [(at // found[0].size).astype(np.int32), at % found[0].size, flat[at]]
            yield _batch(["edge", "cell", "n"], columns)

    return headgate_route_pairs


def text_finder(shape: Shape, wanted: Sequence[U64]) -> Stage:
    """Key columns in, the texts of the wanted keys out, each once per task."""

    def headgate_find_texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        missing = [np.unique(h) for h in wanted]
        for batch in batches:
            if not any(map(len, missing)):
                return
            for operator, h in enumerate(hashes_of(batch, shape.positions)):
                here = np.flatnonzero(np.isin(h, missing[operator]))
                if not len(here):
                    continue
                found, first = np.unique(h[here], return_index=True)
                missing[operator] = np.setdiff1d(missing[operator], found)
                keys = batch.select(shape.positions[operator]).take(pa.array(here[first]))
                values = zip(*(column.to_pylist() for column in keys.columns), strict=True)
                texts = pa.array([key_text(value) for value in values], pa.string())
                number = np.full(len(found), operator, np.int32)
                yield _batch(["operator", "h", "text"], [number, found.view(np.int64), texts])

    return headgate_find_texts


def _counted(held: Sequence[Sequence[U64]], shape: Shape) -> pa.RecordBatch:
    keys = [np.concatenate(parts) for parts in zip(*held, strict=True)]
    pairs = count_pairs(keys, shape.edges)
    columns = [pairs.edge, pairs.a.view(np.int64), pairs.b.view(np.int64), pairs.n]
    return _batch(["edge", "a", "b", "n"], columns)


def _batch(names: list[str], columns: Sequence[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)


# --- in the driver --------------------------------------------------------------------------
def _chosen(frame: DataFrame, shape: Shape) -> DataFrame:
    return frame.select(*[F.col(f"`{name}`") for name in shape.columns])


def _heaviest(frame: DataFrame, limit: int, total: int) -> pa.Table:
    """The `limit` rows with the largest n; of equal ones the first by hash, so it can be repeated.

    The weights are counted first, and few are distinct: only rows of one weight are ever sorted.
    """
    if total <= limit:
        return frame.toArrow()
    weights = frame.groupBy("n").count().toArrow()
    n, count = weights["n"].to_numpy(), weights["count"].to_numpy()
    order = np.argsort(-n)
    whole = int(np.searchsorted(np.cumsum(count[order]), limit, side="right"))
    least, room = int(n[order][whole]), limit - int(count[order][:whole].sum())
    parts = [frame.filter(F.col("n") > least).toArrow()]
    if room:
        ties = frame.filter(F.col("n") == least).orderBy("edge", "a", "b")
        parts.append(ties.limit(room).toArrow())
    return pa.concat_tables(parts)
