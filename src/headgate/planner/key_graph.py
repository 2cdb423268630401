"""The key graph: keys that meet in a row are tied, and a good placement cuts few ties.

One vertex per key of every keyed operator of the flow, weighted by its load; one edge per pair of
keys that a row used one after the other, weighted by the rows that did (Caneill et al. 2016,
section 3.3). A chain of two operators gives a bipartite graph; longer chains and DAGs give one
graph over all operators, so that a key in the middle is pulled from both sides at once. Partitions
of a source can be vertices too: they carry no load and their slot is *fixed*, so a key is drawn to
where its rows come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.arrays import F64, I32, I64, U64, Bools
from headgate.errors import HeadgateError
from headgate.planner.instances import instance_counts
from headgate.routing.table import RoutingTable, hash_table

Pairs = tuple[int, int, U64, U64, F64]
"""Pairs of one keyed edge A -> B: (index of A, index of B, keys of A, keys of B, rows)."""

FREE = -1


class Adjacency(NamedTuple):
    """Who is tied to whom: the partners of vertex i are `other[starts[i]:starts[i + 1]]`."""

    starts: I64
    other: I64
    weight: F64


def adjacency_of(vertices: int, u: I64, v: I64, w: F64) -> Adjacency:
    """Both directions of every edge; equal edges are added up. O(vertices + edges)."""
    from scipy.sparse import coo_array  # late: who only describes a graph needs no solver

    ends = np.concatenate([u, v]), np.concatenate([v, u])
    rows = coo_array((np.concatenate([w, w]), ends), (vertices, vertices)).tocsr()
    return Adjacency(rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data)


@dataclass(frozen=True)
class KeyGraph:
    """Keys, loads and ties of one window. Vertices are sorted by (op, h) and unique.

    `u` is the earlier key of a pair and `v` the later one; edges are sorted by (u, v) and unique.
    `fixed` is the slot a vertex must have, or -1 for a key that may go anywhere.
    """

    operators: tuple[str, ...]
    op: I32
    h: U64
    load: F64
    u: I64
    v: I64
    w: F64
    fixed: I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def __post_init__(self) -> None:
        if len(self.fixed) != len(self.h):
            object.__setattr__(self, "fixed", np.full(len(self.h), FREE, np.int32))

    @classmethod
    def build(
        cls,
        operators: Sequence[str],
        pairs: Iterable[Pairs],
        loads: Mapping[int, tuple[U64, F64]] | None = None,
        fixed: Mapping[int, tuple[U64, I32]] | None = None,
    ) -> KeyGraph:
        """The graph of these pairs; pairs named twice (by two slots, say) are added up.

        `loads` gives measured loads per operator, as (keys, rows); its keys become vertices even
        if they are in no pair, and keys it does not name have load 0. Without it the load of a key
        is what its pairs show: see `implied_loads`. `fixed` gives the slots of the vertices of
        an operator that is not placed, such as the partitions of a source; they have load 0.
        O(pairs log pairs).
        """
        loads, fixed = loads or {}, fixed or {}
        lists = list(pairs)
        seen: list[list[U64]] = [[] for _ in operators]
        for a, b, ha, hb, _ in lists:
            seen[a].append(ha)
            seen[b].append(hb)
        for i, (h, _) in (*loads.items(), *fixed.items()):
            seen[i].append(h)
        keys = [np.unique(_joined(parts, np.uint64)) for parts in seen]
        first = np.concatenate([[0], np.cumsum([len(k) for k in keys])]).astype(np.int64)
        op = np.repeat(np.arange(len(keys), dtype=np.int32), np.diff(first))
        u = [first[a] + np.searchsorted(keys[a], h) for a, _, h, _, _ in lists]
        v = [first[b] + np.searchsorted(keys[b], h) for _, b, _, h, _ in lists]
        edges = _merge(
            len(op), _joined(u, np.int64), _joined(v, np.int64), _joined([x[4] for x in lists])
        )
        load = implied_loads(len(operators), op, *edges)
        for i, (h, measured) in loads.items():
            load[first[i] : first[i + 1]] = 0.0
            np.add.at(load, first[i] + np.searchsorted(keys[i], h), measured)
        bound = np.full(len(op), FREE, np.int32)
        for i, (h, slots) in fixed.items():
            bound[first[i] + np.searchsorted(keys[i], h)] = slots
            load[first[i] : first[i + 1]] = 0.0
            if (lost := np.flatnonzero(bound[first[i] : first[i + 1]] < 0)).size:
                raise HeadgateError(
                    f"{operators[i]}: vertex {keys[i][lost[0]]} occurs in pairs but has no fixed "
                    "slot; give the slot of every partition",
                    operator=operators[i],
                )
        return cls(tuple(operators), op, _joined(keys, np.uint64), load, *edges, bound)

    @property
    def vertices(self) -> int:
        return len(self.h)

    @property
    def edges(self) -> int:
        return len(self.w)

    @cached_property
    def weight(self) -> float:
        """Rows that pass from one keyed operator to the next, over all edges."""
        return float(self.w.sum())

    @cached_property
    def total(self) -> F64:
        """Load of each operator."""
        return _sums(self.op, self.load, len(self.operators))

    @cached_property
    def starts(self) -> I64:
        """Where each operator's vertices begin, and one past the last."""
        return np.searchsorted(self.op, np.arange(len(self.operators) + 1)).astype(np.int64)

    @cached_property
    def adjacency(self) -> Adjacency:
        return adjacency_of(self.vertices, self.u, self.v, self.w)

    def locality(self, slot: I32) -> float:
        """Share of the pair weight whose two keys share a slot; 1 if there are no pairs."""
        if not self.weight:
            return 1.0
        return float(self.w[slot[self.u] == slot[self.v]].sum()) / self.weight

    def loads(self, slot: I32, slots: int) -> F64:
        """Load per operator and slot under a placement."""
        cell = self.op.astype(np.int64) * slots + slot
        size = len(self.operators) * slots
        return _sums(cell, self.load, size).reshape(len(self.operators), slots)

    def imbalance(self, slot: I32, slots: int, allowed: Bools | None = None) -> F64:
        """Max slot load / mean load of its slots of each operator; 1 for one without load."""
        return imbalance_of(self.loads(slot, slots), allowed)

    def top_edges(self, k: int) -> KeyGraph:
        """The graph that a statistic of only the k heaviest pairs would show (Figure 12).

        Keys without a pair are left out, loads are those implied by the pairs that remain.
        """
        if k >= self.edges:
            return self
        kept = np.sort(np.argsort(-self.w, kind="stable")[: max(k, 0)])
        u, v, w = self.u[kept], self.v[kept], self.w[kept]
        old = np.union1d(np.union1d(u, v), np.flatnonzero(self.fixed != FREE)).astype(np.int64)
        u, v = np.searchsorted(old, u).astype(np.int64), np.searchsorted(old, v).astype(np.int64)
        op, fixed = self.op[old], self.fixed[old]
        load = implied_loads(len(self.operators), op, u, v, w)
        load[fixed != FREE] = 0.0
        return KeyGraph(self.operators, op, self.h[old], load, u, v, w, fixed)


def imbalance_of(loads: F64, allowed: Bools | None = None) -> F64:
    """Max / mean of every row, over the slots that are allowed; 1 for a row of zeros."""
    mean = loads.sum(axis=1) / instance_counts(allowed, *loads.shape)
    worst = loads.max(axis=1)
    return np.where(mean > 0, worst / np.where(mean > 0, mean, 1.0), 1.0)


def implied_loads(operators: int, op: I32, u: I64, v: I64, w: F64) -> F64:
    """Rows that each key must have seen, from its pairs alone.

    A row comes in once and may go out to several consumers. So the load of a key is the largest
    of: all that came in (over all producers), and what went out to any one consumer. A key
    in the middle of a chain is counted once, not twice.
    """
    load = _sums(v, w, len(op))
    consumer = op[v]
    for b in range(operators):
        mine = consumer == b
        if mine.any():
            np.maximum(load, _sums(u[mine], w[mine], len(op)), out=load)
    return load


def _sums(at: npt.NDArray[np.integer], weight: F64, size: int) -> F64:
    """Sum of the weights per place (bincount counts in integers where there is nothing)."""
    return np.bincount(at, weight, size).astype(np.float64, copy=False)


def _joined(parts: Sequence[npt.NDArray[np.generic]], kind: type = np.float64) -> npt.NDArray:  # type: ignore[type-arg]
    return np.concatenate([*parts, np.empty(0, kind)]).astype(kind, copy=False)


def _merge(vertices: int, u: I64, v: I64, w: F64) -> tuple[I64, I64, F64]:
    """Edges sorted by (u, v), equal ones added up."""
    pair = u * np.int64(max(vertices, 1)) + v
    order = np.argsort(pair, kind="stable")
    pair = pair[order]
    first = np.flatnonzero(np.diff(pair, prepend=-1))
    if len(first) == 0:
        return u, v, w
    at = order[first]
    return u[at], v[at], np.add.reduceat(w[order], first)


def floors(graph: KeyGraph, slots: int, allowed: Bools | None = None) -> F64:
    """Lower bound of max/mean load for each operator, over all placements that honour `fixed`.

    `allowed` ([operator, slot]) says who has an instance where, if not everyone everywhere.
    """
    counts = instance_counts(allowed, len(graph.operators), slots).astype(np.int64).tolist()
    return np.array(
        [
            floor_of(graph.load[a:b], count, graph.fixed[a:b])
            for (a, b), count in zip(pairwise(graph.starts.tolist()), counts, strict=True)
        ]
    )


def floor_of(load: F64, slots: int, fixed: I32 | None = None) -> float:
    """Lower bound of max/mean slot load for keys of these loads.

    The largest of: 1; what fixed keys put on one slot; and, for every k, the pigeonhole bound: of
    the k * slots + 1 heaviest keys some slot gets k + 1, at best the lightest of them. k = 0 is the
    heaviest key alone. O(keys log keys).
    """
    mean = float(load.sum()) / slots
    if mean <= 0:
        return 1.0
    heaviest = np.sort(load)[::-1]
    last = np.arange(0, len(load), slots)  # the (k * slots + 1)-th heaviest, for k = 0, 1, ...
    below = np.concatenate([[0.0], np.cumsum(heaviest)])
    forced = float((below[last + 1] - below[last - last // slots]).max())
    if fixed is not None and (bound := fixed != FREE).any():
        forced = max(forced, float(np.bincount(fixed[bound], load[bound]).max()))
    return max(1.0, forced / mean)


CAP = 262_144
"""Entries per table; 12 bytes each, sent to every task."""


def to_tables(graph: KeyGraph, slot: I32, slots: int, *, cap: int = CAP) -> dict[str, RoutingTable]:
    """A table for every operator of the graph that is placed (not for a source's partitions).

    Each of the `cap` hottest keys gets an entry of its own, also where its hash would send it
    anyway: an entry says that the key has an owner. All others follow their hash.
    """
    tables = {}
    for i, name in enumerate(graph.operators):
        a, b = graph.starts[i], graph.starts[i + 1]
        if (graph.fixed[a:b] == FREE).all():
            hottest = a + np.argsort(-graph.load[a:b], kind="stable")[:cap]
            tables[name] = hash_table(slots).pin_hashes(graph.h[hottest], slot[hottest])
    return tables


def placement(graph: KeyGraph, tables: Mapping[str, RoutingTable]) -> I32:
    """The slot of every vertex under these tables."""
    slot = np.where(graph.fixed != FREE, graph.fixed, 0).astype(np.int32)
    for i, name in enumerate(graph.operators):
        a, b = graph.starts[i], graph.starts[i + 1]
        if (graph.fixed[a:b] == FREE).all():
            slot[a:b] = tables[name].route(graph.h[a:b])
    return slot
