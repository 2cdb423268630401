"""A query in the testing kit: the engine without a JVM, over the same files, to their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from headgate.testing import LocalRun, ManualClock, run
from headgate_lab.nexmark.auction_site import AuctionSite
from headgate_lab.nexmark.event_files import EventFiles
from headgate_lab.nexmark.query import Query, last_rows

RESULTS = "results"
EPOCH_MS = 4_000  # of processing time, between two epochs


def clock_ms(epoch: int) -> int:
    """The processing time of an epoch, for q12."""
    return epoch * EPOCH_MS


def declare(query: Query, files: EventFiles, out: Path) -> hg.Flow:
    """The query's flow over the files; results go to a sink `results`, those of q10 to `out`."""
    flow = hg.Flow(query.name)

    def read(name: str) -> hg.Files:
        table = files.tables[name]
        return hg.Files(table.directory, max_files=table.files_per_epoch)

    results = query.declare(AuctionSite(flow, read, side=str(files.side), out=str(out)))
    if results is not None:
        results.to_memory(RESULTS)
    return flow


def run_in_kit(
    query: Query,
    files: EventFiles,
    work: Path,
    *,
    before_epoch: Callable[[int], None] | None = None,
    **settings: Any,
) -> LocalRun:
    """All epochs, from where the checkpoint is; the last of them closes what is open."""
    clock = ManualClock()

    def begin(epoch: int) -> None:
        clock.now_ms = clock_ms(epoch)
        if before_epoch is not None:
            before_epoch(epoch)

    settings.setdefault("check_purity", False)
    flow = declare(query, files, work / "out")
    return run(flow, clock=clock, before_epoch=begin, input_ends=True, **settings)


def results_of(query: Query, done: LocalRun, work: Path) -> pa.Table:
    """The rows that count."""
    if RESULTS not in done.outputs:
        return written(work / "out")
    program = done.coordinator.program
    node = next(node for node in program.sinks if node.name == RESULTS)
    rows = pa.Table.from_pylist(done.rows(RESULTS), schema=program.node_schema[node.id])
    return last_rows(rows, query.key)


def written(folder: Path) -> pa.Table:
    """What q10 has written, with the columns that its folders name."""
    paths = sorted(folder.rglob("*.parquet"))
    parts = []
    for path in paths:
        table = pq.ParquetFile(path).read()
        for part in path.relative_to(folder).parts[:-1]:
            name, _, value = part.partition("=")
            text = pa.repeat(pa.scalar(unquote(value)), len(table))
            table = table.append_column(name, text)
        parts.append(table)
    return pa.concat_tables(parts)
