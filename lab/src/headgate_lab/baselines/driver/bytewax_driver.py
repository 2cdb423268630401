"""Two chained counts in Bytewax: `python bytewax_driver.py WORK_DIR FILE...`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import (  # type: ignore[import-not-found]
    FixedPartitionedSource,
    StatefulSourcePartition,
)
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.testing import run_main  # type: ignore[import-not-found]

_BATCH_ROWS = 1_000  # 199 k rows/s; 190 k with 10,000, 180 k with 100,000 (one run each)

Pair = tuple[str, str]
Counts = dict[str, int]


class _Rows(StatefulSourcePartition):  # type: ignore[misc]
    def __init__(self, paths: list[str]) -> None:
        self._batches = self._read(paths)

    @staticmethod
    def _read(paths: list[str]) -> Iterator[list[Pair]]:
        for path in paths:
            for batch in pq.read_table(path).to_batches(max_chunksize=_BATCH_ROWS):
                k1, k2 = batch.column("k1").to_pylist(), batch.column("k2").to_pylist()
                yield list(zip(map(str, k1), map(str, k2), strict=True))

    def next_batch(self) -> list[Pair]:
        return next(self._batches)

    def snapshot(self) -> None:
        return None


class _Source(FixedPartitionedSource):  # type: ignore[misc]
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, *_: Any) -> _Rows:
        return _Rows(self._paths)


class _Count(op.StatefulBatchLogic):  # type: ignore[misc]
    """Counts its key's values, passes them on, and emits the count (an int) when all is read."""

    def __init__(self, state: int | None) -> None:
        self.count = state or 0

    def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
        self.count += len(values)
        return values, False

    def on_eof(self) -> tuple[list[int], bool]:
        return [self.count], False

    def snapshot(self) -> int:
        return self.count


class _FinalPart(StatelessSinkPartition):  # type: ignore[misc]
    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def write_batch(self, items: list[tuple[str, int | None]]) -> None:
        self._counts.update((key, count) for key, count in items if count is not None)


class _FinalCounts(DynamicSink):  # type: ignore[misc]
    """Drops the rows and keeps the final counts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def build(self, *_: Any) -> _FinalPart:
        return _FinalPart(self._counts)


def _flow(paths: list[str], by_k1: Counts, by_k2: Counts) -> Dataflow:
    def key_on_k2(batch: list[tuple[str, Any]]) -> list[tuple[str, None]]:
        rows = [(value, None) for _, value in batch if value.__class__ is str]
        if len(rows) < len(batch):
            by_k1.update(pair for pair in batch if pair[1].__class__ is int)
        return rows

    flow = Dataflow("two_counts")
    rows = op.input("in", flow, _Source(paths))
    rows = op.stateful_batch("by_k1", rows, _Count)
    rows = op.flat_map_batch("key_on_k2", rows, key_on_k2)
    rows = op.stateful_batch("by_k2", rows, _Count)
    op.output("out", rows, _FinalCounts(by_k2))
    return flow


def _main(work_dir: Path, paths: list[str]) -> None:
    by_k1: Counts = {}
    by_k2: Counts = {}
    flow = _flow(paths, by_k1, by_k2)
    start = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - start
    for name, counts in (("k1", by_k1), ("k2", by_k2)):
        columns = {"key": [int(key) for key in counts], "count": list(counts.values())}
        pq.write_table(pa.table(columns), work_dir / f"bytewax-{name}.parquet")
    sys.stdout.write(json.dumps({"seconds": seconds, "rows": sum(by_k1.values())}) + "\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
