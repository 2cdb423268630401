"""A query in the testing kit: the engine without a JVM, over the same files, to their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import headgate as hg
from headgate.testing import LocalRun, ManualClock, run
from headgate_lab.nexmark.auction_site import AuctionSite
from headgate_lab.nexmark.event_files import EventFiles
from headgate_lab.nexmark.query import Query, last_rows

RESULTS = "results"
Collects = Callable[[Any, int], None]
EPOCH_MS = 4_000  # of processing time, between two epochs


def clock_ms(epoch: int) -> int:
    """The processing time of an epoch, for q12."""
    return epoch * EPOCH_MS


def declare(query: Query, files: EventFiles, out: Path, collect: Collects | None = None) -> hg.Flow:
    """The query's flow over the files; results go to a sink `results`."""
    flow = hg.Flow(query.name)

    def read(name: str) -> hg.Files:
        table = files.tables[name]
        return hg.Files(table.directory, max_files=table.files_per_epoch)

    results = query.declare(AuctionSite(flow, read, side=str(files.side), out=str(out)))
    if collect is not None:
        results.to(collect, name=RESULTS)
    else:
        results.to_memory(RESULTS)
    return flow


def run_in_kit(
    query: Query,
    files: EventFiles,
    work: Path,
    *,
    collect: Collects | None = None,
    **settings: Any,
) -> LocalRun:
    """All epochs, from where the checkpoint is; the last of them closes what is open.

    `collect` is called with the rows of an epoch, again if a start delivers them again.
    """
    clock = ManualClock()

    def begin(epoch: int) -> None:
        clock.now_ms = clock_ms(epoch)

    settings.setdefault("check_purity", False)
    flow = declare(query, files, work / "out", collect)
    return run(flow, clock=clock, before_epoch=begin, input_ends=True, **settings)


def results_of(query: Query, done: LocalRun, rows: list[dict[str, Any]] | None = None) -> pa.Table:
    """The rows that count, of those of this run, or of these."""
    program = done.coordinator.program
    node = next(node for node in program.sinks if node.name == RESULTS)
    told = done.rows(RESULTS) if rows is None else rows
    table = pa.Table.from_pylist(told, schema=program.node_schema[node.id])
    return last_rows(table, query.key)
