"""Seeded streams of benchmarks: keys that follow each other, in rows of any size.

World and rows follow from seed and epoch, as in `headgate.demo`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.arrays import I64
from headgate.demo import generators, zipf_weights

_PAYLOAD_CHUNK_BYTES = 1 << 28  # an Arrow binary array ends at 2 GB; stay far below


def correlated_pairs(
    rows: int,
    *,
    seed: int,
    epoch: int = 0,
    k1: int = 2_000,
    k2: int = 20_000,
    zipf: float = 1.0,
    correlation: float = 0.8,
    partners: int | None = None,
    payload_bytes: int = 0,
) -> pa.Table:
    """Rows (k1, k2[, payload]) whose second key mostly follows from the first.

    `k1` is Zipfian with exponent `zipf` over `k1` keys. With probability `correlation`, `k2` is
    one of its k1's `partners` (default: as many as give every k2 to one k1), else any key.
    Partners of neighbouring k1 overlap when `partners` > k2 / k1; the key graph can still be cut.
    """
    world, draw = generators(seed, epoch)
    name1, name2 = world.permutation(k1), world.permutation(k2)
    width = max(1, k2 // k1) if partners is None else partners

    rank = draw.choice(k1, size=rows, p=zipf_weights(k1, zipf))
    partner = (rank * k2 // k1 + draw.integers(0, width, rows)) % k2
    anyone = draw.integers(0, k2, rows)
    second = np.where(draw.random(rows) < correlation, partner, anyone)

    columns = {"k1": pa.array(name1[rank]), "k2": pa.array(name2[second])}
    if payload_bytes:
        columns["payload"] = _payload(draw, rows, payload_bytes)
    return pa.table(columns)


@dataclass(frozen=True)
class KeyChain:
    """Rows with keys k1..kn, and the cluster of every key: `clusters[p][key]` for key k(p+1)."""

    table: pa.Table
    clusters: tuple[I64, ...]


def chain_keys(
    rows: int,
    *,
    seed: int,
    epoch: int = 0,
    chain: int = 4,
    keys: int = 1_000,
    payload_bytes: int = 4_000,
    clusters: int = 12,
    locality: float = 0.8,
) -> KeyChain:
    """Large rows that visit a chain of keys and mostly stay in one cluster of keys.

    The clusters of a position are equal in size (to one key) and in load. Each hop stays in its
    cluster with probability `locality`, else it goes to any *other* one. A table that gives whole
    clusters to slots therefore keeps at least `locality` of each hop in place, and exactly that
    when it gives one cluster to a slot; a hash keeps 1 / slots.
    """
    world, draw = generators(seed, epoch)
    of_key = tuple(world.permutation(keys) % clusters for _ in range(chain))

    here = draw.integers(0, clusters, rows)
    columns = {}
    for position, cluster_of_key in enumerate(of_key, start=1):
        if position > 1 and clusters > 1:
            away = (here + draw.integers(1, clusters, rows)) % clusters
            here = np.where(draw.random(rows) < locality, here, away)
        columns[f"k{position}"] = pa.array(_member(draw, cluster_of_key, here, clusters))
    columns["payload"] = _payload(draw, rows, payload_bytes)
    return KeyChain(pa.table(columns), of_key)


def _member(draw: np.random.Generator, cluster_of_key: I64, cluster: I64, clusters: int) -> I64:
    """For every row any key of its cluster, each as likely as the next."""
    by_cluster = np.argsort(cluster_of_key, kind="stable")
    size = np.bincount(cluster_of_key, minlength=clusters)
    start = np.cumsum(size) - size
    inside = (draw.random(len(cluster)) * size[cluster]).astype(np.int64)
    chosen: I64 = by_cluster[start[cluster] + inside]
    return chosen


def _payload(draw: np.random.Generator, rows: int, width: int) -> pa.ChunkedArray:
    """`rows` binary values of `width` random bytes: no codec makes them smaller."""
    at_once = max(1, _PAYLOAD_CHUNK_BYTES // max(1, width))
    chunks = []
    for done in range(0, rows, at_once):
        count = min(at_once, rows - done)
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(draw.bytes(count * width))]
        chunks.append(pa.Array.from_buffers(pa.binary(), count, buffers))
    return pa.chunked_array(chunks, type=pa.binary())
